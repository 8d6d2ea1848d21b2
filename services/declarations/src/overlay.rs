//! Overlays as an app's repository keeps them: placeholders where the cluster fills them, and nothing that only a
//! deployment knows.
//!
//! The app's repository never resolves the image that is delivered: it names points of injection, each at its place
//! and in its form, and `kustomize build` passes on them as they are. A literal digest, a tag or the registry's
//! address in an overlay would be a value of one deployment in versioned defaults.

mod inside;
mod placed;
mod spots;

use fabrique_core::id::AppName;
use fabrique_core::image::ImageReference;
use fabrique_yaml::{Node, Yaml, did_you_mean};

use crate::contract::{ImageField, Place, Placeholder};
use crate::{At, Finding};
use inside::Inside;
pub use placed::{Placed, Survey, survey};
pub use spots::is_remote;
use spots::{Scalar, Spot, scalars, words};

/// How `kustomize build` finds what it starts from.
pub const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// A file of an overlay, or one that it reaches.
#[derive(Debug, Clone, Copy)]
pub struct File<'f> {
    /// What findings call it.
    pub path: &'f str,
    /// Its content.
    pub bytes: &'f [u8],
    /// Whether it lies in the overlay's own directory, and not in a base that others may share.
    pub own: bool,
}

/// Everything that is wrong with an overlay, whose directory findings call `directory`.
#[must_use]
pub fn findings(
    app: &AppName,
    placeholders: &[Placeholder],
    directory: &str,
    files: &[File<'_>],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbered = files.iter().enumerate();
    let read: Vec<Parsed<'_>> =
        numbered.filter_map(|(index, file)| Parsed::new(index, *file, &mut findings)).collect();
    let top = read.iter().find(|file| file.is_top(directory));
    if top.is_none() {
        let what = format!("holds no {}", KUSTOMIZATIONS[0]);
        findings.push(Finding::of_file(directory, what, "add one, or name the overlay's directory"));
        return findings;
    }
    let tokens = tokens(app, placeholders);
    let mut survey = Survey::default();
    for token in &tokens {
        placed::look_for(token, top.map_or(directory, |file| file.file.path), &read, &mut survey);
    }
    findings.extend(survey.into_findings());
    let mut check = Check { own_images: own_images(&read, &tokens), read: &read, tokens: &tokens, findings };
    check.values();
    check.findings.sort();
    check.findings.dedup();
    check.findings
}

fn tokens<'p>(app: &AppName, placeholders: &'p [Placeholder]) -> Vec<Token<'p>> {
    placeholders.iter().map(|placeholder| Token { placeholder, text: placeholder.of(app) }).collect()
}

struct Token<'p> {
    placeholder: &'p Placeholder,
    /// As it is written for this app.
    text: String,
}

impl Token<'_> {
    /// Whether it stands in a text as a whole word.
    fn stands_in(&self, text: &str) -> bool {
        words(text).any(|word| word == self.text)
    }

    fn belongs(&self, spot: Spot<'_>) -> bool {
        match (&self.placeholder.place, spot) {
            (Place::Images(ImageField::Digest), Spot::ImageDigest { .. }) => true,
            (Place::Env(variable), Spot::Env(name)) => variable.as_str() == name,
            (Place::Images(_) | Place::Env(_), _) => false,
        }
    }

    fn place(&self) -> String {
        match &self.placeholder.place {
            Place::Images(ImageField::Digest) => "images[].digest of the kustomization".to_owned(),
            Place::Env(variable) => format!("the value of the variable {variable}"),
        }
    }
}

/// A file whose values are known.
struct Parsed<'f> {
    file: File<'f>,
    /// Its place among all files.
    index: usize,
    /// Nothing for a file that is not YAML.
    yaml: Option<Yaml>,
    /// What can be read and not be filled.
    inside: Vec<Inside>,
}

impl<'f> Parsed<'f> {
    /// A YAML file that is none is told; any other file counts by its words.
    fn new(index: usize, file: File<'f>, findings: &mut Vec<Finding>) -> Option<Self> {
        if !is_yaml(file.path) {
            let inside = Inside::json(file).into_iter().collect();
            return Some(Self { file, index, yaml: None, inside });
        }
        match Yaml::parse(file.bytes) {
            Ok(yaml) => {
                let inside = match is_kustomization(file.path) {
                    true => Inside::patches(&yaml),
                    false => Vec::new(),
                };
                Some(Self { file, index, yaml: Some(yaml), inside })
            }
            Err(error) => {
                let finding = Finding::of_file(file.path, error.what, error.remedy);
                findings.push(Finding { line: error.line, column: error.column, ..finding });
                None
            }
        }
    }

