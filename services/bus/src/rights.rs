//! What each role must be able to do, may do, and must not do, and how each of it is tried without doing it. Pure.
//!
//! `tests/bed/config/nats.conf` grants exactly what is a must here, and the tests hold the two against each other.

use fabrique_ports::bus::BusRole;

use crate::layout::{self, KINDS, Store};

/// The app, build or repository of every trial: nobody's.
const NOBODY: &str = "fabrique-doctor";
/// The body of a trial. JetStream refuses it as the body of a request, but for a purge, where it counts as none.
pub(crate) const NONSENSE: &str = "?";

/// Something that a user may or may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Waking apps.
    Wake,
    /// Publishing events of a kind.
    Tell(&'static str),
    /// Writing logs of builds.
    Log,
    /// Writing keys of a bucket.
    Write(Store),
    /// Giving commands.
    Command,
    /// Asking about or reading a stream.
    Ask(Store, Question),
    /// Emptying a stream.
    Purge(Store),
    /// Making, editing or removing streams.
    Change(&'static str),
    /// Answering commands, as one of the workers.
    HearCommands,
    /// Listening to events.
    HearEvents,
    /// Listening to what is written.
    HearWrites,
    /// Hearing the answers to its own requests.
    HearOwnAnswers,
    /// Hearing the answers to another's.
    HearAnswers(BusRole),
}

/// What whoever reads a stream asks of JetStream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Its settings and size.
    Info,
    /// One message.
    Message,
    /// One message, from any replica. fabrique asks the leader instead.
    Direct,
    /// A consumer of one's own.
    Consumer,
    /// Its state.
    ConsumerInfo,
    /// Its next messages.
    Next,
}

const QUESTIONS: [Question; 6] = [
    Question::Info,
    Question::Message,
    Question::Direct,
    Question::Consumer,
    Question::ConsumerInfo,
    Question::Next,
];
const CHANGES: [&str; 3] = ["CREATE", "UPDATE", "DELETE"];
const BUCKETS: [Store; 5] = [Store::Work, Store::Memory, Store::Records, Store::Builds, Store::Upstream];

/// Whether a role may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// It cannot do its work without.
    Must,
    /// It needs it not, and it does no harm.
    May,
    /// It is a hole.
    MustNot,
}

/// How a deed is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trial {
    /// By a message that no stream takes and nobody answers.
    Publish(String),
    /// By a request that empties a stream of what has this subject, which nothing has. JetStream 2.15 reads no nonsense
    /// there, and empties the whole stream instead.
    PurgeNothing { api: String, filter: String },
    /// By a subscription to what nobody sends, in a queue group or in none.
    Subscribe(String, Option<&'static str>),
}

impl Trial {
    /// The subject, as the server quotes it when it refuses.
    pub(crate) fn subject(&self) -> &str {
        match self {
            Trial::Publish(subject)
            | Trial::PurgeNothing { api: subject, .. }
            | Trial::Subscribe(subject, _) => subject,
        }
    }
}

