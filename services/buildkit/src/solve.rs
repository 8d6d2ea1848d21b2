//! A build request in the daemon's words. Pure.

use std::collections::HashMap;
use std::num::NonZeroU32;

use bollard_buildkit_proto::moby::buildkit::v1::{CacheOptions, CacheOptionsEntry, Exporter, SolveRequest};
use fabrique_core::app::RegistryCache;
use fabrique_core::id::{Platform, RelPath, RepoName, Revision};
use fabrique_ports::builder::BuildRequest;
use serde_json::json;
use url::Url;

use crate::config::Provenance;
use crate::error::BuildkitError;
use crate::policy::{Permitted, policy};

/// The frontend that is built into the daemon.
const FRONTEND: &str = "dockerfile.v0";
const BUILD_ARG: &str = "build-arg:";
/// The label that carries the build key. The attempt's id is no label: two attempts at one key are to give one
/// digest.
const KEY_LABEL: &str = "fabrique.build-key";
/// The tag that keeps an app's exported cache from the registry's garbage collection. Nobody reads it.
const CACHE_TAG: &str = "fabrique-cache";

/// What a solve makes beside the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extras {
    pub(crate) provenance: Provenance,
    pub(crate) cache: RegistryCache,
    pub(crate) step_processes: Option<NonZeroU32>,
}

impl Extras {
    /// The app's own word about the registry's cache, or else the configured one.
    fn cache_of(self, request: &BuildRequest) -> RegistryCache {
        request.registry_cache.unwrap_or(self.cache)
    }
}

/// Gitea as the daemons reach it.
#[derive(Debug, Clone)]
pub(crate) struct GitBase {
    base: Url,
}

impl GitBase {
    pub(crate) fn new(base: &Url) -> Result<Self, BuildkitError> {
        let wrong =
            |problem: &str| BuildkitError::Config { key: "git base URL", problem: problem.to_owned() };
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("must be http(s)://host[:port]/"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("must not carry credentials; tokens are settings of their own"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("must not have a query or a fragment"));
        }
        Ok(Self { base: base.clone() })
    }

    /// `host[:port]`, without a scheme's own port: how the daemon names the host when it asks for a token.
    pub(crate) fn host(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        self.base.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    pub(crate) fn source(&self, repo: &RepoName, revision: &Revision, context: &RelPath) -> GitSource {
        let page = self.page(repo);
        let remote = format!("{page}.git");
        let subdir = (!context.is_root()).then(|| context.as_str().to_owned());
        let path = remote.split_once("://").map_or("", |(_, rest)| rest);
        let identifier = match &subdir {
            Some(subdir) => format!("git://{path}#:{subdir}"),
            None => format!("git://{path}"),
        };
        GitSource { page, remote, identifier, revision: revision.clone(), subdir }
    }

    fn page(&self, repo: &RepoName) -> String {
        let base = self.base.as_str().trim_end_matches('/');
        format!("{base}/{}/{}", repo.org(), repo.name())
    }
}

/// One repository at one revision, below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitSource {
    /// The repository's page, for the label.
    pub(crate) page: String,
    /// What git fetches.
    pub(crate) remote: String,
    /// How the daemon's source policy names it.
    pub(crate) identifier: String,
    pub(crate) revision: Revision,
    subdir: Option<String>,
}

impl GitSource {
    /// The build context: the commit alone, fetched by its id at depth 1 (BuildKit 0.30 and later). The
    /// fragment's spelling `#<sha>:<dir>` would fetch all tags at full depth.
    fn context(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("checksum", self.revision.as_str()).append_pair("fetch-by-commit", "true");
        if let Some(subdir) = &self.subdir {
            query.append_pair("subdir", subdir);
        }
        format!("{}?{}", self.remote, query.finish())
    }
}

