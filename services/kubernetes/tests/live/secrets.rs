//! Derived secrets on a real API server, with an account that has the printed rights and no other.

use std::time::Duration;

use fabrique_bed::Cluster;
use fabrique_kubernetes::secrets::{Account, FIELD_MANAGER, SecretWriter, rbac};
use fabrique_ports::secrets::{Change, Derivation, DerivedSecrets as _, SecretPlace, Unfit};
use fabrique_ports::{Fault, PortResult};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Two namespaces of the test's own: where a database is, and where apps are.
struct Ground {
    cluster: &'static Cluster,
    postgres: String,
    dagster: String,
    writer: SecretWriter,
}

impl Ground {
    /// Nothing when this machine carries no cluster, unless that is not to be forgiven.
    async fn new() -> Option<Self> {
        if let Err(why) = Cluster::possible() {
            assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster: {why}");
            #[expect(clippy::print_stdout, reason = "a test that was not run is told")]
            {
                println!("SKIP: {why}");
            }
            return None;
        }
        rustls::crypto::ring::default_provider().install_default().ok();
        let cluster = Cluster::shared().await;
        let salt = rand::random::<u32>();
        let (postgres, dagster) = (format!("postgres-{salt:08x}"), format!("dagster-{salt:08x}"));
        let namespaces = [&postgres, &dagster]
            .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "secrets", "namespace": dagster },
        });
        let derivation = derivation(&postgres, &dagster);
        let rights = rbac(&[derivation], Account { namespace: &dagster, name: "secrets" });
        for document in namespaces.into_iter().chain([account]).chain(rights) {
            cluster.apply(&document.to_string()).await.unwrap();
        }
        let file = cluster.service_account_kubeconfig(&dagster, "secrets").await.unwrap();
        let kubeconfig = Kubeconfig::read_from(file).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let writer = SecretWriter::new(Client::try_from(config).unwrap(), Duration::from_secs(10));
        Some(Self { cluster, postgres, dagster, writer })
    }

    fn derivation(&self) -> Derivation {
        derivation(&self.postgres, &self.dagster)
    }

    async fn derive(&self) -> PortResult<Result<Change, Unfit>> {
        self.writer.derive(&self.derivation(), false).await
    }

    /// Writes a source as CloudNativePG has it.
    async fn source(&self, data: Value) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "stringData": data,
            "metadata": { "name": "pg-role-pgvector", "namespace": self.postgres },
        });
        self.cluster.apply(&secret.to_string()).await.unwrap();
    }

    async fn get(&self, kind: &str, name: &str) -> Value {
        let args =
            ["--namespace", &self.dagster, "get", kind, name, "--output", "json", "--show-managed-fields"];
        serde_json::from_str(&self.cluster.kubectl(&args).await.unwrap()).unwrap()
    }

    async fn is_there(&self) -> bool {
        let args = ["--namespace", &self.dagster, "get", "secrets", "--output", "name"];
        self.cluster.kubectl(&args).await.unwrap().contains("pgvector-pg-auth")
    }

    async fn end(self) {
        for namespace in [&self.postgres, &self.dagster] {
            self.cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.unwrap();
        }
    }
}

fn derivation(postgres: &str, dagster: &str) -> Derivation {
    let place =
        |namespace: &str, name: &str| SecretPlace { namespace: namespace.to_owned(), name: name.to_owned() };
    Derivation {
        target: place(dagster, "pgvector-pg-auth"),
        source: place(postgres, "pg-role-pgvector"),
        keys: ["username", "password"].map(str::to_owned).into(),
    }
}

fn data(secret: &Value) -> String {
    let mut data: Vec<String> =
        secret["data"].as_object().unwrap().iter().map(|(key, value)| format!("{key}={value}")).collect();
    data.sort();
    data.join(" ")
}

