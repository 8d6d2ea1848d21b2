//! How a failed build is told: by what failed, and by what became of its daemon.

use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::memory::Memory;
use fabrique_ports::PortError;
use fabrique_ports::builder::{Autopsy, BuildFailure};

/// A failure with what became of its daemon.
pub(crate) fn explain(mut failure: BuildFailure, daemon: &str, autopsy: Autopsy) -> BuildFailure {
    match autopsy {
        Autopsy::Alive => {}
        Autopsy::Died { kind, why } => {
            // What the daemon itself said of its machine is not undone by how it ended.
            if failure.kind == FailureKind::Infrastructure || failure.killed {
                failure.kind = kind;
            }
            failure.message = format!("{daemon} {why}: {}", failure.message);
        }
        Autopsy::OutOfMemory => {
            failure.kind = FailureKind::Environment;
            failure.message = format!("{daemon} ran out of memory: {}", failure.message);
        }
    }
    failure
}

/// Notes the failure that comes of the one before at the same build: the last one, or `earlier`, which a digest that was recorded
/// since has hidden. Who builds and is not answered for again and again is to give up.
pub(crate) fn note(
    memory: &mut Memory,
    earlier: Option<&Failure>,
    next: impl FnOnce(Option<&Failure>) -> Failure,
) {
    let is_of_it = |last: &&Failure| earlier.is_none_or(|earlier| earlier.key == last.key);
    memory.failure = Some(next(memory.failure.as_ref().filter(is_of_it).or(earlier)));
}

/// As much of a failing step's last lines as is worth a place in the app's memory.
pub(crate) fn remembered(mut tail: Vec<String>) -> Vec<String> {
    const LINES: usize = 12;
    const CHARS: usize = 300;
    let mut tail = tail.split_off(tail.len().saturating_sub(LINES));
    for line in &mut tail {
        if let Some((end, _)) = line.char_indices().nth(CHARS) {
            line.truncate(end);
            line.push('…');
        }
    }
    tail
}

pub(crate) fn infrastructure(message: String) -> BuildFailure {
    BuildFailure::new(FailureKind::Infrastructure, message)
}

pub(crate) fn from_port(error: &PortError) -> BuildFailure {
    infrastructure(error.to_string())
}

#[cfg(test)]
mod tests {
    use fabrique_core::decision::{Action, Decision, Reason};
    use fabrique_core::id::RelPath;
    use fabrique_core::view::Declared;
    use fabrique_gitops::{Entry, Registrations, Rules, Tree};

    use super::*;
    use crate::status;

    /// What people read of a failed attempt that is made again: `why`, and the commit status.
    fn told(failure: &BuildFailure) -> [String; 2] {
        let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                    source: { repo: atlas/citation }\n  image: registry:80/citation\n";
        let tree: Tree =
            [(RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(text))].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let app = Registrations::load(&tree, &rules).apps.into_values().next().unwrap();
        let (kind, message) = (failure.kind, failure.message.clone());
        let reason = Reason::Failed { kind, message, attempts: 1, dead: false };
        let decision = Decision { action: Action::Nothing, reason, channels: vec![] };
        let status = status::settled(&app, &decision, &Declared::Admitted, None, None).unwrap();
        [decision.reason.to_string(), status.description]
    }

    /// The words are the placement's, which end a sentence that begins with the daemon's name. The event has the
    /// failure's own message.
    #[test]
    fn what_kubernetes_did_to_a_build_is_told_in_its_words_wherever_people_look() {
        for (kind, why) in [
            (FailureKind::Environment, "lost its node"),
            (FailureKind::Environment, "was preempted by a pod of a higher priority"),
            (FailureKind::Environment, "was evicted because its node was drained"),
            (FailureKind::Environment, "reached its deadline"),
            (FailureKind::Infrastructure, "cannot pull its image (ErrImagePull)"),
        ] {
            let died = Autopsy::Died { kind, why: why.to_owned() };
            let failure = explain(infrastructure("the connection was closed".to_owned()), "builder-0", died);
            assert_eq!(failure.kind, kind, "{why}");
            assert_eq!(failure.message, format!("builder-0 {why}: the connection was closed"));
            for told in told(&failure) {
                assert!(told.contains(&failure.message), "{told}");
            }
        }
        let failure = explain(infrastructure("was closed".to_owned()), "builder-0", Autopsy::OutOfMemory);
        assert_eq!(failure.kind, FailureKind::Environment);
        for told in told(&failure) {
            assert!(told.contains("builder-0 ran out of memory"), "{told}");
        }
        // Nothing was built yet: the pool tells what its pod waits for.
        for why in [
            "builder-0 finds no node: 0/3 nodes are available",
            "builder-0 cannot pull its image (ErrImagePull)",
        ] {
            for told in told(&BuildFailure::new(FailureKind::Unplaced, why)) {
                assert_eq!(told, format!("waits for a builder: {why}"));
            }
        }
    }

    #[test]
    fn of_a_steps_last_lines_the_last_are_remembered_and_long_ones_cut() {
        let lines = (0..40).map(|n| format!("{n} {}", "é".repeat(400))).collect();
        let kept = remembered(lines);
        assert_eq!(kept.len(), 12);
        assert!(kept[0].starts_with("28 é") && kept[11].starts_with("39 é"), "{kept:?}");
        assert!(kept.iter().all(|line| line.chars().count() == 301 && line.ends_with('…')));
        assert_eq!(remembered(vec!["short".to_owned()]), ["short"]);
    }
}
