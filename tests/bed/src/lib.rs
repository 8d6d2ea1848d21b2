//! The test bed: every real peer of fabrique on one machine, without a container engine.
//!
//! Tests, benchmarks and the demo all talk to the same servers that production talks to: Gitea, NATS
//! JetStream, an OCI registry and rootless BuildKit. This crate builds each of them once from pinned modules
//! into a cache, starts them on free loopback ports in temporary folders, waits until they answer, keeps their
//! logs, and stops them by handle. It knows nothing of fabrique itself: what a stream, an `app.yaml` or a
//! composition is must stay out of here, or the bed would share its mistakes with the code under test.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use fabrique_bed::{Bed, GitRepo};
//!
//! let bed = Bed::builder().nats().gitea().start().await?;
//! bed.gitea().create_org("atlas").await?;
//! bed.gitea().create_repo("atlas", "citation", true).await?;
//! let repo = GitRepo::clone(&bed.gitea().clone_url_with_token("atlas", "citation")).await?;
//! repo.write("Dockerfile", "FROM scratch\n").await?;
//! let revision = repo.commit("Add a Dockerfile").await?;
//! repo.push().await?;
//! bed.nats().peer().kill9().await?;
//! bed.nats().peer().start_again().await?; // same port, same folders
//! # drop(revision); Ok(()) }
//! ```
//!
//! # What to know
//!
//! * **One bed per test binary** is the cheap way: [`Bed::shared`] starts all peers once and lends them to every
//!   test. Tests that stop, kill or pause a peer make a bed of their own with [`Bed::builder`]; a bed is ready
//!   in about two seconds.
//! * **Nothing outlives its owner.** Every peer is spawned with a parent-death signal from one thread that
//!   lives as long as the process, so that even `kill -9` of a test binary leaves no server behind. Folders of
//!   dead owners are swept when the next bed starts.
//! * **Logs**: when a test panics, the last lines of every peer's log go to its captured output, with the path
//!   of the whole log, which stays on disk for an hour. Errors of this crate carry the log's tail too. A test that
//!   returns `Err` instead of panicking shows only that.
//! * **Ports** come from below the kernel's ephemeral range and are held for the life of the process, so that a
//!   peer that was killed finds its port still free.
//! * **Root** is needed for BuildKit (the daemon runs as the user `fabrique-bed`, made on first use with a range
//!   in `/etc/subuid`) and to install missing Debian packages. The other peers run as the caller.
//! * **Images** are named `127.0.0.1:PORT/…`, see [`Registry::host`]; a busybox base image is there as
//!   [`Registry::busybox`].
//!
//! # The cluster
//!
//! [`Cluster`] is Kubernetes for real: etcd, the control plane, and three nodes with containerd, kube-proxy and
//! kube-router, of which one is labelled and tainted as the control plane's; beside them the same Gitea, NATS and
//! registry as above, and Argo CD.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use fabrique_bed::Cluster;
//!
//! if let Err(obstacle) = Cluster::possible() {
//!     println!("SKIP: {obstacle}");
//!     return Ok(());
//! }
//! let cluster = Cluster::shared().await;
//! cluster.kubectl(&["create", "namespace", "mine"]).await?;
//! let image = &cluster.images().debian; // registry:80/base/debian@sha256:…
//! cluster.kubectl(&["run", "probe", "--namespace=mine", "--image", image, "--", "sleep", "60"]).await?;
//! # Ok(()) }
//! ```
//!
//! * **One at a time.** Its addresses are constants, so that manifests may name them, and a machine has room for one.
//!   `./just cluster` keeps one, which [`Cluster::shared`] of every test binary then attaches to; without, each
//!   binary starts its own, which takes some 15 s. Whoever comes second waits for its turn.
//! * **Network.** Nodes, servers, and the caller as `198.18.0.254` on the link `fabrique-bed`, share 198.18.0.0/24;
//!   pods are 198.18.128.0/17, Services 198.19.0.0/17. Nothing is translated: the caller dials a pod by its address,
//!   and a policy sees who asks. What a test starts at [`Cluster::CALLER`], as [`Postgres`], [`S3`] and a bed
//!   [there](BedBuilder::at), is reached by pods.
//!   Nothing leads out, but to the world that a test makes: see [`Cluster::outside_command`].
//!
//!   | what | where | name that pods resolve |
//!   | --- | --- | --- |
//!   | router | 198.18.0.1 | |
//!   | registry | 198.18.0.2:80 | `registry` |
//!   | Gitea | 198.18.0.3:3000 | `gitea` |
//!   | NATS | 198.18.0.4:4222, 8222 | `nats` |
//!   | Argo CD | 198.18.0.5:8080 | `argocd` |
//!   | API server, etcd | 198.18.0.11:6443, 2379 | `kubernetes.default.svc` |
//!   | kubelets of `control`, `worker-1`, `worker-2` | 198.18.0.11, .12, .13, port 10250 | |
//!   | the world | 198.19.255.10, 198.19.255.11 | `permitted.example`, `forbidden.example` |
//!
//! * **Nothing is left**: no namespace has a name, so links, mounts and containers go with their owner, whatever
//!   ends it. Control groups and folders of a killed owner go when the next cluster starts.
//! * **Root** is needed, and what [`Cluster::possible`] looks for.

mod bed;
mod buildkit;
mod cluster;
mod folder;
mod git;
mod gitea;
mod github;
pub mod hostile;
mod http;
pub mod install;
mod kustomize;
mod nats;
mod peer;
mod ports;
mod postgres;
mod registry;
mod remote;
mod report;
mod s3;
mod secured;
mod site;
mod spawn;
mod template;
mod tls;
mod trap;
mod wait;
pub mod webhook;

pub use bed::{Bed, BedBuilder};
pub use buildkit::{Buildkit, BuildkitOptions, TlsFiles};
pub use cluster::{Argo, Cluster, ClusterOptions, Doors, Guarded, Images, Obstacle, Plain, worker_account};
pub use git::GitRepo;
pub use gitea::{Gitea, GiteaOptions, Queues};
pub use github::{Asked, RecordedGithub};
pub use kustomize::kustomize_build;
pub use nats::{Nats, NatsOptions, ROLES};
pub use peer::{Peer, Program};
pub use ports::free_port;
pub use postgres::Postgres;
pub use registry::Registry;
pub use s3::S3;
pub use secured::Secured;
pub use tls::MutualTls;
pub use trap::{Moment, Trap, Veto};
pub use wait::wait_until;
