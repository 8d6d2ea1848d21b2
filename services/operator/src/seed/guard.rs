//! Where `seed` may work: in the cluster that the configuration names for the environment, and in no other. Pure.

use std::collections::BTreeSet;

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_gitops::Registrations;

use crate::error::OperatorError;
use crate::lookup;

/// An environment with its cluster, as the configuration names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The environment.
    pub environment: EnvironmentName,
    /// The context of KUBECONFIG.
    pub context: String,
    /// Whether its name has to be said twice.
    pub production: bool,
}

/// Why nothing is done here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Elsewhere {
    /// The apps run in several environments, and none was named.
    #[error("which environment? Name it with --environment: there are {there}")]
    WhichEnvironment {
        /// Those that all of the apps have.
        there: String,
    },
    /// An app does not run there.
    #[error("{app} has no environment {environment}; its registration has {there}")]
    NoEnvironment {
        /// The app.
        app: AppName,
        /// What was asked for.
        environment: String,
        /// Those that it has.
        there: String,
    },
    /// The configuration names other environments.
    #[error(
        "seed.environments does not name {environment}, so that nobody knows its cluster; add it with its context"
    )]
    Unnamed {
        /// The environment.
        environment: EnvironmentName,
    },
    /// A context was asked for, and the configuration names none to compare it with.
    #[error(
        "seed.environments names no cluster, so that --context has nothing to be compared with; add {environment}"
    )]
    NoneNamed {
        /// The environment.
        environment: EnvironmentName,
    },
    /// KUBECONFIG has no current context.
    #[error(
        "{environment} is the context {wanted}, and KUBECONFIG has no current one; `kubectl config use-context {wanted}`"
    )]
    NoContext {
        /// The environment.
        environment: EnvironmentName,
        /// Its context.
        wanted: String,
    },
    /// This is another cluster.
    #[error(
        "{environment} is the context {wanted}, and this is {found}: nothing was changed; `kubectl config use-context \
         {wanted}`, or name the environment of {found}"
    )]
    OtherContext {
        /// The environment.
        environment: EnvironmentName,
        /// Its context.
        wanted: String,
        /// The one that is current.
        found: String,
    },
    /// No list says what is not production.
    #[error(
        "seed.environments names no environment, so that {environment} may be production: name it with --environment \
         {environment}, or list it with its context"
    )]
    Unlisted {
        /// The environment.
        environment: EnvironmentName,
    },
    /// Production is never guessed.
    #[error("{environment} is production: say so with --environment {environment}")]
    Unsaid {
        /// The environment.
        environment: EnvironmentName,
    },
    /// Production was said once.
    #[error(
        "{environment} is production, or may be, and --yes says it once; say its name again with --confirm {environment}"
    )]
    SaidOnce {
        /// The environment.
        environment: EnvironmentName,
    },
    /// It goes to production as well, which nobody named.
    #[error(
        "what is seeded for {environment} is to come to {production} as well, which is production; say {production} with \
         --environment and --confirm, or leave --yes out and type its name"
    )]
    GoesFurther {
        /// The environment.
        environment: EnvironmentName,
        /// The other one.
        production: EnvironmentName,
    },
    /// It goes to more than one environment of production, and the command line says one.
    #[error(
        "what is seeded for {environment} is to come to {production} as well, and both are production, of which --yes \
         says one; leave it out and type {production}"
    )]
    GoesToBoth {
        /// The environment.
        environment: EnvironmentName,
        /// The other one.
        production: EnvironmentName,
    },
    /// It goes further, and no list says what is not production.
    #[error(
        "what is seeded for {environment} is to come to {further} as well, and seed.environments does not say which of \
         them is production; list both there with their contexts, or leave --yes out and type {further}"
    )]
    GoesFurtherUnlisted {
        /// The environment.
        environment: EnvironmentName,
        /// The other one.
        further: EnvironmentName,
    },
    /// Something else was said the second time.
    #[error("--confirm says {said}, and the environment is {environment}: nothing was changed")]
    SaidOtherwise {
        /// The environment.
        environment: EnvironmentName,
        /// What was said.
        said: EnvironmentName,
    },
}

