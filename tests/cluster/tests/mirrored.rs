//! Gitea in a pod without a way out, and the job that is its way to GitHub while it runs. A repository of the bed's Gitea plays
//! the one on GitHub: it stands outside, behind TLS, at the address of `permitted.example`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::{Bed, Cluster, GitRepo, MutualTls, RecordedGithub, Secured, wait_until};
use fabrique_cluster_tests::image::push_folder;
use fabrique_cluster_tests::manifests::{self, IMAGE};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::doors::{Doors, address, expected, ready, start_pod_of, until};
use crate::ground::{Ground, SOON, builders_alone, ground, kind};
use crate::image::image;
use crate::installed::story;
use crate::program::{fabrique, gitea};

/// Of Gitea, and of nothing else of the bed's.
const NAMESPACE: &str = "gitea";
const POD: &str = "gitea";
/// What plays GitHub, and what stands beside it.
const OUTSIDE: &str = "198.19.255.10";
const BESIDE: &str = "198.19.255.11";
const RELAY: &str = "github-relay.fabrique.svc";
/// What the component says instead of GitHub's address.
const PLACEHOLDER: &str = "192.0.2.20/32";
const ADMIN: (&str, &str) = ("admin-of-the-pod", "only-for-the-test-bed");
/// Images are pulled, and mirrors fetch, on a machine that may be busy.
const LATER: Duration = Duration::from_mins(3);

/// Everything around the job, and what it is given.
struct Site {
    ground: Ground,
    org: String,
    /// The bus, and the API of GitHub.
    bed: Bed,
    github: RecordedGithub,
    /// A clone of what plays GitHub's repository.
    upstream: GitRepo,
    /// The root of the pod's Gitea.
    gitea: String,
    token: String,
    documents: Vec<Value>,
    fabrique: PathBuf,
    folder: TempDir,
    _door: Secured,
}

#[tokio::test]
async fn gitea_reaches_github_while_the_job_runs_and_neither_before_nor_after_nor_when_it_was_killed() {
    let Some(ground) = ground().await else { return };
    let _alone = builders_alone().await;
    let site = Box::pin(Site::prepare(ground)).await;
    site.shut("before any job").await;

    let first = site.commit("first").await;
    site.upstream.push().await.unwrap();
    site.start("mirror-ensure", "mirror-made").await;
    site.ends_well("mirror-made").await;
    assert_eq!(site.head().await.as_deref(), Some(first.as_str()), "the first clone");
    site.shut("after the first clone").await;

    // GitHub's API has one more than can be fetched, so that the job waits for it.
    let second = site.commit("second").await;
    site.start("mirror", "mirror-synced").await;
    site.open().await;
    site.upstream.push().await.unwrap();
    site.ends_well("mirror-synced").await;
    site.shut("after the sync").await;
    assert_eq!(site.head().await.as_deref(), Some(second.as_str()));
    let known = site.known().await;
    assert_eq!((&known["head"], &known["mirrored"]), (&json!(second), &json!(second)), "{known}");

    site.commit("third").await;
    site.start("mirror", "mirror-killed").await;
    site.open().await;
    site.kill("mirror-killed").await;
    site.upstream.push().await.unwrap();
    site.shut("after it was killed").await;
    assert_eq!(site.head().await.as_deref(), Some(second.as_str()), "nothing was fetched");
    site.end().await;
}

