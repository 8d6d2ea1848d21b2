//! From what is there to what has to be done, in order. Pure: asking and doing is for [`super`].
//!
//! A plan is a function of what is seen, so that whoever is interrupted begins again and goes on: what was done is seen, and
//! is not in the next plan. Nothing that is there is ever replaced; where it cannot be used, a person is told.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_ports::setup::{RepositoryState, Right};

/// What a token is for. Each belongs to an account of its own, because a scope holds for every repository that the account
/// may see: what a token can do is bounded by the account's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenFor {
    /// Reading sources.
    Read,
    /// Setting commit statuses.
    Status,
    /// Looking after webhooks.
    Hooks,
    /// Reading and writing `cluster/apps`.
    Apps,
}

impl TokenFor {
    /// All of them.
    pub const ALL: [TokenFor; 4] = [TokenFor::Read, TokenFor::Status, TokenFor::Hooks, TokenFor::Apps];

    /// The word in configuration and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            TokenFor::Read => "read",
            TokenFor::Status => "status",
            TokenFor::Hooks => "hooks",
            TokenFor::Apps => "apps",
        }
    }

    /// The account that it belongs to.
    #[must_use]
    pub fn login(self) -> &'static str {
        match self {
            TokenFor::Read => "fabrique-read",
            TokenFor::Status => "fabrique-status",
            TokenFor::Hooks => "fabrique-hooks",
            TokenFor::Apps => "fabrique-apps",
        }
    }

    /// Its scopes. Each may ask who it is, so that `doctor` can tell.
    #[must_use]
    pub fn scopes(self) -> &'static [&'static str] {
        match self {
            TokenFor::Read => &["read:repository", "read:user"],
            TokenFor::Status | TokenFor::Hooks | TokenFor::Apps => &["write:repository", "read:user"],
        }
    }

    /// What its account needs in `cluster/apps`; the rights in sources are each app's.
    #[must_use]
    pub fn right(self) -> Right {
        match self {
            TokenFor::Read | TokenFor::Status => Right::None,
            TokenFor::Hooks => Right::Admin,
            TokenFor::Apps => Right::Write,
        }
    }
}

/// A webhook on `cluster/apps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookTo {
    /// Webhook #2, to fabrique's receiver.
    Receiver,
    /// Webhook #1, to Argo CD.
    Deployer,
}

impl HookTo {
    /// The key that names the file of its secret.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            HookTo::Receiver => "receiver.secret_file",
            HookTo::Deployer => "init.argocd_secret_file",
        }
    }
}

/// A value in a file of the operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// There is none yet.
    Missing,
    /// It is there.
    There,
    /// It is there, and is no use: the forge refuses it.
    Refused,
}

/// A webhook as it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookState {
    /// It is not there.
    Missing,
    /// It differs.
    Differs,
    /// It is as it should be.
    Present,
}

/// What Argo CD checks webhooks by, beside the operator's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployerSecret {
    /// It cannot be seen: no API server is asked.
    Unseen,
    /// It checks none, or lacks the second key.
    Missing,
    /// It checks by a secret that is not the file's.
    Other,
    /// It checks by the file's.
    Same,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The tokens that have a place.
    pub tokens: BTreeSet<TokenFor>,
    /// The webhooks.
    pub hooks: BTreeSet<HookTo>,
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The organisation of `cluster/apps`.
    pub organisation: bool,
    /// `cluster/apps`.
    pub repository: RepositoryState,
    /// The accounts.
    pub accounts: BTreeSet<TokenFor>,
    /// What they may do in `cluster/apps`.
    pub rights: BTreeMap<TokenFor, Right>,
    /// The tokens' files.
    pub tokens: BTreeMap<TokenFor, Kept>,
    /// The files of the webhooks' secrets.
    pub secrets: BTreeMap<HookTo, Kept>,
    /// Whether both are the same one.
    pub one_secret: bool,
    /// What Argo CD checks by.
    pub deployer_secret: DeployerSecret,
    /// The webhooks.
    pub hooks: BTreeMap<HookTo, HookState>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Make the organisation.
    Organisation,
    /// Make the repository.
    Repository,
    /// Commit the first files.
    Content,
    /// Make up a webhook's secret and write its file.
    Secret(HookTo),
    /// Write the file of webhook #1's secret from what Argo CD has.
    AdoptSecret,
    /// Make an account.
    Account(TokenFor),
    /// Give it its right in `cluster/apps`.
    Grant(TokenFor),
    /// Make a token and write its file.
    Token(TokenFor),
    /// Have Argo CD check webhooks by the file's secret.
    TellDeployer,
    /// Make or repair a webhook.
    Hook(HookTo),
}