    fn is_top(&self, directory: &str) -> bool {
        let inside = self.file.path.strip_prefix(directory).filter(|_| directory != ".");
        let name = inside.map_or(self.file.path, |inside| inside.trim_start_matches('/'));
        KUSTOMIZATIONS.contains(&name)
    }

    fn scalars(&self) -> Vec<Scalar<'_>> {
        self.yaml.as_ref().map(|yaml| scalars(yaml, is_kustomization(self.file.path))).unwrap_or_default()
    }
}

fn is_yaml(path: &str) -> bool {
    is_kustomization(path) || [".yaml", ".yml"].iter().any(|end| path.ends_with(end))
}

fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATIONS.contains(&path.rsplit('/').next().unwrap_or_default())
}

/// The names of the images whose digest the cluster fills.
fn own_images<'y>(read: &'y [Parsed<'_>], tokens: &[Token<'_>]) -> Vec<&'y str> {
    let scalars = read.iter().flat_map(Parsed::scalars);
    let names = scalars.filter_map(|scalar| match scalar.spot {
        Spot::ImageDigest { of } if tokens.iter().any(|token| token.text == scalar.text) => of,
        _ => None,
    });
    names.collect()
}

struct Check<'c, 'f> {
    read: &'c [Parsed<'f>],
    tokens: &'c [Token<'c>],
    own_images: Vec<&'c str>,
    findings: Vec<Finding>,
}