impl Site {
    async fn prepare(ground: Ground) -> Self {
        let cluster = ground.cluster;
        remove(cluster).await;
        let org = format!("upstream-{}", std::process::id());
        cluster.gitea().create_org(&org).await.unwrap();
        cluster.gitea().create_repo(&org, "citation", false).await.unwrap();
        let url = cluster.gitea().clone_url_with_token(&org, "citation");
        let upstream = GitRepo::clone(&url).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tls = MutualTls::create_for(folder.path(), OUTSIDE).unwrap();
        let to = cluster.gitea().base_url().trim_start_matches("http://").to_owned();
        let there = cluster.outside_command().unwrap();
        let door = Secured::open(Some(there), &format!("{OUTSIDE}:443"), &to, &tls.one_way()).await.unwrap();
        let bed = Bed::builder().at(Cluster::CALLER).nats().start().await.unwrap();
        let github = RecordedGithub::start_at(Cluster::CALLER).await.unwrap();
        let text = manifests::base_with(&["mirror", "mirror/plain"]).await.unwrap();
        let text = text.replace(IMAGE, image(ground).await).replace(PLACEHOLDER, &format!("{OUTSIDE}/32"));
        let documents = manifests::documents(&text).unwrap();
        let (gitea, token) = forge(ground, &std::fs::read_to_string(&tls.ca).unwrap()).await;
        let fabrique = fabrique().await;
        let site = Self {
            ground,
            org,
            bed,
            github,
            upstream,
            gitea,
            token,
            documents,
            fabrique,
            folder,
            _door: door,
        };
        site.install().await;
        site.register().await;
        site
    }

