//! What builds fetched, in words.

use fabrique_core::id::BuildId;
use fabrique_ports::egress::Egress;
use fabrique_ports::records::BuildEntry;
use serde::Serialize;

/// What is known of a build's fetches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildEgress {
    /// The build.
    pub build: BuildId,
    /// What its daemon told; nothing before the build's end, and nothing of one that reached no daemon.
    pub egress: Option<Egress>,
    /// What has to be known to read it, in whole sentences: what is missing, why, and where to look for it.
    pub notes: Vec<String>,
}

impl BuildEgress {
    /// Of `entry`.
    #[must_use]
    pub fn of(entry: &BuildEntry) -> Self {
        let notes = match &entry.egress {
            Some(egress) => notes(egress),
            None if entry.phase.is_final() => vec!["it reached no daemon that could tell".to_owned()],
            None => vec!["it is under way; what it fetched is told at its end".to_owned()],
        };
        Self { build: entry.build.clone(), egress: entry.egress.clone(), notes }
    }
}

fn notes(egress: &Egress) -> Vec<String> {
    let more = (egress.left_out > 0).then(|| {
        let kept = egress.fetches.len();
        format!("{} more were asked for; {kept} are kept, refused ones first", egress.left_out)
    });
    // Why it is this one may follow the word.
    let isolation = egress.isolation.as_deref().and_then(|text| text.split([' ', ',', ':']).next());
    let unseen = match isolation {
        Some("userns") => None,
        Some("rootless") => Some(
            "requests of RUN steps do not pass the daemon in the isolation rootless: look into the log of the \
             egress proxy (`kubectl logs -n fabrique-egress -l app.kubernetes.io/name=egress-proxy`) or Cilium's \
             flows (`hubble observe -n fabrique-builds`)"
                .to_owned(),
        ),
        Some(_) | None => Some(
            "requests of RUN steps are seen only on daemons that run with `proxyNetwork`: for others look into the \
             log of whatever stands between them and the outside"
                .to_owned(),
        ),
    };
    more.into_iter().chain(unseen).collect()
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{AppName, BuildKey, Revision};
    use fabrique_core::time::Timestamp;
    use fabrique_ports::records::BuildPhase;

    use super::*;

    fn told(phase: BuildPhase, egress: Option<Egress>) -> String {
        let entry = BuildEntry {
            build: BuildId::parse("citation-01k0000000000000000000000a").unwrap(),
            app: AppName::parse("citation").unwrap(),
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            revision: Revision::parse(&"1b".repeat(20)).unwrap(),
            reason: String::new(),
            phase,
            daemon: None,
            queued: Timestamp(0),
            ended: None,
            egress,
        };
        BuildEgress::of(&entry).notes.join("\n")
    }

    #[test]
    fn what_is_not_seen_is_said_with_where_to_look() {
        let on = |isolation: &str| Egress { isolation: Some(isolation.to_owned()), ..Egress::default() };
        let over = BuildPhase::Superseded { by: None };
        assert_eq!(told(over.clone(), Some(on("userns"))), "");
        assert!(told(over.clone(), Some(on("rootless"))).contains("egress-proxy"));
        assert!(told(over.clone(), Some(Egress::default())).contains("proxyNetwork"));
        let cut = Egress { left_out: 7, ..on("userns") };
        assert!(told(over.clone(), Some(cut)).starts_with("7 more"));
        assert!(told(over, None).contains("no daemon"));
        assert!(told(BuildPhase::Building, None).contains("under way"));
    }
}
