use fabrique_core::app::{Chart, DeployedImage};
use fabrique_core::id::{AppName, Digest, EnvironmentName, ImageRepository, Revision};
use proptest::prelude::*;

use super::*;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn shown(channel: Channel, form: BindingForm) -> Option<String> {
    let name = (AppName::parse("a").unwrap(), EnvironmentName::parse("prod").unwrap());
    let mut composition = composition::empty(&name.0, &name.1);
    composition.image.deployed = Some(DeployedImage {
        repository: ImageRepository::parse("registry:80/app").unwrap(),
        digest: Digest::parse(&format!("sha256:{HEX}")).unwrap(),
        revision: Revision::parse(&HEX[..40]).unwrap(),
        version: None,
        build: None,
    });
    let file = RelPath::parse("x.yaml").unwrap();
    value(&Binding { channel, file, path: "x".to_owned(), form }, &composition)
}

#[test]
fn each_form_spells_the_value_its_reader_understands() {
    let image = |form| shown(Channel::Image, form).unwrap();
    assert_eq!(image(BindingForm::Digest), format!("sha256:{HEX}"));
    assert_eq!(image(BindingForm::Reference), format!("registry:80/app@sha256:{HEX}"));
    assert_eq!(image(BindingForm::KustomizeImage), format!("registry:80/app=registry:80/app@sha256:{HEX}"));
    assert_eq!(image(BindingForm::Revision), HEX[..40]);
    assert_eq!(shown(Channel::Image, BindingForm::Version), None, "nobody gave it one");
    for form in [BindingForm::Revision, BindingForm::Version] {
        assert_eq!(shown(Channel::Infra, form), None, "nothing is deployed there");
    }
}

#[test]
fn invariant_11_references_agree_by_identity() {
    let digest = format!("sha256:{HEX}");
    let reference = format!("registry:80/app@{digest}");
    let agree = |found: &str| agrees(BindingForm::Reference, found, &reference);
    assert!(agree(&reference));
    assert!(agree(&format!("registry:80/app:1.2@{digest}")), "the digest decides");
    for other in [
        format!("registry:80/app2@{digest}"),
        format!("registry:80/ap@{digest}"),
        format!("registry/app@{digest}"),
        format!("registry:81/app@{digest}"),
        format!("app@{digest}"),
        "registry:80/app:1.2".to_owned(),
        "registry:80/app".to_owned(),
        digest.clone(),
        reference.to_uppercase(),
    ] {
        assert!(!agree(&other), "{other}");
    }
    let entry = format!("registry:80/app={reference}");
    let listed = |found: &str| agrees(BindingForm::KustomizeImage, found, &entry);
    assert!(listed(&entry));
    assert!(!listed(&reference), "without the old name, entries of one registry overwrite one another");
    assert!(!listed(&format!("registry:80/app2={reference}")));
}

/// A composition that has a value for every form.
fn composition() -> Composition {
    let name = (AppName::parse("citation").unwrap(), EnvironmentName::parse("prod").unwrap());
    let mut composition = composition::empty(&name.0, &name.1);
    composition.image.deployed = Some(DeployedImage {
        repository: ImageRepository::parse("registry:80/citation").unwrap(),
        digest: Digest::parse(&format!("sha256:{HEX}")).unwrap(),
        revision: Revision::parse(&HEX[..40]).unwrap(),
        version: None,
        build: None,
    });
    let text = |text: &str| text.to_owned();
    composition.infra.chart =
        Some(Chart { repo: text("charts"), name: text("citation"), version: text("2.0.0") });
    composition
}

/// One file with its bindings filled.
fn filled(text: &str, bindings: &[(&str, BindingForm)]) -> Result<String, Refusal> {
    let file = RelPath::parse("file.yaml").unwrap();
    let bindings: Vec<Binding> = bindings
        .iter()
        .map(|(path, form)| Binding {
            channel: if *form == BindingForm::Version { Channel::Infra } else { Channel::Image },
            file: file.clone(),
            path: (*path).to_owned(),
            form: *form,
        })
        .collect();
    let directory = RelPath::parse("apps/citation/prod").unwrap();
    let place = directory.join(&file);
    let tree: Tree = [(place.clone(), crate::tree::Entry::regular(text.to_owned()))].into_iter().collect();
    let files = fill(&bindings, &directory, &composition(), &tree)?;
    Ok(String::from_utf8(files[&place].to_vec()).unwrap())
}

/// Fills the marked places, whose old values stand between `<` and `>`, and expects every other byte unchanged.
fn golden(marked: &str, bindings: &[(&str, BindingForm, &str)]) {
    let (mut before, mut after, mut values) = (String::new(), String::new(), bindings.iter());
    for (index, part) in marked.split(['<', '>']).enumerate() {
        before.push_str(part);
        after.push_str(if index % 2 == 0 { part } else { values.next().unwrap().2 });
    }
    let places: Vec<(&str, BindingForm)> = bindings.iter().map(|(path, form, _)| (*path, *form)).collect();
    assert_eq!(filled(&before, &places).unwrap(), after);
    assert_eq!(filled(&after, &places).unwrap(), after, "a second time changes nothing");
}