/// The solve of `request`, under the name `reference` (which its status is asked by) and with a session.
pub(crate) fn solve_request(
    request: &BuildRequest,
    source: &GitSource,
    permitted: &Permitted,
    extras: Extras,
    reference: &str,
    session: &str,
) -> SolveRequest {
    SolveRequest {
        r#ref: reference.to_owned(),
        session: session.to_owned(),
        frontend: FRONTEND.to_owned(),
        frontend_attrs: frontend_attributes(request, source, extras),
        exporters: vec![exporter(request)],
        cache: extras.cache_of(request).exports().then(|| export_cache(request)),
        source_policy: Some(policy(source, permitted)),
        source_policy_session: session.to_owned(),
        // Kept out of the daemon's build history, which costs 30 to 90 ms at the end of every build and disk for
        // its logs: fabrique keeps its own.
        internal: true,
        ..SolveRequest::default()
    }
}

fn frontend_attributes(
    request: &BuildRequest,
    source: &GitSource,
    extras: Extras,
) -> HashMap<String, String> {
    let mut attributes = HashMap::new();
    let mut set = |key: String, value: &str| {
        attributes.insert(key, value.to_owned());
    };
    set("context".into(), &source.context());
    set("filename".into(), request.inputs.dockerfile.as_str());
    // Empty but there: the built-in frontend stays, whatever a `# syntax=` line says. Otherwise the daemon pulls
    // an image that an air-gapped cluster does not have.
    set("cmdline".into(), "");
    if let Some(target) = &request.inputs.target {
        set("target".into(), target);
    }
    if !request.inputs.platforms.is_empty() {
        let platforms: Vec<&str> = request.inputs.platforms.iter().map(Platform::as_str).collect();
        set("platform".into(), &platforms.join(","));
    }
    if request.no_cache {
        // Empty means every stage.
        set("no-cache".into(), "");
    }
    if extras.cache_of(request).imports()
        && let Some(cache) = request.cache.as_ref().filter(|_| !request.no_cache)
    {
        let import =
            json!([{ "Type": "registry", "Attrs": { "ref": format!("{}@{cache}", request.image) } }]);
        set("cache-imports".into(), &import.to_string());
    }
    if let Some(processes) = extras.step_processes {
        set("ulimit".into(), &format!("nproc={processes}:{processes}"));
    }
    if extras.provenance == Provenance::Min {
        set("attest:provenance".into(), "mode=min");
    }
    set("label:org.opencontainers.image.revision".into(), request.inputs.revision.as_str());
    set("label:org.opencontainers.image.source".into(), &source.page);
    set(format!("label:{KEY_LABEL}"), request.key.as_str());
    // The registration may name another epoch; it may not reach another app's cache mounts.
    set(format!("{BUILD_ARG}SOURCE_DATE_EPOCH"), &request.epoch.to_string());
    for (name, value) in &request.inputs.args {
        set(format!("{BUILD_ARG}{name}"), value);
    }
    set(format!("{BUILD_ARG}BUILDKIT_CACHE_MOUNT_NS"), request.app.as_str());
    attributes
}