impl Deed {
    /// Everything that is tried, for every role alike.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Deed::Wake, Deed::Log, Deed::Command];
        all.extend(KINDS.map(Deed::Tell));
        all.extend(BUCKETS.map(Deed::Write));
        all.extend(CHANGES.map(Deed::Change));
        for store in Store::ALL {
            all.extend(QUESTIONS.map(|question| Deed::Ask(store, question)));
            all.push(Deed::Purge(store));
        }
        all.extend([Deed::HearCommands, Deed::HearEvents, Deed::HearWrites, Deed::HearOwnAnswers]);
        all.extend(BusRole::ALL.map(Deed::HearAnswers));
        all
    }

    /// How it is tried by the user whose inbox begins with `inbox`.
    pub(crate) fn trial(self, inbox: &str) -> Trial {
        match self {
            Deed::Wake => Trial::Publish(Store::Wake.subject(NOBODY)),
            Deed::Tell(kind) => {
                Trial::Publish(format!("fabrique.{kind}.{}", [NOBODY; 3][..parts(kind)].join(".")))
            }
            Deed::Log => Trial::Publish(Store::Logs.subject(NOBODY)),
            // Builds are kept by app and build.
            Deed::Write(Store::Builds) => {
                Trial::Publish(Store::Builds.subject(&format!("{NOBODY}.{NOBODY}")))
            }
            Deed::Write(store) => Trial::Publish(store.subject(NOBODY)),
            Deed::Command => Trial::Publish(format!("fabrique.command.{NOBODY}.{NOBODY}")),
            Deed::Ask(store, question) => Trial::Publish(question.subject(store)),
            Deed::Purge(store) => Trial::PurgeNothing {
                api: format!("$JS.API.STREAM.PURGE.{}", store.stream()),
                filter: store.subject(&[NOBODY; 4].join(".")),
            },
            // Not even by mistake one that there is.
            Deed::Change("DELETE") => Trial::Publish(format!("$JS.API.STREAM.DELETE.{NOBODY}")),
            Deed::Change(how) => Trial::Publish(format!("$JS.API.STREAM.{how}.{}", Store::Wake.stream())),
            Deed::HearCommands => {
                Trial::Subscribe(format!("fabrique.command.{NOBODY}.{NOBODY}"), Some(layout::COMMAND_GROUP))
            }
            Deed::HearEvents => Trial::Subscribe(format!("fabrique.decision.{NOBODY}"), None),
            Deed::HearWrites => Trial::Subscribe(Store::Memory.subject(NOBODY), None),
            Deed::HearOwnAnswers => Trial::Subscribe(format!("{inbox}.{NOBODY}"), None),
            Deed::HearAnswers(role) => Trial::Subscribe(format!("_INBOX_{}.{NOBODY}", role.as_str()), None),
        }
    }

    /// What `role` may do of it.
    pub(crate) fn demand(self, role: BusRole) -> Demand {
        use BusRole::{Mirror, Observer, Operator, Receiver, Reconciler, Worker};
        match self {
            Deed::Wake => must(matches!(role, Receiver | Worker | Reconciler | Mirror)),
            Deed::Tell(kind) => must(match role {
                Receiver => matches!(kind, "delivery" | "warning"),
                Worker => kind != "delivery",
                Reconciler => kind == "warning",
                Operator | Observer | Mirror => false,
            }),
            Deed::Log | Deed::Write(Store::Builds) => must(matches!(role, Worker | Reconciler)),
            Deed::Write(Store::Upstream) => must(role == Mirror),
            Deed::Write(_) => must(role == Worker),
            Deed::Command => must(role == Operator),
            Deed::Ask(store, question) => question.demand(store, role),
            Deed::Purge(store) => must(role == Worker && store == Store::Builds),
            Deed::Change(_) => Demand::MustNot,
            Deed::HearCommands => match role {
                Worker => Demand::Must,
                // Hearing everything below `fabrique.` includes them.
                Operator | Observer => Demand::May,
                Receiver | Reconciler | Mirror => Demand::MustNot,
            },
            Deed::HearEvents => must(matches!(role, Operator | Observer)),
            // Whoever may read the bucket learns nothing by it.
            Deed::HearWrites => may(matches!(role, Worker | Reconciler | Operator)),
            // An observer asks nothing.
            Deed::HearOwnAnswers if role == Observer => Demand::May,
            Deed::HearOwnAnswers => Demand::Must,
            Deed::HearAnswers(whose) => may(whose == role),
        }
    }

    /// What it is, for people, with the subject that permissions name.
    pub(crate) fn describe(self, inbox: &str) -> String {
        let trial = self.trial(inbox);
        let subject = trial.subject().replace(NOBODY, "*");
        match self {
            Deed::Wake => format!("wake apps ({subject})"),
            Deed::Tell(kind) => format!("publish {kind} events ({subject})"),
            Deed::Log => format!("write logs ({subject})"),
            Deed::Write(store) => format!("write {} ({subject})", store.stream()),
            Deed::Command => format!("give commands ({subject})"),
            Deed::Ask(store, _) => format!("read {} ({subject})", store.stream()),
            Deed::Purge(store) => format!("empty {} ({subject})", store.stream()),
            Deed::Change(_) => format!("change streams ({subject})"),
            Deed::HearCommands => format!("answer commands (subscribe {subject})"),
            Deed::HearEvents => format!("hear events (subscribe {subject})"),
            Deed::HearWrites => format!("hear what is written (subscribe {subject})"),
            Deed::HearOwnAnswers => format!("hear answers to its requests (subscribe {subject})"),
            Deed::HearAnswers(role) => format!("hear the {}'s answers (subscribe {subject})", role.as_str()),
        }
    }
}

