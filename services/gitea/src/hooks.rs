//! Webhooks: what is there, what should be, and the fewest writes between them.
//!
//! Gitea neither tells nor changes the secret of a webhook. Hooks made here therefore carry a mark of their
//! secret in their name (Gitea 1.26 and later); a hook with another mark, or with none, is replaced, so that
//! a rotated secret reaches every repository. A server that knows no names leaves the secret in doubt, and
//! the hook is left alone.
//!
//! A hook is ours when it delivers to the wanted URL, or when its name is the mark of a secret of ours, wherever it
//! delivers to: that is how one is found again whose URL was changed here. The mark of another secret is another
//! installation's, and whoever else has a webhook has no mark at all.

use async_trait::async_trait;
use fabrique_core::id::RepoName;
use fabrique_ports::PortResult;
use fabrique_ports::forge::{Hook, HookDifference, HookOutcome, Hooks, WantedHook};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::client::{Gitea, Path};
use crate::config::Purpose;
use crate::error::GiteaError;
use crate::text::escaped;

/// Gitea's own largest page.
const PAGE: &str = "50";
/// More webhooks than this on one repository is a defect somewhere, and not looked through.
const MAX_PAGES: usize = 20;

/// A webhook as Gitea tells it. It has no `Debug`: the authorization header is a secret.
#[derive(Deserialize, Clone)]
struct Found {
    id: i64,
    #[serde(rename = "type", default)]
    kind: String,
    /// Absent on servers before 1.26.
    name: Option<String>,
    #[serde(default)]
    active: bool,
    events: Option<Vec<String>>,
    /// Absent where the server does not tell it (go-gitea/gitea#23791).
    branch_filter: Option<String>,
    #[serde(default)]
    authorization_header: String,
    config: FoundConfig,
}

#[derive(Deserialize, Clone)]
struct FoundConfig {
    #[serde(default)]
    url: String,
    #[serde(default)]
    content_type: String,
}

/// What has to be written.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing.
    Leave,
    /// The hook is missing.
    Create,
    /// Change the hook `keep` in place, or make a new one instead of it, and remove the rest.
    Repair { keep: i64, replace: bool, edit: bool, remove: Vec<i64>, differences: Vec<HookDifference> },
}

#[async_trait]
impl Hooks for Gitea {
    async fn ensure_hook(
        &self,
        repo: &RepoName,
        hook: &WantedHook,
        dry_run: bool,
    ) -> PortResult<HookOutcome> {
        Ok(self.ensure(repo, hook, dry_run).await?)
    }

    async fn hooks(&self, repo: &RepoName) -> PortResult<Vec<Hook>> {
        let found = self.list(repo).await?.unwrap_or_default();
        Ok(found.into_iter().map(|f| Hook { id: f.id, url: f.config.url, active: f.active }).collect())
    }

    async fn test_delivery(&self, repo: &RepoName, hook: i64) -> PortResult<()> {
        let path = hook_path(repo, hook).then(["tests"]);
        let answer = self.send(Purpose::Hooks, Method::POST, &path, None).await?;
        match answer.status {
            StatusCode::NO_CONTENT => Ok(()),
            _ => Err(answer.refused().into()),
        }
    }
}

