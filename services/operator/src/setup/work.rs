//! Looking at what is there, and doing one step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fabrique_ports::forge::{HookOutcome, WantedHook};
use fabrique_ports::setup::{KeptSecret, RepositoryState, Right, TokenAnswer};
use fabrique_ports::{Ambient, PortError, PortResult};
use secrecy::{ExposeSecret, SecretString};

use super::plan::{
    DeployerSecret, Gate, HookState, HookTo, Kept, Obstacle, Seen, Step, TokenFor, Wish, plan,
};
use super::{Installation, Place, first, vault};
use crate::error::OperatorError;
use crate::hooks::Watched;

/// Whoever looks and does.
pub(super) struct Worker<'a> {
    of: &'a Installation<'a>,
    wish: Wish,
}

impl<'a> Worker<'a> {
    pub(super) fn new(of: &'a Installation<'a>) -> Self {
        let tokens = of.wanted.tokens.keys().copied().collect();
        let hooks = of.wanted.hooks.keys().copied().collect();
        Self { of, wish: Wish { tokens, hooks } }
    }

    /// Whether this installation has that gate at all.
    pub(super) fn has(&self, gate: Gate) -> bool {
        match gate {
            Gate::Organisation | Gate::Repository => true,
            Gate::Secrets => !self.wish.hooks.is_empty(),
            Gate::Accounts | Gate::Tokens => !self.wish.tokens.is_empty(),
            Gate::Receiver => self.wish.hooks.contains(&HookTo::Receiver),
            Gate::Deployer => self.wish.hooks.contains(&HookTo::Deployer),
        }
    }

    /// What is missing, or what a person has to do first, as sentences.
    pub(super) async fn planned(&self) -> PortResult<Result<Vec<Step>, Vec<String>>> {
        let homeless = self.homeless();
        if !homeless.is_empty() {
            return Ok(Err(homeless));
        }
        Ok(match self.look().await? {
            Ok(seen) => {
                let told =
                    |obstacles: Vec<Obstacle>| obstacles.iter().map(|one| self.obstacle(one)).collect();
                plan(&self.wish, &seen).map_err(told)
            }
            Err(file) => Err(vec![file.to_string()]),
        })
    }

