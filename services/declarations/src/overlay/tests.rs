use proptest::prelude::*;

use super::*;

const DIRECTORY: &str = "deploy/overlays/prod";
const KUSTOMIZATION: &str = "\
resources: [../../base]
images:
  - name: registry:80/citation-dagster # __CITATION_IMAGE__ is elsewhere
    digest: __CITATION_IMAGE_DIGEST__
patches:
  - path: patch-s3-envfrom.yaml
";
const PATCH: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: citation }
spec:
  template:
    spec:
      containers:
        - name: grpc
          env:
            - { name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__ }
            - { name: BUCKET, value: atlas-datalake }
";
const BASE: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: citation }
spec:
  template:
    spec:
      containers:
        - { name: grpc, image: 'registry:80/citation-dagster:dev' }
        - { name: sidecar, image: 'quay.io/proxy@sha256:2eee' }
";

/// The overlay with some files replaced or added; those of the base are not its own.
fn told(changed: &[(&str, &str)]) -> String {
    let mut files = vec![
        ("deploy/overlays/prod/kustomization.yaml", KUSTOMIZATION),
        ("deploy/overlays/prod/patch-s3-envfrom.yaml", PATCH),
        ("deploy/base/kustomization.yaml", "resources: [deployment.yaml]\n"),
        ("deploy/base/deployment.yaml", BASE),
    ];
    for (path, text) in changed {
        files.retain(|(other, _)| other != path);
        files.push((path, text));
    }
    let files: Vec<File<'_>> = files
        .iter()
        .map(|(path, text)| File { path, bytes: text.as_bytes(), own: path.starts_with(DIRECTORY) })
        .collect();
    let app = AppName::parse("citation").unwrap();
    let found = findings(&app, &Placeholder::both(), DIRECTORY, &files);
    found.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

fn kustomization(from: &str, to: &str) -> String {
    assert!(KUSTOMIZATION.contains(from), "{from}");
    told(&[("deploy/overlays/prod/kustomization.yaml", &KUSTOMIZATION.replace(from, to))])
}

fn patch(from: &str, to: &str) -> String {
    assert!(PATCH.contains(from), "{from}");
    told(&[("deploy/overlays/prod/patch-s3-envfrom.yaml", &PATCH.replace(from, to))])
}

fn base(from: &str, to: &str) -> String {
    assert!(BASE.contains(from), "{from}");
    told(&[("deploy/base/deployment.yaml", &BASE.replace(from, to))])
}

#[test]
fn an_overlay_with_both_placeholders_at_their_places_is_well() {
    assert_eq!(told(&[]), "");
}

#[test]
fn every_way_to_lose_a_placeholder_is_told() {
    let nowhere = "__CITATION_IMAGE__";
    let all = [
        kustomization("    digest: __CITATION_IMAGE_DIGEST__\n", ""),
        patch(nowhere, "citation-dagster"),
        patch("DAGSTER_CURRENT_IMAGE", "DAGSTER_IMAGE"),
        patch(nowhere, "x-__CITATION_IMAGE__"),
        patch("value: atlas-datalake", "value: __CITATION_IMAGE__"),
        patch(
            "name: BUCKET, value: atlas-datalake",
            "name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__",
        ),
        patch(nowhere, "__CITATION_IMAGE_DIGEST__"),
        patch(nowhere, "__CITATOIN_IMAGE__"),
        kustomization(
            "patches:",
            "configMapGenerator: [{ name: c, literals: ['IMAGE=__CITATION_IMAGE__'] }]\npatches:",
        ),
        told(&[("deploy/overlays/prod/image.env", "# image\nIMAGE=__CITATION_IMAGE__\n")]),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
}

#[test]
fn every_value_of_a_deployment_is_told() {
    let digest = format!("sha256:{}", "2e".repeat(32));
    let all = [
        kustomization("__CITATION_IMAGE_DIGEST__", &digest),
        kustomization("digest: __CITATION_IMAGE_DIGEST__", "newTag: 0.0.0"),
        kustomization("    digest", "    newTag: dev\n    digest"),
        kustomization(
            "name: registry:80/citation-dagster",
            "name: citation-dagster\n    newName: registry:80/citation-dagster",
        ),
        kustomization("images:\n", "images:\n  - { name: postgres, newTag: '16' }\n"),
        kustomization("[../../base]", "['https://host/base?ref=v1', 'github.com/a/b']"),
        patch("__CITATION_IMAGE__", "registry:80/citation-dagster:0.0.0"),
        patch("atlas-datalake", "'http://registry:80/v2/'"),
        patch("atlas-datalake", "registry:80"),
        kustomization(
            "patches:",
            "configMapGenerator: [{ name: c, literals: ['REGISTRY=registry:80/x'] }]\npatches:",
        ),
        told(&[("deploy/overlays/prod/settings.env", "A=b\nREGISTRY=registry:80\n")]),
        patch("- name: grpc", "- name: grpc\n          image: registry:80/citation-dagster"),
        patch("- name: grpc", "- name: grpc\n          image: redis:dev"),
        patch("- name: grpc", "- name: grpc\n          image: registry:80/citation-dagster:dev"),
        base("registry:80/citation-dagster:dev", &format!("registry:80/citation-dagster@{digest}")),
        base("quay.io/proxy@sha256:2eee", "registry:80/proxy@sha256:2eee"),
        base("quay.io/proxy@sha256:2eee", "busybox"),
        base("quay.io/proxy@sha256:2eee", "busybox:1.36"),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
}

/// The kustomization with these patches as well, and the base with a file that it may name.
fn with_patches(patches: &str) -> String {
    kustomization("patches:\n", &format!("patches:\n{patches}"))
}

#[test]
fn patches_in_the_kustomization_itself_are_read_too() {
    let digest = format!("sha256:{}", "2e".repeat(32));
    let merged = "  - patch: |
      # redis:dev is not meant
      kind: Deployment
      metadata: { name: cache }
      spec: { template: { spec: { containers: [{ name: redis, image: redis:dev }] } } }
";
    let one = |operation: &str| {
        with_patches(&format!("  - target: {{ kind: Deployment }}\n    patch: |-\n      - {operation}\n"))
    };
    let image = "path: /spec/template/spec/containers/0/image";
    let variable = "path: /spec/template/spec/containers/0/env/-";
    let all = [
        with_patches(merged),
        with_patches(&merged.replace("redis:dev", &format!("registry:80/citation-dagster@{digest}"))),
        with_patches(
            "  - patch: '{\"kind\": \"Job\", \"spec\": {\"initContainers\": [{\"image\": \"redis\"}]}}'\n",
        ),
        one(&format!("{{ op: replace, {image}, value: redis:dev }}")),
        one(&format!("{{ op: replace, {image}, value: 'registry:80/citation-dagster@{digest}' }}")),
        one("{ op: add, path: /spec/template/spec/containers/-, value: { name: redis, image: redis:dev } }"),
        one(
            "{ op: add, path: /spec/template/spec/initContainers, value: [{ name: redis, image: redis:dev }] }",
        ),
        one(&format!(
            "{{ op: add, {variable}, value: {{ name: DAGSTER_CURRENT_IMAGE, value: 'citation:dev' }} }}"
        )),
        one(&format!("{{ op: add, {variable}, value: {{ name: TWICE, value: __CITATION_IMAGE__ }} }}")),
        one("{ op: add, path: /metadata/labels/from, value: registry:80 }"),
        kustomization(
            "patches:\n",
            &format!(
                "patchesStrategicMerge:\n  - |-\n    spec: {{ containers: [{{ image: redis:dev }}] }}\n  - patch-s3-envfrom.yaml\npatchesJson6902:\n  - {{ target: {{ name: x }}, patch: '[{{ op: add, {image}, value: redis:dev }}]' }}\npatches:\n"
            ),
        ),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
    let fine = [
        one(&format!("{{ op: replace, {image}, value: 'redis@{digest}' }}")),
        one(&format!("{{ op: replace, {image}, value: 'registry:80/citation-dagster' }}")),
        one("{ op: remove, path: /spec/template/spec/containers/0/image }"),
        one("{ op: add, path: /data/note, value: redis:dev }"),
    ];
    assert_eq!(fine, [""; 4]);
}

#[test]
fn manifests_and_patches_of_json_are_read_as_those_of_yaml() {
    let json = |text: &str| told(&[("deploy/base/more.json", text)]);
    let manifest = "{\n\t\"kind\": \"Job\",\n\t\"spec\": {\"containers\": [{\"image\": \"IMAGE\", \"env\": [{\"name\": \"A\", \"value\": \"VALUE\"}]}]}\n}\n";
    let patch = "[{\"op\": \"replace\", \"path\": \"/spec/template/spec/containers/0/image\", \"value\": \"redis:dev\"}]";
    let digest = format!("sha256:{}", "2e".repeat(32));
    let all = [
        json(&manifest.replace("IMAGE", "redis:dev")),
        json(&manifest.replace("IMAGE", &format!("registry:80/citation-dagster@{digest}"))),
        json(
            &manifest.replace("IMAGE", &format!("redis@{digest}")).replace("VALUE", "http://registry:80/v2/"),
        ),
        json(&manifest.replace("IMAGE", &format!("redis@{digest}")).replace("VALUE", "__CITATION_IMAGE__")),
        json(patch),
        told(&[("deploy/base/more.yaml", patch)]),
        json("{ registry:80"),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
    assert_eq!(json(&manifest.replace("IMAGE", &format!("redis@{digest}"))), "");
}

#[test]
fn a_host_is_the_registry_only_as_a_whole() {
    for other in [
        "registry:8080/x",
        "my-registry:80/x",
        "registry:80.example/x",
        "registry/x",
        "https://docs/registry/",
    ] {
        assert_eq!(patch("atlas-datalake", &format!("'{other}'")), "", "{other}");
    }
    let of_the_hub = KUSTOMIZATION.replace("registry:80/citation-dagster", "registry/citation-dagster");
    let patch = PATCH.replace("atlas-datalake", "registry/notes.txt");
    let base = BASE.replace("registry:80/citation-dagster:dev", "registry/citation-dagster");
    let changed = [
        ("deploy/overlays/prod/kustomization.yaml", of_the_hub.as_str()),
        ("deploy/overlays/prod/patch-s3-envfrom.yaml", &patch),
        ("deploy/base/deployment.yaml", &base),
    ];
    assert_eq!(told(&changed), "", "a name without a registry names none");
}

#[test]
fn somebody_elses_image_may_be_pinned_by_the_kustomization() {
    let pinned =
        KUSTOMIZATION.replace("images:\n", "images:\n  - { name: busybox, digest: 'sha256:2eee' }\n");
    let base = BASE.replace("quay.io/proxy@sha256:2eee", "busybox:1.36");
    let changed = [
        ("deploy/overlays/prod/kustomization.yaml", pinned.as_str()),
        ("deploy/base/deployment.yaml", &base),
    ];
    assert_eq!(told(&changed), "");
}

#[test]
fn what_is_no_overlay_or_no_yaml_is_told() {
    let app = AppName::parse("citation").unwrap();
    let nothing = findings(&app, &Placeholder::both(), DIRECTORY, &[]);
    let broken = kustomization("images:", "images: [");
    insta::assert_snapshot!(format!("{}\n{broken}", nothing[0]));
}

proptest! {
    #[test]
    fn no_bytes_make_the_check_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[ -~\\n]{0,120}") {
        let app = AppName::parse("citation").unwrap();
        let patch = format!("patches:\n  - patch: |2\n      {}\n", text.replace('\n', "\n      "));
        let files = [
            File { path: "o/kustomization.yaml", bytes: KUSTOMIZATION.as_bytes(), own: true },
            File { path: "o/a.yaml", bytes: text.as_bytes(), own: true },
            File { path: "o/b.yaml", bytes: &bytes, own: false },
            File { path: "o/c.env", bytes: &bytes, own: true },
            File { path: "o/d.json", bytes: text.as_bytes(), own: true },
            File { path: "o/e.json", bytes: &bytes, own: true },
            File { path: "o/p/kustomization.yaml", bytes: patch.as_bytes(), own: false },
        ];
        let _ = findings(&app, &Placeholder::both(), "o", &files);
    }
}
