use fabrique_core::app::App;
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::{HoldView, ImageView, InfraView, Step};
use fabrique_gitops::{Entry, Rules};

use super::*;

fn app(environments: &str) -> App {
    let text = format!(
        "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: citation }}\nspec:\n  source: {{ repo: atlas/citation }}\n  \
         image: registry:80/citation\n  environments: [{environments}]\n"
    );
    let file = (RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(text));
    let rules = Rules { registries: vec!["registry:80".to_owned()] };
    let registrations = Registrations::load(&[file].into_iter().collect(), &rules);
    assert!(registrations.findings.is_empty(), "{:?}", registrations.findings);
    registrations.apps.into_values().next().unwrap()
}

fn step(watched: Watched) -> Option<Step> {
    Some(Step { from: Revision::parse(&"d".repeat(40)).unwrap(), relation: Relation::Ahead, watched })
}

/// An environment that is deployed, with what changed since and a hold on its image.
fn seen(name: &str, (image, overlay): (Watched, Watched), held: bool) -> EnvironmentView {
    let hold = held.then(|| HoldView { by: "Ada".to_owned(), reason: "audit".to_owned(), until: None });
    EnvironmentView {
        name: EnvironmentName::parse(name).unwrap(),
        image: ImageView {
            follows_builds: name != "live",
            trouble: None,
            waits: None,
            hold,
            step: step(image),
            digest: Some(fabrique_core::id::Digest::of(b"image")),
            same_inputs: true,
            taken_back: None,
        },
        infra: InfraView { follows_head: true, step: step(overlay), ..InfraView::default() },
    }
}

#[test]
fn only_environments_that_would_be_moved_are_asked_about_migrations() {
    use Watched::{Changed, Unchanged};
    let app = app("{ name: staging }, { name: prod }, { name: live, image: { from: prod } }");
    let names = |seen: &[EnvironmentView]| {
        moved(&app, seen, false).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let both = (Changed, Changed);
    let all = [seen("staging", both, false), seen("prod", both, false), seen("live", both, false)];
    assert_eq!(names(&all), "staging prod", "live is promoted to");
    // What prod would say of them speaks for nobody as long as it is held.
    assert_eq!(names(&[seen("staging", both, false), seen("prod", both, true)]), "staging");
    // The overlay moves alone, and before its image.
    let overlay = (Unchanged, Changed);
    assert_eq!(names(&[seen("staging", overlay, false), seen("prod", overlay, true)]), "staging prod");
    assert_eq!(names(&[seen("staging", (Unchanged, Unchanged), false)]), "");
}