impl Gitea {
    async fn ensure(
        &self,
        repo: &RepoName,
        wanted: &WantedHook,
        dry_run: bool,
    ) -> Result<HookOutcome, GiteaError> {
        let Some(secret) = &self.config().hook_secret else {
            return Err(GiteaError::Configuration("no webhook secret is configured".to_owned()));
        };
        let mark = mark(secret);
        let former = self.config().former_hook_secret.as_ref().map(self::mark);
        let marks = Marks { now: &mark, former: former.as_deref() };
        let Some(found) = self.list(repo).await? else { return Ok(HookOutcome::NoRepository) };
        match plan(&found, wanted, marks) {
            Plan::Leave => Ok(HookOutcome::Present),
            Plan::Create => {
                if !dry_run {
                    self.create(repo, wanted, secret, &mark, "").await?;
                }
                Ok(HookOutcome::Created)
            }
            Plan::Repair { differences, .. } if dry_run => Ok(HookOutcome::Repaired(differences)),
            Plan::Repair { keep, replace, edit, mut remove, differences } => {
                let authorization = found
                    .iter()
                    .find(|hook| hook.id == keep)
                    .map_or("", |hook| hook.authorization_header.as_str());
                if replace {
                    // The new one first: a doubled delivery is harmless and a lost one is not.
                    self.create(repo, wanted, secret, &mark, authorization).await?;
                    remove.push(keep);
                } else if edit {
                    self.edit(repo, keep, wanted, authorization).await?;
                }
                for id in remove {
                    self.remove(repo, id).await?;
                }
                Ok(HookOutcome::Repaired(differences))
            }
        }
    }

    /// All webhooks of a repository; nothing when it cannot be seen.
    async fn list(&self, repo: &RepoName) -> Result<Option<Vec<Found>>, GiteaError> {
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let path = Path::repo(repo).then(["hooks"]).query("limit", PAGE).query("page", page.to_string());
            let answer = self.get(Purpose::Hooks, &path).await?;
            match answer.status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                _ => return Err(answer.refused()),
            }
            let found: Vec<Found> = answer.json()?;
            // A server may allow smaller pages than asked for: only an empty one is surely the last.
            if found.is_empty() {
                return Ok(Some(all));
            }
            all.extend(found);
        }
        Err(GiteaError::Unreadable {
            request: format!("listing the webhooks of {repo}"),
            problem: format!("there are more than {MAX_PAGES} pages"),
        })
    }

    async fn create(
        &self,
        repo: &RepoName,
        wanted: &WantedHook,
        secret: &SecretString,
        mark: &str,
        authorization: &str,
    ) -> Result<(), GiteaError> {
        let mut body = settings(wanted, authorization);
        body["type"] = json!("gitea");
        body["name"] = json!(mark);
        body["config"]["secret"] = json!(secret.expose_secret());
        let path = Path::repo(repo).then(["hooks"]);
        let answer = self.send(Purpose::Hooks, Method::POST, &path, Some(&body)).await?;
        if answer.status == StatusCode::CREATED { Ok(()) } else { Err(answer.refused()) }
    }

    async fn edit(
        &self,
        repo: &RepoName,
        id: i64,
        wanted: &WantedHook,
        authorization: &str,
    ) -> Result<(), GiteaError> {
        let body = settings(wanted, authorization);
        let answer = self.send(Purpose::Hooks, Method::PATCH, &hook_path(repo, id), Some(&body)).await?;
        if answer.status == StatusCode::OK { Ok(()) } else { Err(answer.refused()) }
    }

    async fn remove(&self, repo: &RepoName, id: i64) -> Result<(), GiteaError> {
        let answer = self.send(Purpose::Hooks, Method::DELETE, &hook_path(repo, id), None).await?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => Ok(()),
            _ => Err(answer.refused()),
        }
    }
}

/// Everything that an edit must repeat: Gitea resets what a PATCH leaves out.
fn settings(wanted: &WantedHook, authorization: &str) -> Value {
    json!({
        "active": true,
        "events": ["push"],
        "branch_filter": wanted.branch_filter,
        "authorization_header": authorization,
        "config": { "url": wanted.url, "content_type": "json" },
    })
}

/// The name of a hook that signs with `secret`. 32 bits tell a rotated secret from the last one and are too
/// few to find a secret by.
fn mark(secret: &SecretString) -> String {
    let fingerprint = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes())
        .map(|mac| mac.chain_update(b"fabrique: the name of a webhook").finalize().into_bytes())
        .unwrap_or_default();
    format!("fabrique {}", hex::encode(&fingerprint[..4]))
}

