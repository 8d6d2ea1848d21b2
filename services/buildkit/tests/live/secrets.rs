//! What a build may know, and what nobody may see.

use fabrique_bed::Bed;
use fabrique_buildkit::BuildkitBuilder;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::SecretName;

use crate::support::{Source, config, failed, pushed};

const VALUE: &str = "correct-horse-battery";

fn builder(bed: &Bed, dir: &std::path::Path) -> BuildkitBuilder {
    for (app, name, value) in [
        ("citation", "pypi", VALUE),
        ("citation", "unlisted", "unlisted-value"),
        ("other", "theirs", "their-value"),
    ] {
        std::fs::create_dir_all(dir.join(app)).unwrap();
        std::fs::write(dir.join(app).join(name), value).unwrap();
    }
    let mut config = config(bed);
    config.secrets_dir = Some(dir.to_owned());
    BuildkitBuilder::new(config).unwrap()
}

#[tokio::test]
async fn a_secret_is_mounted_by_name_and_its_value_never_shown() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dir = tempfile::tempdir().unwrap();
    let dockerfile = format!(
        "FROM {}\nRUN --mount=type=secret,id=pypi,required=true wc -c < /run/secrets/pypi; cat /run/secrets/pypi; \
         cat /run/secrets/pypi >&2; base64 /run/secrets/pypi; exit 3\n",
        bed.registry().busybox()
    );
    let mut request = source.dockerfile(&dockerfile).await;
    request.inputs.secrets = vec![SecretName::parse("pypi").unwrap()];
    let (failure, recorder) = failed(&builder(bed, dir.path()), bed.buildkit(0), &request).await;
    assert!(recorder.logged(&VALUE.len().to_string()), "{}", recorder.text());
    assert!(recorder.text().contains("***"), "{}", recorder.text());
    assert!(failure.message.contains("exit code 3"), "{failure:?}");
    let shown = format!("{failure:?} {}", recorder.text());
    assert!(!shown.contains("horse") && !shown.contains("Y29ycmVj"), "{shown}");
}

#[tokio::test]
async fn a_secret_that_is_not_this_builds_is_not_answered() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dir = tempfile::tempdir().unwrap();
    for foreign in ["unlisted", "theirs", "GIT_AUTH_TOKEN", "..%2fother%2ftheirs"] {
        let dockerfile = format!(
            "FROM {}\nRUN --mount=type=secret,id={foreign},required=true cat /run/secrets/*\n",
            bed.registry().busybox()
        );
        let mut request = source.dockerfile(&dockerfile).await;
        request.inputs.secrets = vec![SecretName::parse("pypi").unwrap()];
        let (failure, recorder) = failed(&builder(bed, dir.path()), bed.buildkit(0), &request).await;
        assert_eq!(failure.kind, FailureKind::Source, "{foreign}: {failure:?}");
        assert!(failure.message.contains("not found"), "{foreign}: {failure:?}");
        assert!(!recorder.text().contains("-value"), "{}", recorder.text());
    }
}

#[tokio::test]
async fn the_git_token_stays_hidden_even_from_a_build_that_prints_it() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let host = bed.gitea().base_url().replace("http://", "");
    let dockerfile = format!(
        "FROM {}\nRUN --mount=type=secret,id=GIT_AUTH_TOKEN.{host},target=/t,required=true cat /t; exit 1\n",
        bed.registry().busybox()
    );
    let request = source.dockerfile(&dockerfile).await;
    let builder = BuildkitBuilder::new(config(bed)).unwrap();
    let (failure, recorder) = failed(&builder, bed.buildkit(0), &request).await;
    let shown = format!("{failure:?} {}", recorder.text());
    assert!(shown.contains("***") && !shown.contains(bed.gitea().admin_token()), "{shown}");
}

#[tokio::test]
async fn an_organisation_has_its_own_token_and_a_wrong_one_does_not_open_its_sources() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    let mut right = config(bed);
    right.git_token = Some("0000000000000000000000000000000000000000".into());
    let wrong = BuildkitBuilder::new(right.clone()).unwrap();
    let (failure, _) = failed(&wrong, bed.buildkit(0), &request).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    right.git_tokens.insert(source.org.to_uppercase(), bed.gitea().admin_token().into());
    pushed(&BuildkitBuilder::new(right).unwrap(), bed.buildkit(0), &request).await;
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_infrastructure() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dir = tempfile::tempdir().unwrap();
    let builder = builder(bed, dir.path());
    std::fs::create_dir(dir.path().join("citation/broken")).unwrap();
    let dockerfile =
        format!("FROM {}\nRUN --mount=type=secret,id=broken,required=true true\n", bed.registry().busybox());
    let mut request = source.dockerfile(&dockerfile).await;
    request.inputs.secrets = vec![SecretName::parse("broken").unwrap()];
    let (failure, _) = failed(&builder, bed.buildkit(0), &request).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("secret broken cannot be read"), "{failure:?}");
}
