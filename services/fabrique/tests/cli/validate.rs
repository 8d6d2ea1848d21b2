//! What `validate` says of files: network policies, and what the configuration names.

use std::fs;
use std::path::Path;

use fabrique_stage::Stage;
use tokio::process::Command;

use crate::support::{FABRIQUE, Said};
use crate::usage::{GOOD, configured, say};

fn policy(name: &str, egress: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{ name: {name} }}\n\
         spec: {{ podSelector: {{}}, egress: {egress} }}\n"
    )
}

fn cilium(name: &str, egress: &str) -> String {
    policy(name, egress).replace("kind: ", "kind: Cilium").replace("networking.k8s.io/v1", "cilium.io/v2")
}

const CLOSED: &str = "[{ to: [{ ipBlock: { cidr: 192.0.2.1/32 } }], ports: [{ port: 443 }] }]";

/// A way to the world in every spelling, each with what is said of it.
fn open_policies() -> Vec<(String, &'static str)> {
    let to = |ranges: &[&str]| {
        let peers: Vec<String> =
            ranges.iter().map(|range| format!("{{ ipBlock: {{ cidr: \"{range}\" }} }}")).collect();
        format!("[{{ to: [{}] }}]", peers.join(", "))
    };
    vec![
        (policy("everybody", "[{ ports: [{ port: 443 }] }]"), "has no `to`"),
        (policy("all-addresses", &to(&["0.0.0.0/0"])), "opens 0.0.0.0/0"),
        (policy("all-of-ipv6", &to(&["::/0"])), "opens ::/0"),
        (policy("two-halves", &to(&["0.0.0.0/1", "128.0.0.0/1"])), "more than a /8 together"),
        (cilium("an-entity", "[{ toEntities: [world] }]"), "opens the entity world"),
        (cilium("any-name", "[{ toFQDNs: [{ matchPattern: \"*\" }] }]"), "opens every host of *"),
    ]
}

#[tokio::test]
async fn every_policy_that_opens_the_world_is_refused_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("below/here");
    fs::create_dir_all(&below).unwrap();
    let open = open_policies();
    for (at, (text, _)) in open.iter().enumerate() {
        fs::write(below.join(format!("{at}.yaml")), format!("{}---\n{text}", policy("closed", CLOSED)))
            .unwrap();
    }
    fs::write(folder.path().join("notes.txt"), &open[0].0).unwrap();
    let said = say(&["validate", "--policies", folder.path().to_str().unwrap()]).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    for (at, (_, told)) in open.iter().enumerate() {
        let place = format!("{}: ", below.join(format!("{at}.yaml")).display());
        let lines: Vec<&str> = said.out.lines().filter(|line| line.starts_with(&place)).collect();
        assert!(lines.len() == 1 && lines[0].contains(told), "{told}: {said:?}");
        assert!(lines[0].contains("; name the hosts and ports"), "no remedy: {said:?}");
    }
    assert!(said.out.ends_with("12 policies, 6 findings\n"), "{said:?}");

    let json = say(&["validate", "-o", "json", "--policies", folder.path().to_str().unwrap()]).await.json();
    assert_eq!((&json["policies"], json["findings"].as_array().unwrap().len()), (&12.into(), 6), "{json}");
}

#[tokio::test]
async fn the_policies_of_this_repository_are_closed() {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s");
    let said = say(&["validate", "--policies", manifests.to_str().unwrap()]).await.ok();
    assert!(said.out.ends_with("policies, 0 findings\n"), "{said:?}");
}

#[tokio::test]
async fn what_cannot_be_judged_is_not_passed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let empty = say(&["validate", "--policies", path]).await;
    assert_eq!(empty.code, 1, "{empty:?}");
    assert!(empty.out.contains("holds no network policy"), "{empty:?}");
    let manifest = folder.path().join("service.yaml");
    fs::write(&manifest, "apiVersion: v1\nkind: Service\nmetadata: { name: citation }\n").unwrap();
    let without = say(&["validate", "--policies", path]).await.ok();
    assert!(without.out.contains("0 policies, 0 findings"), "an app's folder: {without:?}");
    let named = say(&["validate", "--policies", manifest.to_str().unwrap()]).await;
    assert_eq!(named.code, 1, "{named:?}");
    say(&["validate", "--policies", "/nowhere"]).await.refused(2, "/nowhere");

    fs::write(folder.path().join("chart.yaml"), "kind: {{ .Values.kind }}\n").unwrap();
    let unknown = policy("tiered", "[]").replace("kind: ", "kind: Admin");
    fs::write(folder.path().join("unknown.yml"), unknown).unwrap();
    let said = say(&["validate", "--policies", path]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("chart.yaml:1:") && said.out.contains("rendered manifests"), "{said:?}");
    assert!(said.out.contains("AdminNetworkPolicy tiered: a kind whose rules"), "{said:?}");
}

