//! Build daemons: there, new enough, and with a snapshotter that is fast.

use fabrique_ports::builder::{Daemon, DaemonInfo};
use futures::future::join_all;

use super::{Check, Doctor};

pub(super) async fn daemons(doctor: &Doctor) -> Vec<Check> {
    let Some((daemons, builder)) = &doctor.ports.builders else { return Vec::new() };
    let probes = daemons.iter().map(|daemon| async move {
        let name = format!("buildkitd {daemon}");
        let probe = async {
            match builder.probe(daemon).await {
                Ok(info) => judge(name.clone(), daemon, &info, doctor.config.builder_floor.as_deref()),
                Err(error) => Check::error(&name, &error),
            }
        };
        doctor.within(&name, probe).await
    });
    join_all(probes).await
}

fn judge(name: String, daemon: &Daemon, info: &DaemonInfo, floor: Option<&str>) -> Check {
    let version = &info.version;
    if !info.supported {
        let what = format!("{} runs {version}, which is too old", daemon.address);
        let floor = floor.map(|floor| format!(" to {floor} or newer")).unwrap_or_default();
        return Check::fail(name, what, format!("upgrade buildkitd{floor}"));
    }
    match info.snapshotter.as_deref() {
        Some(slow @ ("fuse-overlayfs" | "native")) => Check::warn(
            name,
            format!("{version} uses the snapshotter {slow}, which copies or crosses into user space"),
            "use a kernel with overlayfs in user namespaces (5.11 or newer) and `--oci-worker-snapshotter=overlayfs`",
        ),
        Some(snapshotter) => {
            Check::ok(name, format!("{version}, {snapshotter}, builds for {}", info.platforms.join(", ")))
        }
        None => Check::ok(name, format!("{version}, builds for {}", info.platforms.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn level(supported: bool, snapshotter: Option<&str>) -> Level {
        let daemon = Daemon {
            name: "a".to_owned(),
            address: "unix:///run/a.sock".to_owned(),
            tls_name: None,
            isolation: None,
            proxy: None,
        };
        let info = DaemonInfo {
            version: "v0.31.0".to_owned(),
            supported,
            snapshotter: snapshotter.map(str::to_owned),
            platforms: vec!["linux/amd64".to_owned()],
        };
        let check = judge("buildkitd a".to_owned(), &daemon, &info, Some("0.31.2"));
        assert!(supported || check.remedy == "upgrade buildkitd to 0.31.2 or newer", "{check:?}");
        check.level
    }

    #[test]
    fn an_old_daemon_fails_and_a_slow_snapshotter_warns() {
        assert_eq!(level(false, Some("overlayfs")), Level::Fail);
        assert_eq!(level(true, Some("fuse-overlayfs")), Level::Warn);
        assert_eq!(level(true, Some("native")), Level::Warn);
        assert_eq!(level(true, Some("overlayfs")), Level::Ok);
        assert_eq!(level(true, None), Level::Ok);
    }
}
