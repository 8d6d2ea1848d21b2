use std::fs;

use secrecy::ExposeSecret as _;

use super::*;

const LEAST: &str =
    "gitea: { url: http://g/ }\nnats: { servers: [x] }\nregistry: { allowed: [r] }\nstate: { dir: /x }\n";

fn loaded(more: &str) -> Result<Config, Vec<Problem>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabrique.yaml");
    fs::write(&file, format!("{LEAST}{more}")).unwrap();
    load(Some(&file), &[])
}

#[test]
fn every_default_is_within_its_bounds() {
    loaded("").unwrap();
}

#[test]
fn every_value_out_of_bounds_is_told_at_once_with_what_is_allowed() {
    let problems = loaded(
        "git: { timeouts: { push: 2h }, limits: { packs: 1 } }\n\
         worker: { lease: 1ms, backoff_base: 1h }\n\
         buildkit: { daemons: [{ name: a, address: 'tcp://a:1' }, { name: b, address: 'tcp://b:1', slots: 0 }] }\n",
    )
    .unwrap_err();
    let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for expected in [
        "git.timeouts.push: 2h is out of bounds (write duration, 1s to 1h; the default is 1m)",
        "git.limits.packs: 1 is out of bounds (write 2 to 1000; the default is 40)",
        "worker.lease: 1ms is out of bounds (write duration, 300ms to 1h; the default is 30s)",
        "worker.backoff_max: shorter than the first wait (raise it to worker.backoff_base or more)",
        "buildkit.daemons.1.slots: 0 is out of bounds (write 1 to 64; the default is 1)",
    ] {
        assert!(told.iter().any(|told| told == expected), "{expected}: {told:#?}");
    }
    assert_eq!(told.len(), 5, "{told:#?}");
}

