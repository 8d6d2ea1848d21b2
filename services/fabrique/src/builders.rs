//! Where builds run and how they are driven: the configured daemons, or builder pods.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fabrique_buildkit::{
    BuildkitBuilder, BuildkitError, IssueTls, IssuedTls, StaticDaemon, StaticPlacement, Tls,
};
use fabrique_kubernetes::KubernetesPlacement;
use fabrique_kubernetes::config::Settings;
use fabrique_kubernetes::inspect::Inspector;
use fabrique_kubernetes::network::AllowList;
use fabrique_kubernetes::pki::{BuilderCa, ClientCertificates};
use fabrique_ports::builder::{Builder, Daemon, Placement};
use fabrique_ports::registry::Registry;
use fabrique_ports::{Ambient as _, PortError};
use kube::config::KubeConfigOptions;
use secrecy::SecretString;
use serde::de::DeserializeOwned;

use crate::ambient::System;
use crate::config::BuildkitSection;
use crate::wiring::Adapters;

/// How long the claims on builder pods may take to be given back at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// A driver with places for its builds.
pub(crate) struct Builders {
    pub(crate) builder: Arc<BuildkitBuilder>,
    pub(crate) placement: Arc<dyn Placement>,
    pods: Option<Arc<KubernetesPlacement>>,
}

impl Builders {
    /// Those that the configuration names. `worker` is who claims pods.
    pub(crate) async fn start(adapters: &Adapters, worker: &str) -> anyhow::Result<Self> {
        let kubernetes = &adapters.config.kubernetes;
        let Some(settings) = &kubernetes.builders_file else {
            let builder = driver(adapters, None)?;
            let placement = static_placement(&adapters.config.buildkit, Arc::clone(&builder) as _)?;
            return Ok(Self { builder, placement, pods: None });
        };
        let settings: Settings = read_yaml(settings, "kubernetes.builders_file")?;
        let ca = Arc::new(authority(adapters)?);
        let builder = driver(adapters, Some(issued(&ca, worker)))?;
        let client = client().await?;
        let pods = KubernetesPlacement::start(client, settings, ca, worker, Arc::new(System)).await?;
        let pods = Arc::new(pods);
        Ok(Self { builder, placement: Arc::clone(&pods) as _, pods: Some(pods) })
    }

    /// Asks every daemon that is there whether builds may be sent to it. One that does not answer may come up later;
    /// one that is too old never gets a build, which is better known now than by the first app that needs it.
    pub(crate) async fn check(&self) -> anyhow::Result<()> {
        let asked = self.placement.daemons().into_iter().map(|daemon| async move {
            let admitted = self.builder.admit(&daemon).await;
            (daemon, admitted)
        });
        for (daemon, admitted) in futures::future::join_all(asked).await {
            match admitted {
                Ok(()) => tracing::info!(daemon = daemon.name, "ready"),
                Err(error @ BuildkitError::TooOld { .. }) => return Err(PortError::from(error).into()),
                Err(error) => tracing::warn!(daemon = daemon.name, %error, "does not answer yet"),
            }
        }
        Ok(())
    }

    /// Gives back what is claimed, so that the next worker finds the caches.
    pub(crate) async fn close(&self) {
        if let Some(pods) = &self.pods
            && !pods.drain(DRAIN).await
        {
            tracing::warn!("some builder pods are still claimed; the next worker will recycle them");
        }
    }
}

/// The listed daemons, for a look at them.
pub(crate) fn listed(adapters: &Adapters) -> anyhow::Result<(Vec<Daemon>, Arc<dyn Builder>)> {
    let section = &adapters.config.buildkit;
    anyhow::ensure!(!section.daemons.is_empty(), "buildkit.daemons lists no build daemon");
    let builder = driver(adapters, None)?;
    Ok((static_placement(section, Arc::clone(&builder) as _)?.daemons(), builder))
}

/// Builder pods, for a look at them: nothing is started. Nothing when the configuration names none.
pub(crate) async fn inspector(adapters: &Adapters) -> anyhow::Result<Option<Inspector>> {
    let Some(file) = &adapters.config.kubernetes.builders_file else { return Ok(None) };
    let settings: Settings = read_yaml(file, "kubernetes.builders_file")?;
    Ok(Some(Inspector::new(client().await?, settings)?))
}

