//! The proxy that rootless builds leave by. Nothing listens where two of these tests say that one does, so that what
//! succeeds goes without it. The third has the component, as it is deployed.

use std::fmt::Write as _;
use std::time::Duration;

use fabrique_bed::Cluster;
use fabrique_kubernetes::config::{EgressProxy, Settings};
use fabrique_kubernetes::network::{AllowList, squid};
use fabrique_kubernetes::pki::BuilderCa;
use fabrique_ports::Ambient;
use serde_json::json;

use crate::ground::{Ground, Machine, lease};
use crate::steps::{Site, answers, ask, outside};
use crate::workshop::Workshop;

const PROXY: &str = "http://198.18.0.254:3128";

/// The environment of a RUN step, of a build whose source and base image are fetched from where no proxy is asked.
async fn environment(isolation: &str) -> Option<String> {
    let mut ground = Ground::with_policies(isolation).await?;
    let except = vec!["198.18.0.3".to_owned()];
    ground.settings.proxy = Some(EgressProxy { url: PROXY.to_owned(), except });
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let dockerfile = format!("FROM {}\nRUN env\n", ground.cluster.images().busybox);
    Some(workshop.output(&workshop.builder(&[]), &leased.daemon, "citation", &dockerfile).await)
}

#[tokio::test]
async fn a_rootless_step_is_told_of_the_proxy_and_what_is_excepted_goes_without_it() {
    let Some(output) = environment("rootless").await else { return };
    let told: Vec<&str> = output.lines().collect();
    for line in [
        format!("HTTP_PROXY={PROXY}"),
        format!("HTTPS_PROXY={PROXY}"),
        format!("http_proxy={PROXY}"),
        "NO_PROXY=127.0.0.1,198.18.0.3,localhost,registry".to_owned(),
    ] {
        assert!(told.contains(&line.as_str()), "no {line}:\n{output}");
    }
}

/// BuildKit's own proxy judges by the same list, and is the only way out.
#[tokio::test]
async fn a_step_in_a_user_namespace_is_told_of_no_other_proxy_than_buildkits() {
    let Some(output) = environment("userns").await else { return };
    assert!(output.contains("HTTP_PROXY=") && !output.contains(PROXY), "{output}");
}

macro_rules! component {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../k8s/components/egress-proxy/", $file))
    };
}

/// A host for all apps, and the same on another port for an app that builds elsewhere.
fn list() -> AllowList {
    let port = |port: u16| json!({ "host": "permitted.example", "port": port, "purpose": "packages" });
    let own = json!({ "trust": "elsewhere", "hosts": [port(8000)] });
    serde_json::from_value(json!({ "version": 1, "hosts": [port(443)], "apps": { "other": own } })).unwrap()
}

/// The component, in a namespace of its own and for the builders of one test.
struct Deployed<'a> {
    cluster: &'a Cluster,
    namespace: String,
}

impl<'a> Deployed<'a> {
    async fn on(ground: &'a Ground) -> Self {
        let namespace = ground.namespace.replace("builders-", "egress-");
        let own = |text: &str| {
            text.replace("fabrique-egress", &namespace).replace("fabrique-builds", &ground.namespace)
        };
        // The bed's whole world is of this range.
        let (image, bed, text) = ("image: squid\n", " 198.18.0.0/15", component!("squid.conf"));
        let pods = own(component!("proxy.yaml"));
        assert!(pods.contains(image) && text.contains(bed), "the component has changed: {pods}\n{text}");
        let pods = pods.replace(image, &format!("image: {}\n", ground.cluster.images().squid));
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "egress-proxy", "namespace": namespace },
            "data": { "squid.conf": text.replace(bed, ""), "allow-list.conf": squid::allow_list(&list()) },
        });
        let network = own(component!("network.yaml"));
        let deployed = Self { cluster: ground.cluster, namespace };
        for manifest in [pods, config.to_string(), network] {
            deployed.cluster.apply(&manifest).await.unwrap();
        }
        let status = ["rollout", "status", "--timeout=90s", "deployment/egress-proxy"];
        if let Err(error) = deployed.kubectl(&status).await {
            let seen = deployed.kubectl(&["describe", "pods"]).await;
            let told = deployed.kubectl(&["logs", "deployment/egress-proxy"]).await;
            panic!("{error}\n{seen:?}\n{told:?}");
        }
        deployed
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        let args = [&["--namespace", &self.namespace], args].concat();
        self.cluster.kubectl(&args).await.map_err(|error| format!("{error:#}"))
    }

    fn settings(&self) -> EgressProxy {
        let url = format!("http://egress-proxy.{}.svc:3128", self.namespace);
        EgressProxy { url, except: vec!["198.18.0.3".to_owned()] }
    }
}

impl Drop for Deployed<'_> {
    fn drop(&mut self) {
        let mut kubectl = self.cluster.kubectl_command().into_std();
        kubectl.args(["delete", "--wait=false", "namespace", &self.namespace]);
        let _ = kubectl.output();
    }
}

#[tokio::test]
async fn a_rootless_step_reaches_listed_hosts_through_squid_and_no_others() {
    let Some(ground) = Ground::with_policies("rootless").await else { return };
    let _alone = outside().await;
    let authority = BuilderCa::generate(Machine.now(), Duration::from_hours(1)).unwrap();
    let authority = BuilderCa::from_pem(&authority.certificate, &authority.key, Machine.now()).unwrap();
    let identity = authority.server("permitted.example", Machine.now(), Duration::from_hours(1)).unwrap();
    let (deployed, _tls, _plain, _unlisted) = tokio::join!(
        Deployed::on(&ground),
        Site::serve(ground.cluster, 443, Some(&identity)),
        Site::serve(ground.cluster, 8000, None),
        Site::serve(ground.cluster, 8001, None),
    );
    let settings = Settings { proxy: Some(deployed.settings()), ..ground.settings.clone() };
    let placement = ground.placement_with(settings, "worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let plain =
        ["http://permitted.example:8000/", "http://permitted.example:8001/", "http://forbidden.example/"];
    let mut dockerfile = ask(&ground.cluster.images().debian, &plain);
    for (url, more) in [
        ("https://permitted.example/", "--insecure"),
        ("https://forbidden.example/", "--insecure"),
        ("http://198.19.255.10:8000/", "--noproxy '*'"),
    ] {
        let curl = format!("curl {more} --silent --max-time 5 --output /dev/null");
        let answer = format!("--write-out 'answer %{{http_code}} {url}\\n'");
        writeln!(dockerfile, "RUN {curl} {answer} {url} || true").unwrap();
    }
    let output = workshop.output(&workshop.builder(&[]), &leased.daemon, "citation", &dockerfile).await;
    let answered = answers(&output);
    for (url, code) in [
        ("https://permitted.example/", "200"),
        // Of another app: the proxy does not tell them apart.
        ("http://permitted.example:8000/", "200"),
        ("http://permitted.example:8001/", "403"),
        ("http://forbidden.example/", "403"),
        // No tunnel was made, and past the proxy there is no way.
        ("https://forbidden.example/", "000"),
        ("http://198.19.255.10:8000/", "000"),
    ] {
        assert_eq!(answered[url], code, "{url}\n{output}");
    }
}