/// The environment that is meant: the one that was named, or the only one that all of the apps have.
///
/// # Errors
/// When an app is not registered or does not run there, or there are several.
pub fn environment(
    registrations: &Registrations,
    apps: &[AppName],
    named: Option<&EnvironmentName>,
) -> Result<EnvironmentName, OperatorError> {
    let mut common: Option<BTreeSet<&EnvironmentName>> = None;
    for name in apps {
        let app = lookup::app(registrations, name.as_str())?;
        let has: BTreeSet<&EnvironmentName> = app.environments.iter().map(|place| &place.name).collect();
        if has.is_empty() || named.is_some_and(|named| !has.contains(named)) {
            let there = if has.is_empty() { "none".to_owned() } else { names(&has) };
            let environment = named.map_or("to be deployed to".to_owned(), ToString::to_string);
            return Err(Elsewhere::NoEnvironment { app: name.clone(), environment, there }.into());
        }
        common = Some(match common {
            Some(common) => common.intersection(&has).copied().collect(),
            None => has,
        });
    }
    let common = common.unwrap_or_default();
    match (named, common.iter().next()) {
        (Some(named), _) => Ok(named.clone()),
        (None, Some(only)) if common.len() == 1 => Ok((*only).clone()),
        (None, _) => {
            let there = if common.is_empty() { "none that all have".to_owned() } else { names(&common) };
            Err(Elsewhere::WhichEnvironment { there }.into())
        }
    }
}

fn names(of: &BTreeSet<&EnvironmentName>) -> String {
    of.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Who says where this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said<'a> {
    /// The environment.
    pub environment: &'a EnvironmentName,
    /// Whether a person named it.
    pub named: bool,
    /// The context that KUBECONFIG is at, or that was asked for.
    pub found: Option<&'a str>,
    /// Whether it was asked for.
    pub asked: bool,
}

/// Whether this is the cluster of the environment, which is returned; nothing where the configuration names no cluster at
/// all, and none is asked.
///
/// # Errors
/// Why it is not.
pub fn admit<'k>(known: &'k [Known], said: &Said<'_>) -> Result<Option<&'k Known>, Elsewhere> {
    let environment = said.environment.clone();
    if known.is_empty() {
        return if said.asked { Err(Elsewhere::NoneNamed { environment }) } else { Ok(None) };
    }
    let Some(here) = known.iter().find(|known| known.environment == environment) else {
        return Err(Elsewhere::Unnamed { environment });
    };
    if here.production && !said.named {
        return Err(Elsewhere::Unsaid { environment });
    }
    let wanted = here.context.clone();
    match said.found {
        Some(found) if found == wanted => Ok(Some(here)),
        Some(found) => Err(Elsewhere::OtherContext { environment, wanted, found: found.to_owned() }),
        None => Err(Elsewhere::NoContext { environment, wanted }),
    }
}

/// Whether an environment is production: as it is listed, and where none is, nothing says that it is not.
///
/// # Errors
/// When it may be production, is about to be changed, and nobody named it.
pub fn is_production(here: Option<&Known>, said: &Said<'_>, dry_run: bool) -> Result<bool, Elsewhere> {
    match here {
        Some(here) => Ok(here.production),
        None if said.named || dry_run => Ok(true),
        None => Err(Elsewhere::Unlisted { environment: said.environment.clone() }),
    }
}

/// How far a person has agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consent {
    /// It is given.
    Given,
    /// It is to be asked for: `yes` or `oui`, or for production its name.
    Asked(Option<EnvironmentName>),
}

/// What of a person's consent is given on the command line.
///
/// # Errors
/// When it is given for production without its name, or with another.
pub fn consent(
    environment: &EnvironmentName,
    production: bool,
    yes: bool,
    confirm: Option<&EnvironmentName>,
) -> Result<Consent, Elsewhere> {
    if let Some(said) = confirm.filter(|said| *said != environment) {
        return Err(Elsewhere::SaidOtherwise { environment: environment.clone(), said: said.clone() });
    }
    match (production, yes, confirm) {
        (true, true, None) => Err(Elsewhere::SaidOnce { environment: environment.clone() }),
        (_, true, _) => Ok(Consent::Given),
        (true, false, None) => Ok(Consent::Asked(Some(environment.clone()))),
        (_, false, _) => Ok(Consent::Asked(None)),
    }
}

