//! What the cluster's registry holds from the start.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::install::{Cache, Product};
use crate::registry::{BASE, DEBIAN, PATH, Registry};

/// How nodes and pods call the registry.
pub(crate) const HOST: &str = "registry:80";

/// References by digest, as pods name them: `registry:80/…@sha256:…`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Images {
    /// Static busybox with all its applets. It cannot resolve names: it crashes when it tries.
    pub busybox: String,
    /// A small Debian with bash, git, curl and iproute2, user 1000 named `user`: for probes that resolve names.
    pub debian: String,
    /// Rootless BuildKit on that Debian: `rootlesskit buildkitd` as user 1000. With other commands, and as root of
    /// a pod with `hostUsers: false`, the same image serves as a builder without rootlesskit.
    pub builder: String,
    /// `squid` on that Debian, without a configuration.
    pub squid: String,
    /// What holds a pod's namespaces.
    pub(crate) pause: String,
    pub(crate) coredns: String,
}

impl Images {
    /// Pushes what starting the cluster needs, and the rest too.
    pub(crate) async fn push(cache: &Cache, registry: &Registry) -> Result<Self> {
        let layers = [Product::Busybox, Product::Coredns, Product::Debian, Product::Builder, Product::Squid];
        let [busybox, coredns, debian, builder, squid] = layers.map(|product| cache.folder(product));
        let push = async |name: &str, from: Option<&str>, layers: &[&Path], config: Value| {
            let digest = registry.push_image(name, from, layers, &config).await?;
            anyhow::Ok(format!("{HOST}/{name}@{digest}"))
        };
        let pause = json!({ "Entrypoint": ["/bin/busybox", "sleep", "2147483647"], "User": "65534:65534" });
        let dns = json!({ "Entrypoint": ["/usr/bin/coredns"] });
        let proxy = json!({ "Env": [PATH], "Cmd": ["squid", "--foreground"] });
        // One after the other: the machine is busy with the rest of the start.
        let pause = push("bed/pause", Some(BASE), &[&busybox], pause).await?;
        let coredns = push("bed/coredns", None, &[&coredns], dns).await?;
        let debian_image = format!("{HOST}/{}", registry.push_debian(&debian).await?);
        let builder = push("bed/builder", Some(DEBIAN), &[&debian, &builder], builder_config()).await?;
        let squid = push("bed/squid", Some(DEBIAN), &[&debian, &squid], proxy).await?;
        let busybox = format!("{HOST}/{BASE}@{}", Registry::busybox_digest(cache)?);
        Ok(Self { busybox, debian: debian_image, builder, squid, pause, coredns })
    }
}

fn builder_config() -> Value {
    json!({
        "User": "1000:1000",
        "Env": [
            PATH,
            "HOME=/home/user",
            "USER=user",
            "XDG_RUNTIME_DIR=/run/user/1000",
            "TMPDIR=/home/user/.local/tmp",
            "BUILDKIT_HOST=unix:///run/user/1000/buildkit/buildkitd.sock",
        ],
        "Volumes": { "/home/user/.local/share/buildkit": {} },
        "Entrypoint": ["rootlesskit", "buildkitd"],
    })
}