    /// The component's policies and its Service, what the job is configured by, and the streams.
    async fn install(&self) {
        let wanted = |document: &&Value| {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            let ours = name.starts_with("mirror-") || name == "github-relay";
            let in_gitea = document["metadata"]["namespace"] == NAMESPACE;
            match kind(document) {
                "NetworkPolicy" => ours || in_gitea,
                "Service" => ours,
                "ValidatingAdmissionPolicyBinding" => name.ends_with("-gitea"),
                "ConfigMap" => name.starts_with("fabrique-config-"),
                _ => false,
            }
        };
        let mut items: Vec<Value> = self.documents.iter().filter(wanted).cloned().collect();
        assert!(items.len() >= 6, "{items:#?}");
        let all =
            ["read", "status", "hooks", "apps"].map(|name| (format!("{name}-token"), self.token.clone()));
        let mut data = BTreeMap::from(all);
        data.extend(["github-token", "clone-token"].map(|name| (name.to_owned(), "nobody-asks".to_owned())));
        data.insert("nats-password".to_owned(), self.bed.nats().password("mirror").to_owned());
        for name in ["fabrique-mirror", "fabrique-mirror-ensure"] {
            let metadata = json!({ "name": name, "namespace": "fabrique" });
            items.push(
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data }),
            );
        }
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.ground.cluster.apply(&list.to_string()).await.unwrap();
        let widened = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "wide", "namespace": NAMESPACE },
            "spec": { "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] }] },
        });
        // A binding counts from a moment after it is made; until then it would be.
        let refused = || async {
            let refused = self.ground.cluster.apply(&widened.to_string()).await.err();
            if refused.is_none() {
                let delete = ["delete", "networkpolicy", "wide", "--namespace", NAMESPACE];
                self.ground.cluster.kubectl(&delete).await.unwrap();
            }
            refused
        };
        wait_until("what opens the world to Gitea to be refused", SOON, refused).await.unwrap();
        let (code, out) = self.say(&["init"]).await;
        assert_eq!(code, 0, "{out}");
    }

    /// `cluster/apps` on the pod's Gitea, with one app, and where its mirror is to be.
    async fn register(&self) {
        for org in ["cluster", "atlas"] {
            self.api("POST", "/orgs", Some(json!({ "username": org }))).await;
        }
        let body = json!({ "name": "apps", "private": true, "auto_init": true, "default_branch": "main" });
        self.api("POST", "/orgs/cluster/repos", Some(body)).await;
        let apps = GitRepo::clone(&self.clone_url("cluster/apps")).await.unwrap();
        let text = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: citation }}\nspec:\n  source: {{ repo: atlas/citation, \
             github: {}/citation, checks: [ci] }}\n  image: registry:80/citation\n",
            self.org
        );
        apps.write("apps/citation/app.yaml", text).await.unwrap();
        apps.commit("Register citation").await.unwrap();
        apps.push().await.unwrap();
    }

    fn clone_url(&self, repo: &str) -> String {
        let (name, password) = ADMIN;
        self.gitea.replacen("http://", &format!("http://{name}:{password}@"), 1) + "/" + repo + ".git"
    }

    async fn api(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut curl = Command::new("curl");
        let (token, url) =
            (format!("Authorization: token {}", self.token), format!("{}/api/v1{path}", self.gitea));
        curl.args([
            "--silent",
            "--fail-with-body",
            "--max-time",
            "30",
            "--request",
            method,
            "--header",
            &token,
        ]);
        curl.args(["--header", "Content-Type: application/json", "--data", &body, &url]);
        let ended = curl.output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{method} {path}: {said}");
        serde_json::from_str(&said).unwrap_or_default()
    }

    /// The head of the mirror.
    async fn head(&self) -> Option<String> {
        let branch = self.api("GET", "/repos/atlas/citation/branches/main", None).await;
        branch["commit"]["id"].as_str().map(str::to_owned)
    }

    /// A commit that GitHub tells of and nobody can fetch yet.
    async fn commit(&self, text: &str) -> String {
        self.upstream.write("Dockerfile", format!("FROM scratch\n# {text}\n")).await.unwrap();
        self.upstream.commit(text).await.unwrap();
        self.github.push(&format!("{}/citation", self.org), "main", &self.upstream).await.unwrap()
    }

    /// Starts a job from one of the component's templates.
    async fn start(&self, template: &str, name: &str) {
        let is_it =
            |document: &&Value| kind(document) == "CronJob" && document["metadata"]["name"] == template;
        let mut job = self.documents.iter().find(is_it).unwrap()["spec"]["jobTemplate"].clone();
        job["apiVersion"] = json!("batch/v1");
        job["kind"] = json!("Job");
        job["metadata"]["name"] = json!(name);
        job["metadata"]["namespace"] = json!("fabrique");
        // What was killed stays so.
        job["spec"]["backoffLimit"] = json!(0);
        let env = job.pointer_mut("/spec/template/spec/containers/0/env").unwrap().as_array_mut().unwrap();
        // The repository is public, and nobody there knows the token.
        env.retain(|variable| variable["name"] != "FABRIQUE_GITHUB__CLONE_TOKEN_FILE");
        env.extend(
            [
                ("NATS__SERVERS", json!([self.bed.nats().address()]).to_string()),
                ("GITHUB__URL", self.github.url()),
                ("GITHUB__CLONE_URL", format!("https://{OUTSIDE}/")),
                ("GITHUB__PATIENCE", "4m".to_owned()),
                ("GITEA__TIMEOUTS__REQUEST", "1m".to_owned()),
            ]
            .map(|(name, value)| json!({ "name": format!("FABRIQUE_{name}"), "value": value })),
        );
        self.ground.cluster.apply(&job.to_string()).await.unwrap();
    }

    async fn ends_well(&self, name: &str) {
        let job = format!("job/{name}");
        let wait = ["wait", "--namespace=fabrique", "--for=condition=Complete", "--timeout=170s", &job];
        if let Err(error) = self.ground.cluster.kubectl(&wait).await {
            let selector = format!("batch.kubernetes.io/job-name={name}");
            panic!("{error:#}\n{}", story(self.ground, &selector).await);
        }
    }

    /// Ends the job's process as a node that is out of memory does.
    async fn kill(&self, name: &str) {
        let cluster = self.ground.cluster;
        let selector = format!("--selector=batch.kubernetes.io/job-name={name}");
        let find = ["get", "pods", "--namespace=fabrique", &selector, "--output=name"];
        let pod = cluster.kubectl(&find).await.unwrap();
        let script = "for process in /proc/[0-9]*; do [[ $(<$process/comm) == fabrique ]] && kill -9 ${process#/proc/}; done; true";
        // Whoever is in the container may go down with it.
        drop(
            cluster.kubectl(&["exec", "--namespace=fabrique", pod.trim(), "--", "bash", "-c", script]).await,
        );
        let failed = format!("job/{name}");
        let wait = ["wait", "--namespace=fabrique", "--for=condition=Failed", "--timeout=110s", &failed];
        cluster.kubectl(&wait).await.unwrap();
    }

    fn doors(relay: bool) -> Doors {
        vec![(OUTSIDE.to_owned(), 443, false), (RELAY.to_owned(), 3128, relay)]
    }

    /// Gitea's pod reaches neither GitHub nor a way there.
    async fn shut(&self, when: &str) {
        let doors = Self::doors(false);
        let wanted = expected(&doors);
        let found = until(self.ground.cluster, NAMESPACE, POD, &doors, &wanted).await;
        assert_eq!(found, wanted, "{when}");
        assert!(self.asks(OUTSIDE).await.is_err(), "{when}");
    }

    /// It reaches GitHub by the job, and nothing else.
    async fn open(&self) {
        let doors = Self::doors(true);
        let wanted = expected(&doors);
        let ask = || async { self.asks(OUTSIDE).await.ok() };
        if let Err(error) = wait_until("Gitea's pod to reach GitHub", LATER, ask).await {
            panic!("{error}\n{}", story(self.ground, "app.kubernetes.io/component=mirror").await);
        }
        assert_eq!(until(self.ground.cluster, NAMESPACE, POD, &doors, &wanted).await, wanted);
        let refused = self.asks(BESIDE).await.unwrap_err();
        assert!(refused.contains("403"), "{refused}");
    }

    /// Asks for the branches of the repository at this address, as Gitea's git does.
    async fn asks(&self, host: &str) -> Result<String, String> {
        let (proxy, url) =
            (format!("http.proxy=http://{RELAY}:3128"), format!("https://{host}/{}/citation.git", self.org));
        let git = [
            "timeout",
            "20",
            "git",
            "-c",
            &proxy,
            "-c",
            "http.sslCAInfo=/etc/gitea/ca.pem",
            "ls-remote",
            &url,
        ];
        let args = [&["exec", "--namespace", NAMESPACE, POD, "--"], git.as_slice()].concat();
        self.ground.cluster.kubectl(&args).await.map_err(|error| format!("{error:#}"))
    }

    /// What was recorded of both sides.
    async fn known(&self) -> Value {
        let (_, out) = self.say(&["mirror", "status", "-o", "json"]).await;
        let told: Value = serde_json::from_str(&out).unwrap();
        told["apps"][0].clone()
    }

    /// Runs a command of fabrique's from here.
    async fn say(&self, args: &[&str]) -> (i32, String) {
        let file = |name: &str, text: &str| {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let password = |role: &str| file(&format!("nats-{role}"), self.bed.nats().password(role));
        let token = file("token", &self.token);
        let settings = json!({
            "gitea": { "url": self.gitea, "read_token_file": token, "apps_token_file": token },
            "nats": {
                "servers": [self.bed.nats().address()],
                "users": {
                    "admin": { "password_file": password("admin") },
                    "operator": { "password_file": password("operator") },
                },
            },
            "registry": { "allowed": ["registry:80"] },
            "state": { "dir": self.folder.path().join("state") },
        });
        let config = file("fabrique.yaml", &settings.to_string());
        let mut command = Command::new(&self.fabrique);
        command.args(args).env("FABRIQUE_CONFIG", config).stdin(Stdio::null()).kill_on_drop(true);
        let ended = command.output().await.unwrap();
        let (out, told) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(!out.is_empty(), "{told}");
        (ended.status.code().unwrap(), out.into_owned())
    }

    async fn end(self) {
        remove(self.ground.cluster).await;
        self.bed.stop().await.unwrap();
    }
}