impl<'c> Check<'c, '_> {
    fn tell(&mut self, file: &str, place: At<()>, what: String, remedy: String) {
        let finding = Finding::of_file(file, what, remedy);
        self.findings.push(Finding { line: place.line, column: place.column, ..finding });
    }

    /// Nothing else of a deployment stands anywhere.
    fn values(&mut self) {
        for file in self.read {
            for scalar in file.scalars() {
                // A patch is judged by what is in it.
                if !file.inside.iter().any(|inside| inside.is_of(scalar.node)) {
                    self.value(file, &scalar, scalar.place());
                }
            }
            for inside in &file.inside {
                for scalar in scalars(&inside.yaml, false) {
                    self.value(file, &scalar, inside.place(file.file, &scalar));
                }
            }
            if file.yaml.is_none() && file.inside.is_empty() {
                for (index, line) in String::from_utf8_lossy(file.file.bytes).lines().enumerate() {
                    self.registry(file.file.path, At { value: (), line: index + 1, column: 1 }, line);
                }
            }
        }
    }

    fn value(&mut self, file: &Parsed<'_>, scalar: &Scalar<'c>, at: At<()>) {
        let (path, text) = (file.file.path, scalar.text);
        if let Some(stranger) = words(text).find(|word| self.is_stranger(word)) {
            let known: Vec<&str> = self.tokens.iter().map(|token| token.text.as_str()).collect();
            let remedy = did_you_mean(stranger, &known).map(|near| format!("did you mean {near}?"));
            let remedy =
                remedy.unwrap_or_else(|| format!("the placeholders of this app are {}", known.join(", ")));
            return self.tell(path, at, format!("nobody fills the placeholder {stranger}"), remedy);
        }
        if self.tokens.iter().any(|token| token.stands_in(text)) {
            return;
        }
        match scalar.spot {
            Spot::ImageDigest { of } => self.literal_digest(path, at, of),
            Spot::ImageTag { .. } => {
                let what = format!("newTag {text} is a tag, which can be moved");
                self.tell(path, at, what, "write digest in its place".to_owned());
            }
            Spot::ImageNewName if registry_of(text).is_some() => {
                let what = format!("newName {text} names a registry");
                self.tell(
                    path,
                    at,
                    what,
                    "write the whole name as the name to match, and remove newName".to_owned(),
                );
            }
            Spot::Container => self.container(file, at, text),
            Spot::Env(variable) if self.token_of(variable).is_some() => {
                let token = self.token_of(variable).unwrap_or_default();
                self.tell(
                    path,
                    at,
                    format!("{variable} is {text:?}, which only a deployment knows"),
                    format!("write {token}"),
                );
            }
            Spot::Remote => {
                let what = format!("{text:?} is not in this repository");
                self.tell(
                    path,
                    at,
                    what,
                    "copy it into the repository: the cluster fetches nothing".to_owned(),
                );
            }
            Spot::ImageName => {}
            Spot::ImageNewName | Spot::Env(_) | Spot::Other => self.registry(path, at, text),
        }
    }

    /// A word that looks like a placeholder of an image and is none of this app's.
    fn is_stranger(&self, word: &str) -> bool {
        let inner = word.strip_prefix("__").and_then(|rest| rest.strip_suffix("__")).unwrap_or_default();
        inner.contains("IMAGE") && !self.tokens.iter().any(|token| token.text == word)
    }

    /// What has to stand in a variable that is a placeholder's place.
    fn token_of(&self, variable: &str) -> Option<&'c str> {
        let mut tokens = self.tokens.iter();
        tokens.find(|token| token.belongs(Spot::Env(variable))).map(|token| token.text.as_str())
    }

    /// A digest of somebody else's image may be written; of the app's own, it may not. Without a placeholder nobody
    /// knows which one is the app's.
    fn literal_digest(&mut self, path: &str, at: At<()>, of: Option<&str>) {
        if self.own_images.is_empty() || of.is_some_and(|name| self.own_images.contains(&name)) {
            let token = self.tokens.iter().find(|token| token.belongs(Spot::ImageDigest { of: None }));
            let Some(token) = token else { return };
            let what = "a literal digest stands where the cluster fills one".to_owned();
            self.tell(path, at, what, format!("write digest: {}", token.text));
        }
    }

    fn container(&mut self, file: &Parsed<'_>, at: At<()>, text: &str) {
        let image = ImageReference::split(text);
        let path = file.file.path;
        if self.own_images.contains(&image.repository) {
            if image.digest.is_some() {
                let what = format!("the image {text} has a literal digest");
                self.tell(path, at, what, format!("write {}", image.repository));
            } else if let Some(tag) = image.tag.filter(|_| file.file.own) {
                let what = format!("the image {} has the tag {tag}, which can be moved", image.repository);
                self.tell(path, at, what, format!("write {}", image.repository));
            }
        } else if self.is_decided(image.repository) {
            // Whatever tag it has, the kustomization replaces it.
        } else if image.digest.is_some() {
            self.registry(path, at, text);
        } else {
            let tag = image.tag.unwrap_or("latest");
            let what = format!("the image {} has the tag {tag}, which can be moved", image.repository);
            self.tell(path, at, what, format!("write {}@sha256:…", image.repository));
        }
    }

    /// Whether a kustomization says which image this is; or names it, while nobody knows which image is the app's.
    fn is_decided(&self, name: &str) -> bool {
        let mut scalars = self.read.iter().flat_map(Parsed::scalars);
        scalars.any(|scalar| match scalar.spot {
            Spot::ImageDigest { of } | Spot::ImageTag { of } => of == Some(name),
            Spot::ImageName => self.own_images.is_empty() && scalar.text == name,
            Spot::ImageNewName | Spot::Env(_) | Spot::Container | Spot::Remote | Spot::Other => false,
        })
    }

    fn registry(&mut self, path: &str, at: At<()>, text: &str) {
        let registries = self.own_images.iter().filter_map(|image| registry_of(image));
        let Some(registry) = registries.into_iter().find(|registry| names_host(text, registry)) else {
            return;
        };
        let what = format!("the registry {registry} is named outside of the image name to match");
        self.tell(
            path,
            at,
            what,
            "remove it, or write the placeholder of the whole reference at its place".to_owned(),
        );
    }
}

fn registry_of(name: &str) -> Option<&str> {
    ImageReference::split(name).registry()
}

/// Whether a text names a host, and not another one whose name ends or goes on like it.
fn names_host(text: &str, host: &str) -> bool {
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let mut found = text.match_indices(host);
    found.any(|(at, _)| !text[..at].ends_with(is_host) && !text[at + host.len()..].starts_with(is_host))
}

impl Scalar<'_> {
    fn place(&self) -> At<()> {
        place(self.node)
    }
}

fn place(node: &Node) -> At<()> {
    At::node((), node)
}

#[cfg(test)]
mod tests;
