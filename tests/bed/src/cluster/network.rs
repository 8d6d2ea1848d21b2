//! Links, addresses and routes.
//!
//! The hub is a router with a bridge, to which every node, the caller and the servers' addresses are attached. Pods
//! keep their own addresses all the way: nothing translates them, so that policies and logs name who asks.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::namespace::Namespace;
use super::plan::{
    self, ARGOCD, CALLER, GITEA, HUB, LINK_BITS, NATS, NODES, Node, OUTSIDE, OUTSIDE_HUB, RANGE, REGISTRY,
};
use crate::spawn::Entry;

/// The caller's end of its link to the hub.
pub(crate) const CALLER_LINK: &str = "fabrique-bed";
const BRIDGE: &str = "bed";

/// Joins hub, nodes, the outside and the caller.
pub(crate) async fn connect(hub: &Namespace, outside: &Namespace, nodes: &[Namespace]) -> Result<()> {
    let entry = hub.network_entry()?;
    take_away_stale_link().await;
    let mut lines = format!("link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
    for address in [HUB, REGISTRY, GITEA, NATS, ARGOCD] {
        writeln!(lines, "addr add {address}/{LINK_BITS} dev {BRIDGE}")?;
    }
    for (node, namespace) in NODES.iter().zip(nodes) {
        let (name, holder) = (node.name, namespace.network_entry()?.holder);
        writeln!(lines, "link add {name} type veth peer name eth0 netns {holder}")?;
        writeln!(lines, "link set {name} master {BRIDGE} up")?;
        writeln!(lines, "route add {} via {}", node.pods(), node.address)?;
    }
    // Services are addresses of no machine: a node turns them into a pod's.
    writeln!(lines, "route add {} via {}", plan::SERVICES, plan::CONTROL.address)?;
    let holder = outside.network_entry()?.holder;
    writeln!(lines, "link add outside type veth peer name eth0 netns {holder}")?;
    writeln!(lines, "addr add {OUTSIDE_HUB}/{LINK_BITS} dev outside\nlink set outside up")?;
    writeln!(lines, "link add caller type veth peer name {CALLER_LINK} netns {}", std::process::id())?;
    writeln!(lines, "link set caller master {BRIDGE} up")?;
    ip(Some(entry), &lines).await.context("setting the hub up")?;
    forward(entry).await?;

    for (node, namespace) in NODES.iter().zip(nodes) {
        let entry = namespace.network_entry()?;
        ip(Some(entry), &of_node(node)?).await.with_context(|| format!("connecting {}", node.name))?;
        forward(entry).await?;
    }
    let mut lines = "link set lo up\nlink set eth0 up\n".to_owned();
    for address in OUTSIDE {
        writeln!(lines, "addr add {address}/{LINK_BITS} dev eth0")?;
    }
    writeln!(lines, "route add default via {OUTSIDE_HUB}")?;
    ip(Some(outside.network_entry()?), &lines).await.context("connecting the outside")?;

    let lines = format!(
        "addr add {CALLER}/{LINK_BITS} dev {CALLER_LINK}\nlink set {CALLER_LINK} up\nroute add {RANGE} via {HUB}\n"
    );
    ip(None, &lines).await.context("connecting the caller")
}

/// The kernel takes its time with the networks of an earlier cluster, whose link to the caller stays as long. Nobody but
/// the cluster whose turn it is has one.
async fn take_away_stale_link() {
    if Path::new("/sys/class/net").join(CALLER_LINK).exists() {
        // It may go by itself at any moment.
        let _ = ip(None, &format!("link delete {CALLER_LINK}\n")).await;
    }
}

fn of_node(node: &Node) -> Result<String> {
    let mut lines =
        format!("link set lo up\naddr add {}/{LINK_BITS} dev eth0\nlink set eth0 up\n", node.address);
    // Also for Services: an address needs a route before it is translated.
    writeln!(lines, "route add default via {HUB}")?;
    for other in NODES.iter().filter(|other| other.name != node.name) {
        writeln!(lines, "route add {} via {}", other.pods(), other.address)?;
    }
    Ok(lines)
}

/// Lets a namespace pass packets on. The kernel shows these files for the network of who opens them.
async fn forward(entry: Entry) -> Result<()> {
    let settings =
        "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects";
    run(Some(entry), "sh", &["-c", settings], "").await
}

/// Runs a batch of `ip` commands.
async fn ip(entry: Option<Entry>, lines: &str) -> Result<()> {
    run(entry, "ip", &["-batch", "-"], lines).await
}

async fn run(entry: Option<Entry>, program: &str, args: &[&str], input: &str) -> Result<()> {
    let mut words: Vec<String> = entry.map(Entry::command).unwrap_or_default();
    words.push(program.to_owned());
    words.extend(args.iter().map(|arg| (*arg).to_owned()));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("PATH", crate::install::search_path()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {}", words[0]))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