    fn places(&self) -> impl Iterator<Item = &'a Place> {
        let wanted = &self.of.wanted;
        wanted.tokens.values().chain(wanted.hooks.values().map(|hook| &hook.secret))
    }

    fn homeless(&self) -> Vec<String> {
        let files = self.places().filter_map(|place| match place {
            Place::File(path) if !vault::has_folder(path) => Some(path),
            Place::File(_) | Place::Given(_) => None,
        });
        files.map(|path| format!("{}: its folder is not there; make it", path.display())).collect()
    }

    /// What is there. A file that cannot be read is no matter of a peer.
    async fn look(&self) -> PortResult<Result<Seen, OperatorError>> {
        let of = self.of;
        let (repo, branch) = (&of.wanted.repo, &of.wanted.branch);
        let (tokens, secrets) = match (self.values(), self.secrets()) {
            (Ok(tokens), Ok(secrets)) => (tokens, secrets),
            (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
        };
        let organisation = of.forge.has_organisation(repo.org()).await?;
        let repository =
            if organisation { of.forge.repository(repo, branch).await? } else { RepositoryState::Missing };
        let is_there = repository != RepositoryState::Missing;
        let mut accounts = BTreeSet::new();
        let mut rights = BTreeMap::new();
        for &purpose in &self.wish.tokens {
            if !of.forge.has_account(purpose.login()).await? {
                continue;
            }
            accounts.insert(purpose);
            if is_there && purpose.right() != Right::None {
                rights.insert(purpose, of.forge.right(repo, purpose.login()).await?);
            }
        }
        let mut kept = BTreeMap::new();
        for (purpose, token) in &tokens {
            kept.insert(*purpose, self.tried(token.as_ref()).await?);
        }
        let mut hooks = BTreeMap::new();
        for &to in &self.wish.hooks {
            let state = match secrets.get(&to) {
                Some(Some(secret)) if is_there => self.hook_state(to, secret.clone()).await?,
                _ => HookState::Missing,
            };
            hooks.insert(to, state);
        }
        let own = secrets.get(&HookTo::Deployer).and_then(Option::as_ref);
        let there =
            |secret: &Option<SecretString>| if secret.is_some() { Kept::There } else { Kept::Missing };
        Ok(Ok(Seen {
            organisation,
            repository,
            accounts,
            rights,
            tokens: kept,
            one_secret: self.is_one(&secrets),
            deployer_secret: self.deployer_secret(own).await?,
            secrets: secrets.iter().map(|(to, secret)| (*to, there(secret))).collect(),
            hooks,
        }))
    }

    fn values(&self) -> Result<BTreeMap<TokenFor, Option<SecretString>>, OperatorError> {
        self.of.wanted.tokens.iter().map(|(purpose, place)| Ok((*purpose, value(place)?))).collect()
    }

    fn secrets(&self) -> Result<BTreeMap<HookTo, Option<SecretString>>, OperatorError> {
        self.of.wanted.hooks.iter().map(|(to, hook)| Ok((*to, value(&hook.secret)?))).collect()
    }

    /// Whether both webhooks sign with the same secret: then whoever holds one could speak as the other, and each would be
    /// taken for a former form of the other.
    fn is_one(&self, secrets: &BTreeMap<HookTo, Option<SecretString>>) -> bool {
        let of = |to| secrets.get(&to).and_then(Option::as_ref).map(ExposeSecret::expose_secret);
        of(HookTo::Receiver).is_some() && of(HookTo::Receiver) == of(HookTo::Deployer)
    }

    async fn tried(&self, token: Option<&SecretString>) -> PortResult<Kept> {
        let Some(token) = token else { return Ok(Kept::Missing) };
        Ok(match self.of.forge.try_token(token).await? {
            TokenAnswer::Accepted => Kept::There,
            TokenAnswer::Refused => Kept::Refused,
        })
    }

    async fn deployer_secret(&self, own: Option<&SecretString>) -> PortResult<DeployerSecret> {
        let (Some(inside), true) = (self.of.inside, self.wish.hooks.contains(&HookTo::Deployer)) else {
            return Ok(DeployerSecret::Unseen);
        };
        let same =
            |secret: &SecretString| own.is_some_and(|own| own.expose_secret() == secret.expose_secret());
        Ok(match inside.secret().await? {
            KeptSecret::Nothing => DeployerSecret::Missing,
            KeptSecret::This(secret) if same(&secret) => DeployerSecret::Same,
            KeptSecret::Partly(secret) if same(&secret) => DeployerSecret::Missing,
            KeptSecret::This(_) | KeptSecret::Partly(_) => DeployerSecret::Other,
        })
    }

    async fn hook_state(&self, to: HookTo, secret: SecretString) -> PortResult<HookState> {
        Ok(match self.ensure_hook(to, secret, true).await? {
            HookOutcome::Present => HookState::Present,
            HookOutcome::Created | HookOutcome::NoRepository => HookState::Missing,
            HookOutcome::Repaired(_) => HookState::Differs,
        })
    }

    async fn ensure_hook(&self, to: HookTo, secret: SecretString, dry_run: bool) -> PortResult<HookOutcome> {
        let wanted = &self.of.wanted;
        let url = wanted.hooks.get(&to).map(|hook| hook.url.clone()).unwrap_or_default();
        // As `hooks ensure` asks for it.
        let watched = Watched { repo: wanted.repo.clone(), branches: [wanted.branch.clone()].into() };
        let hook = WantedHook { url, branch_filter: watched.filter() };
        (self.of.hooks)(secret).ensure_hook(&wanted.repo, &hook, dry_run).await
    }

    /// Does these steps, in order.
    pub(super) async fn perform(&self, steps: &[Step]) -> Result<(), OperatorError> {
        for step in steps {
            tracing::info!(what = self.told(step), "doing");
            self.perform_one(step).await?;
        }
        Ok(())
    }

    async fn perform_one(&self, step: &Step) -> Result<(), OperatorError> {
        let (of, repo) = (self.of, &self.of.wanted.repo);
        match step {
            Step::Organisation => of.forge.make_organisation(repo.org()).await?,
            Step::Repository => of.forge.make_repository(repo, &of.wanted.branch).await?,
            Step::Content => {
                of.forge.put_first(repo, &of.wanted.branch, &first::files(), first::MESSAGE).await?;
            }
            Step::Secret(to) => {
                if let Some(path) = self.hook_file(*to) {
                    vault::write(path, &drawn(of.ambient))?;
                }
            }
            Step::AdoptSecret => self.adopt().await?,
            Step::Account(purpose) => {
                of.forge.make_account(purpose.login(), &drawn(of.ambient)).await?;
            }
            Step::Grant(purpose) => of.forge.grant(repo, purpose.login(), purpose.right()).await?,
            Step::Token(purpose) => self.make_token(*purpose).await?,
            Step::TellDeployer => {
                if let (Some(inside), Some(secret)) = (of.inside, self.hook_secret(HookTo::Deployer)?) {
                    inside.keep_secret(&secret).await?;
                }
            }
            Step::Hook(to) => {
                if let Some(secret) = self.hook_secret(*to)? {
                    self.ensure_hook(*to, secret, false).await?;
                }
            }
        }
        Ok(())
    }

    async fn adopt(&self) -> Result<(), OperatorError> {
        let (Some(inside), Some(path)) = (self.of.inside, self.hook_file(HookTo::Deployer)) else {
            return Ok(());
        };
        match inside.secret().await? {
            KeptSecret::This(secret) | KeptSecret::Partly(secret) => vault::write(path, &secret),
            KeptSecret::Nothing => Ok(()),
        }
    }

    /// The name first: a token that is made and whose value is lost is revoked by it.
    async fn make_token(&self, purpose: TokenFor) -> Result<(), OperatorError> {
        let Some(Place::File(path)) = self.of.wanted.tokens.get(&purpose) else { return Ok(()) };
        if let Some(lost) = vault::noted(path)? {
            self.of.forge.revoke_token(purpose.login(), &lost).await?;
        }
        let name = format!("fabrique {} {}", purpose.as_str(), self.of.ambient.ulid());
        vault::note(path, &name)?;
        let token = self.of.forge.make_token(purpose.login(), &name, purpose.scopes()).await?;
        vault::write(path, &token)?;
        vault::forget(path)
    }

    /// Removes what an interrupted run left beside files that are whole.
    pub(super) fn tidy(&self) -> Result<(), OperatorError> {
        self.places().try_for_each(|place| match place {
            Place::File(path) => vault::tidy(path),
            Place::Given(_) => Ok(()),
        })
    }

    fn hook_file(&self, to: HookTo) -> Option<&'a Path> {
        match &self.of.wanted.hooks.get(&to)?.secret {
            Place::File(path) => Some(path),
            Place::Given(_) => None,
        }
    }

    fn hook_secret(&self, to: HookTo) -> Result<Option<SecretString>, OperatorError> {
        self.of.wanted.hooks.get(&to).map_or(Ok(None), |hook| value(&hook.secret))
    }

    /// A step as people are told of it.
    pub(super) fn told(&self, step: &Step) -> String {
        let wanted = &self.of.wanted;
        let file = |path: Option<&Path>| path.map(|path| path.display().to_string()).unwrap_or_default();
        let of_token = |purpose| match wanted.tokens.get(purpose) {
            Some(Place::File(path)) => path.display().to_string(),
            Some(Place::Given(_)) | None => String::new(),
        };
        match step {
            Step::Organisation => format!("the organisation {}", wanted.repo.org()),
            Step::Repository => format!("the private repository {}", wanted.repo),
            Step::Content => format!("its first files: {}", first::names()),
            Step::Secret(to) => format!("a secret in {}", file(self.hook_file(*to))),
            Step::AdoptSecret => format!("Argo CD's secret in {}", file(self.hook_file(HookTo::Deployer))),
            Step::Account(purpose) => format!("the account {}", purpose.login()),
            Step::Grant(purpose) => {
                format!("{} on {} for {}", named(purpose.right()), wanted.repo, purpose.login())
            }
            Step::Token(purpose) => {
                let scopes = purpose.scopes().join(", ");
                format!("a token of {} in {} ({scopes})", purpose.login(), of_token(purpose))
            }
            Step::TellDeployer => "the secret for Argo CD".to_owned(),
            Step::Hook(to) => {
                format!("to {}", wanted.hooks.get(to).map(|hook| hook.url.as_str()).unwrap_or_default())
            }
        }
    }

    /// What is there when nothing is missing.
    pub(super) fn there(&self, gate: Gate) -> String {
        let wanted = &self.of.wanted;
        let url = |to| wanted.hooks.get(&to).map(|hook| hook.url.clone()).unwrap_or_default();
        match gate {
            Gate::Organisation => wanted.repo.org().to_owned(),
            Gate::Repository => format!("{} has {}", wanted.repo, wanted.branch),
            Gate::Secrets => "kept".to_owned(),
            Gate::Accounts => "each has its right".to_owned(),
            Gate::Tokens => "kept, and accepted".to_owned(),
            Gate::Receiver => url(HookTo::Receiver),
            Gate::Deployer => url(HookTo::Deployer),
        }
    }

    fn obstacle(&self, obstacle: &Obstacle) -> String {
        let wanted = &self.of.wanted;
        match obstacle {
            Obstacle::NoBranch => format!(
                "{} has commits and no branch {}; push it, or name another in gitea.apps_branch",
                wanted.repo, wanted.branch
            ),
            Obstacle::RefusedToken(purpose) => match wanted.tokens.get(purpose) {
                Some(Place::File(path)) => format!(
                    "Gitea refuses the token in {}; remove the file, and a new one is made",
                    path.display()
                ),
                Some(Place::Given(_)) | None => {
                    format!("Gitea refuses the `{}` token of the environment; replace it", purpose.as_str())
                }
            },
            Obstacle::OtherSecret => {
                "webhook.gogs.secret of argocd-secret is not what init.argocd_secret_file holds; remove the one that is \
                 wrong, and it is made from the other"
                    .to_owned()
            }
            Obstacle::OneSecret => {
                "both webhooks have the same secret; remove the file of one, and another is made".to_owned()
            }
        }
    }
}

fn named(right: Right) -> &'static str {
    match right {
        Right::None => "nothing",
        Right::Read => "read",
        Right::Write => "write",
        Right::Admin => "admin",
    }
}

fn value(place: &Place) -> Result<Option<SecretString>, OperatorError> {
    match place {
        Place::File(path) => vault::read(path),
        Place::Given(secret) => Ok(Some(secret.clone())),
    }
}

/// 256 bits, as text.
pub(super) fn drawn(ambient: &dyn Ambient) -> SecretString {
    let bytes = [ambient.random(), ambient.random()].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

impl OperatorError {
    /// Whether the same may succeed later without anybody's help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            OperatorError::Port(error) => PortError::transient(error),
            _ => false,
        }
    }
}
