//! Bringing apps up by hand: which cluster is which environment.

use fabrique_core::id::EnvironmentName;
use fabrique_operator::seed::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Problems;
use super::sections::Config;

/// Where `seed` may work.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SeedSection {
    /// The environments with the cluster of each. With none, no cluster is asked, and any may be production.
    pub(crate) environments: Vec<EnvironmentSection>,
}

/// The cluster of an environment.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvironmentSection {
    /// The environment.
    #[schemars(extend("x-required" = true))]
    pub(crate) environment: String,
    /// The context of KUBECONFIG that is its cluster: in any other, `seed` refuses to work.
    #[schemars(extend("x-required" = true))]
    pub(crate) context: String,
    /// Its name has to be said twice.
    #[serde(default)]
    pub(crate) production: bool,
}

impl SeedSection {
    /// The environments. The configuration was checked.
    pub(crate) fn known(&self) -> Vec<Known> {
        let known = self.environments.iter().filter_map(|listed| {
            Some(Known {
                environment: EnvironmentName::parse(&listed.environment).ok()?,
                context: listed.context.clone(),
                production: listed.production,
            })
        });
        known.collect()
    }
}

pub(super) fn check(config: &Config, problems: &mut Problems) {
    let all = &config.seed.environments;
    for (index, listed) in all.iter().enumerate() {
        let key = |field: &str| format!("seed.environments.{index}.{field}");
        let parsed = EnvironmentName::parse(&listed.environment).is_ok();
        problems.need(parsed, &key("environment"), "not the name of an environment", "write prod");
        let twice = all.iter().take(index).any(|other| other.environment == listed.environment);
        problems.need(!twice, &key("environment"), "listed twice", "keep one");
        let remedy = "write one that `kubectl config get-contexts` lists";
        problems.need(!listed.context.is_empty(), &key("context"), "empty", remedy);
    }
}
