//! What the adapters, the receiver and the doctor wait for and hold, as keys: under their own names, with their own defaults. A
//! bound that one of them gets is a key, or this does not compile.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{Bytes, Count, DAY, GIB, HOUR, KIB, MIB, MILLISECOND, MINUTE, SECOND, TIB, Wait};

/// A section with the fields of a struct elsewhere, whose default is the default.
macro_rules! bounds {
    (
        $(#[$about:meta])*
        $name:ident: $theirs:ty { $($(#[$text:meta])* $field:ident: $type:ty,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $($(#[$text])* pub(crate) $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                type Theirs = $theirs;
                let Theirs { $($field,)+ } = Theirs::default();
                Self { $($field: $field.into(),)+ }
            }
        }

        impl $name {
            pub(crate) fn get(&self) -> $theirs {
                type Theirs = $theirs;
                let Self { $($field,)+ } = self.clone();
                Theirs { $($field: $field.into(),)+ }
            }
        }
    };
}

/// A wait for one answer from a server.
type Answer = Wait<{ 100 * MILLISECOND }, { 5 * MINUTE }>;
/// A wait for a connection.
type Connection = Wait<{ 100 * MILLISECOND }, MINUTE>;

bounds! {
    /// How long git may take. What is late is ended.
    GitTimeouts: fabrique_git::Timeouts {
        /// A command that only touches the clone.
        local: Wait<SECOND, { 10 * MINUTE }>,
        /// Bringing a clone up to date.
        fetch: Wait<SECOND, HOUR>,
        /// Making a clone; everybody else who needs it waits for as long.
        clone: Wait<SECOND, DAY>,
        /// Until there is a connection for a push.
        connect: Connection,
        /// A push, of which the forge's hooks are most.
        push: Wait<SECOND, HOUR>,
        /// Tidying a clone up, in the background.
        tidy: Wait<SECOND, DAY>,
        /// The least time between two new clones in place of one that seems damaged. What is damaged again so soon has
        /// another cause, which is reported.
        healing: Wait<0, DAY>,
    }
}

bounds! {
    /// How much is read and kept. To read more is an error, or counts as changed where a difference is asked for.
    GitLimits: fabrique_git::Limits {
        /// Paths in one difference; one with more counts as changed.
        changed_paths: Count<100, 1_000_000>,
        /// Files in an overlay.
        directory_files: Count<1, 100_000>,
        /// Bytes in an overlay.
        directory_bytes: Bytes<{ 64 * KIB }, GIB>,
        /// Files in `cluster/apps`.
        snapshot_files: Count<100, 1_000_000>,
        /// Bytes in `cluster/apps`.
        snapshot_bytes: Bytes<MIB, { 4 * GIB }>,
        /// Packs of a clone beyond which it is tidied up.
        packs: Count<2, 1_000>,
        /// Loose objects of a clone beyond which it is tidied up.
        loose_objects: Count<100, 1_000_000>,
    }
}

bounds! {
    /// How long requests to the forge's API may take.
    GiteaTimeouts: fabrique_gitea::Timeouts {
        /// Until there is a connection.
        connect: Connection,
        /// A request as a whole, connection and body included.
        request: Answer,
    }
}

bounds! {
    /// How long requests to GitHub may take.
    GithubTimeouts: fabrique_github::Timeouts {
        /// Until there is a connection.
        connect: Connection,
        /// A request as a whole.
        request: Answer,
    }
}

bounds! {
    /// How long requests to a registry may take.
    RegistryTimeouts: fabrique_registry::Timeouts {
        /// Until there is a connection.
        connect: Connection,
        /// A request as a whole.
        request: Answer,
    }
}

bounds! {
    /// How long each kind of call may take.
    NatsTimeouts: fabrique_bus::Timeouts {
        /// A publish, from the call to the acknowledgement. Gitea gives a webhook five seconds, so two leave room for
        /// an answer.
        ack: Wait<{ 100 * MILLISECOND }, { 30 * SECOND }>,
        /// A question to JetStream.
        request: Answer,
        /// A command of a person, until a worker has answered. One that it cannot begin in half of that is refused.
        command: Answer,
        /// One attempt to connect.
        connect: Connection,
        /// All attempts to connect at the start.
        start: Wait<SECOND, HOUR>,
        /// Silence after which one asks whether the other lives; a dead connection is noticed after three of them.
        ping: Wait<SECOND, MINUTE>,
        /// How long whoever follows events or a log goes on while the bus is away.
        outage: Wait<SECOND, DAY>,
    }
}

bounds! {
    /// How much is kept, in bytes on disk per replica. Zero bytes means no limit of its own. Used when a stream is
    /// made, except for what is kept per build and per app; what an existing stream has is reported, never changed.
    NatsLimits: fabrique_bus::Limits {
        /// Wakes: one small message per app.
        wake_bytes: Bytes<0, TIB>,
        /// Work records: one per app.
        work_bytes: Bytes<0, TIB>,
        /// Memories: one per app.
        memory_bytes: Bytes<0, TIB>,
        /// Image records, about 600 bytes each; the oldest go first, which costs a rebuild.
        records_bytes: Bytes<0, TIB>,
        /// The history of builds.
        builds_bytes: Bytes<0, TIB>,
        /// How long a build stays in the history.
        builds_age: Wait<HOUR, { 3_650 * DAY }>,
        /// Builds kept per app.
        builds_per_app: Count<1, 10_000>,
        /// What is known of sources on GitHub: one small message per app.
        upstream_bytes: Bytes<0, TIB>,
        /// Events.
        events_bytes: Bytes<0, TIB>,
        /// How long an event is kept.
        events_age: Wait<HOUR, { 3_650 * DAY }>,
        /// Logs of all builds.
        logs_bytes: Bytes<0, TIB>,
        /// How long a log is kept.
        logs_age: Wait<HOUR, { 3_650 * DAY }>,
        /// Bytes of one build's log; what follows is dropped.
        log_bytes_per_build: Bytes<{ 64 * KIB }, GIB>,
    }
}

bounds! {
    /// How long a build daemon is waited for.
    BuildkitTimeouts: fabrique_buildkit::Patience {
        /// How long a connection may take, TLS included.
        connect: Connection,
        /// How long an answer about the daemon itself may take.
        probe: Answer,
        /// How long a daemon may give no sign of life during a build before it is given up. It gives one every 5 s.
        silence: Wait<{ 6 * SECOND }, HOUR>,
        /// How long a cancelled build may take to stop, and the last output to come after a build's end.
        ending: Wait<{ 100 * MILLISECOND }, MINUTE>,
        /// How long the registry may take to say whether a base image exists that the daemon could not resolve. Without
        /// an answer the daemon's own words decide.
        base: Answer,
    }
}

bounds! {
    /// Bounds on what one build reports.
    BuildkitLogs: fabrique_buildkit::LogLimits {
        /// The longest line in bytes; the rest of it is cut.
        line: Bytes<256, { 64 * KIB }>,
        /// The most bytes of output; the tails of failing steps are kept beyond it.
        total: Bytes<{ 64 * KIB }, GIB>,
        /// How many of its last lines a failing step shows.
        tail: Count<1, 1_000>,
    }
}

bounds! {
    /// How a daemon is chosen among the listed ones.
    BuildkitPlacement: fabrique_buildkit::StaticSettings {
        /// How long an app waits for the daemon that has its cache before it takes another; at most half of
        /// `worker.patience`.
        warm_wait: Wait<0, { 10 * MINUTE }>,
        /// The pause before a doubtful daemon is probed again; it doubles, with jitter.
        first_pause: Wait<{ 10 * MILLISECOND }, MINUTE>,
        /// The longest such pause.
        longest_pause: Wait<{ 100 * MILLISECOND }, HOUR>,
    }
}

bounds! {
    /// How much the receiver takes, and for how long it waits.
    ReceiverLimits: fabrique_receiver::ReceiverConfig {
        /// Where deliveries arrive.
        path: String,
        /// The largest body. Gitea's pushes are some 10 KiB.
        max_body: Bytes<KIB, GIB>,
        /// The most memory that all bodies together may take.
        max_buffered: Bytes<KIB, { 64 * GIB }>,
        /// The most deliveries at work at once; further ones are answered 429. Never counted by address, since there
        /// is one Gitea.
        max_in_flight: Count<1, 100_000>,
        /// The most open connections; further ones wait in the kernel's backlog.
        max_connections: Count<1, 100_000>,
        /// How long a connection may take to send the head of a request, and how long it may be idle. A delivery
        /// sent at the very moment its idle connection is closed is lost: a short time makes that likely.
        header_timeout: Wait<{ 100 * MILLISECOND }, HOUR>,
        /// How long a body may take to arrive.
        body_timeout: Wait<{ 10 * MILLISECOND }, { 5 * SECOND }>,
        /// How long the bus may take to acknowledge.
        wake_timeout: Wait<{ 10 * MILLISECOND }, { 5 * SECOND }>,
        /// When an answer must be out, counted from the request's head; Gitea gives up after 5 s.
        answer_timeout: Wait<{ 20 * MILLISECOND }, { 5 * SECOND }>,
        /// The least time between two readings of the registrations.
        reload_spacing: Wait<0, MINUTE>,
        /// How long one reading of the registrations may take. A delivery does not wait for it that long.
        reload_timeout: Wait<{ 100 * MILLISECOND }, HOUR>,
        /// How old the registrations may become while deliveries are answered by them, and how long such a delivery
        /// is left alone. Then they are read again, and an app that it missed is woken: another receiver may have
        /// heard of its registration.
        reload_age: Wait<{ 100 * MILLISECOND }, HOUR>,
        /// For how long after the start a push to `cluster/apps` is expected whose commit the first reading had seen: as
        /// long as Gitea's queue may be behind. What is delivered later is found by a sweep.
        late_pushes: Wait<0, DAY>,
        /// The most events waiting to be published; further ones are counted and dropped.
        event_queue: Count<1, 1_000_000>,
        /// The longest life of a connection.
        connection_age: Wait<SECOND, DAY>,
        /// How long deliveries at work may take to finish after a shutdown is asked for.
        drain_timeout: Wait<0, HOUR>,
    }
}

bounds! {
    /// How long `doctor` waits, what is slow to it, and of how many a sample is.
    DoctorSection: fabrique_operator::doctor::Bounds {
        /// The longest a check may take, those of webhooks aside.
        timeout: Wait<{ 100 * MILLISECOND }, { 10 * MINUTE }>,
        /// The longest a test delivery is waited for.
        delivery_timeout: Wait<{ 100 * MILLISECOND }, { 10 * MINUTE }>,
        /// A test delivery that takes longer is worth a warning.
        slow_delivery: Wait<{ 10 * MILLISECOND }, HOUR>,
        /// Where half of fabrique's own pushes come back later than this, that is worth one too.
        slow_push: Wait<{ 10 * MILLISECOND }, HOUR>,
        /// At how many repositories test deliveries are measured, one after another.
        deliveries: Count<0, 100>,
        /// At how many image repositories of each registry a push is tried.
        pushes: Count<0, 10_000>,
    }
}
