//! The cluster's own services as they are configured, for those that the contract names.

use fabrique_operator::endpoints::Configured;

use crate::config::Config;

pub(crate) fn configured(config: &Config) -> Configured {
    // What Argo CD reaches is inside, wherever the configuration itself is used.
    let gitea = match &config.render.gitea_url {
        Some(url) => ("render.gitea_url", url.clone()),
        None => ("gitea.url", config.gitea.url.clone()),
    };
    Configured {
        gitea,
        argocd: config.init.argocd_url.clone(),
        registries: config.registry.allowed.clone(),
        nats: config.nats.servers.clone(),
    }
}
