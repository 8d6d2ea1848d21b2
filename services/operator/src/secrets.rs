//! `secrets`: those of the contract that are derived from others.

use fabrique_declarations::{Contract, Finding};
use fabrique_ports::secrets::{Change, Derivation, DerivedSecrets, SecretPlace};
use serde::Serialize;

use crate::error::OperatorError;
use crate::exit::Exit;

/// What became of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DerivedReport {
    /// The secrets, by name.
    pub secrets: Vec<DerivedSecret>,
    /// How many were written, or would be.
    pub changed: usize,
    /// Whether nothing was written.
    pub dry_run: bool,
}

/// One derived secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DerivedSecret {
    /// Its namespace and name.
    pub secret: String,
    /// Those of what it is derived from.
    pub from: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it was left as it is, where it should not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How a process ends that this stops.
    #[serde(skip)]
    pub(crate) exit: Exit,
}

/// What became of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was as it should be.
    Unchanged,
    /// It was made, or would be.
    Made,
    /// It was changed, or would be.
    Changed,
    /// It is left as it is.
    Refused,
}

impl DerivedReport {
    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let left_undone = Exit::ok_if(!(self.dry_run && self.changed > 0));
        Exit::worst(self.secrets.iter().map(|secret| secret.exit).chain([left_undone]))
    }
}