/// What of the consent is left where apps come to other environments as well: production has to be said there too.
///
/// # Errors
/// When consent is given, and not for that.
pub fn consent_to(
    known: &[Known],
    environment: &EnvironmentName,
    elsewhere: &BTreeSet<EnvironmentName>,
    consent: Consent,
) -> Result<Consent, Elsewhere> {
    let is_production = |other: &EnvironmentName| {
        known.is_empty() || known.iter().any(|known| known.production && known.environment == *other)
    };
    match (elsewhere.iter().find(|other| is_production(other)), consent) {
        (None, consent) => Ok(consent),
        (Some(further), Consent::Asked(_)) => Ok(Consent::Asked(Some(further.clone()))),
        (Some(further), Consent::Given) => {
            let (here, there) = (environment.clone(), further.clone());
            Err(if known.is_empty() {
                Elsewhere::GoesFurtherUnlisted { environment: here, further: there }
            } else if is_production(environment) {
                Elsewhere::GoesToBoth { environment: here, production: there }
            } else {
                Elsewhere::GoesFurther { environment: here, production: there }
            })
        }
    }
}

/// Whether an answer agrees.
#[must_use]
pub fn agrees(answer: &str, production: Option<&EnvironmentName>) -> bool {
    let answer = answer.trim();
    match production {
        Some(environment) => answer == environment.as_str(),
        None => ["yes", "oui"].iter().any(|word| answer.eq_ignore_ascii_case(word)),
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::RelPath;
    use fabrique_gitops::{Entry, Rules, Tree};

    use super::*;

    fn place(name: &str) -> EnvironmentName {
        EnvironmentName::parse(name).unwrap()
    }

    fn known() -> Vec<Known> {
        let known = |name: &str, context: &str, production| Known {
            environment: place(name),
            context: context.to_owned(),
            production,
        };
        vec![known("bench", "lab", false), known("prod", "paris", true)]
    }

    fn admitted(name: &str, named: bool, found: Option<&str>) -> Result<String, String> {
        let (known, environment) = (known(), place(name));
        let said = Said { environment: &environment, named, found, asked: false };
        let here = admit(&known, &said).map_err(|error| error.to_string())?;
        Ok(here.unwrap().context.clone())
    }

    #[test]
    fn it_works_in_the_context_of_the_environment_and_in_no_other() {
        assert_eq!(admitted("bench", false, Some("lab")).unwrap(), "lab");
        let other = admitted("bench", true, Some("paris")).unwrap_err();
        assert!(other.contains("bench is the context lab, and this is paris"), "{other}");
        assert!(other.contains("kubectl config use-context lab"), "{other}");
        assert!(admitted("bench", true, None).unwrap_err().contains("no current one"));
        assert!(admitted("test", true, Some("lab")).unwrap_err().contains("does not name test"));
    }

    #[test]
    fn production_is_named_and_never_guessed() {
        assert_eq!(admitted("prod", true, Some("paris")).unwrap(), "paris");
        assert!(admitted("prod", false, Some("paris")).unwrap_err().contains("--environment prod"));
    }

    #[test]
    fn production_says_its_name_twice_whoever_agrees() {
        let prod = place("prod");
        assert_eq!(consent(&prod, false, true, None), Ok(Consent::Given));
        assert_eq!(consent(&prod, false, false, None), Ok(Consent::Asked(None)));
        assert_eq!(consent(&prod, true, false, None), Ok(Consent::Asked(Some(prod.clone()))));
        let once = consent(&prod, true, true, None).unwrap_err();
        assert!(once.to_string().contains("--confirm prod"), "{once}");
        assert_eq!(consent(&prod, true, true, Some(&prod)), Ok(Consent::Given));
        assert_eq!(consent(&prod, true, false, Some(&prod)), Ok(Consent::Asked(None)));
        for production in [true, false] {
            let other = consent(&prod, production, true, Some(&place("bench"))).unwrap_err();
            assert!(other.to_string().contains("nothing was changed"), "{other}");
        }
    }

    #[test]
    fn yes_and_oui_agree_and_nothing_else_does() {
        for word in ["yes", "oui", "OUI\n", " yes "] {
            assert!(agrees(word, None), "{word}");
        }
        for word in ["", "y", "o", "no", "non", "yes please", "prod"] {
            assert!(!agrees(word, None), "{word}");
        }
        let prod = place("prod");
        assert!(agrees("prod\n", Some(&prod)));
        assert!(!agrees("yes", Some(&prod)) && !agrees("Prod", Some(&prod)));
    }

    #[test]
    fn without_any_cluster_none_is_asked_unless_somebody_names_one() {
        let environment = place("prod");
        let said = Said { environment: &environment, named: false, found: Some("paris"), asked: false };
        assert_eq!(admit(&[], &said), Ok(None));
        let unnamed = is_production(None, &said, false).unwrap_err();
        assert!(
            unnamed.to_string().contains("prod may be production: name it with --environment prod"),
            "{unnamed}"
        );
        assert_eq!(is_production(None, &said, true), Ok(true), "a dry run changes nothing");
        assert_eq!(is_production(None, &Said { named: true, ..said.clone() }, false), Ok(true));
        let bench = known().remove(0);
        assert_eq!(is_production(Some(&bench), &said, false), Ok(false));
        let error = admit(&[], &Said { asked: true, ..said }).unwrap_err();
        assert!(matches!(error, Elsewhere::NoneNamed { .. }), "{error}");
    }

    #[test]
    fn the_only_environment_that_all_have_is_meant_and_others_are_named() {
        let registration = |name: &str, places: &str| {
            let text = format!(
                "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
                 source: {{ repo: atlas/{name} }}\n  image: registry:80/{name}\n  environments: {places}\n"
            );
            (RelPath::parse(&format!("apps/{name}/app.yaml")).unwrap(), Entry::regular(text))
        };
        let (prod, both) = ("[{ name: prod }]", "[{ name: prod }, { name: bench }]");
        let tree: Tree =
            [registration("a", prod), registration("b", both), registration("c", both)].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let registrations = Registrations::load(&tree, &rules);
        let of = |apps: &[&str], named: Option<&str>| {
            let apps: Vec<AppName> = apps.iter().map(|name| AppName::parse(name).unwrap()).collect();
            environment(&registrations, &apps, named.map(place).as_ref()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["a"], None), Ok(place("prod")));
        assert_eq!(of(&["a", "b"], None), Ok(place("prod")));
        assert!(of(&["b", "c"], None).unwrap_err().contains("there are bench, prod"));
        assert_eq!(of(&["b", "c"], Some("bench")), Ok(place("bench")));
        assert!(of(&["a", "b"], Some("bench")).unwrap_err().contains("a has no environment bench"));
        assert!(of(&["d"], None).unwrap_err().contains("not a registered app"));
    }

    #[test]
    fn production_is_said_where_apps_come_there_as_well_and_nothing_else_is() {
        let known = [
            Known { environment: place("bench"), context: "lab".to_owned(), production: false },
            Known { environment: place("prod"), context: "paris".to_owned(), production: true },
        ];
        let to = |elsewhere: &[&str], consent| {
            let elsewhere = elsewhere.iter().map(|name| place(name)).collect();
            consent_to(&known, &place("bench"), &elsewhere, consent)
        };
        assert_eq!(to(&[], Consent::Given), Ok(Consent::Given));
        assert_eq!(to(&["staging"], Consent::Given), Ok(Consent::Given));
        let unlisted = consent_to(&[], &place("bench"), &[place("test")].into(), Consent::Given).unwrap_err();
        assert!(unlisted.to_string().contains("is to come to test as well"), "{unlisted}");
        let asked = Consent::Asked(Some(place("prod")));
        assert_eq!(to(&["prod"], Consent::Asked(None)), Ok(asked));
        let refused = to(&["prod"], Consent::Given).unwrap_err();
        assert!(refused.to_string().contains("is to come to prod as well"), "{refused}");
        assert!(refused.to_string().contains("say prod with --environment and --confirm"), "{refused}");
        // What is told is let in: the other one is not production.
        let said = consent_to(&known, &place("prod"), &[place("bench")].into(), Consent::Given);
        assert_eq!(said, Ok(Consent::Given));
    }

    #[test]
    fn where_either_may_be_production_nobody_is_sent_from_one_to_the_other() {
        let production =
            |name: &str| Known { environment: place(name), context: "paris".to_owned(), production: true };
        let (none, both): ([Known; 0], _) = ([], [production("a"), production("b")]);
        for (known, remedy) in [
            (&none[..], "list both there with their contexts, or leave --yes out"),
            (&both[..], "leave it out"),
        ] {
            for (here, there) in [("a", "b"), ("b", "a")] {
                let to = |consent| consent_to(known, &place(here), &[place(there)].into(), consent);
                let refused = to(Consent::Given).unwrap_err().to_string();
                assert!(refused.contains(remedy) && refused.contains(&format!("type {there}")), "{refused}");
                assert!(!refused.contains("--environment"), "{refused}");
                // What is told is let in.
                let asked = Consent::Asked(Some(place(there)));
                assert_eq!(to(Consent::Asked(Some(place(here)))), Ok(asked));
            }
        }
        let one = [production("a"), Known { production: false, ..production("b") }];
        let listed = consent_to(&one, &place("a"), &[place("b")].into(), Consent::Given);
        assert_eq!(listed, Ok(Consent::Given));
    }
}