#[tokio::test]
async fn a_secret_is_derived_once_and_follows_its_source() {
    let Some(ground) = Ground::new().await else { return };
    let beside = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "workspace.yaml": "load_from: []" },
        "metadata": { "name": "dagster-workspace", "namespace": ground.dagster },
    });
    ground.cluster.apply(&beside.to_string()).await.unwrap();
    let workspace = ground.get("configmap", "dagster-workspace").await["metadata"]["resourceVersion"].clone();

    assert_eq!(ground.derive().await.unwrap(), Err(Unfit::NoSource(ground.derivation().source)));
    ground.source(json!({ "username": "pgvector", "password": "", "uri": "x" })).await;
    assert!(matches!(ground.derive().await.unwrap(), Err(Unfit::Empty { key, .. }) if key == "password"));
    assert!(!ground.is_there().await, "what is unfit writes nothing");

    ground.source(json!({ "username": "pgvector", "password": "one", "uri": "x" })).await;
    let dry = ground.writer.derive(&ground.derivation(), true).await.unwrap();
    assert_eq!((dry, ground.is_there().await), (Ok(Change::Made), false));
    assert_eq!(ground.derive().await.unwrap(), Ok(Change::Made));
    let made = ground.get("secret", "pgvector-pg-auth").await;
    assert_eq!(data(&made), r#"password="b25l" username="cGd2ZWN0b3I=""#);
    let manager = &made["metadata"]["managedFields"][0];
    assert_eq!((&manager["manager"], &manager["operation"]), (&json!(FIELD_MANAGER), &json!("Apply")));

    assert_eq!(ground.derive().await.unwrap(), Ok(Change::None));
    let again = ground.get("secret", "pgvector-pg-auth").await;
    assert_eq!(again["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);

    ground.source(json!({ "username": "pgvector", "password": "two" })).await;
    assert_eq!(ground.derive().await.unwrap(), Ok(Change::Changed));
    let rotated = ground.get("secret", "pgvector-pg-auth").await;
    assert_eq!(data(&rotated), r#"password="dHdv" username="cGd2ZWN0b3I=""#);

    // Fewer keys in the contract: what was derived goes. A key of somebody else's is told.
    let fewer = Derivation { keys: vec!["username".to_owned()], ..ground.derivation() };
    assert_eq!(ground.writer.derive(&fewer, false).await.unwrap(), Ok(Change::Changed));
    assert_eq!(data(&ground.get("secret", "pgvector-pg-auth").await), r#"username="cGd2ZWN0b3I=""#);
    let patch = r#"{"stringData":{"extra":"x"}}"#;
    let args = ["--namespace", &ground.dagster, "patch", "secret", "pgvector-pg-auth", "--patch", patch];
    ground.cluster.kubectl(&args).await.unwrap();
    assert!(matches!(ground.derive().await.unwrap(), Err(Unfit::Foreign { key, .. }) if key == "extra"));

    let after = ground.get("configmap", "dagster-workspace").await["metadata"]["resourceVersion"].clone();
    assert_eq!(after, workspace);
    ground.end().await;
}

#[tokio::test]
async fn the_account_may_do_this_and_nothing_else() {
    let Some(ground) = Ground::new().await else { return };
    ground.source(json!({ "username": "u", "password": "p" })).await;
    let account = format!("system:serviceaccount:{}:secrets", ground.dagster);
    let may = async |verb: &str, what: &str, namespace: &str| {
        let args = ["auth", "can-i", verb, what, "--namespace", namespace, "--as", &account];
        // It says no by its exit code, too.
        ground.cluster.kubectl(&args).await.is_ok_and(|answer| answer.trim() == "yes")
    };
    for (verb, what, namespace, allowed) in [
        ("get", "secret/pg-role-pgvector", &ground.postgres, true),
        ("patch", "secret/pg-role-pgvector", &ground.postgres, false),
        ("get", "secret/another", &ground.postgres, false),
        ("list", "secrets", &ground.postgres, false),
        ("patch", "secret/pgvector-pg-auth", &ground.dagster, true),
        ("delete", "secret/pgvector-pg-auth", &ground.dagster, false),
        ("patch", "secret/another", &ground.dagster, false),
        ("create", "secrets", &ground.dagster, false),
        ("list", "secrets", &ground.dagster, false),
        ("patch", "configmap/dagster-workspace", &ground.dagster, false),
    ] {
        assert_eq!(may(verb, what, namespace).await, allowed, "{verb} {what} in {namespace}");
    }
    // A target that is not the named one cannot be made, and the rights are what is told.
    let mut elsewhere = ground.derivation();
    elsewhere.target.name = "another".to_owned();
    let denied = ground.writer.derive(&elsewhere, false).await.unwrap_err();
    assert_eq!(denied.fault(), Fault::Denied);
    assert!(denied.to_string().contains("fabrique secrets --rbac"), "{denied}");
    ground.end().await;
}
