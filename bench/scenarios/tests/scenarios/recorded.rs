//! After the last gate: a row in `bench/RESULTS.md`, when that is asked for.

use fabrique_scenarios::record::{self, Line, SWITCH};

use crate::gates::{Gate, conclude, installed};
use crate::{broken, crowd, deaf, pushed, replayed, seeded};

#[tokio::test]
#[ignore = "records a run, every gate of it: FABRIQUE_RECORD=1 ./just scenarios"]
async fn the_run_is_recorded_when_it_is_asked_to_be() {
    if std::env::var_os(SWITCH).is_none() {
        return;
    }
    let ends = [
        pushed::passed_rootless().await,
        broken::passed_deleted().await,
        broken::passed_evicted().await,
        broken::passed_killed().await,
        deaf::passed_nats().await,
        deaf::passed_hook().await,
        crowd::passed().await,
    ];
    let gates: [&Gate; 10] = [
        &seeded::GATE,
        &pushed::USERNS,
        &pushed::ROOTLESS,
        &replayed::GATE,
        &broken::DELETED,
        &broken::EVICTED,
        &broken::KILLED,
        &deaf::NATS,
        &deaf::HOOK,
        &crowd::GATE,
    ];
    if let Ok(installation) = installed().await {
        let lines = gates.map(|gate| Line { number: gate.number, took: gate.took() });
        record::append(installation, &lines).await.unwrap();
    }
    ends.into_iter().for_each(conclude);
}