#[test]
fn migrations_verify_no_server_since_nothing_mounts_the_authority() {
    let told = |mode: &str| {
        let problems = loaded(&format!("render: {{ migrations: {{ sslmode: {mode} }} }}\n")).err();
        problems.unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for mode in ["disable", "prefer", "require"] {
        assert_eq!(told(mode), [""; 0]);
    }
    let expected = "render.migrations.sslmode: needs the authority of the databases, and the Job has none (write require)";
    assert_eq!(told("verify-ca"), [expected]);
    assert_eq!(told("verify-full"), [expected]);
    assert_eq!(told("allow"), ["render.migrations.sslmode: no such mode (write require)"]);
}

#[test]
fn a_relay_listens_somewhere_and_leads_to_what_is_cloned_over_tls() {
    let told = |github: &str| {
        let problems = loaded(&format!("github: {{ {github} }}\n")).err();
        problems.unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told("relay: '0.0.0.0:3128'"), [""; 0]);
    assert_eq!(told("relay: '3128'"), ["github.relay: not an address with a port (write 0.0.0.0:3128)"]);
    assert_eq!(told("clone_url: 'http://github.example/'"), [""; 0]);
    assert_eq!(told("proxy: 'https://proxy:3128/'"), [""; 0]);
    assert_eq!(
        told("proxy: 'https://proxy:3128/', relay: '0.0.0.0:3128'"),
        [
            "github.proxy: there is a relay, which speaks to a proxy without TLS (write http://proxy:3128/, or leave github.relay out)"
        ]
    );
    assert_eq!(
        told("clone_url: 'http://github.example/', relay: '[::]:3128'"),
        [
            "github.clone_url: there is a relay, and Gitea uses proxies for https only (write https://, or leave github.relay out)"
        ]
    );
}

#[test]
fn an_address_is_of_a_registry_that_is_named_and_reached_over_http() {
    let told = |registry: &str| {
        let text = format!("registry: {{ {registry} }}\n");
        let problems = loaded(&text).err().unwrap_or_default();
        let of_addresses = |told: &String| told.starts_with("registry.addresses");
        problems.iter().map(ToString::to_string).filter(of_addresses).collect::<Vec<_>>()
    };
    let address = |host: &str| format!("addresses: [{{ host: '{host}', address: '127.0.0.1:5000' }}]");
    let plain =
        format!("allowed: ['registry:80/team'], plain_http: ['registry:80'], {}", address("registry:80"));
    assert_eq!(told(&plain), [""; 0]);
    let of_bases = format!(
        "allowed: ['other:80'], bases: ['registry:80'], plain_http: ['registry:80'], {}",
        address("registry:80")
    );
    assert_eq!(told(&of_bases), [""; 0]);
    let mistyped =
        format!("allowed: ['registry:80'], plain_http: ['registry:80'], {}", address("regsitry:80"));
    let [told_host] = &told(&mistyped)[..] else { panic!("{:?}", told(&mistyped)) };
    assert!(
        told_host.starts_with("registry.addresses.0.host: no registry of registry.allowed"),
        "{told_host}"
    );
    let tls = format!("allowed: ['registry:80'], {}", address("registry:80"));
    let [told_tls] = &told(&tls)[..] else { panic!("{:?}", told(&tls)) };
    assert!(told_tls.contains("registry.plain_http"), "{told_tls}");
}

#[test]
fn a_certificate_to_show_to_daemons_that_nobody_vouches_for_is_a_mistake() {
    let own = "cert_file: /c, key_file: /k";
    loaded(&format!("buildkit: {{ tls: {{ ca_file: /a, {own} }} }}\n")).unwrap();
    loaded("buildkit: { tls: { ca_file: /a } }\n").unwrap();
    let problems = loaded(&format!("buildkit: {{ tls: {{ {own} }} }}\n")).unwrap_err();
    let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let expected = "buildkit.tls.ca_file: a certificate to show and nobody to trust (name the authority that signed the daemons' certificates)";
    assert_eq!(told, [expected]);
    let problems = loaded("buildkit: { tls: { ca_file: /a, key_file: /k } }\n").unwrap_err();
    assert_eq!(problems[0].key, "buildkit.tls");
}

#[test]
fn where_to_listen_is_an_ip_address_with_a_port() {
    let told = |text: &str| {
        let problems = loaded(text).err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for good in ["127.0.0.1:8080", "0.0.0.0:0", "[::]:8080"] {
        let every = format!("{{ listen: '{good}' }}");
        assert_eq!(
            told(&format!("receiver: {every}\nworker: {every}\nreconciler: {every}\n")),
            [""; 0],
            "{good}"
        );
    }
    for wrong in ["8080", ":8080", "127.0.0.1", "localhost:8080", "http://0.0.0.0:8080", "0.0.0.0:65536", ""]
    {
        for section in ["receiver", "worker", "reconciler"] {
            let expected = format!(
                "{section}.listen: not an IP address with a port (write one like 0.0.0.0:8080 or [::]:8080)"
            );
            assert_eq!(told(&format!("{section}: {{ listen: '{wrong}' }}\n")), [expected], "{wrong}");
        }
    }
}

#[test]
fn the_workers_defaults_are_said_once() {
    let config = loaded("").unwrap();
    let bounds = fabrique_worker::Bounds::default();
    assert_eq!(config.worker.backoff_base.get(), bounds.backoff_base);
    assert_eq!(config.worker.backoff_max.get(), bounds.backoff_max);
}

#[test]
fn a_secret_is_taken_letter_for_letter() {
    let given = [("receiver.secret".to_owned(), "007".to_owned())];
    let (figment, problems) = secret::collect(Figment::new(), &given, &[]);
    assert_eq!(problems, []);
    let config: Config = figment.extract().unwrap();
    assert_eq!(config.receiver.secret.get().unwrap().expose_secret(), "007");
}

#[test]
fn the_file_of_a_secret_wins_and_one_that_cannot_be_read_is_told_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "from the file\n").unwrap();
    let config = loaded(&format!("receiver: {{ secret_file: {} }}\n", file.display())).unwrap();
    assert_eq!(config.receiver.secret.get().unwrap().expose_secret(), "from the file");
    let user = "nats: { servers: [x], users: { worker: { password_file: /nowhere } } }\n";
    let text = LEAST.replace("nats: { servers: [x] }\n", user);
    let file = folder.path().join("fabrique.yaml");
    fs::write(&file, text).unwrap();
    let problems = load(Some(&file), &[]).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].key, "nats.users.worker.password_file");
    assert!(problems[0].what.starts_with("/nowhere: "), "{problems:?}");
}

#[test]
fn a_shown_configuration_names_its_sources_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabrique.yaml");
    fs::write(&file, format!("{LEAST}worker: {{ lease: 3s }}\n")).unwrap();
    let set = [("worker.looks".to_owned(), "5".to_owned())];
    let settings = explain(Some(&file), &set).unwrap();
    let shown = |key: &str| {
        let setting = settings.iter().find(|setting| setting.key == key).unwrap();
        (setting.value.as_str(), setting.from.as_str())
    };
    assert_eq!(shown("worker.lease"), ("3s", file.to_str().unwrap()));
    assert_eq!(shown("worker.looks"), ("5", "--set"));
    assert_eq!(shown("git.timeouts.push"), ("1m", "default"));
    assert!(settings.iter().all(|setting| setting.key != "gitea.read_token"), "nobody said anything of it");
}