impl Question {
    fn subject(self, store: Store) -> String {
        let stream = store.stream();
        match self {
            Question::Info => format!("$JS.API.STREAM.INFO.{stream}"),
            Question::Message => format!("$JS.API.STREAM.MSG.GET.{stream}"),
            Question::Direct => format!("$JS.API.DIRECT.GET.{stream}"),
            Question::Consumer => format!("$JS.API.CONSUMER.CREATE.{stream}"),
            Question::ConsumerInfo => format!("$JS.API.CONSUMER.INFO.{stream}.{NOBODY}"),
            Question::Next => format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{NOBODY}"),
        }
    }

    fn demand(self, store: Store, role: BusRole) -> Demand {
        use BusRole::{Mirror, Observer, Operator, Receiver, Reconciler, Worker};
        let reads = match role {
            Operator => true,
            Worker => store != Store::Events,
            Reconciler => !matches!(store, Store::Events | Store::Logs),
            Mirror => store == Store::Upstream,
            Receiver | Observer => false,
        };
        match (self, role) {
            (Question::Direct, _) => may(reads),
            (_, _) if reads => Demand::Must,
            // They look at all eight streams at their start.
            (Question::Info, Worker | Reconciler) => Demand::Must,
            // It ends the logs of those who died.
            (Question::Message, Reconciler) if store == Store::Logs => Demand::Must,
            (_, Reconciler) if store == Store::Logs => Demand::May,
            (_, Worker | Reconciler | Receiver | Operator | Observer | Mirror) => Demand::MustNot,
        }
    }
}

fn must(yes: bool) -> Demand {
    if yes { Demand::Must } else { Demand::MustNot }
}

fn may(yes: bool) -> Demand {
    if yes { Demand::May } else { Demand::MustNot }
}

/// How many parts the subjects of this kind have after the kind.
fn parts(kind: &str) -> usize {
    match kind {
        "decision" | "warning" => 1,
        "commit" => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn musts(role: BusRole) -> Vec<Deed> {
        Deed::all().into_iter().filter(|deed| deed.demand(role) == Demand::Must).collect()
    }

    #[test]
    fn the_receiver_wakes_and_tells_two_kinds_of_events_and_the_observer_only_listens() {
        let receiver = [Deed::Wake, Deed::Tell("delivery"), Deed::Tell("warning"), Deed::HearOwnAnswers];
        assert_eq!(musts(BusRole::Receiver), receiver);
        assert_eq!(musts(BusRole::Observer), [Deed::HearEvents]);
    }

    #[test]
    fn the_mirror_job_tells_what_github_says_and_wakes_and_no_one_else_tells_it() {
        let musts = musts(BusRole::Mirror);
        assert!(musts.contains(&Deed::Wake) && musts.contains(&Deed::Write(Store::Upstream)));
        assert!(musts.iter().all(|deed| match deed {
            Deed::Wake | Deed::HearOwnAnswers => true,
            Deed::Write(store) | Deed::Ask(store, _) => *store == Store::Upstream,
            _ => false,
        }));
        for role in BusRole::ALL {
            let writes = Deed::Write(Store::Upstream).demand(role) == Demand::Must;
            assert_eq!(writes, role == BusRole::Mirror, "{role:?}");
        }
    }

    #[test]
    fn nobody_but_the_worker_claims_and_remembers_and_nobody_changes_streams() {
        for role in BusRole::ALL {
            for store in [Store::Work, Store::Memory, Store::Records] {
                assert_eq!(Deed::Write(store).demand(role) == Demand::Must, role == BusRole::Worker);
            }
            assert!(CHANGES.iter().all(|how| Deed::Change(how).demand(role) == Demand::MustNot));
        }
    }

    /// A refusal is recognised by its subject, so no two trials may share one.
    #[test]
    fn no_two_deeds_are_tried_alike() {
        let all = Deed::all();
        let trials: BTreeSet<_> =
            all.iter().map(|deed| format!("{:?}", deed.trial("_INBOX_somebody"))).collect();
        assert_eq!(trials.len(), all.len());
    }

    #[test]
    fn a_deed_is_told_with_the_subject_of_its_permission() {
        let told = [Deed::Wake, Deed::Write(Store::Builds), Deed::HearAnswers(BusRole::Worker)]
            .map(|deed| deed.describe("_INBOX_x"));
        assert_eq!(told[0], "wake apps (fabrique.wake.*)");
        assert_eq!(told[1], "write KV_FABRIQUE_BUILDS ($KV.FABRIQUE_BUILDS.*.*)");
        assert_eq!(told[2], "hear the worker's answers (subscribe _INBOX_worker.*)");
    }
}