/// They go before NetworkPolicies, and some are called by the same name.
#[tokio::test]
async fn policies_of_other_network_plugins_are_not_passed() {
    let foreign = [
        ("projectcalico.org/v3", "NetworkPolicy"),
        ("crd.projectcalico.org/v1", "GlobalNetworkPolicy"),
        ("crd.antrea.io/v1beta1", "NetworkPolicy"),
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy"),
        ("cilium.io/v2", "CiliumLocalRedirectPolicy"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (version, kind) in foreign {
        let text = policy("closed", CLOSED).replace("networking.k8s.io/v1", version);
        let text = text.replace("kind: NetworkPolicy", &format!("kind: {kind}"));
        let file = folder.path().join("foreign.yaml");
        fs::write(&file, text).unwrap();
        let said = say(&["validate", "--policies", file.to_str().unwrap()]).await;
        let group = version.split_once('/').unwrap().0;
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.out.contains(&format!("{kind} closed ({group}): a kind whose rules")), "{said:?}");
    }
}

#[tokio::test]
async fn rendered_manifests_are_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered");
    for (text, code) in [(policy("closed", CLOSED), 0), (open_policies().remove(0).0, 1)] {
        fs::write(&file, text).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" validate --policies - < \"$1\"", FABRIQUE]).arg(&file);
        let said = Said::of(&mut command).await;
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.out.contains("1 policy, "), "{said:?}");
    }
}

#[tokio::test]
async fn a_checkout_and_the_policies_in_it_are_checked_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let app = folder.path().join("apps/citation");
    fs::create_dir_all(app.join("prod")).unwrap();
    fs::write(app.join("app.yaml"), "kind: App\nkind: App\n").unwrap();
    fs::write(app.join("prod/network.yaml"), &open_policies()[0].0).unwrap();
    let path = folder.path().to_str().unwrap();
    let said =
        say(&["validate", "--path", path, "--registry", "registry:80", "--policies", app.to_str().unwrap()])
            .await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.lines().any(|line| line.starts_with("apps/citation/app.yaml:2:")), "{said:?}");
    assert!(
        said.out.contains("prod/network.yaml: NetworkPolicy everybody egress[0]: has no `to`"),
        "{said:?}"
    );
    assert!(said.out.contains("0 apps registered, 1 policy, "), "{said:?}");
}

const BUILDERS: &str = "\
namespace: fabrique-builds
images: { builder: \"registry:80/builder@sha256:0000000000000000000000000000000000000000000000000000000000000000\" }
gate: { needed: \"registry:80\" }
";
const ALLOW_LIST: &str = "version: 1\nhosts: [{ host: pypi.org, purpose: packages }]\n";

/// Validates a configuration that names these two files.
async fn with_files(builders: &str, allow_list: &str) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let (pods, hosts) = (folder.path().join("builders.yaml"), folder.path().join("allow-list.yaml"));
    fs::write(&pods, builders).unwrap();
    fs::write(&hosts, allow_list).unwrap();
    let text = format!(
        "{GOOD}kubernetes: {{ builders_file: {} }}\nbuildkit: {{ allow_list_file: {} }}\n",
        pods.display(),
        hosts.display()
    );
    let config = configured(folder.path(), &text);
    say(&["--config", config.to_str().unwrap(), "validate"]).await
}

#[tokio::test]
async fn the_files_that_the_configuration_names_are_checked_too_all_at_once() {
    let pods = format!("{BUILDERS}pool: {{ total: 0, claim: 1s }}\n");
    let hosts = ALLOW_LIST.replace("packages", "' '").replace("version: 1", "version: 9");
    let said = with_files(&pods, &hosts).await;
    assert_eq!((said.code, said.err.as_str()), (2, ""), "{said:?}");
    for (file, key) in [
        ("builders.yaml", "pool.total: must be at least 1"),
        ("builders.yaml", "pool.claim: "),
        ("allow-list.yaml", "version: must be 1"),
        ("allow-list.yaml", "hosts[0].purpose: must say"),
    ] {
        let told = format!("{file}: {key}");
        let line = said.out.lines().find(|line| line.contains(&told));
        assert!(line.is_some_and(|line| line.contains("; correct the file of ")), "{told}: {said:?}");
    }

    let said = with_files(&BUILDERS.replace("namespace:", "namespaec:"), "hosts: [").await;
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.contains("builders.yaml:1:1: ") && said.out.contains("namespaec"), "{said:?}");
    assert!(said.out.contains("allow-list.yaml:"), "{said:?}");
}

