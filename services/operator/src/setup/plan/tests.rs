//! Plans against a world that does what they say.

use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// What doing a step changes.
fn done(seen: &mut Seen, step: &Step) {
    match step {
        Step::Organisation => seen.organisation = true,
        Step::Repository => {
            assert!(seen.organisation, "a repository without its organisation");
            seen.repository = RepositoryState::Empty;
        }
        Step::Content => {
            assert_eq!(seen.repository, RepositoryState::Empty, "first files over others");
            seen.repository = RepositoryState::Ready;
        }
        Step::Secret(to) => {
            assert_eq!(secret(seen, *to), Kept::Missing, "a secret is never made over one that is there");
            seen.secrets.insert(*to, Kept::There);
            if *to == HookTo::Deployer && seen.deployer_secret == DeployerSecret::Same {
                seen.deployer_secret = DeployerSecret::Other;
            }
        }
        Step::AdoptSecret => {
            assert_eq!(seen.deployer_secret, DeployerSecret::Other);
            seen.secrets.insert(HookTo::Deployer, Kept::There);
            seen.deployer_secret = DeployerSecret::Same;
        }
        Step::Account(purpose) => drop(seen.accounts.insert(*purpose)),
        Step::Grant(purpose) => {
            assert!(seen.accounts.contains(purpose) && seen.repository == RepositoryState::Ready);
            seen.rights.insert(*purpose, purpose.right());
        }
        Step::Token(purpose) => {
            assert!(seen.accounts.contains(purpose), "a token without its account");
            assert_eq!(token(seen, *purpose), Kept::Missing, "a token is never made over one that is there");
            seen.tokens.insert(*purpose, Kept::There);
        }
        Step::TellDeployer => {
            assert_eq!(secret(seen, HookTo::Deployer), Kept::There, "there is a secret to tell");
            seen.deployer_secret = DeployerSecret::Same;
        }
        Step::Hook(to) => {
            assert_eq!((seen.repository, secret(seen, *to)), (RepositoryState::Ready, Kept::There));
            seen.hooks.insert(*to, HookState::Present);
        }
    }
}

fn purposes() -> impl Strategy<Value = BTreeSet<TokenFor>> {
    btree_set(select(&TokenFor::ALL), 0..=4)
}

fn hooks() -> impl Strategy<Value = BTreeSet<HookTo>> {
    btree_set(select(&[HookTo::Receiver, HookTo::Deployer]), 0..=2)
}

prop_compose! {
    fn wishes()(tokens in purposes(), hooks in hooks()) -> Wish {
        Wish { tokens, hooks }
    }
}

/// Anything at all, also what no installation ever looks like.
fn seen() -> impl Strategy<Value = Seen> {
    let kept = || select(&[Kept::Missing, Kept::There, Kept::Refused]);
    let file = || select(&[Kept::Missing, Kept::There]);
    let hook = select(&[HookState::Missing, HookState::Present, HookState::Differs]);
    let state = select(&[
        RepositoryState::Missing,
        RepositoryState::Empty,
        RepositoryState::NoBranch,
        RepositoryState::Ready,
    ]);
    let rights = btree_map(
        select(&TokenFor::ALL),
        select(&[Right::None, Right::Read, Right::Write, Right::Admin]),
        0..=4,
    );
    let deployer = select(&[
        DeployerSecret::Unseen,
        DeployerSecret::Missing,
        DeployerSecret::Other,
        DeployerSecret::Same,
    ]);
    let tokens = btree_map(select(&TokenFor::ALL), kept(), 0..=4);
    let secrets = btree_map(select(&[HookTo::Receiver, HookTo::Deployer]), file(), 0..=2);
    let hooks = btree_map(select(&[HookTo::Receiver, HookTo::Deployer]), hook, 0..=2);
    (any::<bool>(), state, purposes(), rights, tokens, secrets, any::<bool>(), deployer, hooks).prop_map(
        |(
            organisation,
            repository,
            accounts,
            rights,
            tokens,
            secrets,
            one_secret,
            deployer_secret,
            hooks,
        )| {
            let mut seen = Seen {
                // What is in an organisation is not there without it.
                organisation: organisation || repository != RepositoryState::Missing,
                repository,
                rights: rights.into_iter().filter(|(purpose, _)| accounts.contains(purpose)).collect(),
                accounts,
                tokens,
                secrets,
                one_secret,
                deployer_secret,
                hooks,
            };
            if seen.repository == RepositoryState::Missing {
                seen.rights.clear();
                seen.hooks.clear();
            }
            // Nothing is the same as a file that is not there.
            let has_file = secret(&seen, HookTo::Deployer) != Kept::Missing;
            if !has_file && seen.deployer_secret == DeployerSecret::Same {
                seen.deployer_secret = DeployerSecret::Other;
            }
            seen
        },
    )
}

