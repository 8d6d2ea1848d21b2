//! What came of every gate.

use fabrique_ports::bus::BusFinding;
use serde::Serialize;

use super::Trouble;
use super::plan::Gate;
use crate::exit::Exit;

pub(super) const NATS: &str = "nats";
pub(super) const GITEA: &str = "gitea";
pub(super) const ARGOCD: &str = "argo cd";
pub(super) const STREAMS: &str = "streams";
/// What stands in the way of everything behind it.
pub(super) const LOOK: &str = "what is there";
pub(super) const DELIVERY: &str = "delivery";

/// What came of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateResult {
    /// There was nothing to do.
    Passed,
    /// Something was done, and the gate is passed.
    Changed,
    /// Something would be done.
    WouldChange,
    /// It is passed as far as can be seen from here.
    Unproven,
    /// It is not passed.
    Failed,
    /// One before it is not passed.
    NotReached,
}

/// One gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateReport {
    /// Its name.
    pub gate: String,
    /// What came of it.
    pub result: GateResult,
    /// What was found, done, or would be done.
    pub what: Vec<String>,
}

/// A difference between a stream and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamDifference {
    /// Whether work cannot go on with it.
    pub fatal: bool,
    /// What differs.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What came of all gates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetupReport {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// The gates, in order.
    pub gates: Vec<GateReport>,
    /// How many things were done, or would be.
    pub changed: usize,
    /// What differs on the bus.
    pub findings: Vec<StreamDifference>,
    #[serde(skip)]
    exit: Exit,
}

impl SetupReport {
    pub(super) fn new(dry_run: bool) -> Self {
        Self { dry_run, gates: Vec::new(), changed: 0, findings: Vec::new(), exit: Exit::Ok }
    }

    /// How the process ends: a dry run that would change something is a finding.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.exit {
            Exit::Ok => Exit::ok_if(!self.dry_run || self.changed == 0),
            exit => exit,
        }
    }

    fn add(&mut self, gate: &str, result: GateResult, what: Vec<String>) {
        self.gates.push(GateReport { gate: gate.to_owned(), result, what });
    }

    pub(super) fn passed(&mut self, gate: &str, what: impl Into<String>) {
        self.add(gate, GateResult::Passed, vec![what.into()]);
    }

    pub(super) fn unproven(&mut self, gate: &str, what: &str) {
        self.add(gate, GateResult::Unproven, vec![what.to_owned()]);
    }

    pub(super) fn changed(&mut self, gate: &str, what: Vec<String>, count: usize) {
        self.changed += count;
        self.add(gate, GateResult::Changed, what);
    }

    pub(super) fn would(&mut self, gate: &str, what: Vec<String>) {
        self.changed += what.len();
        self.add(gate, GateResult::WouldChange, what);
    }

    pub(super) fn failed(&mut self, gate: &str, what: &str, exit: Exit) {
        self.exit = exit;
        self.add(gate, GateResult::Failed, vec![what.to_owned()]);
    }

    pub(super) fn trouble(&mut self, gate: &str, trouble: Trouble) {
        match trouble {
            Trouble::Error(error) => self.failed(gate, &error.to_string(), error.exit()),
            Trouble::Late(missing) => {
                let what = format!("still missing when its time was over: {missing}");
                self.failed(gate, &what, Exit::Unreachable);
            }
            Trouble::Obstacles(obstacles) => self.failed(gate, &obstacles.join("; "), Exit::Findings),
        }
    }

    /// What was asked, or nothing when that failed, which is told then.
    pub(super) fn take<T, E: Into<Trouble>>(&mut self, gate: &str, answer: Result<T, E>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                self.trouble(gate, error.into());
                None
            }
        }
    }

    pub(super) fn differ(&mut self, found: Vec<BusFinding>) {
        let told = found.into_iter().map(|BusFinding { fatal, what, remedy }| StreamDifference {
            fatal,
            what,
            remedy,
        });
        self.findings.extend(told);
    }

    /// Says of every gate behind the one that failed that it was not reached.
    pub(super) fn leave_the_rest(&mut self, with_deployer: bool, with_forge: bool) {
        let mut all = vec![NATS];
        if with_forge {
            all.push(GITEA);
        }
        if with_deployer {
            all.push(ARGOCD);
        }
        all.push(STREAMS);
        if with_forge {
            let own = Gate::ALL.into_iter().filter(|gate| with_deployer || *gate != Gate::Deployer);
            all.extend(own.map(Gate::as_str));
        }
        if with_deployer {
            all.push(DELIVERY);
        }
        for gate in all {
            if !self.gates.iter().any(|told| told.gate == gate) {
                self.add(gate, GateResult::NotReached, Vec::new());
            }
        }
    }
}
