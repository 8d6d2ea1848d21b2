//! What the two isolations do differently.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, ConfigMapVolumeSource, EmptyDirVolumeSource, EnvVar,
    EphemeralVolumeSource, KeyToPath, PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate,
    PodSecurityContext, SeccompProfile, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    VolumeResourceRequirements,
};

use super::{CONFIG_MAP, DAEMON_PORT, Generation, amounts};
use crate::config::{Amount, Isolation, Settings};
use crate::pki::{CA_FILE, CERT_FILE, KEY_FILE};
use crate::proxy;

/// Where the pod's certificate is mounted.
const TLS_DIR: &str = "/etc/fabrique/tls";
/// Where `buildkitd.toml` is mounted.
const CONFIG_DIR: &str = "/etc/fabrique/buildkit";
/// The name of `buildkitd.toml` inside the pod.
const CONFIG_FILE: &str = "buildkitd.toml";
/// The name of the private authorities' certificates next to it.
const AUTHORITIES_FILE: &str = "authorities.pem";
/// Readable by owner and group, in the decimal that the API wants of an octal number.
const PRIVATE: i32 = 0o440;

const CACHE: &str = "cache";
const CERTIFICATE: &str = "certificate";
const CONFIG: &str = "config";

/// The parts of a pod that its isolation decides.
pub(super) struct Shape {
    /// `Some(false)`: a user namespace of the pod's own.
    pub(super) host_users: Option<bool>,
    /// The UID and GID of all processes, as the pod sees them.
    pub(super) user: i64,
    isolation: Isolation,
    /// The daemon's own files, on the cache volume.
    root: &'static str,
    /// Where its socket is.
    run: &'static str,
}

impl Shape {
    pub(super) fn of(isolation: Isolation) -> Self {
        match isolation {
            // Root of the pod's own user namespace: an ordinary, unnamed user of the node.
            Isolation::Userns => Self {
                host_users: Some(false),
                user: 0,
                isolation,
                root: "/var/lib/buildkit",
                run: "/run/buildkit",
            },
            Isolation::Rootless => Self {
                host_users: None,
                user: 1000,
                isolation,
                root: "/home/user/.local/share/buildkit",
                run: "/run/user/1000/buildkit",
            },
        }
    }

    /// The address that the probe asks.
    pub(super) fn socket(&self) -> String {
        format!("unix://{}/buildkitd.sock", self.run)
    }

