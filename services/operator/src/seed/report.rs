//! What came of a plan: two looks, one before and one after, and what failed between them.

use std::collections::BTreeMap;

use fabrique_core::id::{AppName, EnvironmentName};
use serde::Serialize;

use super::plan::{Plan, Row, Stage, Standing};
use crate::error::OperatorError;
use crate::exit::Exit;

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepResult {
    /// There was nothing to do.
    There,
    /// It was done.
    Changed,
    /// It would be done.
    WouldChange,
    /// It would be waited for, and nothing changed for it.
    WouldWait,
    /// A person has to do something first.
    Refused,
    /// It was not done, or not in time.
    Failed,
    /// Something before it was not done.
    NotReached,
    /// It may be done: nobody could look again.
    Unseen,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Which.
    pub step: Stage,
    /// The app, the secret or the repository.
    pub subject: String,
    /// What came of it.
    pub result: StepResult,
    /// What was found, done, or would be done.
    pub what: String,
}

/// What came of all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeedReport {
    /// The environment.
    pub environment: EnvironmentName,
    /// Whether nothing was to be done.
    pub dry_run: bool,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// How many things were changed, or would be.
    pub changed: usize,
    /// Why what came of it was not seen, where it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<String>,
    #[serde(skip)]
    exit: Exit,
}

/// What was not done, by the step that it stopped at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failures(BTreeMap<(Stage, String), (String, Exit)>);

impl Failures {
    /// Notes one. Of several at one step the first counts.
    pub(super) fn add(
        &mut self,
        stage: Stage,
        subject: impl Into<String>,
        why: impl Into<String>,
        exit: Exit,
    ) {
        self.0.entry((stage, subject.into())).or_insert_with(|| (why.into(), exit));
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of_app(&self, app: &AppName) -> bool {
        self.0.keys().any(|(_, subject)| subject == app.as_str())
    }

    fn of(&self, row: &Row) -> Option<&(String, Exit)> {
        self.0.get(&(row.stage, row.subject.clone()))
    }
}

impl SeedReport {
    /// What a plan would do. Without `dry_run` it is the end all the same, since there is nothing to do or something in the way.
    #[must_use]
    pub fn planned(plan: &Plan, dry_run: bool) -> Self {
        // That was the end of it: nothing would be done any more.
        let ended = plan.is_refused() && !dry_run;
        let step = |row: &Row| {
            let result = match &row.standing {
                Standing::There(_) => StepResult::There,
                Standing::Refused(..) => StepResult::Refused,
                Standing::Own(_) | Standing::Asked(_) | Standing::Awaited(_) if ended => {
                    StepResult::NotReached
                }
                Standing::Own(_) | Standing::Asked(_) => StepResult::WouldChange,
                Standing::Awaited(_) => StepResult::WouldWait,
            };
            told(row, result, row.standing.what())
        };
        let steps: Vec<Step> = plan.rows.iter().map(step).collect();
        let changed = if plan.is_refused() { 0 } else { plan.changes() };
        let exit = Exit::worst(plan.refusals().chain([Exit::ok_if(plan.is_done())]));
        Self { environment: plan.environment.clone(), dry_run, steps, changed, unseen: None, exit }
    }

    /// What came of a plan, by a second one that was made after it, or why nobody could look again.
    #[must_use]
    pub fn ended(before: &Plan, after: Result<&Plan, &OperatorError>, failures: &Failures) -> Self {
        let mut report = Self {
            environment: before.environment.clone(),
            dry_run: false,
            steps: Vec::new(),
            changed: 0,
            unseen: after.err().map(ToString::to_string),
            exit: Exit::Ok,
        };
        let mut exits: Vec<Exit> = failures.0.values().map(|(_, exit)| *exit).collect();
        exits.extend(after.err().map(OperatorError::exit));
        let seen = after.ok();
        exits.extend(seen.into_iter().flat_map(Plan::refusals));
        for row in &seen.unwrap_or(before).rows {
            let planned = before.rows.iter().find(|known| known.key() == row.key());
            let was_to_change = planned.is_none_or(|planned| planned.standing.is_a_change());
            let (result, what) = match (&row.standing, failures.of(row)) {
                (_, Some((why, _))) => (StepResult::Failed, why.as_str()),
                (Standing::There(what), None) if was_to_change && seen.is_some() => {
                    (StepResult::Changed, &**what)
                }
                (Standing::There(what), None) => (StepResult::There, &**what),
                (Standing::Refused(what, _), None) => (StepResult::Failed, &**what),
                // These are done first, and those by others once they are there.
                (Standing::Own(what), None) if seen.is_none() => (StepResult::Unseen, &**what),
                (Standing::Asked(what) | Standing::Awaited(what), None)
                    if seen.is_none() && failures.is_empty() =>
                {
                    (StepResult::Unseen, &**what)
                }
                (Standing::Own(what) | Standing::Asked(what) | Standing::Awaited(what), None) => {
                    (StepResult::NotReached, &**what)
                }
            };
            report.changed += usize::from(result == StepResult::Changed);
            exits.push(Exit::ok_if(!matches!(result, StepResult::Failed | StepResult::NotReached)));
            report.steps.push(told(row, result, what));
        }
        report.exit = Exit::worst(exits);
        report
    }