/// Whether a name is the mark of a secret, whosever.
fn is_mark(name: &str) -> bool {
    let digits = name.strip_prefix("fabrique ").unwrap_or_default();
    digits.len() == 8 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn hook_path(repo: &RepoName, id: i64) -> Path {
    Path::repo(repo).then(["hooks", &id.to_string()])
}

/// The names of our hooks.
#[derive(Debug, Clone, Copy)]
struct Marks<'a> {
    /// Of those that are made now.
    now: &'a str,
    /// Of those that were made before the secret was rotated.
    former: Option<&'a str>,
}

impl Marks<'_> {
    fn are_on(&self, hook: &Found) -> bool {
        hook.name.as_deref().is_some_and(|name| name == self.now || Some(name) == self.former)
    }
}

fn plan(found: &[Found], wanted: &WantedHook, marks: Marks<'_>) -> Plan {
    let mut ours: Vec<(Differences, &Found)> = found
        .iter()
        .filter(|hook| same_url(&hook.config.url, &wanted.url) || marks.are_on(hook))
        .map(|hook| (Differences::between(hook, wanted, marks), hook))
        .collect();
    ours.sort_by_key(|(differences, hook)| (differences.replace, differences.found.len(), hook.id));
    let mut ours = ours.into_iter();
    let Some((Differences { replace, mut found }, kept)) = ours.next() else { return Plan::Create };
    let edit = !found.is_empty();
    let (here, elsewhere): (Vec<&Found>, Vec<&Found>) =
        ours.map(|(_, hook)| hook).partition(|hook| same_url(&hook.config.url, &wanted.url));
    match here.len() {
        0 => {}
        1 => found.push(untidy("there was a second one")),
        more => found.push(untidy(format!("there were {more} more of it"))),
    }
    let old = |hook: &&Found| untidy(format!("an old one delivered to {}", shown(&hook.config.url)));
    found.extend(elsewhere.iter().map(old));
    if found.is_empty() {
        return Plan::Leave;
    }
    let remove = here.into_iter().chain(elsewhere).map(|hook| hook.id).collect();
    Plan::Repair { keep: kept.id, replace, edit, remove, differences: found }
}

/// How a hook differs from the wanted one.
struct Differences {
    /// Whether an edit cannot mend it.
    replace: bool,
    found: Vec<HookDifference>,
}

impl Differences {
    fn between(hook: &Found, wanted: &WantedHook, marks: Marks<'_>) -> Self {
        let mut found = Vec::new();
        let mut replace = false;
        if !matches!(hook.kind.as_str(), "gitea" | "forgejo") {
            found.push(losing(format!("its type was {}", escaped(&hook.kind, 40))));
            replace = true;
        }
        if let Some(name) = hook.name.as_deref().filter(|name| *name != marks.now) {
            // The former secret is accepted for as long as it is known, and a hook without a mark may have the right one.
            let loses = is_mark(name) && Some(name) != marks.former;
            found.push(HookDifference { what: "its secret may have been another".to_owned(), loses });
            replace = true;
        }
        if !same_url(&hook.config.url, &wanted.url) {
            found.push(losing(format!("it delivered to {}", shown(&hook.config.url))));
        }
        if !hook.active {
            found.push(losing("it was switched off"));
        }
        if hook.config.content_type != "json" {
            let kind = escaped(&hook.config.content_type, 40);
            found.push(losing(format!("its content type was {kind}")));
        }
        let events = hook.events.as_deref().unwrap_or_default();
        if events != ["push"] {
            // Gitea tells them in a new order each time.
            let mut events = events.to_vec();
            events.sort_unstable();
            let what = format!("its events were [{}]", escaped(&events.join(", "), 120));
            let loses = !events.iter().any(|event| event == "push");
            found.push(HookDifference { what, loses });
        }
        let filter = hook.branch_filter.as_deref();
        if let Some(filter) = filter.filter(|filter| !same_filter(filter, &wanted.branch_filter)) {
            let what = format!("its branch filter was \"{}\"", escaped(filter, 80));
            found.push(HookDifference { what, loses: !covers(filter, &wanted.branch_filter) });
        }
        Self { replace, found }
    }
}

fn losing(what: impl Into<String>) -> HookDifference {
    HookDifference { what: what.into(), loses: true }
}

