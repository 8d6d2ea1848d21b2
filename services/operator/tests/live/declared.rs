//! Declarations on a real Gitea, judged against the contract of a real `cluster/apps`.

use fabrique_core::id::EnvironmentName;
use fabrique_declarations::Wait;
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::render::{Destination, IN_CLUSTER, Settings};
use fabrique_operator::declared::{self, Declared};

use super::*;

const CONTRACT: &str = include_str!("../../../../docs/contract.yaml.example");

/// A forge of its own: other tests count what is registered on theirs.
struct Forge {
    bed: Bed,
    apps: GitRepo,
    source: GitRepo,
    git: GitConfig,
    _state: tempfile::TempDir,
}

impl Forge {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::builder().gitea().start().await.unwrap();
        let gitea = bed.gitea();
        for (org, repo) in [("cluster", "apps"), ("atlas", "atlas")] {
            gitea.create_org(org).await.unwrap();
            gitea.create_repo(org, repo, true).await.unwrap();
        }
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await.unwrap();
        let source = GitRepo::clone(&gitea.clone_url_with_token("atlas", "atlas")).await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let git = git_config(&bed, &state);
        Self { bed, apps, source, git, _state: state }
    }

    async fn register(&self, app: &str, branch: &str) {
        let text = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {app} }}\nspec:\n  source: {{ repo: atlas/atlas, \
             branch: {branch}, declaration: {app}/code-location.manifest.yaml }}\n  image: registry:80/{app}\n  \
             environments: [{{ name: prod }}]\n"
        );
        self.apps.write(&format!("apps/{app}/app.yaml"), text).await.unwrap();
    }

    async fn declare(&self, app: &str, more: &str) {
        let text = format!("codeLocation: {app}\ncontractVersion: 3\n{more}");
        self.source.write(&format!("{app}/code-location.manifest.yaml"), text).await.unwrap();
    }

    async fn push(&self) {
        for repo in [&self.apps, &self.source] {
            repo.commit("Change").await.unwrap();
            repo.push().await.unwrap();
        }
    }

    async fn live(&self, only: Option<&str>) -> Result<Declared, OperatorError> {
        self.rendering(None, only).await
    }

    /// The same where this says where Applications go.
    async fn rendering(
        &self,
        settings: Option<&Settings>,
        only: Option<&str>,
    ) -> Result<Declared, OperatorError> {
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let apps = AppsReader::new(Arc::new(GitDeployments::new(self.git.clone()).unwrap()), rules);
        let mut config = GiteaConfig::new(self.bed.gitea().base_url().parse().unwrap());
        config.tokens.read = Some(self.bed.gitea().admin_token().into());
        let forge = Arc::new(Gitea::new(config).unwrap());
        let source = Arc::new(GitHistory::new(self.git.clone()).unwrap());
        let only = only.map(|name| AppName::parse(name).unwrap());
        declared::live(&apps, &declared::Ports { forge, source }, settings, only.as_ref()).await
    }
}

