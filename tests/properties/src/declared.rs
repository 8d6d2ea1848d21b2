//! Declarations and the contract.

use std::collections::BTreeMap;

use fabrique_core::id::EnvironmentName;
use fabrique_declarations::{Contract, Declaration, Declares, Finding, Subject, Usage, judge, manifest};

use crate::is_told_well;

/// A declaration that says everything, to begin with.
pub const DECLARATION: &str = "\
# dataops/citation-dagster/code-location.manifest.yaml
codeLocation: citation
ready: true
revision: 1b1ddb30aa2f
contractVersion: 3
resources: { cpu: 500m, memory: 1Gi, disk: 20Gi }
dependsOn:
  codeLocations: [mediawatch]
  database: [pgvector]
  secrets: [pgvector-pg-auth]
  buckets:
    - { name: atlas-datalake, size: 100Gi, storageClass: rook-ceph-datalake }
    - citation-scratch
  migrations: [001-researchers-hnsw.sql]
";
/// A contract that says everything, to begin with.
pub const CONTRACT: &str = include_str!("../../../docs/contract.yaml.example");

fn told_well(bytes: &[u8], findings: &[Finding]) {
    for finding in findings {
        let Finding { file, line, column, what, remedy, .. } = finding;
        is_told_well(bytes, file, (*line, *column), what, remedy);
    }
}

/// Any bytes are a declaration or are refused with findings; a declaration can be judged, by itself and beside one that
/// it may depend on, and judging is a function.
///
/// # Panics
/// Where that does not hold.
pub fn declaration(bytes: &[u8]) {
    let read = Declaration::parse(manifest::FILE_NAME, bytes);
    assert_eq!(read, Declaration::parse(manifest::FILE_NAME, bytes));
    match read {
        Err(findings) => {
            assert!(!findings.is_empty(), "refused without a word");
            told_well(bytes, &findings);
        }
        Ok(declaration) => {
            judged(bytes, &contract_of(CONTRACT.as_bytes()).expect("the example"), declaration)
        }
    }
}

/// The same of a contract: a declaration can be judged against whatever is one.
///
/// # Panics
/// Where that does not hold.
pub fn contract(bytes: &[u8]) {
    match contract_of(bytes) {
        Err(findings) => {
            assert!(!findings.is_empty(), "refused without a word");
            told_well(bytes, &findings);
        }
        Ok(contract) => {
            let declaration = Declaration::parse(manifest::FILE_NAME, DECLARATION.as_bytes());
            judged(bytes, &contract, declaration.expect("the example"));
        }
    }
}

fn contract_of(bytes: &[u8]) -> Result<Contract, Vec<Finding>> {
    Contract::parse(fabrique_declarations::contract::FILE_NAME, bytes)
}

fn judged(bytes: &[u8], contract: &Contract, declaration: Declaration) {
    let subject = |declares| Subject {
        environments: ["prod", "bench"].map(|name| EnvironmentName::parse(name).expect("a name")).to_vec(),
        registration: "apps/app/app.yaml".to_owned(),
        file: manifest::FILE_NAME.to_owned(),
        declares,
    };
    let name = declaration.code_location.value.clone();
    let mut subjects: BTreeMap<_, _> = declaration
        .depends_on
        .code_locations
        .iter()
        .map(|needed| (needed.value.clone(), subject(Declares::Nothing)))
        .collect();
    subjects.insert(name, subject(Declares::All(Box::new(declaration))));
    let judge = || judge(contract, "contract.yaml", &subjects, &Usage::default());
    let judgement = judge();
    assert_eq!(judgement, judge());
    // A finding is in one of two files, of which only one is known here: its place is not judged.
    for finding in &judgement.findings {
        let (line, column) = (finding.line.min(1), finding.column.min(1));
        is_told_well(bytes, &finding.file, (line, column), &finding.what, &finding.remedy);
    }
}
