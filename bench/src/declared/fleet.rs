//! The apps: what their repositories and `cluster/apps` hold.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::GitRepo;
use fabrique_stage::{AppOptions, SampleApp, Stage};

/// Repositories that the apps share, each app in a folder of its own.
pub(super) const REPOS: u32 = 5;
/// Apps that depend on each other in a row; the next ones begin anew.
const ROW: u32 = 10;
/// What turns rendering on.
pub(super) const RENDERS: [(&str, &str); 2] = [
    ("FABRIQUE_RENDER__ENABLED", "true"),
    ("FABRIQUE_RENDER__DESTINATIONS", r#"[{environment="prod", namespaces=["apps"]}]"#),
];
const MANIFEST: &str = "code-location.manifest.yaml";
const CONTRACT: &str = "\
apiVersion: fabrique/v1
kind: Contract
version: 1
accepts: [1]
endpoints: { gitea: 'http://gitea:3000', argocd: 'https://argocd', registry: 'registry:80', nats: 'nats://nats:4222' }
databases: { shared: { namespace: postgres, cluster: pg, owner: shared } }
secrets: { shared-auth: { namespace: apps, keys: [username, password], from: { namespace: postgres, secret: pg-role } } }
environments:
  prod:
    cpu: { capacity: 1000, reserve: 10% }
    memory: { capacity: 4Ti, reserve: 10% }
    block: { defaultClass: block, classes: { block: { capacity: 100Ti, reserve: 10% } } }
    object: { defaultClass: object, defaultSize: 1Gi, classes: { object: { capacity: 100Ti, reserve: 10% } } }
";

/// The servers, and what is on them.
pub(super) struct Declared {
    pub(super) stage: Stage,
    /// A clone of `cluster/apps` at its head.
    pub(super) checkout: GitRepo,
    /// All files of the apps' repositories, in one folder.
    pub(super) sources: PathBuf,
}

impl Declared {
    /// Starts the servers, and registers, deploys and renders `count` apps by hand.
    pub(super) async fn gather(binary: &Path, count: u32) -> Result<Self> {
        let stage = Stage::builder().start(binary).await?;
        let sources = stage.bed.folder().join("sources");
        let checkout = stage.clone_apps().await?;
        checkout.write("contract.yaml", CONTRACT).await?;
        for number in 0..REPOS.min(count) {
            let repo = format!("fleet-{number}");
            let apps: Vec<u32> = (number..count).step_by(REPOS as usize).collect();
            let mut source = stage.create_source("atlas", &repo, false).await?;
            for app in &apps {
                source.write(&format!("{}/{MANIFEST}", name_of(*app)), declaration(*app)?).await?;
                let sample = SampleApp::over(&stage, options(*app, &repo), source);
                sample.write_source("first").await?;
                checkout.write(&format!("apps/{}/app.yaml", name_of(*app)), registration(&sample)?).await?;
                source = sample.source;
            }
            copy(source.path(), &sources.join(&repo))?;
            let head = source.commit("Declare").await?;
            source.push().await?;
            for app in apps {
                let image = format!("{}/{}", stage.bed.registry().host(), name_of(app));
                deploy(&checkout, &source, app, &image, (&repo, &head)).await?;
            }
        }
        let declared = Self { stage, checkout, sources };
        declared.render().await?;
        declared.checkout.commit("Register, deploy and render the fleet").await?;
        declared.checkout.push().await?;
        Ok(declared)
    }

    async fn render(&self) -> Result<()> {
        // Applications are rendered from what is deployed, and declarations are read at the heads.
        let path = self.checkout.path().display().to_string();
        let arguments = ["render", "--path", &path].map(str::to_owned);
        let output = super::command(self, &arguments).output().await.context("starting fabrique render")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "render: {said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

fn name_of(app: u32) -> String {
    format!("app-{app:04}")
}

fn options(app: u32, repo: &str) -> AppOptions {
    let name = name_of(app);
    AppOptions { repo: repo.to_owned(), context: name.clone(), hook: false, ..AppOptions::named(&name) }
}

fn registration(sample: &SampleApp) -> Result<String> {
    let text = sample.registration()?;
    let with = format!("branch: main, declaration: {} }}", sample.path(MANIFEST));
    let declared = text.replacen("branch: main }", &with, 1);
    ensure!(declared != text, "a registration without a source:\n{text}");
    Ok(declared)
}

fn declaration(app: u32) -> Result<String> {
    let name = name_of(app);
    let mut text = String::new();
    writeln!(text, "codeLocation: {name}\nready: true\ncontractVersion: 1")?;
    writeln!(text, "resources: {{ cpu: 50m, memory: 256Mi, disk: 1Gi }}\ndependsOn:")?;
    if !app.is_multiple_of(ROW) {
        writeln!(text, "  codeLocations: [{}]", name_of(app - 1))?;
    }
    writeln!(text, "  database: [shared]\n  secrets: [shared-auth]")?;
    writeln!(text, "  buckets:\n    - {{ name: {name}, size: 2Gi }}")?;
    Ok(text)
}

/// The composition, and the overlay as it is copied and filled.
async fn deploy(
    apps: &GitRepo,
    source: &GitRepo,
    app: u32,
    image: &str,
    (repo, head): (&str, &str),
) -> Result<()> {
    let (name, digest) = (name_of(app), format!("sha256:{app:064x}"));
    let overlay = format!("{name}/deploy/overlays/prod");
    let composition = format!(
        "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {name}, environment: prod }}\n\
         image: {{ repository: {image}, digest: \"{digest}\", revision: {head}, version: null, build: null, hold: null }}\n\
         infra: {{ repo: atlas/{repo}, path: {overlay}, revision: {head}, hold: null }}\n"
    );
    apps.write(&format!("apps/{name}/prod/composition.yaml"), composition).await?;
    let upper = name.to_uppercase().replace('-', "_");
    let (in_digest, in_image) = (format!("__{upper}_IMAGE_DIGEST__"), format!("__{upper}_IMAGE__"));
    let reference = format!("{image}@{digest}");
    for entry in std::fs::read_dir(source.path().join(&overlay))? {
        let file = entry?.file_name().to_string_lossy().into_owned();
        let text = source.read(&format!("{overlay}/{file}")).await?;
        let filled = text.replace(&in_digest, &digest).replace(&in_image, &reference);
        apps.write(&format!("apps/{name}/prod/{file}"), filled).await?;
    }
    Ok(())
}

/// Copies a folder but for git's own.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() == ".git" {
            continue;
        }
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
