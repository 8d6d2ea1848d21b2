//! NATS: its settings, its streams, its doors, and what its users may do.

use std::sync::Arc;

use fabrique_ports::bus::{BusFinding, BusRights, BusRole};
use futures::future::join_all;

use super::{Check, Doctor};

pub(super) async fn server(doctor: &Doctor) -> Vec<Check> {
    let name = "nats";
    let mut checks = match doctor.ports.bus.inspect().await {
        Ok(findings) => told(name, findings),
        // Whoever else logs in would wait in vain too.
        Err(error) if error.transient() => return vec![Check::error(name, &error)],
        Err(error) => vec![Check::error(name, &error)],
    };
    if checks.is_empty() {
        let kept = doctor.ports.bus.usage().await.map(|usage| {
            let bytes: u64 = usage.values().map(|(_, bytes)| bytes).sum();
            format!("{} streams as they should be, {} MiB kept", usage.len(), bytes >> 20)
        });
        checks.push(Check::ok(name, kept.unwrap_or_else(|_| "as it should be".to_owned())));
    }
    let users = doctor.ports.users.iter().map(|(role, login)| user(doctor, *role, login));
    checks.extend(join_all(users).await.into_iter().flatten());
    checks.extend(unknown(&doctor.ports.users));
    checks
}

async fn user(doctor: &Doctor, role: BusRole, login: &Arc<dyn BusRights>) -> Vec<Check> {
    let name = format!("nats user {}", role.as_str());
    match tokio::time::timeout(doctor.config.bounds.timeout, login.rights(role)).await {
        Ok(Ok(findings)) if findings.is_empty() => {
            vec![Check::ok(name, "logs in, and may do what it must and nothing that it must not")]
        }
        Ok(Ok(findings)) => told(&name, findings),
        Ok(Err(error)) => vec![Check::error(name, &error)],
        Err(_) => vec![super::silent(&name, doctor.config.bounds.timeout)],
    }
}

/// The roles whose users cannot be looked at from here: not every machine has every password, and none should.
fn unknown(users: &[(BusRole, Arc<dyn BusRights>)]) -> Option<Check> {
    let known = |role: &BusRole| users.iter().any(|(other, _)| other == role);
    let unknown: Vec<&str> =
        BusRole::ALL.iter().filter(|role| !known(role)).map(|role| role.as_str()).collect();
    (!unknown.is_empty()).then(|| {
        let what = format!("not looked at, for want of their passwords here: {}", unknown.join(", "));
        Check::ok("nats users", what)
    })
}

fn told(name: &str, findings: Vec<BusFinding>) -> Vec<Check> {
    let told = findings.into_iter().map(|finding| match finding.fatal {
        true => Check::fail(name, finding.what, finding.remedy),
        false => Check::warn(name, finding.what, finding.remedy),
    });
    told.collect()
}
