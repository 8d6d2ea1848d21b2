//! An app's migrations, as Argo CD runs them before a sync: `migrations/<environment>/<app>/migrations.yaml`.
//!
//! The file holds a ConfigMap with the migrations and a Job that runs `fabrique migrate` on them. Both are PreSync hooks,
//! the ConfigMap a wave before the Job, so that a migration that fails fails the sync before any workload changes; both
//! are deleted before they are made again, so that the next sync works. The Application of the environment reads the
//! folder as a second source.
//!
//! The files are those of `source.migrations` at the revision of the image, in the order of `dependsOn.migrations` there.
//! What was applied cannot be taken back: an older image brings its shorter list, and whoever runs it leaves alone what a newer
//! one did.

mod job;
mod write;

use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_declarations::contract::Database;
use fabrique_declarations::name::ObjectName;
use fabrique_declarations::{At, Contract, Declaration};
use fabrique_yaml::{Finding, Yaml};

use super::MARK;
use super::stands::value;
use crate::changes::Scope;
use crate::layout;
use crate::plan::Planned;
use crate::refusal::Refusal;
use crate::tree::{Entry, FileKind, Tree};

/// The most bytes of migrations as they are written: a ConfigMap holds 1 MiB, and no file of more is read as YAML. What
/// stands around them has the rest.
const LARGEST: usize = (1 << 20) - (16 << 10);
/// The key of the ConfigMap that names the others in their order. No migration is called so: they end with `.sql`.
const ORDER: &str = "order";
/// The keys of the secret that the database is opened with.
const CREDENTIALS: [&str; 2] = ["username", "password"];

/// What an installation says about how migrations are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// fabrique's own image, by digest.
    pub image: String,
    /// How connections are encrypted, in the words of libpq's `sslmode`.
    pub tls: String,
    /// How long one run may take, in seconds.
    pub limit: u32,
}

/// Migrations in the order in which they are applied: name and text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Migrations(Vec<(String, String)>);

/// Where migrations go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    namespace: String,
    host: String,
    database: String,
    secret: String,
}

impl Migrations {
    /// Those that `declaration` names, out of the files of `folder`, called by their path in it. Findings call the
    /// declaration `file`.
    ///
    /// # Errors
    /// The first that is not there or cannot be text of a ConfigMap; a set that is too big for one.
    pub fn pick(
        file: &str,
        declaration: &Declaration,
        folder: &RelPath,
        there: impl IntoIterator<Item = (RelPath, Entry)>,
    ) -> Result<Self, Finding> {
        let there: std::collections::BTreeMap<RelPath, Entry> = there.into_iter().collect();
        let mut picked = Vec::new();
        for name in &declaration.depends_on.migrations {
            let tell = |what: String, remedy: &str| at(file, name.place(), what, remedy);
            let entry = RelPath::parse(name.value.as_str()).ok().and_then(|path| there.get(&path));
            let Some(entry) = entry else {
                let what = format!("{} is not in {folder} at this revision", name.value);
                return Err(tell(what, "commit the file together with the declaration that names it"));
            };
            if !matches!(entry.kind, FileKind::Regular | FileKind::Executable) {
                let what = format!("{folder}/{} is a symlink or a submodule", name.value);
                return Err(tell(what, "write the file itself"));
            }
            let text = std::str::from_utf8(&entry.bytes).ok().filter(|text| !text.contains('\0'));
            let Some(text) = text else {
                let what = format!("{folder}/{} is not text in UTF-8", name.value);
                return Err(tell(what, "PostgreSQL reads nothing else: save it as UTF-8"));
            };
            picked.push((name.value.as_str().to_owned(), text.to_owned()));
        }
        let migrations = Self(picked);
        let bytes = write::data(&migrations).len();
        if bytes > LARGEST {
            let what = format!(
                "the migrations have {bytes} bytes together as they are written, with four before each line, and {LARGEST} is \
                 the limit"
            );
            let remedy = "keep what changes the schema, and load data from elsewhere: a bucket, or the app's first start";
            let place = declaration
                .depends_on
                .migrations
                .first()
                .map_or(At { value: (), line: 0, column: 0 }, At::place);
            return Err(at(file, place, what, remedy));
        }
        Ok(migrations)
    }