fn told(declared: &Declared) -> String {
    declared.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn every_declaration_at_the_head_of_its_branch_is_judged_against_the_contract() {
    let forge = Forge::start().await;
    for (app, branch) in
        [("citation", "main"), ("mediawatch", "main"), ("absent", "main"), ("lost", "nowhere")]
    {
        forge.register(app, branch).await;
    }
    let needs = "ready: true\ndependsOn: { codeLocations: [mediawatch, absent], database: [pgvectr] }\n";
    forge.declare("citation", needs).await;
    forge.declare("mediawatch", "ready: false\nrevison: abc\n").await;
    forge.push().await;
    let without = forge.live(None).await.unwrap();
    assert!(told(&without).contains("contract.yaml: is missing"), "{without:?}");

    forge.apps.write("contract.yaml", CONTRACT).await.unwrap();
    forge.declare("mediawatch", "ready: false\n").await;
    forge.push().await;
    let all = forge.live(None).await.unwrap();
    assert_eq!((all.declarations, all.exit()), (2, Exit::Findings));
    let head = forge.source.head().await.unwrap();
    insta::assert_snapshot!(told(&all).replace(&head[..12], "the head"), @r"
    apps/lost/app.yaml: atlas/atlas has no branch nowhere that can be read; correct spec.source, or give fabrique's read token access
    atlas/atlas:absent/code-location.manifest.yaml: is not there at the head of main; add it, or correct source.declaration of the registration
    atlas/atlas:citation/code-location.manifest.yaml:4:42: code-location absent is declared, its declaration cannot be read; correct atlas/atlas:absent/code-location.manifest.yaml
    atlas/atlas:citation/code-location.manifest.yaml:4:62: database pgvectr is declared, the contract has marts, pgvector; did you mean pgvector?
    ");
    let (citation, mediawatch) = (AppName::parse("citation").unwrap(), AppName::parse("mediawatch").unwrap());
    assert_eq!(all.waits[&mediawatch], [Wait::NotReady]);
    assert!(all.waits[&citation].contains(&Wait::DependencyNotReady(mediawatch)));

    let one = forge.live(Some("mediawatch")).await.unwrap();
    assert_eq!((told(&one).as_str(), one.waits.len(), one.exit()), ("", 1, Exit::Ok));
    let unknown = forge.live(Some("citaton")).await.unwrap_err();
    assert_eq!(unknown.exit(), Exit::Usage);
    assert!(unknown.to_string().contains("did you mean citation?"), "{unknown}");
}

#[tokio::test]
async fn a_pin_is_judged_by_its_branch_and_by_what_is_deployed() {
    let forge = Forge::start().await;
    forge.apps.write("contract.yaml", CONTRACT).await.unwrap();
    for app in ["astray", "behind", "well"] {
        forge.register(app, "main").await;
    }
    forge.declare("well", "ready: true\n").await;
    let older = forge.source.commit("Begin").await.unwrap();
    forge.declare("well", "ready: true\n# newer\n").await;
    let newer = forge.source.commit("Go on").await.unwrap();
    let composition = format!(
        "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: behind, environment: prod }}\nimage:\n  \
         repository: registry:80/behind\n  digest: sha256:{}\n  revision: {newer}\n",
        "2".repeat(64)
    );
    forge.apps.write("apps/behind/prod/composition.yaml", composition).await.unwrap();
    forge.declare("astray", "ready: true\nrevision: 0123456789\n").await;
    forge.declare("behind", &format!("ready: true\nrevision: \"{}\"\n", &older[..9])).await;
    forge.declare("well", &format!("ready: true\nrevision: \"{}\"\n", &older[..9])).await;
    forge.push().await;

    let all = forge.live(None).await.unwrap();
    let head = forge.source.head().await.unwrap();
    let names = [(&older, "the older"), (&newer, "the newer"), (&head, "the head")];
    let first = forge.source.git(&["rev-list", "--max-parents=0", "HEAD"]).await.unwrap();
    let told = names.iter().fold(told(&all), |told, (id, name)| told.replace(&id[..12], name));
    insta::assert_snapshot!(told.replace(&first[..12], "the first"), @r"
    atlas/atlas:astray/code-location.manifest.yaml:4:11: revision 0123456789 is declared, it is no ancestor of the branch's head; the newest are the head, the newer, the older, the first
    atlas/atlas:behind/code-location.manifest.yaml:4:11: revision the older is declared, it is behind the newer, and prod runs that; a pin does not go back, roll back by hand (docs/operations.md)
    ");
    let one = forge.live(Some("behind")).await.unwrap();
    assert_eq!((one.findings.len(), one.exit()), (1, Exit::Findings), "{one:?}");
    assert_eq!(forge.live(Some("well")).await.unwrap().findings, []);
}

#[tokio::test]
async fn migrations_are_judged_as_they_are_at_the_revision_that_is_meant() {
    let forge = Forge::start().await;
    forge.apps.write("contract.yaml", CONTRACT).await.unwrap();
    for app in ["citation", "nowhere", "pinned"] {
        forge.register(app, "main").await;
        if app != "nowhere" {
            let path = format!("apps/{app}/app.yaml");
            let text = forge.apps.read(&path).await.unwrap();
            let named = format!("{app}/code-location.manifest.yaml, migrations: sql");
            let text = text.replace(&format!("{app}/code-location.manifest.yaml"), &named);
            forge.apps.write(&path, text).await.unwrap();
        }
    }
    let needs = "ready: true\ndependsOn: { database: [pgvector], secrets: [pgvector-pg-auth], migrations: [001-a.sql] }\n";
    for app in ["citation", "nowhere", "pinned"] {
        forge.declare(app, needs).await;
    }
    let before = forge.source.commit("Name a migration").await.unwrap();
    forge.source.write("sql/001-a.sql", "SELECT 1;\n").await.unwrap();
    forge.source.commit("Write it").await.unwrap();
    forge.declare("pinned", &format!("{needs}revision: \"{}\"\n", &before[..9])).await;
    forge.push().await;
    let all = forge.live(None).await.unwrap();
    insta::assert_snapshot!(told(&all), @r"
    apps/nowhere/app.yaml: atlas/atlas:nowhere/code-location.manifest.yaml names migrations, and spec.source.migrations is not set; name the folder that they are in
    atlas/atlas:pinned/code-location.manifest.yaml:4:78: 001-a.sql is not in sql at this revision; commit the file together with the declaration that names it
    ");

    // Where Applications are rendered, what runs them has to be known as well.
    assert_eq!(forge.live(Some("citation")).await.unwrap().findings, []);
    let destination = Destination {
        environment: EnvironmentName::parse("prod").unwrap(),
        server: IN_CLUSTER.to_owned(),
        namespaces: vec!["dagster".to_owned()],
    };
    let settings = Settings {
        gitea: forge.bed.gitea().base_url(),
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: "main".to_owned(),
        argocd_namespace: "argocd".to_owned(),
        root: "root".to_owned(),
        project: "fabrique-apps".to_owned(),
        source: SourceForm::Copy,
        destinations: vec![destination],
        runner: None,
    };
    let rendering = forge.rendering(Some(&settings), Some("citation")).await.unwrap();
    let told = told(&rendering);
    assert!(told.contains("nothing says which image runs them"), "{told}");
}

#[tokio::test]
async fn a_cluster_in_which_nobody_declares_anything_needs_no_contract() {
    let forge = Forge::start().await;
    let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: plain }\nspec:\n  \
                source: { repo: atlas/atlas }\n  image: registry:80/plain\n";
    forge.apps.write("apps/plain/app.yaml", text).await.unwrap();
    forge.apps.commit("Register").await.unwrap();
    forge.apps.push().await.unwrap();
    assert_eq!(forge.live(None).await.unwrap(), Declared::default());
}