/// Pushed by digest alone: tags are the caller's, after it has recorded the digest. `registry.insecure` must stay
/// unset: it would replace what the daemon's own configuration says of the registry.
fn exporter(request: &BuildRequest) -> Exporter {
    let attributes = [
        ("name", request.image.as_str()),
        ("push", "true"),
        ("push-by-digest", "true"),
        ("oci-mediatypes", "true"),
    ];
    let attrs = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Exporter { r#type: "image".to_owned(), attrs }
}

/// Every step of every stage. A registry that does not take it costs the next cold build time, and this one nothing.
fn export_cache(request: &BuildRequest) -> CacheOptions {
    let tag = format!("{}:{CACHE_TAG}", request.image);
    let attributes =
        [("ref", tag.as_str()), ("mode", "max"), ("ignore-error", "true"), ("oci-mediatypes", "true")];
    let attrs = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let export = CacheOptionsEntry { r#type: "registry".to_owned(), attrs };
    CacheOptions { exports: vec![export], ..CacheOptions::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use bollard_buildkit_proto::moby::buildkit::v1::sourcepolicy::{MatchType, PolicyAction};
    use fabrique_core::build::BuildInputs;
    use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, ImageRepository, SecretName};

    use super::*;

    fn request() -> BuildRequest {
        BuildRequest {
            build: BuildId::parse("citation-01k0000000000000000000000a").unwrap(),
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            app: AppName::parse("citation").unwrap(),
            inputs: BuildInputs {
                repo: RepoName::parse("atlas/atlas").unwrap(),
                revision: Revision::parse(&"1b".repeat(20)).unwrap(),
                context: RelPath::parse("dataops/citation dagster").unwrap(),
                dockerfile: RelPath::parse("docker/Dockerfile").unwrap(),
                target: Some("prod".into()),
                args: BTreeMap::from([("VERSION".into(), "1 & 2".into())]),
                secrets: vec![SecretName::parse("pypi").unwrap()],
                platforms: ["linux/amd64", "linux/arm64"].map(|p| Platform::parse(p).unwrap()).to_vec(),
                rebuild: 0,
            },
            image: ImageRepository::parse("registry:80/citation").unwrap(),
            no_cache: true,
            cache: Some(Digest::parse(&format!("sha256:{}", "c".repeat(64))).unwrap()),
            registry_cache: None,
            epoch: 1_760_000_000,
            timeout: Duration::from_secs(60),
        }
    }

    fn solve(request: &BuildRequest, provenance: Provenance) -> SolveRequest {
        let base = GitBase::new(&"http://gitea:3000/git".parse().unwrap()).unwrap();
        let source = base.source(&request.inputs.repo, &request.inputs.revision, &request.inputs.context);
        let permitted = Permitted::new(&["registry:80".into()], &[], &BTreeMap::new()).unwrap();
        let extras = Extras { provenance, cache: RegistryCache::Off, step_processes: NonZeroU32::new(700) };
        solve_request(request, &source, &permitted, extras, "ref", "session")
    }

    fn shown(solve: &SolveRequest) -> String {
        use std::fmt::Write as _;
        let (session, verifier) = (&solve.session, &solve.source_policy_session);
        let mut text = format!("frontend {} session {session} ref {}\n", solve.frontend, solve.r#ref);
        writeln!(text, "policy session {verifier}").unwrap();
        let sorted = |map: &HashMap<String, String>| map.clone().into_iter().collect::<BTreeMap<_, _>>();
        for (key, value) in sorted(&solve.frontend_attrs) {
            writeln!(text, "  {key} = {value:?}").unwrap();
        }
        for exporter in &solve.exporters {
            writeln!(text, "exporter {} {:?}", exporter.r#type, sorted(&exporter.attrs)).unwrap();
        }
        for rule in &solve.source_policy.as_ref().unwrap().rules {
            let selector = rule.selector.as_ref().unwrap();
            let action = PolicyAction::try_from(rule.action).unwrap().as_str_name();
            let kind = MatchType::try_from(selector.match_type).unwrap().as_str_name();
            write!(text, "{action} {kind} {}", selector.identifier).unwrap();
            for constraint in &selector.constraints {
                write!(text, " {}={}", constraint.key, constraint.value).unwrap();
            }
            text.push('\n');
        }
        text
    }

    #[test]
    fn a_full_request_becomes_this_solve() {
        insta::assert_snapshot!(shown(&solve(&request(), Provenance::Min)));
    }

    #[test]
    fn a_plain_request_becomes_this_solve() {
        let full = request();
        let inputs = BuildInputs {
            context: RelPath::root(),
            dockerfile: RelPath::parse("Dockerfile").unwrap(),
            target: None,
            args: BTreeMap::new(),
            secrets: vec![],
            platforms: vec![],
            ..full.inputs
        };
        let plain = BuildRequest { inputs, no_cache: false, ..full };
        insta::assert_snapshot!(shown(&solve(&plain, Provenance::Off)));
    }

    #[test]
    fn an_argument_cannot_change_the_frontend_or_reach_other_caches() {
        let mut request = request();
        request.inputs.args.insert("BUILDKIT_CACHE_MOUNT_NS".into(), "other".into());
        request.inputs.args.insert("BUILDKIT_SYNTAX".into(), "evil/frontend".into());
        let solve = solve(&request, Provenance::Off);
        assert_eq!(solve.frontend_attrs["build-arg:BUILDKIT_CACHE_MOUNT_NS"], "citation");
        assert_eq!(solve.frontend_attrs["cmdline"], "");
    }

    #[test]
    fn steps_are_kept_in_the_registry_and_taken_from_there_by_digest_where_that_is_wanted() {
        let base = GitBase::new(&"http://gitea:3000/".parse().unwrap()).unwrap();
        let permitted = Permitted::new(&[], &[], &BTreeMap::new()).unwrap();
        let of = |request: &BuildRequest, cache| {
            let source = base.source(&request.inputs.repo, &request.inputs.revision, &request.inputs.context);
            let extras = Extras { provenance: Provenance::Off, cache, step_processes: None };
            let solve = solve_request(request, &source, &permitted, extras, "ref", "session");
            (solve.cache, solve.frontend_attrs.get("cache-imports").cloned())
        };
        let request = BuildRequest { no_cache: false, ..request() };
        assert_eq!(of(&request, RegistryCache::Off), (None, None));
        let (cache, import) = of(&request, RegistryCache::Both);
        let [export] = <[_; 1]>::try_from(cache.unwrap().exports).unwrap();
        assert_eq!((export.r#type.as_str(), export.attrs["mode"].as_str()), ("registry", "max"));
        assert_eq!(export.attrs["ref"], "registry:80/citation:fabrique-cache");
        assert_eq!(export.attrs["ignore-error"], "true");
        let digest = "c".repeat(64);
        let wanted =
            format!(r#"[{{"Attrs":{{"ref":"registry:80/citation@sha256:{digest}"}},"Type":"registry"}}]"#);
        assert_eq!(import, Some(wanted));
        // An app's own word counts before the configured one.
        for (word, exports, imports) in [
            (RegistryCache::Off, false, false),
            (RegistryCache::Export, true, false),
            (RegistryCache::Import, false, true),
            (RegistryCache::Both, true, true),
        ] {
            let request = BuildRequest { registry_cache: Some(word), ..request.clone() };
            for configured in [RegistryCache::Off, RegistryCache::Both] {
                let (cache, import) = of(&request, configured);
                assert_eq!(
                    (cache.is_some(), import.is_some()),
                    (exports, imports),
                    "{word:?} {configured:?}"
                );
            }
        }
        // One that was never recorded is not taken, and a build without the cache takes none.
        assert_eq!(of(&BuildRequest { cache: None, ..request.clone() }, RegistryCache::Both).1, None);
        assert_eq!(of(&BuildRequest { no_cache: true, ..request }, RegistryCache::Both).1, None);
    }

    #[test]
    fn two_attempts_at_one_key_are_the_same_solve() {
        let again = BuildRequest {
            build: BuildId::parse("citation-01k0000000000000000000000b").unwrap(),
            ..request()
        };
        assert_eq!(solve(&request(), Provenance::Off), solve(&again, Provenance::Off));
    }

    #[test]
    fn the_host_is_spelled_as_the_daemon_asks_for_it() {
        let host = |url: &str| GitBase::new(&url.parse().unwrap()).unwrap().host();
        assert_eq!(host("http://gitea:3000/"), "gitea:3000");
        assert_eq!(host("http://gitea:80/x"), "gitea");
        assert_eq!(host("https://git.example.org"), "git.example.org");
        for wrong in ["ssh://gitea/", "http://user:pass@gitea/", "http://gitea/?a=b", "file:///x"] {
            assert!(GitBase::new(&wrong.parse().unwrap()).is_err(), "{wrong}");
        }
    }
}