/// What has to hold before what comes after it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// The organisation is there.
    Organisation,
    /// `cluster/apps` is there and has its branch.
    Repository,
    /// The webhooks' secrets are in their files.
    Secrets,
    /// The accounts are there, with their rights.
    Accounts,
    /// The tokens are in their files, and the forge takes them.
    Tokens,
    /// Webhook #2 is there.
    Receiver,
    /// Webhook #1 is there, and Argo CD has its secret.
    Deployer,
}

impl Gate {
    /// All of them, in order.
    pub const ALL: [Gate; 7] = [
        Gate::Organisation,
        Gate::Repository,
        Gate::Secrets,
        Gate::Accounts,
        Gate::Tokens,
        Gate::Receiver,
        Gate::Deployer,
    ];

    /// What people call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Gate::Organisation => "organisation",
            Gate::Repository => "repository",
            Gate::Secrets => "secrets",
            Gate::Accounts => "accounts",
            Gate::Tokens => "tokens",
            Gate::Receiver => "webhook #2",
            Gate::Deployer => "webhook #1",
        }
    }
}

impl Step {
    /// The gate that it opens.
    #[must_use]
    pub fn gate(&self) -> Gate {
        match self {
            Step::Organisation => Gate::Organisation,
            Step::Repository | Step::Content => Gate::Repository,
            Step::Secret(_) | Step::AdoptSecret => Gate::Secrets,
            Step::Account(_) | Step::Grant(_) => Gate::Accounts,
            Step::Token(_) => Gate::Tokens,
            Step::TellDeployer | Step::Hook(HookTo::Deployer) => Gate::Deployer,
            Step::Hook(HookTo::Receiver) => Gate::Receiver,
        }
    }
}

/// Why nothing may be done before a person did something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The repository has commits and not the branch.
    NoBranch,
    /// The forge refuses the token of a file.
    RefusedToken(TokenFor),
    /// Argo CD checks webhooks by another secret than the file's.
    OtherSecret,
    /// Both webhooks have one secret.
    OneSecret,
}

/// What has to be done, in order.
///
/// # Errors
/// All that a person has to do before anything is done.
pub fn plan(wish: &Wish, seen: &Seen) -> Result<Vec<Step>, Vec<Obstacle>> {
    let obstacles = obstacles(wish, seen);
    if !obstacles.is_empty() {
        return Err(obstacles);
    }
    let mut steps = Vec::new();
    let mut add = |wanted: bool, step: Step| steps.extend(wanted.then_some(step));
    add(!seen.organisation, Step::Organisation);
    add(seen.repository == RepositoryState::Missing, Step::Repository);
    add(matches!(seen.repository, RepositoryState::Missing | RepositoryState::Empty), Step::Content);
    for &to in &wish.hooks {
        let has_one = to == HookTo::Deployer && seen.deployer_secret == DeployerSecret::Other;
        add(secret(seen, to) == Kept::Missing, if has_one { Step::AdoptSecret } else { Step::Secret(to) });
    }
    for &purpose in &wish.tokens {
        // A token that is there without this account is another account's, which a person chose.
        let (there, needed) = (seen.accounts.contains(&purpose), token(seen, purpose) == Kept::Missing);
        add(needed && !there, Step::Account(purpose));
        let has = seen.rights.get(&purpose).copied().unwrap_or(Right::None);
        add((needed || there) && has < purpose.right(), Step::Grant(purpose));
    }
    for &purpose in &wish.tokens {
        add(token(seen, purpose) == Kept::Missing, Step::Token(purpose));
    }
    for &to in &wish.hooks {
        let tell = to == HookTo::Deployer && seen.deployer_secret == DeployerSecret::Missing;
        add(tell, Step::TellDeployer);
        add(seen.hooks.get(&to) != Some(&HookState::Present), Step::Hook(to));
    }
    Ok(steps)
}

fn obstacles(wish: &Wish, seen: &Seen) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    if seen.repository == RepositoryState::NoBranch {
        obstacles.push(Obstacle::NoBranch);
    }
    let refused = wish.tokens.iter().filter(|&&purpose| token(seen, purpose) == Kept::Refused);
    obstacles.extend(refused.map(|&purpose| Obstacle::RefusedToken(purpose)));
    if wish.hooks.contains(&HookTo::Deployer) {
        let has_file = secret(seen, HookTo::Deployer) != Kept::Missing;
        if has_file && seen.deployer_secret == DeployerSecret::Other {
            obstacles.push(Obstacle::OtherSecret);
        }
        if seen.one_secret {
            obstacles.push(Obstacle::OneSecret);
        }
    }
    obstacles
}

fn token(seen: &Seen, purpose: TokenFor) -> Kept {
    seen.tokens.get(&purpose).copied().unwrap_or(Kept::Missing)
}

fn secret(seen: &Seen, to: HookTo) -> Kept {
    seen.secrets.get(&to).copied().unwrap_or(Kept::Missing)
}

#[cfg(test)]
mod tests;
