//! One cluster for many processes: who owns it serves, the others attach.

use std::fs::{self, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::parts::{Grounds, Parts, Sites};
use super::{Argo, Cluster, Images, Kubectl, Pki, plan, take_turn};
use crate::folder::{self, Folder};
use crate::gitea::Gitea;
use crate::install::Cache;
use crate::nats::Nats;
use crate::peer::Peer;
use crate::registry::Registry;
use crate::remote::{self, Reply, Request};
use crate::wait::wait_until;

use super::namespace::Namespace;
use super::node::Machine;

/// How long a cluster may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// What another process has to know to use a cluster.
#[derive(Serialize, Deserialize)]
struct Notice {
    folder: PathBuf,
    images: Images,
    gitea_token: String,
    nats_passwords: Vec<String>,
    /// Of Argo CD, when there is one.
    webhook_secret: Option<String>,
}

fn notice_path() -> Result<PathBuf> {
    Ok(folder::base()?.join("cluster.json"))
}

fn socket_path() -> Result<PathBuf> {
    Ok(folder::base()?.join("cluster.sock"))
}

/// Serves until somebody asks for the end.
pub(super) async fn serve(cluster: &Cluster) -> Result<()> {
    let (socket, notice) = (socket_path()?, notice_path()?);
    // Whoever left them is dead: only one at a time has the turn.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).context("listening for those who share the cluster")?;
    fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    publish(cluster, &notice)?;
    let ending = Arc::new(Notify::new());
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(answer(stream, cluster.parts.clone(), ending.clone()));
            }
            () = ending.notified() => break,
            _ = interrupted.recv() => break,
            _ = terminated.recv() => break,
        }
    }
    fs::remove_file(&notice)?;
    fs::remove_file(&socket)?;
    Ok(())
}

/// Writes the notice so that it is never seen in part, nor by others: there are passwords in it.
fn publish(cluster: &Cluster, path: &Path) -> Result<()> {
    let parts = &cluster.parts;
    let notice = Notice {
        folder: parts.folder.clone(),
        images: cluster.images.clone(),
        gitea_token: parts.gitea.admin_token().to_owned(),
        nats_passwords: parts.nats.passwords().to_vec(),
        webhook_secret: parts.argocd.as_ref().map(|argocd| argocd.webhook_secret().to_owned()),
    };
    let draft = path.with_extension("draft");
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    serde_json::to_writer(file, &notice)?;
    fs::rename(&draft, path).context("leaving a notice of the cluster")
}

async fn answer(mut stream: tokio::net::UnixStream, parts: Arc<Parts>, ending: Arc<Notify>) {
    let mut line = String::new();
    if BufReader::new(&mut stream).read_line(&mut line).await.is_err() {
        return;
    }
    let reply: Reply = match serde_json::from_str(&line) {
        Ok(Request::Peer { name, verb }) => match parts.peer(&name) {
            Some(peer) => peer.obey(verb).await.map_err(|error| format!("{error:#}")),
            None => Err(format!("the cluster has no process {name:?}")),
        },
        Ok(Request::End) => {
            ending.notify_one();
            Ok(String::new())
        }
        Err(error) => Err(format!("not a request: {error}")),
    };
    let reply = serde_json::to_string(&reply).unwrap_or_default();
    // Whoever asked may have gone away meanwhile.
    let _ = stream.write_all(format!("{reply}\n").as_bytes()).await;
}

pub(super) fn attach() -> Result<Option<Cluster>> {
    let socket = socket_path()?;
    let Ok(text) = fs::read_to_string(notice_path()?) else { return Ok(None) };
    if UnixStream::connect(&socket).is_err() {
        return Ok(None);
    }
    let notice: Notice = serde_json::from_str(&text).context("reading the notice of a cluster")?;
    let pki = Pki::open(&notice.folder.join("pki"))?;
    let folder = Folder::create()?;
    let kubectl = Kubectl::administrator(&Cache::open()?, &pki, folder.path())?;
    let images = notice.images.clone();
    let parts = Arc::new(parts(&notice, &socket)?);
    crate::report::report_on_panic(parts.clone());
    Ok(Some(Cluster { parts, kubectl, pki, images, folder, turn: None }))
}

/// The same parts as the owner's, each of them asked instead of done.
fn parts(notice: &Notice, socket: &Path) -> Result<Parts> {
    let peer = |name: &str, log: &str| Peer::remote(name, socket, notice.folder.join(log));
    let namespace = |name: &str, whole| Namespace::of(peer(name, &format!("{name}/namespaces.log")), whole);
    let grounds = Grounds {
        hub: namespace("hub", false),
        outside: namespace("outside", false),
        nodes: plan::NODES.iter().map(|node| namespace(node.name, true)).collect(),
        _groups: None,
    };
    let machines = plan::NODES.iter().map(|node| {
        let of_node = |program: &str| {
            peer(&format!("{program}-{}", node.name), &format!("{}/{program}.log", node.name))
        };
        Machine {
            kubelet: of_node("kubelet"),
            kube_proxy: of_node("kube-proxy"),
            kube_router: of_node("kube-router"),
            containerd: of_node("containerd"),
        }
    });
    let control = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let sites = Sites::inside(grounds.hub.network_entry()?);
    let argocd = notice
        .webhook_secret
        .clone()
        .map(|secret| Argo::attached(|name| peer(name, &format!("argocd/{name}.log")), secret));
    Ok(Parts {
        argocd,
        machines: machines.collect(),
        control: control.map(|name| peer(name, &format!("control-plane/{name}.log"))).into(),
        gitea: Gitea::attached(peer("gitea", "gitea/gitea.log"), sites.gitea, notice.gitea_token.clone()),
        nats: Nats::attached(peer("nats", "nats/nats.log"), sites.nats, notice.nats_passwords.clone()),
        registry: Registry::attached(peer("registry", "registry/registry.log"), sites.registry),
        grounds,
        folder: notice.folder.clone(),
    })
}

/// Asks the owner to end, and waits until it has.
pub(super) async fn end() -> Result<bool> {
    let socket = socket_path()?;
    if UnixStream::connect(&socket).is_err() {
        return Ok(false);
    }
    tokio::task::spawn_blocking(move || remote::ask(&socket, &Request::End))
        .await
        .context("asking for the end")??;
    // The owner's turn ends with its process, after everything else.
    wait_until("the cluster to end", ENDING, || async { take_turn().transpose() }).await??;
    Ok(true)
}
