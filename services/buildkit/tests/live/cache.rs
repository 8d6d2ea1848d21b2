//! Steps that outlive their daemon in the registry.

use fabrique_bed::{Bed, Buildkit};
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::app::RegistryCache;
use fabrique_core::id::Digest;
use fabrique_ports::builder::{BuildRequest, Progress};
use fabrique_ports::registry::Registry;
use serde_json::Value;

use crate::support::{Asked, Recorder, Source, config, pushed};

/// The tag that keeps an app's steps from the registry's garbage collection.
const TAG: &str = "fabrique-cache";
/// How BuildKit's manifests of caches call their configuration.
const CACHE_CONFIG: &str = "application/vnd.buildkit.cacheconfig.v0";

fn exported(recorder: &Recorder) -> Option<Digest> {
    recorder.all().into_iter().find_map(|progress| match progress {
        Progress::CacheExported { digest } => Some(digest),
        _ => None,
    })
}

fn cached(recorder: &Recorder, step: &str) -> bool {
    recorder.all().iter().any(|report| {
        matches!(report, Progress::StepEnded { name, cached: true, error: None, .. } if name.contains(step))
    })
}

#[tokio::test]
async fn a_cold_daemon_takes_the_steps_of_all_stages_from_the_recorded_cache() {
    let bed = Bed::builder().gitea().registry().buildkit(2).start().await.unwrap();
    let source = Source::new(&bed).await;
    let base = bed.registry().busybox();
    // The first stage is not in the image: only `mode=max` keeps it.
    let dockerfile = format!(
        "FROM {base} AS make\nRUN head -c 8 /dev/urandom > /made\nFROM {base}\nRUN date > /when\nCOPY --from=make /made \
         /made\nCOPY Dockerfile /\n"
    );
    let mut request = source.dockerfile(&dockerfile).await;
    let builder =
        BuildkitBuilder::new(BuildkitConfig { cache: RegistryCache::Both, ..config(&bed) }).unwrap();
    let (_, recorder) = pushed(&builder, bed.buildkit(0), &request).await;
    let cache = exported(&recorder).unwrap_or_else(|| panic!("{}", recorder.text()));

    // The next revision changes what comes last, on a daemon that has built nothing of it.
    request = source.dockerfile(&format!("{dockerfile}# changed\n")).await;
    request.cache = Some(cache.clone());
    let (_, recorder) = pushed(&builder, bed.buildkit(1), &request).await;
    for step in ["/dev/urandom", "date"] {
        assert!(cached(&recorder, step), "{step}\n{}", recorder.text());
    }
    assert_ne!(exported(&recorder), Some(cache));
}

#[tokio::test]
async fn a_cache_that_is_gone_costs_time_and_no_build() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let mut request = source.dockerfile(&format!("FROM {}\nRUN true\n", bed.registry().busybox())).await;
    request.cache = Some(Digest::of(b"never exported"));
    let builder = BuildkitBuilder::new(BuildkitConfig { cache: RegistryCache::Both, ..config(bed) }).unwrap();
    pushed(&builder, bed.buildkit(0), &request).await;
    // And nothing is exported where that is not wanted.
    let (_, recorder) = pushed(&BuildkitBuilder::new(config(bed)).unwrap(), bed.buildkit(0), &request).await;
    assert_eq!(exported(&recorder), None);
}

/// One app's builds, each by a word of its own about the registry's cache.
struct Words<'a> {
    bed: &'a Bed,
    request: BuildRequest,
}

impl Words<'_> {
    /// Builds by this word, on a daemon whose configuration says the opposite, and with this cache on record. Returns
    /// whether the step was taken from a cache, and what was exported.
    async fn build(
        &self,
        word: RegistryCache,
        daemon: &Buildkit,
        recorded: Option<&Digest>,
    ) -> (bool, Option<Digest>) {
        let opposite = match word {
            RegistryCache::Off => RegistryCache::Both,
            RegistryCache::Export => RegistryCache::Import,
            RegistryCache::Import => RegistryCache::Export,
            RegistryCache::Both => RegistryCache::Off,
        };
        let config = BuildkitConfig { cache: opposite, ..config(self.bed) };
        let builder = BuildkitBuilder::new(config).unwrap();
        let request =
            BuildRequest { registry_cache: Some(word), cache: recorded.cloned(), ..self.request.clone() };
        let (_, recorder) = pushed(&builder, daemon, &request).await;
        (cached(&recorder, "/dev/urandom"), exported(&recorder))
    }

    /// The manifest of the steps that the registry keeps for the app, by digest.
    async fn kept(&self) -> Option<Digest> {
        let registry = Asked(self.bed.registry().base_url());
        registry.resolve(&self.request.image, TAG).await.unwrap()
    }

    /// That manifest itself.
    async fn manifest(&self, digest: &Digest) -> Value {
        let (base, name) = (self.bed.registry().base_url(), self.request.image.name());
        let accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";
        let asked = reqwest::Client::new().get(format!("{base}/v2/{name}/manifests/{digest}"));
        let text = asked.header("Accept", accept).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// The app's word counts before the configured one. Every daemon but the first has built nothing before, so that what it
/// has of a cache is the registry's.
#[tokio::test]
async fn each_word_about_the_registrys_cache_does_what_it_says_and_nothing_else() {
    let bed = Bed::builder().gitea().registry().buildkit(5).start().await.unwrap();
    let source = Source::new(&bed).await;
    let dockerfile = format!("FROM {}\nRUN head -c 8 /dev/urandom > /made\n", bed.registry().busybox());
    let words = Words { bed: &bed, request: source.dockerfile(&dockerfile).await };

    let (_, exported) = words.build(RegistryCache::Off, bed.buildkit(0), None).await;
    assert_eq!((exported, words.kept().await), (None, None), "off leaves nothing");

    let (_, exported) = words.build(RegistryCache::Export, bed.buildkit(0), None).await;
    let recorded = exported.expect("export leaves a cache");
    assert_eq!(words.kept().await.as_ref(), Some(&recorded));
    let manifest = words.manifest(&recorded).await;
    assert!(manifest.to_string().contains(CACHE_CONFIG), "{manifest:#}");

    let off = words.build(RegistryCache::Off, bed.buildkit(1), Some(&recorded)).await;
    assert_eq!(off, (false, None), "off takes nothing, and leaves nothing");
    let import = words.build(RegistryCache::Import, bed.buildkit(2), Some(&recorded)).await;
    assert_eq!(import, (true, None), "import takes it, and leaves nothing");
    assert_eq!(words.kept().await.as_ref(), Some(&recorded), "nobody but export has touched it");

    let (hit, exported) = words.build(RegistryCache::Both, bed.buildkit(3), Some(&recorded)).await;
    assert!(hit && exported.is_some(), "both takes it, and leaves one");
    let (hit, exported) = words.build(RegistryCache::Export, bed.buildkit(4), Some(&recorded)).await;
    assert!(!hit, "export takes nothing");
    assert_eq!(words.kept().await, exported, "and leaves its own");
    assert_ne!(exported, Some(recorded));
}