/// The derived secrets of a contract, or the one called `only`.
///
/// # Errors
/// [`OperatorError::UnknownSecret`]; [`OperatorError::NoContract`].
pub fn derivations(
    contract: &Result<Option<Contract>, Vec<Finding>>,
    only: Option<&str>,
) -> Result<Vec<Derivation>, OperatorError> {
    let contract = match contract {
        Ok(Some(contract)) => contract,
        Ok(None) => return Err(OperatorError::NoContract("there is none".to_owned())),
        Err(findings) => {
            let first = findings.first().map(ToString::to_string).unwrap_or_default();
            return Err(OperatorError::NoContract(first));
        }
    };
    let derived = contract.secrets.iter().filter_map(|(name, secret)| {
        let (secret, place) = (&secret.value, |namespace: &str, name: &str| SecretPlace {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        let from = secret.from.as_ref()?;
        Some(Derivation {
            target: place(secret.namespace.as_str(), name.as_str()),
            source: place(from.namespace.as_str(), from.secret.as_str()),
            keys: secret.keys.iter().map(|key| key.as_str().to_owned()).collect(),
        })
    });
    let all: Vec<Derivation> = derived.collect();
    let Some(only) = only else { return Ok(all) };
    let names: Vec<String> = all.iter().map(|derivation| derivation.target.name.clone()).collect();
    match all.into_iter().find(|derivation| derivation.target.name == only) {
        Some(derivation) => Ok(vec![derivation]),
        None => {
            let name = only.escape_debug().to_string();
            let hint = match names.is_empty() {
                true => "no secret of contract.yaml says `from`".to_owned(),
                false => format!("those that are: {}", names.join(", ")),
            };
            Err(OperatorError::UnknownSecret { name, hint })
        }
    }
}

/// Brings each in line with its source. One that cannot be does not stop the others.
///
/// # Errors
/// When the cluster does not answer.
pub async fn derive(
    port: &dyn DerivedSecrets,
    derivations: &[Derivation],
    dry_run: bool,
) -> Result<DerivedReport, OperatorError> {
    let mut report = DerivedReport { secrets: Vec::new(), changed: 0, dry_run };
    for derivation in derivations {
        let (outcome, why, exit) = match port.derive(derivation, dry_run).await {
            Ok(Ok(Change::None)) => (Outcome::Unchanged, None, Exit::Ok),
            Ok(Ok(Change::Made)) => (Outcome::Made, None, Exit::Ok),
            Ok(Ok(Change::Changed)) => (Outcome::Changed, None, Exit::Ok),
            Ok(Err(unfit)) => (Outcome::Refused, Some(unfit.to_string()), Exit::Findings),
            // Whoever does not answer does not answer for the others either.
            Err(error) if error.transient() => return Err(error.into()),
            Err(error) => (Outcome::Refused, Some(error.to_string()), Exit::from(&error)),
        };
        report.changed += usize::from(matches!(outcome, Outcome::Made | Outcome::Changed));
        let (secret, from) = (derivation.target.to_string(), derivation.source.to_string());
        report.secrets.push(DerivedSecret { secret, from, outcome, why, exit });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use fabrique_ports::secrets::Unfit;
    use fabrique_ports::{Fault, Peer, PortError, PortResult};

    use super::*;

    /// Answers by the name of the target.
    struct Cluster;

    #[async_trait]
    impl DerivedSecrets for Cluster {
        async fn derive(&self, derivation: &Derivation, _: bool) -> PortResult<Result<Change, Unfit>> {
            let error = |fault| PortError::new(Peer::Cluster, fault, "no").remedy("print the rights");
            match derivation.target.name.as_str() {
                "denied" => Err(error(Fault::Denied)),
                "odd" => Err(error(Fault::Unexpected)),
                "unfit" => Ok(Err(Unfit::NoSource(derivation.source.clone()))),
                "away" => Err(error(Fault::Transient)),
                _ => Ok(Ok(Change::Made)),
            }
        }
    }

    async fn derived(names: &[&str]) -> Result<DerivedReport, OperatorError> {
        let place = |name: &str| SecretPlace { namespace: "apps".to_owned(), name: name.to_owned() };
        let derivation =
            |name: &&str| Derivation { target: place(name), source: place("s"), keys: Vec::new() };
        let derivations: Vec<Derivation> = names.iter().map(derivation).collect();
        super::derive(&Cluster, &derivations, false).await
    }

    #[tokio::test]
    async fn one_that_is_refused_does_not_stop_those_behind_it() {
        let report = derived(&["denied", "odd", "unfit", "fine"]).await.unwrap();
        let outcomes: Vec<Outcome> = report.secrets.iter().map(|secret| secret.outcome).collect();
        assert_eq!(outcomes, [Outcome::Refused, Outcome::Refused, Outcome::Refused, Outcome::Made]);
        let why = report.secrets[0].why.as_deref();
        assert_eq!(why, Some("the API server: no (print the rights)"));
        assert_eq!((report.changed, report.exit()), (1, Exit::Unexpected));
        assert_eq!(derived(&["denied", "unfit"]).await.unwrap().exit(), Exit::Denied, "as the help says");
        assert_eq!(derived(&["unfit", "fine"]).await.unwrap().exit(), Exit::Findings);
    }

    #[tokio::test]
    async fn a_cluster_that_does_not_answer_stops_them_all() {
        let error = derived(&["fine", "away", "fine"]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Unreachable);
    }

    fn example() -> Result<Option<Contract>, Vec<Finding>> {
        let text = include_str!("../../../docs/contract.yaml.example");
        Contract::parse("contract.yaml", text.as_bytes()).map(Some)
    }

    #[test]
    fn those_with_a_source_are_derived_and_no_other() {
        let all = derivations(&example(), None).unwrap();
        let [derivation] = &all[..] else { panic!("{all:?}") };
        assert_eq!(derivation.target.to_string(), "dagster/pgvector-pg-auth");
        assert_eq!(derivation.source.to_string(), "postgres/pg-role-pgvector");
        assert_eq!(derivation.keys, ["username", "password"]);
        assert_eq!(derivations(&example(), Some("pgvector-pg-auth")).unwrap(), all);
        let unknown = derivations(&example(), Some("smtp-relay")).unwrap_err();
        assert_eq!(unknown.exit(), Exit::Usage);
        assert!(unknown.to_string().contains("those that are: pgvector-pg-auth"), "{unknown}");
    }

    #[test]
    fn without_a_contract_nothing_is_derived_and_it_is_said_why() {
        assert_eq!(derivations(&Ok(None), None).unwrap_err().exit(), Exit::Findings);
        let bad = Contract::parse("contract.yaml", b"a: 1").map(Some);
        assert!(derivations(&bad, None).unwrap_err().to_string().contains("contract.yaml:"), "{bad:?}");
    }
}