/// A Gitea in a pod, with an administrator: its root as it is reached from here, and a token.
async fn forge(ground: Ground, authority: &str) -> (String, String) {
    let cluster = ground.cluster;
    let image = push_folder(cluster, "mirror-test/gitea", &gitea()).await.unwrap();
    let (name, password) = ADMIN;
    let ini = format!(
        "RUN_USER = user\nRUN_MODE = prod\nWORK_PATH = /work\n\
         [server]\nHTTP_ADDR = 0.0.0.0\nHTTP_PORT = 3000\nROOT_URL = http://gitea.gitea.svc:3000/\nDISABLE_SSH = true\n\
         STATIC_ROOT_PATH = /opt/program/static\nOFFLINE_MODE = true\n\
         [database]\nDB_TYPE = sqlite3\nPATH = /work/data/gitea.db\n\
         [repository]\nROOT = /work/repositories\nDEFAULT_BRANCH = main\n\
         [indexer]\nISSUE_INDEXER_TYPE = db\n\
         [security]\nINSTALL_LOCK = true\nSECRET_KEY = {password}\nINTERNAL_TOKEN = {password}\n\
         [oauth2]\nENABLED = false\nJWT_SECRET = b25seS1mb3ItdGhlLXRlc3QtYmVkLTMyLWJ5dGVzISE\n\
         [migrations]\nALLOW_LOCALNETWORKS = true\n\
         [proxy]\nPROXY_ENABLED = true\nPROXY_URL = http://{RELAY}:3128\nPROXY_HOSTS = {OUTSIDE}\n\
         [git.config]\nhttp.sslCAInfo = /etc/gitea/ca.pem\n\
         [cron]\nENABLED = false\n[log]\nMODE = console\n"
    );
    let script = format!(
        "set -e; cp /etc/gitea/app.ini /work/app.ini; export HOME=/work; gitea() {{ /opt/program/gitea --config /work/app.ini \"$@\"; }}; \
         gitea migrate; gitea admin user create --admin --username {name} --password {password} --email admin@example.org \
         --must-change-password=false; exec /opt/program/gitea --config /work/app.ini web"
    );
    let labels = json!({ "app.kubernetes.io/name": "gitea" });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } },
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "gitea", "namespace": NAMESPACE },
            "data": { "app.ini": ini, "ca.pem": authority },
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "gitea", "namespace": NAMESPACE },
            "spec": { "selector": labels, "ports": [{ "port": 3000 }] },
        },
    ] });
    cluster.apply(&list.to_string()).await.unwrap();
    let spec = json!({
        "securityContext": { "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000 },
        "containers": [{
            "name": "main", "image": image, "command": ["bash", "-c", script],
            "readinessProbe": { "httpGet": { "path": "/api/healthz", "port": 3000 }, "periodSeconds": 1 },
            "volumeMounts": [{ "name": "config", "mountPath": "/etc/gitea" }, { "name": "work", "mountPath": "/work" }],
        }],
        "volumes": [{ "name": "config", "configMap": { "name": "gitea" } }, { "name": "work", "emptyDir": {} }],
    });
    start_pod_of(cluster, NAMESPACE, POD, &labels, spec).await;
    let pod = ready(cluster, NAMESPACE, POD).await;
    let make = format!(
        "HOME=/work /opt/program/gitea --config /work/app.ini admin user generate-access-token --raw --scopes all --username {name}"
    );
    let exec = ["exec", "--namespace", NAMESPACE, POD, "--", "bash", "-c", &make];
    let token = cluster.kubectl(&exec).await.unwrap();
    let token = token.lines().last().unwrap().trim().to_owned();
    (format!("http://{}:3000", address(&pod)), token)
}

/// Also what a run that failed has left.
async fn remove(cluster: &Cluster) {
    let delete = ["delete", "--ignore-not-found", "--namespace=fabrique"];
    let names = [
        "job/mirror-made",
        "job/mirror-synced",
        "job/mirror-killed",
        "service/github-relay",
        "networkpolicy/mirror-from-gitea",
        "networkpolicy/mirror-to-github",
        "secret/fabrique-mirror",
        "secret/fabrique-mirror-ensure",
    ];
    cluster.kubectl(&[delete.as_slice(), &names].concat()).await.unwrap();
    let binding = ["delete", "--ignore-not-found", "validatingadmissionpolicybinding/fabrique-air-gap-gitea"];
    cluster.kubectl(&binding).await.unwrap();
    cluster.kubectl(&["delete", "--ignore-not-found", "namespace", NAMESPACE]).await.unwrap();
}
