//! NATS: its settings, its streams, its doors.

use super::{Check, Doctor};

pub(super) async fn server(doctor: &Doctor) -> Vec<Check> {
    let name = "nats";
    let findings = match doctor.ports.bus.inspect().await {
        Ok(findings) => findings,
        Err(error) => return vec![Check::error(name, &error)],
    };
    let mut checks: Vec<Check> = findings
        .into_iter()
        .map(|finding| match finding.fatal {
            true => Check::fail(name, finding.what, finding.remedy),
            false => Check::warn(name, finding.what, finding.remedy),
        })
        .collect();
    if checks.is_empty() {
        let kept = doctor.ports.bus.usage().await.map(|usage| {
            let bytes: u64 = usage.values().map(|(_, bytes)| bytes).sum();
            format!("{} streams as they should be, {} MiB kept", usage.len(), bytes >> 20)
        });
        checks.push(Check::ok(name, kept.unwrap_or_else(|_| "as it should be".to_owned())));
    }
    checks
}