    /// How the process ends: a dry run that would change something, or wait for it, is a finding.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether something stands in the way.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.steps.iter().any(|step| step.result == StepResult::Refused)
    }
}

fn told(row: &Row, result: StepResult, what: &str) -> Step {
    Step { step: row.stage, subject: row.subject.clone(), result, what: what.to_owned() }
}

impl Row {
    fn key(&self) -> (Stage, &str) {
        (self.stage, &self.subject)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    fn plan(standings: &[(Stage, Standing)]) -> Plan {
        let rows = standings.iter().map(|(stage, standing)| Row {
            stage: *stage,
            subject: "citation".to_owned(),
            standing: standing.clone(),
        });
        let environment = EnvironmentName::parse("prod").unwrap();
        Plan { environment, rows: rows.collect(), asks: Vec::new(), elsewhere: BTreeSet::new() }
    }

    fn there() -> Standing {
        Standing::There("it is".to_owned())
    }

    fn asked() -> Standing {
        Standing::Asked("a worker".to_owned())
    }

    #[test]
    fn what_was_to_change_and_is_there_was_changed_and_nothing_else_was() {
        let awaited = Standing::Awaited("Argo CD".to_owned());
        let before = plan(&[
            (Stage::Image, asked()),
            (Stage::Declaration, there()),
            (Stage::Application, awaited.clone()),
        ]);
        let planned = SeedReport::planned(&before, true);
        assert_eq!((planned.changed, planned.exit()), (1, Exit::Findings));
        let after =
            plan(&[(Stage::Image, there()), (Stage::Declaration, there()), (Stage::Application, there())]);
        let ended = SeedReport::ended(&before, Ok(&after), &Failures::default());
        let results: Vec<StepResult> = ended.steps.iter().map(|step| step.result).collect();
        assert_eq!(results, [StepResult::Changed, StepResult::There, StepResult::There]);
        assert_eq!((ended.changed, ended.exit()), (1, Exit::Ok));
        let second = SeedReport::planned(&after, false);
        assert_eq!((second.changed, second.exit()), (0, Exit::Ok));
        // Who only had to wait, and did not live to see it.
        let behind =
            plan(&[(Stage::Image, there()), (Stage::Declaration, there()), (Stage::Application, awaited)]);
        let ended = SeedReport::ended(&before, Ok(&behind), &Failures::default());
        assert_eq!((ended.changed, ended.exit()), (1, Exit::Findings));
    }

    #[test]
    fn what_failed_says_why_and_what_comes_after_it_was_not_reached() {
        let before = plan(&[(Stage::Image, asked()), (Stage::Composition, asked())]);
        let mut failures = Failures::default();
        failures.add(Stage::Image, "citation", "the registry is away", Exit::Unreachable);
        failures.add(Stage::Image, "citation", "and something else", Exit::Findings);
        let away = OperatorError::Late(Duration::from_secs(30));
        for after in [Err(&away), Ok(&before)] {
            let ended = SeedReport::ended(&before, after, &failures);
            assert_eq!(ended.steps[0].result, StepResult::Failed);
            assert_eq!(ended.steps[0].what, "the registry is away");
            assert_eq!(ended.steps[1].result, StepResult::NotReached);
            assert_eq!((ended.changed, ended.exit()), (0, Exit::Unreachable));
        }
    }

    #[test]
    fn whoever_is_away_for_the_last_look_is_told_and_what_was_done_is_not_called_undone() {
        let own = Standing::Own("to be made".to_owned());
        let before =
            plan(&[(Stage::Image, asked()), (Stage::Secrets, own.clone()), (Stage::Application, there())]);
        let away = OperatorError::Late(Duration::from_secs(30));
        let ended = SeedReport::ended(&before, Err(&away), &Failures::default());
        let results: Vec<StepResult> = ended.steps.iter().map(|step| step.result).collect();
        assert_eq!(results, [StepResult::Unseen, StepResult::Unseen, StepResult::There]);
        assert!(ended.unseen.is_some_and(|why| why.contains("not over after 30 s")));
        assert_eq!((ended.changed, ended.exit), (0, Exit::Unreachable));
    }

    #[test]
    fn it_ends_with_what_stands_in_the_way_and_a_refused_run_changed_nothing() {
        for exit in [Exit::Findings, Exit::Unreachable, Exit::Denied] {
            let refused = Standing::Refused("no".to_owned(), exit);
            let before = plan(&[(Stage::Image, asked()), (Stage::Webhooks, refused)]);
            for dry_run in [true, false] {
                let planned = SeedReport::planned(&before, dry_run);
                assert_eq!((planned.changed, planned.exit()), (0, exit), "{dry_run}");
                let first = if dry_run { StepResult::WouldChange } else { StepResult::NotReached };
                assert_eq!(planned.steps[0].result, first);
            }
            let ended = SeedReport::ended(&before, Ok(&before), &Failures::default());
            assert_eq!(ended.exit(), exit);
        }
    }

    #[test]
    fn a_dry_run_over_an_app_that_is_not_well_is_a_finding() {
        let awaited = Standing::Awaited("Argo CD says: Synced, Degraded".to_owned());
        let planned = SeedReport::planned(&plan(&[(Stage::Application, awaited)]), true);
        assert_eq!((planned.changed, planned.exit()), (0, Exit::Findings));
    }
}
