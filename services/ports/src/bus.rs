//! Wakes, claims, events and commands.

use std::collections::BTreeMap;

use async_trait::async_trait;
use fabrique_core::id::{AppName, BuildId, Digest, EnvironmentName, RepoName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Generation, WorkRecord};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::PortResult;
use crate::records::{BuildPhase, Swap};

/// Why an app is to be looked at again. For people: it never says what to build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeCause {
    /// `push`, `apps`, `sweep`, `command`, `retry`, `upstream`.
    pub kind: String,
    /// One sentence.
    pub detail: String,
    /// The W3C `traceparent` of whatever caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// When the cause happened.
    pub at: Timestamp,
    /// The commit of the app's source that a push named. Worth fetching ahead; never to be believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<Revision>,
}

/// Sending wakes.
#[async_trait]
pub trait Wakes: Send + Sync {
    /// Asks for another look at `app`. Durable when it returns; bounded to two seconds. Sends no message
    /// id, so that the third of three equal wakes counts.
    async fn wake(&self, app: &AppName, cause: &WakeCause) -> PortResult<Generation>;
}

/// A change on the board of all apps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoardChange {
    /// An app has a newer wake.
    Wanted {
        /// The app.
        app: AppName,
        /// Its newest wake.
        generation: Generation,
        /// Why.
        cause: Option<WakeCause>,
    },
    /// An app's work record changed.
    Work {
        /// The app.
        app: AppName,
        /// The record.
        record: WorkRecord,
        /// Its revision in the store.
        revision: u64,
    },
    /// Everything that was there at the start has been told.
    Current,
    /// The connection was lost and the board starts over: what follows is told from the beginning.
    Restarted,
}

/// The board: who wants what, who does what.
#[async_trait]
pub trait Board: Send + Sync {
    /// Everything there is, then every change, for as long as the stream is held. The stream survives lost
    /// connections and deleted consumers by starting over.
    async fn watch_board(&self) -> PortResult<BoxStream<'static, BoardChange>>;

    /// Replaces an app's work record if it is still at `revision` (zero: if there is none).
    async fn swap_work(&self, app: &AppName, record: &WorkRecord, revision: u64) -> PortResult<Swap>;

    /// An app's newest wake and record, read now.
    async fn work_of(&self, app: &AppName) -> PortResult<(Generation, WorkRecord, u64)>;

    /// Every app that has a record or a wake, read now.
    async fn all_work(&self) -> PortResult<Vec<(AppName, Generation, WorkRecord, u64)>>;
}

/// Something that happened, for operators and for other programs. Losing one loses no work.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// A ULID, also the CloudEvents id and the message id.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// The W3C `traceparent`, from the webhook to the commit.
    pub trace: Option<String>,
    /// What.
    pub body: EventBody,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum EventBody {
    /// A webhook delivery was accepted or ignored.
    Delivery {
        /// The repository.
        repo: RepoName,
        /// The full reference.
        reference: String,
        /// The new head, as the payload says.
        after: String,
        /// Gitea's delivery id.
        delivery: String,
        /// The apps woken.
        woken: Vec<AppName>,
        /// Why it was ignored, if it was.
        ignored: Option<String>,
    },
    /// A decision was taken.
    Decision {
        /// The app.
        app: AppName,
        /// The target, if there is one.
        target: Option<Revision>,
        /// The action in one word: `build`, `commit`, `wait`, `nothing`, `supersede`, `continue`.
        action: String,
        /// Why.
        reason: String,
        /// Whether the attempts at the target are used up: it is a dead letter.
        dead_letter: bool,
    },
    /// A build moved on.
    Build {
        /// The app.
        app: AppName,
        /// The attempt.
        build: BuildId,
        /// The revision.
        revision: Revision,
        /// Where it stands.
        phase: BuildPhase,
    },
    /// A step of a build ended.
    Step {
        /// The app.
        app: AppName,
        /// The attempt.
        build: BuildId,
        /// The daemon's name of the step.
        name: String,
        /// From the cache.
        cached: bool,
        /// Milliseconds.
        millis: u64,
        /// Its error.
        error: Option<String>,
    },
    /// A commit reached `cluster/apps`.
    Commit {
        /// The app.
        app: AppName,
        /// The environment.
        environment: EnvironmentName,
        /// `image` or `infra`.
        channel: String,
        /// The commit.
        commit: Revision,
        /// The source revision.
        revision: Revision,
        /// The image, on the image channel.
        digest: Option<Digest>,
    },
    /// A person's command was carried out or refused.
    Command {
        /// The app.
        app: AppName,
        /// The verb.
        verb: String,
        /// Who.
        caller: String,
        /// What came of it.
        outcome: String,
    },
    /// Something a person should look at.
    Warning {
        /// The app, where there is one.
        app: Option<AppName>,
        /// What.
        message: String,
    },
}