    /// The first of them that is another one than `stands`, the file of an environment, runs in its place. Findings call the
    /// declaration of these `file`.
    ///
    /// What was applied is never edited, moved or taken out, which the ledger knows and whoever runs them refuses. A file shows what
    /// was to be applied: all of it was, or all before one that never worked. That one is taken to be the last, which may be corrected
    /// or taken back.
    #[must_use]
    pub fn edited(&self, file: &str, declaration: &Declaration, stands: &[u8]) -> Option<Finding> {
        let before = Self::read(stands)?;
        let applied = before.0.len().saturating_sub(1);
        let mut named = declaration.depends_on.migrations.iter();
        for ((was, text), (is, wanted)) in before.0.iter().take(applied).zip(&self.0) {
            let place = named.next().map_or(At { value: (), line: 0, column: 0 }, At::place);
            let what = match was == is {
                true if text == wanted => continue,
                true => {
                    format!("{is} was edited since it was deployed, and an applied migration stays as it is")
                }
                false => format!(
                    "{is} is in the place of {was}, which was deployed, and an applied migration keeps its place"
                ),
            };
            let remedy = "restore it, and write what is to change as a new file behind the others; if it never was applied, \
                          `fabrique release` lets this revision pass";
            return Some(at(file, place, what, remedy));
        }
        None
    }

    /// Those of a rendered file; nothing where a person wrote it.
    fn read(stands: &[u8]) -> Option<Self> {
        if !stands.starts_with(MARK.as_bytes()) {
            return None;
        }
        let yaml = Yaml::parse(stands).ok()?;
        let data = value(yaml.documents().first()?, "data")?;
        let file = |name: &str| Some((name.to_owned(), value(data, name)?.text()?.to_owned()));
        value(data, ORDER)?.text()?.lines().map(file).collect::<Option<_>>().map(Self)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn order(&self) -> String {
        self.0.iter().map(|(name, _)| format!("{name}\n")).collect()
    }
}

impl Target {
    /// Where the migrations of an app go that is deployed into `namespace`: to the one database that it depends on, with
    /// the one secret among those it depends on that has `username` and `password`. Of several, it is the one that is
    /// derived from a secret beside the database.
    ///
    /// # Errors
    /// When it is not one of each, or the secret is in another namespace.
    pub fn of(
        file: &str,
        declaration: &Declaration,
        contract: &Contract,
        namespace: &str,
    ) -> Result<Self, Finding> {
        let needs = &declaration.depends_on;
        let place = needs.migrations.first().map_or(At { value: (), line: 0, column: 0 }, At::place);
        let tell = |place: At<()>, what: String, remedy: &str| at(file, place, what, remedy);
        let [database] = &needs.database[..] else {
            let what = format!(
                "migrations go to one database, and dependsOn.database names {}",
                needs.database.len()
            );
            return Err(tell(place, what, "name the one that they are for"));
        };
        let Some(offered) = contract.databases.get(&database.value) else {
            let what = format!("the contract has no database {}", database.value);
            return Err(tell(database.place(), what, "name one of the contract"));
        };
        let opening = opening(declaration, contract, &offered.value);
        let [secret] = opening[..] else {
            let what = format!(
                "migrations need one secret with username and password, and dependsOn.secrets has {}",
                opening.len()
            );
            let remedy = "name the one of the database, and no other like it; of several, the one that contract.yaml derives \
                          from the database's namespace is taken";
            return Err(tell(place, what, remedy));
        };
        let home = contract.secrets.get(&secret.value).map(|secret| secret.value.namespace.as_str());
        if home != Some(namespace) {
            let what =
                format!("{} is in {}, and the app in {namespace}", secret.value, home.unwrap_or_default());
            return Err(tell(secret.place(), what, "offer it in the contract where the app is"));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            host: format!("{}-rw.{}.svc", offered.value.cluster, offered.value.namespace),
            database: database.value.as_str().to_owned(),
            secret: secret.value.as_str().to_owned(),
        })
    }
}