#[tokio::test]
async fn files_that_are_right_are_not_in_the_way_and_one_that_is_missing_is_named() {
    with_files(BUILDERS, ALLOW_LIST).await.refused(3, "127.0.0.1:9");
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{GOOD}kubernetes: {{ builders_file: /nowhere/builders.yaml }}\n");
    let config = configured(folder.path(), &text);
    let said = say(&["--config", config.to_str().unwrap(), "validate"]).await;
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.starts_with("/nowhere/builders.yaml: cannot be read"), "{said:?}");
    assert!(said.out.contains("correct kubernetes.builders_file"), "{said:?}");
}

/// What no builder would be made for is told before it is pushed, with its line, where the builders' file is named.
#[tokio::test]
async fn a_registration_that_asks_for_more_than_builders_may_have_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let pods = folder.path().join("builders.yaml");
    fs::write(&pods, format!("{BUILDERS}max: {{ memory: 32Gi }}\n")).unwrap();
    let config =
        configured(folder.path(), &format!("{GOOD}kubernetes: {{ builders_file: {} }}\n", pods.display()));
    let checkout = folder.path().join("checkout");
    let app = checkout.join("apps/citation");
    fs::create_dir_all(&app).unwrap();
    let registration = |memory: &str| {
        format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: citation }}\nspec:\n  \
             source: {{ repo: atlas/citation }}\n  image: registry:80/citation\n  build:\n    \
             resources: {{ cpu: 99, memory: {memory} }}\n"
        )
    };
    let (config, path) = (config.to_str().unwrap(), checkout.to_str().unwrap());
    let named = ["--config", config, "validate", "--path", path];
    let unnamed = ["validate", "--path", path, "--registry", "registry:80"];

    fs::write(app.join("app.yaml"), registration("64Gi")).unwrap();
    let said = say(&named).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    let line = "apps/citation/app.yaml:8:35: build.resources.memory of 64Gi is declared, max.memory of the builders' \
                file permits 32Gi at the most; ask for 32Gi or less, or raise max.memory there";
    assert!(said.out.lines().any(|said| said == line), "{said:?}");
    assert!(said.out.ends_with("1 app registered, 1 finding\n"), "{said:?}");
    let json = say(&[&named[..], &["-o", "json"]].concat()).await.json();
    let finding = &json["findings"][0];
    assert_eq!(
        (&finding["line"], &finding["declared"]),
        (&8.into(), &"build.resources.memory of 64Gi".into())
    );
    assert!(finding["found"].as_str().unwrap().contains("permits 32Gi"), "{json}");
    // Nobody knows what builders may have where no file says so.
    say(&unnamed).await.ok();

    fs::write(app.join("app.yaml"), registration("32Gi")).unwrap();
    say(&named).await.ok();
}

const DECLARATION: &str = "codeLocation: citation\nready: true\ncontractVersion: 3\n";
const OVERLAY: &str = "images:\n  - { name: 'registry:80/citation', digest: __CITATION_IMAGE_DIGEST__ }\n";
const PATCH: &str = "\
spec: { containers: [{ name: grpc, env: [{ name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__ }] }] }
";

#[tokio::test]
async fn an_apps_own_repository_is_checked_without_any_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    say(&["validate", "--path", path]).await.refused(2, "holds no code-location.manifest.yaml");
    say(&["validate", "--overlay", "prod"]).await.refused_by_clap();
    say(&["validate", "--contract", "contract.yaml"]).await.refused_by_clap();
    say(&["validate", "citation", "--path", path]).await.refused_by_clap();

    let overlay = folder.path().join("ops/deploy/overlays/prod");
    fs::create_dir_all(&overlay).unwrap();
    fs::write(folder.path().join("ops/code-location.manifest.yaml"), DECLARATION).unwrap();
    fs::write(overlay.join("kustomization.yaml"), OVERLAY).unwrap();
    fs::write(overlay.join("patch.yaml"), PATCH).unwrap();
    let said = say(&["validate", "--path", path]).await.ok();
    assert_eq!(said.out, "1 declaration, 1 overlay, 0 findings\n");

    let contract = folder.path().join("contract.yaml");
    let with_contract = ["validate", "--path", path, "--contract", contract.to_str().unwrap()];
    say(&with_contract).await.refused(2, "contract.yaml");
    fs::write(&contract, "nonsense: true\n").unwrap();
    let said = say(&with_contract).await;
    assert!(said.code == 1 && said.out.contains("contract.yaml:1:1: "), "{said:?}");
    fs::remove_file(&contract).unwrap();

    fs::write(overlay.join("patch.yaml"), PATCH.replace("__CITATION_IMAGE__", "registry:80/citation:0.0.0"))
        .unwrap();
    let wrong = DECLARATION.replace("ready", "rady");
    fs::write(folder.path().join("ops/code-location.manifest.yaml"), wrong).unwrap();
    fs::create_dir_all(folder.path().join("second")).unwrap();
    fs::write(folder.path().join("second/code-location.manifest.yaml"), DECLARATION).unwrap();
    let named = ["validate", "--path", path, "--overlay", "ops/deploy/overlays/prod"];
    let said = say(&named).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    for told in [
        "ops/code-location.manifest.yaml:2:1: the declaration has no field \"rady\"; did you mean ready?",
        "ops/deploy/overlays/prod/patch.yaml:1:80: DAGSTER_CURRENT_IMAGE is \"registry:80/citation:0.0.0\"",
        "1 declaration, 1 overlay, 4 findings",
    ] {
        assert!(said.out.lines().any(|line| line.starts_with(told)), "{told}: {said:?}");
    }
    let json = say(&[&named[..], &["-o", "json"]].concat()).await.json();
    assert_eq!((&json["declarations"], &json["overlays"]), (&1.into(), &1.into()), "{json}");
    assert_eq!(json["findings"].as_array().unwrap().len(), 4, "{json}");
}