    /// Spelled out, whatever the image's own entry point is.
    pub(super) fn command(&self) -> Vec<String> {
        let command: &[&str] = match self.isolation {
            Isolation::Userns => &["buildkitd"],
            Isolation::Rootless => &["rootlesskit", "buildkitd"],
        };
        command.iter().map(|&part| part.to_owned()).collect()
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--config={CONFIG_DIR}/{CONFIG_FILE}"),
            format!("--root={}", self.root),
            format!("--addr={}", self.socket()),
            format!("--addr=tcp://0.0.0.0:{DAEMON_PORT}"),
            // Even inside the pod: without a network of its own, a RUN step reaches the port on localhost.
            format!("--tlscacert={TLS_DIR}/{CA_FILE}"),
            format!("--tlscert={TLS_DIR}/{CERT_FILE}"),
            format!("--tlskey={TLS_DIR}/{KEY_FILE}"),
        ];
        if self.isolation == Isolation::Rootless {
            arguments.push("--oci-worker-no-process-sandbox".to_owned());
        }
        arguments
    }

    /// The image is made for the rootless user. As `root`, buildkitd keeps to the paths of `root`.
    pub(super) fn environment(&self, settings: &Settings) -> Vec<EnvVar> {
        let variables: &[(&str, &str)] = match self.isolation {
            Isolation::Userns => {
                &[("HOME", "/root"), ("USER", "root"), ("TMPDIR", "/tmp"), ("XDG_RUNTIME_DIR", "/run")]
            }
            Isolation::Rootless => &[
                ("HOME", "/home/user"),
                ("USER", "user"),
                ("TMPDIR", "/home/user/.local/tmp"),
                ("XDG_RUNTIME_DIR", "/run/user/1000"),
            ],
        };
        let variable = |(name, value): (&str, &str)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        };
        // Go reads every file of these folders; a file of its own would hide the image's certificates.
        let folders = format!("/etc/ssl/certs:{CONFIG_DIR}");
        let trust = settings.daemon.authorities.as_ref().map(|_| ("SSL_CERT_DIR", folders.as_str()));
        let proxy = proxy::environment(settings, self.isolation);
        let proxy = proxy.iter().map(|(name, value)| (*name, value.as_str()));
        variables.iter().copied().chain(trust).chain(proxy).map(variable).collect()
    }

    pub(super) fn pod_security(&self) -> PodSecurityContext {
        PodSecurityContext { fs_group: Some(self.user), ..Default::default() }
    }

    /// Building containers inside one needs mounts and namespaces, which the default seccomp and AppArmor profiles
    /// forbid.
    pub(super) fn daemon_security(&self) -> SecurityContext {
        let unconfined = "Unconfined".to_owned();
        let common = SecurityContext {
            run_as_user: Some(self.user),
            run_as_group: Some(self.user),
            privileged: Some(false),
            // Rootless needs it for newuidmap, which carries file capabilities; with SYS_ADMIN it is implied.
            allow_privilege_escalation: Some(true),
            seccomp_profile: Some(SeccompProfile { type_: unconfined.clone(), localhost_profile: None }),
            app_armor_profile: Some(AppArmorProfile { type_: unconfined, localhost_profile: None }),
            ..Default::default()
        };
        match self.isolation {
            Isolation::Rootless => common,
            // Capabilities over the pod's own namespaces, and over nothing outside them. SYS_PTRACE is for runc, which
            // enters the mount namespace of the step that it starts.
            Isolation::Userns => SecurityContext {
                capabilities: Some(Capabilities {
                    add: Some(["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"].map(str::to_owned).to_vec()),
                    drop: None,
                }),
                proc_mount: Some("Unmasked".to_owned()),
                ..common
            },
        }
    }

    pub(super) fn mounts(&self) -> Vec<VolumeMount> {
        let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only: read_only.then_some(true),
            ..Default::default()
        };
        vec![
            mount(CACHE, self.root, false),
            mount(CERTIFICATE, TLS_DIR, true),
            mount(CONFIG, CONFIG_DIR, true),
        ]
    }

    pub(super) fn volumes(&self, settings: &Settings, secret: &str, generation: &Generation) -> Vec<Volume> {
        let certificate = Volume {
            name: CERTIFICATE.to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.to_owned()),
                default_mode: Some(PRIVATE),
                ..Default::default()
            }),
            ..Default::default()
        };
        let file = |key: &String, path: &str| KeyToPath {
            key: key.clone(),
            path: path.to_owned(),
            ..Default::default()
        };
        let toml = file(&generation.toml, CONFIG_FILE);
        let authorities = generation.authorities.as_ref().map(|key| file(key, AUTHORITIES_FILE));
        let config = Volume {
            name: CONFIG.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: CONFIG_MAP.to_owned(),
                items: Some(std::iter::once(toml).chain(authorities).collect()),
                ..Default::default()
            }),
            ..Default::default()
        };
        vec![cache(settings), certificate, config]
    }
}

/// The volume of the daemon's cache. It ends with its pod, since what is in it belongs to one trust domain.
fn cache(settings: &Settings) -> Volume {
    let size = settings.cache.size.quantity();
    let Some(class) = &settings.cache.storage_class else {
        let source = EmptyDirVolumeSource { size_limit: Some(size), medium: None, ..Default::default() };
        return Volume { name: CACHE.to_owned(), empty_dir: Some(source), ..Default::default() };
    };
    let claim = PersistentVolumeClaimTemplate {
        metadata: None,
        spec: PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: Some(class.clone()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(amounts([("storage", size)])),
                limits: None,
            }),
            ..Default::default()
        },
    };
    Volume {
        name: CACHE.to_owned(),
        ephemeral: Some(EphemeralVolumeSource { volume_claim_template: Some(claim) }),
        ..Default::default()
    }
}
