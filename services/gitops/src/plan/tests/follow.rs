use super::*;

const COMPOSITION: &str = "apps/citation/prod/composition.yaml";
const FILE: &str = "apps/citation/prod/patch.yaml";

/// `prod` with this image and the overlay of this revision.
fn deployed(image: char, infra: char) -> Tree {
    let tree = applied(&start(), deploy(&start(), "prod", image));
    applied(&tree, advance(&tree, infra))
}

/// A person's edit of a file of `tree`.
fn edited(tree: &Tree, file: &str, edits: &[(String, String)]) -> Tree {
    let before = text(tree, file);
    let after = edits.iter().fold(before.clone(), |text, (from, to)| text.replace(from, to));
    assert_ne!(before, after);
    with(tree, file, &after)
}

fn digest(from: char, to: char) -> (String, String) {
    (image(from).digest.to_string(), image(to).digest.to_string())
}

fn source(from: char, to: char) -> (String, String) {
    (format!("revision: {}", revision(from)), format!("revision: {}", revision(to)))
}

fn lag_of(tree: &Tree, then: &Tree) -> Option<Lag> {
    lag(tree, &app(), &name("prod"), text(then, COMPOSITION).as_bytes()).unwrap()
}

fn agrees(tree: &Tree) -> bool {
    observe(tree, &app()).iter().all(|seen| matches!(seen.bindings, Bindings::Agree))
}

#[test]
fn an_edited_composition_is_followed_by_its_bindings_once() {
    let then = deployed('a', 'c');
    assert_eq!(lag_of(&then, &then), None);
    let tree = edited(&then, COMPOSITION, &[digest('a', 'b'), source('a', 'b')]);
    assert_eq!(lag_of(&tree, &then), Some(Lag { image: true, copy: None }));
    let plan = follow(&tree, &app(), &name("prod"), None);
    let message = &plan.as_ref().unwrap().as_ref().unwrap().message;
    assert!(message.to_string().starts_with("Follow the composition of citation in prod\n"), "{message}");
    let after = applied(&tree, plan);
    assert!(agrees(&after) && text(&after, FILE).contains(image('b').digest.as_str()));
    assert_eq!(text(&after, COMPOSITION), text(&tree, COMPOSITION), "the person's words stay");
    assert_eq!(follow(&after, &app(), &name("prod"), None), Ok(None));
    assert_eq!(lag_of(&after, &after), None);
}

#[test]
fn another_revision_of_the_overlay_is_copied_anew_and_filled() {
    let then = deployed('a', 'c');
    let tree = edited(&then, COMPOSITION, &[source('c', 'd')]);
    assert_eq!(lag_of(&tree, &then), Some(Lag { image: false, copy: Some(infra('d')) }));
    let newer = overlay_of(&[
        ("kustomization.yaml", KUSTOMIZATION),
        ("patch.yaml", PATCH),
        ("more.yaml", "kind: ConfigMap\n"),
    ]);
    let after = applied(&tree, follow(&tree, &app(), &name("prod"), Some(&newer)));
    assert!(agrees(&after) && text(&after, FILE).contains(image('a').digest.as_str()));
    assert_eq!(text(&after, "apps/citation/prod/more.yaml"), "kind: ConfigMap\n");
    assert_eq!(text(&after, COMPOSITION), text(&tree, COMPOSITION));
}

#[test]
fn what_a_person_edited_in_a_file_waits_for_a_person_whatever_the_composition_says() {
    let then = deployed('a', 'c');
    let by_hand = edited(&then, FILE, &[digest('a', 'f')]);
    assert_eq!(lag_of(&by_hand, &then), None, "the composition says what it said");
    let both = edited(&by_hand, COMPOSITION, &[digest('a', 'b'), source('a', 'b')]);
    assert_eq!(lag_of(&both, &then), None, "the file does not show what the composition said");
    // Nor does a composition that was broken meanwhile say anything.
    assert_eq!(lag(&both, &app(), &name("prod"), b"kind: ["), Ok(None));
    let bare = deploy(&start(), "prod", 'a');
    let bare = applied(&start(), bare);
    assert_eq!(lag_of(&bare, &bare), None, "nothing was copied yet");
}