fn digest() -> String {
    format!("sha256:{HEX}")
}

fn reference() -> String {
    format!("registry:80/citation@sha256:{HEX}")
}

#[test]
fn a_kustomization_of_several_images() {
    golden(
        "# kept\r\nresources: [ base ]\r\nimages:\r\n- {name: registry:80/citation-eu, digest: sha256:other}\r\n- name: registry:80/citation # ours\r\n  digest: <__CITATION_IMAGE_DIGEST__>   # filled\r\n",
        &[("images[name=registry:80/citation].digest", BindingForm::Digest, &digest())],
    );
}

#[test]
fn an_application_of_argo_cd_whose_entries_share_a_registry() {
    let entry = format!("registry:80/citation={}", reference());
    let application = |ours: &str| {
        format!(
            "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  source:\n    kustomize:\n      images:\n        - registry:80/citation-eu=registry:80/citation-eu@sha256:00\n        - {ours} # ours\n      patches:\n        - {{ target: {{ kind: Deployment }}, patch: '[]' }}\n"
        )
    };
    let path = "spec.source.kustomize.images[~registry:80/citation]";
    for ours in ["<registry:80/citation:0.0.0>", "<registry:80/citation>", "<registry:80/citation@sha256:00>"]
    {
        golden(&application(ours), &[(path, BindingForm::KustomizeImage, &entry)]);
    }
    let plain = filled(
        &application("registry:80/citation-old=registry:80/citation@sha256:00"),
        &[(path, BindingForm::KustomizeImage)],
    );
    assert!(plain.unwrap().contains(&format!("- {entry} # ours")), "always name=name@digest");
}

#[test]
fn a_helm_release_of_flux_with_its_chart() {
    golden(
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: { name: citation }\nspec:\n  chart:\n    spec:\n      chart: citation\n      version: '<1.0.0>'   # the infra channel\n      sourceRef: { kind: HelmRepository, name: charts }\n  values:\n    image: { repository: registry:80/citation, digest: \"<none>\" }\n    runs:\n      image: <registry:80/citation:0.0.0>\n",
        &[
            ("spec.chart.spec.version", BindingForm::Version, "2.0.0"),
            ("spec.values.image.digest", BindingForm::Digest, &digest()),
            ("spec.values.runs.image", BindingForm::Reference, &reference()),
        ],
    );
}

#[test]
fn values_of_helm_with_a_byte_order_mark() {
    golden(
        "\u{feff}# Werte für citation\nreplicaCount: 2\nimage:\n    repository: registry:80/citation\n    digest:    <\"sha256:00\">\nannotations:\n    app.kubernetes.io/revision: <none>\n",
        &[
            ("image.digest", BindingForm::Digest, &format!("\"{}\"", digest())),
            ("annotations[\"app.kubernetes.io/revision\"]", BindingForm::Revision, &HEX[..40]),
        ],
    );
}

#[test]
fn any_scalar_of_a_file_of_several_documents() {
    golden(
        "kind: CronJob\nmetadata: { name: sweep }\nspec: { image: <a> }\n---\n# second\nkind: CronJob\nmetadata: { name: tidy }\nspec: { image: keep }\n--- # third\n- [x, '<y>']\n...\n",
        &[
            ("(kind=CronJob,metadata.name=sweep)spec.image", BindingForm::Reference, &reference()),
            ("(2)[0][1]", BindingForm::Digest, &digest()),
        ],
    );
}

#[test]
fn what_cannot_be_filled_is_refused_with_its_place_and_a_remedy() {
    let refused = |text: &str, path: &str, form| filled(text, &[(path, form)]).unwrap_err().to_string();
    let all = [
        refused("image: null\n", "image", BindingForm::Reference),
        refused("image: |\n  registry:80/citation\n", "image", BindingForm::Reference),
        refused("image: registry:80/\n  citation\n", "image", BindingForm::Reference),
        refused("a: &x here\nb: *x\n", "a", BindingForm::Digest),
        refused("a: &x here\nb: *x\n", "b", BindingForm::Digest),
        refused("a: !!str here\n", "a", BindingForm::Digest),
        refused(
            "images: [{ name: a, digest: x }, { name: a, digest: y }]\n",
            "images[name=a].digest",
            BindingForm::Digest,
        ),
        refused("image: x\n---\nimage: y\n", "image", BindingForm::Reference),
        refused("image: { digets: x }\n", "image.digest", BindingForm::Digest),
        refused("image: { digest: {} }\n", "image.digest", BindingForm::Digest),
        refused("image: [x\n", "image[0]", BindingForm::Digest),
        refused("image: x\nimage: y\n", "image", BindingForm::Reference),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

proptest! {
    #[test]
    fn no_bytes_make_filling_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "[ -~\\n]{0,80}") {
        for content in [text.into_bytes(), bytes] {
            let content = String::from_utf8_lossy(&content).into_owned();
            for path in ["a", "images[0].digest", "images[~a]", "(1)[0]"] {
                let _ = filled(&content, &[(path, BindingForm::Reference)]);
            }
        }
    }
}