/// The authority of builders' and workers' certificates.
pub(crate) fn authority(adapters: &Adapters) -> anyhow::Result<BuilderCa> {
    let kubernetes = &adapters.config.kubernetes;
    let certificate = read(kubernetes.ca_cert_file.as_ref(), "kubernetes.ca_cert_file")?;
    let key = SecretString::from(read(kubernetes.ca_key_file.as_ref(), "kubernetes.ca_key_file")?);
    BuilderCa::from_pem(&certificate, &key, System.now())
        .context("kubernetes.ca_cert_file and kubernetes.ca_key_file")
}

/// A driver that shows daemons in pods a certificate of `name`.
pub(crate) fn pod_driver(
    adapters: &Adapters,
    ca: &Arc<BuilderCa>,
    name: &str,
) -> anyhow::Result<Arc<dyn Builder>> {
    Ok(driver(adapters, Some(issued(ca, name)))?)
}

fn issued(ca: &Arc<BuilderCa>, name: &str) -> Tls {
    Tls::Issued(Arc::new(Issuer(ClientCertificates::new(Arc::clone(ca), name.to_owned()))))
}

/// Where a client finds its cluster.
const WHERE: &str =
    "the API server: fabrique runs in a pod with a service account, or KUBECONFIG names a file";

/// Whoever is called by the pod's account, or by KUBECONFIG.
pub(crate) async fn client() -> anyhow::Result<kube::Client> {
    kube::Client::try_default().await.context(WHERE)
}

/// The same, or that of a context of KUBECONFIG, which makes every request once: kube's own way asks again where a server
/// is busy, so that nobody could say how many requests there are.
pub(crate) async fn client_of(context: Option<&str>) -> anyhow::Result<kube::Client> {
    let mut config = match context {
        None => kube::Config::infer().await.context(WHERE)?,
        Some(context) => {
            let options = KubeConfigOptions { context: Some(context.to_owned()), ..Default::default() };
            kube::Config::from_kubeconfig(&options).await.context(WHERE)?
        }
    };
    config.default_retry = false;
    kube::Client::try_from(config).context(WHERE)
}

fn driver(adapters: &Adapters, tls: Option<Tls>) -> anyhow::Result<Arc<BuildkitBuilder>> {
    let mut config = adapters.buildkit_config()?;
    config.tls = tls.or(config.tls);
    if let Some(file) = &adapters.config.buildkit.allow_list_file {
        let list: AllowList = read_yaml(file, "buildkit.allow_list_file")?;
        let findings = list.validate();
        let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
        anyhow::ensure!(findings.is_empty(), "buildkit.allow_list_file: {}", all.join("; "));
        config.permitted_hosts.extend(list.hosts.iter().map(|egress| egress.authority()));
        let of_app = |(app, own): (&fabrique_core::id::AppName, &fabrique_kubernetes::network::AppEgress)| {
            (app.clone(), own.hosts.iter().map(|egress| egress.authority()).collect())
        };
        config.permitted_hosts_of = list.apps.iter().map(of_app).collect();
    }
    let registry = Arc::clone(&adapters.registry) as Arc<dyn Registry>;
    Ok(Arc::new(BuildkitBuilder::new(config)?.with_registry(registry)))
}

fn static_placement(
    section: &BuildkitSection,
    builder: Arc<dyn Builder>,
) -> anyhow::Result<Arc<dyn Placement>> {
    let daemons = section.daemons.iter().map(|listed| StaticDaemon {
        daemon: Daemon {
            name: listed.name.clone(),
            address: listed.address.clone(),
            tls_name: listed.tls_name.clone(),
            isolation: None,
            proxy: None,
        },
        slots: listed.slots.into(),
    });
    Ok(Arc::new(StaticPlacement::new(daemons.collect(), builder, section.placement.get())?))
}

fn read(file: Option<&PathBuf>, key: &str) -> anyhow::Result<String> {
    let file = file.with_context(|| format!("{key} is not set: builder pods are reached with mTLS"))?;
    std::fs::read_to_string(file).with_context(|| format!("{key}: {}", file.display()))
}

fn read_yaml<T: DeserializeOwned>(file: &Path, key: &str) -> anyhow::Result<T> {
    let place = || format!("{key}: {}", file.display());
    serde_saphyr::from_str(&std::fs::read_to_string(file).with_context(place)?).with_context(place)
}

/// The placement's certificates, as the driver asks for them.
#[derive(Debug)]
struct Issuer(ClientCertificates);

impl IssueTls for Issuer {
    fn issue(&self) -> Result<IssuedTls, String> {
        let identity = self.0.current(System.now()).map_err(|error| error.to_string())?;
        let ca = self.0.authority().to_owned();
        Ok(IssuedTls { ca, cert: identity.certificate, key: identity.key })
    }
}
