use super::*;

#[test]
fn a_next_tree_has_only_those_applications_read_that_changed() {
    let before = tree(["a", "b", "c"].into_iter().flat_map(plain));
    let before = written(&before, &rendered(&before, &needs(&[("c", &["b"])])));
    let known = Standing::of(&before);
    assert_eq!((known.files_read(), known.on(&before).files_read()), (4, 0), "three, and the root");
    let broken = with(&before, &[("applications/a-prod.yaml", MARK), ("applications/d.yaml", "kind: X\n")]);
    let next = known.on(&broken);
    assert_eq!(next.files_read(), 2);
    assert_eq!(next.present(), Standing::of(&broken).present());
    assert!(
        next.is_by_hand(&path("applications/d.yaml")) && !next.is_by_hand(&path("applications/a-prod.yaml"))
    );
    let gone: Tree = before
        .iter()
        .filter(|(path, _)| path.as_str().starts_with("apps/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    assert!(known.on(&gone).present().is_empty());
}