fn untidy(what: impl Into<String>) -> HookDifference {
    HookDifference { what: what.into(), loses: false }
}

/// Gitea takes an empty filter for all branches.
fn same_filter(one: &str, other: &str) -> bool {
    let all = |filter: &str| matches!(filter, "" | "*");
    one == other || (all(one) && all(other))
}

/// Whether a filter lets through all that another does, as far as names tell: of globs it is not known.
fn covers(filter: &str, wanted: &str) -> bool {
    let names = |filter: &str| -> Vec<String> {
        let inner = filter.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(filter);
        inner.split(',').map(str::to_owned).collect()
    };
    let there = names(filter);
    same_filter(filter, "*") || names(wanted).iter().all(|name| there.contains(name))
}

fn same_url(one: &str, other: &str) -> bool {
    one == other
        || matches!((url::Url::parse(one), url::Url::parse(other)), (Ok(one), Ok(other)) if one == other)
}

/// A URL without what may be secret in it.
fn shown(url: &str) -> String {
    let address =
        url::Url::parse(url).ok().map(|url| format!("{}{}", url.origin().ascii_serialization(), url.path()));
    escaped(address.as_deref().unwrap_or("an address that is no URL"), 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://receiver:8080/webhook";

    fn wanted() -> WantedHook {
        WantedHook { url: URL.to_owned(), branch_filter: "main".to_owned() }
    }

    fn good(id: i64) -> Found {
        Found {
            id,
            kind: "gitea".to_owned(),
            name: Some("fabrique 00000000".to_owned()),
            active: true,
            events: Some(vec!["push".to_owned()]),
            branch_filter: Some("main".to_owned()),
            authorization_header: String::new(),
            config: FoundConfig { url: URL.to_owned(), content_type: "json".to_owned() },
        }
    }

    fn planned(found: &[Found]) -> Plan {
        plan(found, &wanted(), Marks { now: "fabrique 00000000", former: Some("fabrique ffffffff") })
    }

    #[test]
    fn a_good_hook_is_left_alone_beside_foreign_ones() {
        let mut foreign = good(1);
        foreign.config.url = "http://argocd/api/webhook".to_owned();
        foreign.name = Some("argocd".to_owned());
        foreign.active = false;
        assert_eq!(planned(&[foreign.clone(), good(2)]), Plan::Leave);
        assert_eq!(planned(&[foreign]), Plan::Create);
    }

    #[test]
    fn every_difference_is_named_and_mended_in_place() {
        let hook = Found {
            active: false,
            events: None,
            branch_filter: Some(String::new()),
            config: FoundConfig { url: URL.to_owned(), content_type: "form".to_owned() },
            ..good(7)
        };
        let differences = vec![
            losing("it was switched off"),
            losing("its content type was form"),
            losing("its events were []"),
            untidy("its branch filter was \"\""),
        ];
        let expected = Plan::Repair { keep: 7, replace: false, edit: true, remove: vec![], differences };
        assert_eq!(planned(&[hook]), expected);
    }

    #[test]
    fn what_may_lose_a_push_is_told_from_what_sends_too_many() {
        let loses = |hook: Found, wanted: &str| {
            let wanted = WantedHook { branch_filter: wanted.to_owned(), ..self::wanted() };
            let marks = Marks { now: "fabrique 00000000", former: Some("fabrique ffffffff") };
            let found = Differences::between(&hook, &wanted, marks).found;
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].loses
        };
        let events = |events: &[&str]| Found {
            events: Some(events.iter().copied().map(str::to_owned).collect()),
            ..good(1)
        };
        assert!(loses(events(&["create", "delete"]), "main"));
        assert!(!loses(events(&["create", "push"]), "main"));
        let filter = |filter: &str| Found { branch_filter: Some(filter.to_owned()), ..good(1) };
        assert!(!loses(filter("*"), "main"));
        assert!(!loses(filter("{main,next}"), "next"));
        assert!(!loses(filter("{main,next}"), "{next,main}"));
        assert!(loses(filter("main"), "{main,next}"));
        assert!(loses(filter("release/*"), "release/1"));
        assert!(loses(filter("main"), "*"));
        let named = |name: &str| Found { name: Some(name.to_owned()), ..good(1) };
        assert!(loses(named("fabrique 11111111"), "main"), "nobody knows that secret any more");
        assert!(!loses(named("fabrique ffffffff"), "main"), "the former one is accepted");
        assert!(!loses(named("made by hand"), "main"), "its secret may be the right one");
    }

    #[test]
    fn a_hook_of_another_secret_or_type_is_replaced() {
        for hook in [
            Found { name: Some("fabrique 11111111".to_owned()), ..good(7) },
            Found { name: Some(String::new()), ..good(7) },
            Found { kind: "slack".to_owned(), ..good(7) },
        ] {
            assert!(matches!(planned(&[hook]), Plan::Repair { keep: 7, replace: true, .. }));
        }
    }

    fn at(url: &str, hook: Found) -> Found {
        Found { config: FoundConfig { url: url.to_owned(), content_type: "json".to_owned() }, ..hook }
    }

    #[test]
    fn a_hook_of_ours_follows_a_changed_url_in_place_and_its_secret_is_not_shown() {
        let old = at("http://ada:s3cret@old:8080/webhook?token=s3cret", good(7));
        let differences = vec![losing("it delivered to http://old:8080/webhook")];
        let expected = Plan::Repair { keep: 7, replace: false, edit: true, remove: vec![], differences };
        assert_eq!(planned(&[old]), expected);
    }

    #[test]
    fn an_old_hook_beside_the_new_one_goes() {
        let old = at("http://old:8080/webhook", good(3));
        let differences = vec![untidy("an old one delivered to http://old:8080/webhook")];
        let expected = Plan::Repair { keep: 7, replace: false, edit: false, remove: vec![3], differences };
        assert_eq!(planned(&[old, good(7)]), expected);
    }

    #[test]
    fn a_hook_of_the_former_secret_is_ours_at_any_url_and_replaced() {
        let old =
            Found { name: Some("fabrique ffffffff".to_owned()), ..at("http://old:8080/webhook", good(3)) };
        assert!(matches!(planned(&[old]), Plan::Repair { keep: 3, replace: true, .. }));
    }

    #[test]
    fn hooks_of_others_are_never_touched() {
        let argo = Found { name: Some(String::new()), ..at("http://argocd/api/webhook", good(1)) };
        let unnamed = Found { name: None, ..at("http://old:8080/webhook", good(2)) };
        let installation = Found {
            name: Some("fabrique 11111111".to_owned()),
            ..at("http://staging:8080/webhook", good(3))
        };
        let imitation = Found { name: Some("fabrique".to_owned()), ..at("http://old:8080/webhook", good(4)) };
        assert_eq!(planned(&[argo, unnamed, installation, imitation]), Plan::Create);
    }

    #[test]
    fn a_server_that_tells_neither_names_nor_filters_is_not_repaired_over_and_over() {
        assert_eq!(planned(&[Found { name: None, branch_filter: None, ..good(7) }]), Plan::Leave);
    }

    #[test]
    fn of_several_the_best_is_kept_and_the_others_go() {
        let off = Found { active: false, ..good(1) };
        let stale = Found { name: Some(String::new()), ..good(2) };
        let differences = vec![untidy("there were 3 more of it")];
        let remove = vec![4, 1, 2];
        let expected = Plan::Repair { keep: 3, replace: false, edit: false, remove, differences };
        assert_eq!(planned(&[off, stale, good(3), good(4)]), expected);
    }

    #[test]
    fn the_mark_tells_secrets_apart_without_showing_them() {
        let (one, other) = (mark(&"s3cret".into()), mark(&"s3cret2".into()));
        assert_ne!(one, other);
        assert_eq!(one, mark(&"s3cret".into()));
        assert_eq!(one.len(), "fabrique ".len() + 8);
    }
}
