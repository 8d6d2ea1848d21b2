//! The first files of `cluster/apps`.

use fabrique_core::id::RelPath;

/// What an empty `cluster/apps` begins with. Nothing of it is read by fabrique: the contract and registrations are people's.
const FILES: [(&str, &str); 3] = [
    ("README.md", include_str!("first/README.md")),
    ("app.yaml.example", include_str!("first/app.yaml.example")),
    ("contract.yaml.example", include_str!("first/contract.yaml.example")),
];
/// The message of their commit.
pub(super) const MESSAGE: &str = "Begin with what explains this repository";

/// The files, by path.
pub(super) fn files() -> Vec<(RelPath, Vec<u8>)> {
    let parsed =
        FILES.iter().filter_map(|(path, text)| Some((RelPath::parse(path).ok()?, text.as_bytes().to_vec())));
    parsed.collect()
}

/// Their names, for people.
pub(super) fn names() -> String {
    FILES.map(|(path, _)| path).join(", ")
}

#[cfg(test)]
mod tests {
    use fabrique_declarations::Contract;
    use fabrique_gitops::{Rules, registration};

    use super::*;

    #[test]
    fn the_contract_is_the_one_of_the_documents_and_is_valid() {
        let (_, example) = FILES.iter().find(|(path, _)| *path == "contract.yaml.example").unwrap();
        assert_eq!(*example, include_str!("../../../../docs/contract.yaml.example"));
        assert!(Contract::parse("contract.yaml", example.as_bytes()).is_ok());
    }

    #[test]
    fn the_registration_is_valid_and_every_file_has_a_path() {
        let files = files();
        assert_eq!(files.len(), FILES.len());
        let (path, text) = files.iter().find(|(path, _)| path.as_str() == "app.yaml.example").unwrap();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let app = registration::parse(path, "citation", text, &rules);
        assert!(app.is_ok(), "{app:?}");
    }
}
