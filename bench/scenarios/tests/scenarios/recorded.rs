//! After the last gate: a row in `bench/RESULTS.md`, when that is asked for.

use fabrique_scenarios::record::{self, Line, SWITCH};

use crate::gates::{ORDER, conclude, installed, isolation};

#[tokio::test]
#[ignore = "records a run, every gate of it: FABRIQUE_RECORD=1 ./just scenarios"]
async fn the_run_is_recorded_when_it_is_asked_to_be() {
    if std::env::var_os(SWITCH).is_none() {
        return;
    }
    let mut ends = Vec::new();
    for gate in ORDER {
        ends.push(gate.passed().await);
    }
    if installed().await.is_ok() {
        let lines = ORDER.map(|gate| Line { number: gate.number, took: gate.took() });
        record::append(isolation(), &lines).await.unwrap();
    }
    ends.into_iter().for_each(conclude);
}