#[tokio::test]
async fn the_contract_in_a_checkout_is_checked_with_the_registrations() {
    let folder = tempfile::tempdir().unwrap();
    let example = include_str!("../../../../docs/contract.yaml.example");
    fs::write(folder.path().join("contract.yaml"), example.replace("accepts:", "acepts:")).unwrap();
    let said =
        say(&["validate", "--path", folder.path().to_str().unwrap(), "--registry", "registry:80"]).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    assert!(said.out.contains("has no field \"acepts\"; did you mean accepts?"), "{said:?}");
    assert!(said.out.contains("0 apps registered, "), "{said:?}");
}

#[tokio::test]
async fn a_contract_that_contradicts_the_configuration_is_told_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = "gitea: { url: http://gitea.forge.svc:3000/ }\nnats: { servers: [\"nats://nats.fabrique.svc\"] }\n\
                registry: { allowed: [\"registry:5000\"] }\n";
    let config = configured(folder.path(), text);
    let apps = folder.path().join("apps.git");
    fs::create_dir_all(apps.join("apps")).unwrap();
    let example = include_str!("../../../../docs/contract.yaml.example");
    fs::write(apps.join("contract.yaml"), example).unwrap();
    let path = ["validate", "--path", apps.to_str().unwrap()];
    let said = say(&[&["--config", config.to_str().unwrap()], &path[..]].concat()).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    for (place, words) in [
        ("9:10", "gitea.url of fabrique's configuration says http://gitea.forge.svc:3000/"),
        ("11:13", "registry.allowed of fabrique's configuration says registry:5000"),
    ] {
        let line = said.out.lines().find(|line| line.starts_with(&format!("contract.yaml:{place}: ")));
        assert!(line.is_some_and(|line| line.contains(words)), "{place}: {said:?}");
    }
    assert!(said.out.ends_with("0 apps registered, 2 findings\n"), "{said:?}");
}

#[tokio::test]
async fn the_schemas_are_printed_as_they_are_published() {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    for (args, file) in [
        (&["schema"][..], "code-location.manifest.json"),
        (&["schema", "declaration", "-o", "json"], "code-location.manifest.json"),
        (&["schema", "contract"], "contract.json"),
    ] {
        let said = say(args).await.ok();
        assert_eq!(said.out, fs::read_to_string(published.join(file)).unwrap(), "{args:?}");
    }
    say(&["schema", "registration"]).await.refused_by_clap();
}

/// Whoever asks for one app sees everything that is wrong with it, however little of it can be read.
#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_wrong_with_one_registration_is_told_to_who_asks_for_that_app() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let wrong = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                 source: { repoo: atlas/citation }\n  imag: registry:80/citation\n";
    let apps = stage.clone_apps().await.unwrap();
    apps.write("apps/citation/app.yaml", wrong).await.unwrap();
    apps.commit("Register citation").await.unwrap();
    apps.push().await.unwrap();

    let (code, out, err) = stage.try_command(&["validate", "citation"]).await.unwrap();
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let place = "apps/citation/app.yaml:";
    let told: Vec<&str> = out.lines().filter(|line| line.starts_with(place)).collect();
    assert!(told.len() > 1, "one of several is no report: {out}");
    for field in ["repoo", "imag"] {
        assert!(told.iter().any(|line| line.contains(&format!("{field:?}"))), "{field}: {out}");
    }
    assert!(out.ends_with(&format!(", {} findings\n", told.len())), "{out}");

    let (code, out, _) = stage.try_command(&["validate", "citation", "-o", "json"]).await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!((code, json["findings"].as_array().unwrap().len()), (1, told.len()), "{json}");
    let (code, _, err) = stage.try_command(&["validate", "citatoin"]).await.unwrap();
    assert!(code == 2 && err.contains("citatoin is not a registered app"), "{err}");
}