/// The secrets of `declaration` that may open `database`.
fn opening<'d>(
    declaration: &'d Declaration,
    contract: &Contract,
    database: &Database,
) -> Vec<&'d At<ObjectName>> {
    let offered = |secret: &&At<ObjectName>| contract.secrets.get(&secret.value).map(|secret| &secret.value);
    let has_keys = |secret: &&At<ObjectName>| {
        offered(secret).is_some_and(|offered| {
            CREDENTIALS.iter().all(|key| offered.keys.iter().any(|has| has.as_str() == *key))
        })
    };
    let is_beside = |secret: &&At<ObjectName>| {
        let from = offered(secret).and_then(|offered| offered.from.as_ref());
        from.is_some_and(|from| from.namespace == database.namespace)
    };
    let all: Vec<&At<ObjectName>> = declaration.depends_on.secrets.iter().filter(has_keys).collect();
    let beside: Vec<&At<ObjectName>> = all.iter().copied().filter(is_beside).collect();
    if beside.len() == 1 { beside } else { all }
}

fn at(file: &str, place: At<()>, what: String, remedy: &str) -> Finding {
    let (line, column) = (place.line, place.column);
    Finding { file: file.to_owned(), line, column, what, remedy: remedy.to_owned() }
}

/// The file as it should be, or nothing where there is nothing to run.
///
/// What a person wrote stays. Where a file stands, there is one afterwards: its Application reads the folder.
#[must_use]
pub fn render(
    tree: &Tree,
    app: &AppName,
    environment: &EnvironmentName,
    wanted: &Migrations,
    target: &Target,
    runner: &Runner,
) -> Option<(RelPath, String)> {
    let file = layout::migrations_of(app, environment);
    match tree.content(&file) {
        Some(stands) if !stands.starts_with(MARK.as_bytes()) => return None,
        None if wanted.is_empty() => return None,
        Some(_) | None => {}
    }
    let text =
        [write::config_map(app, environment, wanted, target), job::job(app, environment, target, runner)];
    Some((file, format!("{MARK} from the app's migrations; edits are overwritten.\n{}", text.join("---\n"))))
}

/// The file of an app that has no migrations any more, nor the database that they were for: nothing is run, and no
/// secret is mounted. It stays, since its Application reads the folder; what a person wrote stays as it is.
#[must_use]
pub fn given_up(tree: &Tree, app: &AppName, environment: &EnvironmentName) -> Option<(RelPath, String)> {
    let file = layout::migrations_of(app, environment);
    let is_ours = tree.content(&file).is_some_and(|stands| stands.starts_with(MARK.as_bytes()));
    let text = format!(
        "{MARK} from the app's migrations; edits are overwritten.\n# It has none, and names no database with its secret.\n"
    );
    is_ours.then_some((file, text))
}

/// Adds a rendered file to the commit of the image that needs it.
///
/// # Errors
/// When it cannot be written.
pub fn along(mut planned: Planned, tree: &Tree, (file, text): (RelPath, String)) -> Result<Planned, Refusal> {
    if tree.content(&file).is_some_and(|stands| stands == text.as_bytes()) {
        return Ok(planned);
    }
    planned.changes.also_within(Scope::Migrations);
    planned.changes.write(file, text)?;
    tree.apply(&planned.changes)?;
    Ok(planned)
}

/// The folder that the Application of an environment reads beside its own, where there is one.
pub(super) fn source(tree: &Tree, app: &AppName, environment: &EnvironmentName) -> Option<RelPath> {
    let file = layout::migrations_of(app, environment);
    tree.content(&file).map(|_| layout::migrations_folder(app, environment))
}

#[cfg(test)]
mod tests;