proptest! {
    #[test]
    fn a_second_run_has_nothing_to_do(wish in wishes(), mut seen in seen()) {
        let Ok(steps) = plan(&wish, &seen) else { return Ok(()) };
        steps.iter().for_each(|step| done(&mut seen, step));
        prop_assert_eq!(plan(&wish, &seen), Ok(Vec::new()));
    }

    #[test]
    fn whoever_was_interrupted_goes_on_where_it_stopped(wish in wishes(), mut seen in seen(), at in any::<Index>()) {
        let Ok(steps) = plan(&wish, &seen) else { return Ok(()) };
        let (before, after) = steps.split_at(at.index(steps.len() + 1));
        before.iter().for_each(|step| done(&mut seen, step));
        prop_assert_eq!(plan(&wish, &seen), Ok(after.to_vec()));
    }

    #[test]
    fn gates_are_opened_in_their_order_and_nothing_is_done_that_nobody_wished(wish in wishes(), seen in seen()) {
        let Ok(steps) = plan(&wish, &seen) else { return Ok(()) };
        let gates: Vec<Gate> = steps.iter().map(Step::gate).collect();
        prop_assert!(gates.is_sorted(), "{:?}", steps);
        for step in &steps {
            let wished = match step {
                Step::Account(purpose) | Step::Grant(purpose) | Step::Token(purpose) => wish.tokens.contains(purpose),
                Step::Secret(to) | Step::Hook(to) => wish.hooks.contains(to),
                Step::AdoptSecret | Step::TellDeployer => wish.hooks.contains(&HookTo::Deployer),
                Step::Organisation | Step::Repository | Step::Content => true,
            };
            prop_assert!(wished, "{:?}", step);
        }
    }

    #[test]
    fn a_right_that_is_more_than_needed_is_left_and_none_is_taken(wish in wishes(), seen in seen()) {
        let Ok(steps) = plan(&wish, &seen) else { return Ok(()) };
        for (purpose, has) in &seen.rights {
            prop_assert!(*has < purpose.right() || !steps.contains(&Step::Grant(*purpose)));
        }
    }
}

fn all() -> Wish {
    Wish { tokens: TokenFor::ALL.into(), hooks: [HookTo::Receiver, HookTo::Deployer].into() }
}

fn nothing() -> Seen {
    Seen {
        organisation: false,
        repository: RepositoryState::Missing,
        accounts: BTreeSet::new(),
        rights: BTreeMap::new(),
        tokens: BTreeMap::new(),
        secrets: BTreeMap::new(),
        one_secret: false,
        deployer_secret: DeployerSecret::Missing,
        hooks: BTreeMap::new(),
    }
}

#[test]
fn a_fresh_forge_gets_everything_in_this_order() {
    use TokenFor::{Apps, Hooks, Read, Status};
    let expected = vec![
        Step::Organisation,
        Step::Repository,
        Step::Content,
        Step::Secret(HookTo::Receiver),
        Step::Secret(HookTo::Deployer),
        Step::Account(Read),
        Step::Account(Status),
        Step::Account(Hooks),
        Step::Grant(Hooks),
        Step::Account(Apps),
        Step::Grant(Apps),
        Step::Token(Read),
        Step::Token(Status),
        Step::Token(Hooks),
        Step::Token(Apps),
        Step::Hook(HookTo::Receiver),
        Step::TellDeployer,
        Step::Hook(HookTo::Deployer),
    ];
    assert_eq!(plan(&all(), &nothing()), Ok(expected));
}

#[test]
fn a_secret_that_argo_cd_has_is_adopted_and_never_replaced() {
    let seen = Seen { deployer_secret: DeployerSecret::Other, ..nothing() };
    let steps = plan(&all(), &seen).unwrap();
    assert!(steps.contains(&Step::AdoptSecret) && !steps.contains(&Step::TellDeployer), "{steps:?}");
    assert!(!steps.contains(&Step::Secret(HookTo::Deployer)), "{steps:?}");
    let seen = Seen { secrets: [(HookTo::Deployer, Kept::There)].into(), ..seen };
    assert_eq!(plan(&all(), &seen), Err(vec![Obstacle::OtherSecret]));
}

#[test]
fn a_token_of_an_account_that_people_chose_brings_no_other_account() {
    let seen = Seen { tokens: TokenFor::ALL.map(|purpose| (purpose, Kept::There)).into(), ..nothing() };
    let steps = plan(&all(), &seen).unwrap();
    assert!(!steps.iter().any(|step| matches!(step, Step::Account(_) | Step::Grant(_))), "{steps:?}");
}

#[test]
fn all_that_a_person_has_to_do_is_told_at_once_and_nothing_is_planned() {
    let seen = Seen {
        organisation: true,
        repository: RepositoryState::NoBranch,
        tokens: [(TokenFor::Apps, Kept::Refused)].into(),
        one_secret: true,
        ..nothing()
    };
    let told = vec![Obstacle::NoBranch, Obstacle::RefusedToken(TokenFor::Apps), Obstacle::OneSecret];
    assert_eq!(plan(&all(), &seen), Err(told));
}

#[test]
fn no_scope_is_wider_than_its_use() {
    for purpose in TokenFor::ALL {
        let scopes = purpose.scopes();
        assert!(
            scopes.iter().all(|scope| scope.ends_with(":repository") || *scope == "read:user"),
            "{scopes:?}"
        );
    }
    assert_eq!(TokenFor::Read.scopes(), ["read:repository", "read:user"]);
    assert_eq!(TokenFor::Read.right(), Right::None);
}
