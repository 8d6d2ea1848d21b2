//! Builds that are ended from outside: cancelled, timed out, or with the daemon gone from under them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabrique_bed::{Bed, wait_until};
use fabrique_buildkit::BuildkitBuilder;
use fabrique_core::failure::FailureKind;
use fabrique_ports::PortResult;
use fabrique_ports::builder::{BuildFailure, BuildOutcome, BuildRequest, Builder, Daemon};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Recorder, Source, builder, config, daemon, failed, pushed};

/// Long enough to be a hang if nothing stopped it.
const LONG: u32 = 300;
const SOON: Duration = Duration::from_secs(20);

struct Running {
    outcome: JoinHandle<PortResult<BuildOutcome>>,
    cancel: CancellationToken,
    /// What the running step can be found by among all processes.
    mark: String,
}

impl Running {
    /// Starts a build and waits until its RUN step runs.
    async fn start(bed: &Bed, builder: BuildkitBuilder, change: impl FnOnce(&mut BuildRequest)) -> Self {
        let source = Source::new(bed).await;
        let number: String = source.org.chars().filter(char::is_ascii_digit).collect();
        let mark = format!("{LONG}.{}{number}", std::process::id());
        let dockerfile = format!("FROM {}\nRUN echo running; exec sleep {mark}\n", bed.registry().busybox());
        let mut request = source.dockerfile(&dockerfile).await;
        request.no_cache = true;
        change(&mut request);
        let recorder = Arc::new(Recorder::default());
        let cancel = CancellationToken::new();
        let outcome = tokio::spawn({
            let (daemon, recorder, cancel) = (daemon(bed.buildkit(0)), recorder.clone(), cancel.clone());
            async move { builder.build(&daemon, &request, recorder, cancel).await }
        });
        let running = Self { outcome, cancel, mark };
        wait_until("the step to run", Duration::from_secs(60), || async {
            (recorder.logged("running") && running.step_lives()).then_some(())
        })
        .await
        .unwrap();
        running
    }

    fn step_lives(&self) -> bool {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let sleep = format!("sleep\0{}\0", self.mark);
        lines.into_iter().any(|line| line == sleep.as_bytes())
    }

    async fn ends(&mut self) -> BuildOutcome {
        tokio::time::timeout(SOON, &mut self.outcome).await.unwrap().unwrap().unwrap()
    }

    async fn fails(&mut self) -> BuildFailure {
        match self.ends().await {
            BuildOutcome::Failed(failure) => failure,
            other => panic!("not failed but {other:?}"),
        }
    }
}

async fn bed() -> Bed {
    Bed::builder().gitea().registry().buildkit(1).start().await.unwrap()
}

#[tokio::test]
async fn cancelling_stops_the_step_at_the_daemon_and_the_next_build_works() {
    let bed = Bed::shared().await;
    let mut running = Running::start(bed, builder(bed), |_| ()).await;
    let start = Instant::now();
    running.cancel.cancel();
    assert_eq!(running.ends().await, BuildOutcome::Cancelled);
    eprintln!("cancelled within {:?}", start.elapsed());
    wait_until("the step to be gone", Duration::from_secs(5), || async {
        (!running.step_lives()).then_some(())
    })
    .await
    .unwrap();
    let next = Source::new(bed).await.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    pushed(&builder(bed), bed.buildkit(0), &next).await;
}

#[tokio::test]
async fn a_timeout_is_the_sources_and_stops_the_step() {
    let bed = Bed::shared().await;
    let mut running =
        Running::start(bed, builder(bed), |request| request.timeout = Duration::from_secs(8)).await;
    let failure = running.fails().await;
    assert_eq!(failure.kind, FailureKind::Source);
    assert_eq!(failure.message, "took longer than its timeout of 8s");
    assert_eq!(failure.log_tail, ["running"]);
    wait_until("the step to be gone", Duration::from_secs(5), || async {
        (!running.step_lives()).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_daemon_killed_under_a_build_is_infrastructure() {
    let bed = bed().await;
    let mut running = Running::start(&bed, builder(&bed), |_| ()).await;
    bed.buildkit(0).peer().kill9().await.unwrap();
    let failure = running.fails().await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("buildkit-0 was lost"), "{failure:?}");
    bed.buildkit(0).peer().start_again().await.unwrap();
    let next = Source::new(&bed).await.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    pushed(&builder(&bed), bed.buildkit(0), &next).await;
}

#[tokio::test]
async fn a_daemon_stopped_politely_under_a_build_is_infrastructure() {
    let bed = bed().await;
    let mut running = Running::start(&bed, builder(&bed), |_| ()).await;
    let (stopped, failure) = tokio::join!(bed.buildkit(0).peer().stop(), running.fails());
    stopped.unwrap();
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
}

#[tokio::test]
async fn a_daemon_that_hangs_is_infrastructure_after_a_while() {
    let bed = bed().await;
    let mut config = config(&bed);
    config.patience.silence = Duration::from_secs(8);
    config.patience.ending = Duration::from_secs(1);
    let mut running = Running::start(&bed, BuildkitBuilder::new(config).unwrap(), |_| ()).await;
    bed.buildkit(0).peer().pause().unwrap();
    let failure = running.fails().await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("silent for 8s"), "{failure:?}");
    bed.buildkit(0).peer().resume().unwrap();
}

#[tokio::test]
async fn a_quiet_step_outlives_the_silence_limit_because_the_daemon_checks_the_session() {
    let bed = Bed::shared().await;
    let mut config = config(bed);
    config.patience.silence = Duration::from_secs(7);
    let source = Source::new(bed).await;
    let dockerfile = format!("FROM {}\nRUN sleep 12\n", bed.registry().busybox());
    let request = source.dockerfile(&dockerfile).await;
    pushed(&BuildkitBuilder::new(config).unwrap(), bed.buildkit(0), &request).await;
}

/// This process's connections to a daemon, by the kernel's table.
fn connections(daemon: &Daemon) -> usize {
    let port: u16 = daemon.address.rsplit(':').next().unwrap().parse().unwrap();
    let (remote, established) = (format!("0100007F:{port:04X}"), "01");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let theirs = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next() == Some(remote.as_str()) && fields.next() == Some(established)
    };
    table.lines().filter(theirs).count()
}

#[tokio::test]
async fn builds_leave_no_connection_behind() {
    let bed = bed().await;
    let (source, builder, daemon) = (Source::new(&bed).await, builder(&bed), daemon(bed.buildkit(0)));
    let request = source.dockerfile(&format!("FROM {}\nRUN true\n", bed.registry().busybox())).await;
    for _ in 0..3 {
        pushed(&builder, bed.buildkit(0), &request).await;
    }
    let broken = source.dockerfile(&format!("FROM {}\nRUN false\n", bed.registry().busybox())).await;
    failed(&builder, bed.buildkit(0), &broken).await;
    wait_until("the connections to end", SOON, || async { (connections(&daemon) == 0).then_some(()) })
        .await
        .unwrap_or_else(|error| panic!("{error}: {} of 4 are open", connections(&daemon)));
}