/// Publishing and reading events.
#[async_trait]
pub trait Events: Send + Sync {
    /// Publishes an event. Bounded to two seconds.
    async fn publish(&self, event: &Event) -> PortResult<()>;
    /// Publishes several events in their order. Bounded to two seconds where the bus takes them together; after an error
    /// some may be published, and publishing them once more makes no second ones.
    async fn publish_all(&self, events: &[Event]) -> PortResult<()> {
        for event in events {
            self.publish(event).await?;
        }
        Ok(())
    }
    /// The events of one app or of all: the past `since` that time (none when absent), then the live ones.
    async fn tail(
        &self,
        app: Option<&AppName>,
        since: Option<Timestamp>,
    ) -> PortResult<BoxStream<'static, PortResult<Event>>>;
}

/// What a person asks of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Command {
    /// Forget the last failure and look again.
    Retry,
    /// Build anew.
    Rebuild {
        /// Without the cache.
        no_cache: bool,
    },
    /// Stop the running build.
    Cancel,
    /// Lift `rewound`, `taken back` and holds.
    Release,
    /// Rewrite the bindings from the composition.
    Repair,
}

impl Command {
    /// The verb, as in the subject `fabrique.command.<verb>.<app>`.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Command::Retry => "retry",
            Command::Rebuild { .. } => "rebuild",
            Command::Cancel => "cancel",
            Command::Release => "release",
            Command::Repair => "repair",
        }
    }
}

/// A command on its way, with who gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The app.
    pub app: AppName,
    /// What is asked.
    pub command: Command,
    /// Who asks: login and host.
    pub caller: String,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether it was carried out.
    pub done: bool,
    /// One sentence: what came of it, or why not.
    pub message: String,
}

/// A command waiting for its answer.
#[async_trait]
pub trait PendingCommand: Send {
    /// What is asked.
    fn request(&self) -> &Request;
    /// Answers.
    async fn reply(self: Box<Self>, reply: Reply) -> PortResult<()>;
}

/// Operators' commands: request and reply.
#[async_trait]
pub trait Commands: Send + Sync {
    /// Sends a command and waits for the answer; an error when nobody answers within ten seconds.
    async fn send(&self, request: &Request) -> PortResult<Reply>;
    /// The commands that arrive, each at one worker only.
    async fn serve(&self) -> PortResult<BoxStream<'static, Box<dyn PendingCommand>>>;
}

/// One finding about the bus, for `doctor` and the check at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusFinding {
    /// Whether work can go on.
    pub fatal: bool,
    /// What.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Checking and making the bus's streams and buckets.
#[async_trait]
pub trait BusSetup: Send + Sync {
    /// Makes what is missing and reports what differs; nothing that exists is changed.
    async fn ensure(&self) -> PortResult<Vec<BusFinding>>;
    /// Reports without making anything, and asks the server about itself: version, `sync_interval`, whether
    /// it lets anybody in without credentials.
    async fn inspect(&self) -> PortResult<Vec<BusFinding>>;
    /// Numbers for people: messages and bytes per stream.
    async fn usage(&self) -> PortResult<BTreeMap<String, (u64, u64)>>;
}

/// What a user of the bus is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BusRole {
    /// Says that something happened, and reads nothing: it faces the network.
    Receiver,
    /// Does the work.
    Worker,
    /// Compares, wakes, and ends what a dead worker left.
    Reconciler,
    /// A person's command line: asks and reads.
    Operator,
    /// Listens to events.
    Observer,
    /// Asks GitHub, and says what it learnt.
    Mirror,
}

impl BusRole {
    /// All of them.
    pub const ALL: [BusRole; 6] = [
        BusRole::Receiver,
        BusRole::Worker,
        BusRole::Reconciler,
        BusRole::Operator,
        BusRole::Observer,
        BusRole::Mirror,
    ];

    /// The word in the configuration, and the user's usual name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BusRole::Receiver => "receiver",
            BusRole::Worker => "worker",
            BusRole::Reconciler => "reconciler",
            BusRole::Operator => "operator",
            BusRole::Observer => "observer",
            BusRole::Mirror => "mirror",
        }
    }
}

/// One user of the bus, as the server sees it: for `doctor`.
#[async_trait]
pub trait BusRights: Send + Sync {
    /// Logs in as that user, tries everything that `role` must and must not do in a way that changes nothing, and
    /// says what differs. An error when the login is refused or the server does not answer.
    async fn rights(&self, role: BusRole) -> PortResult<Vec<BusFinding>>;
}
