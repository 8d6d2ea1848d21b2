//! Builds that succeed, and what they answer.

use std::time::Instant;

use fabrique_bed::Bed;
use fabrique_ports::builder::Builder;

use crate::support::{Source, builder, daemon, pushed};

#[tokio::test]
async fn a_private_repository_builds_and_the_digest_is_the_registrys() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let request =
        source.dockerfile(&format!("FROM {}\nRUN echo hello-$((40+2))\n", bed.registry().busybox())).await;
    let builder = builder(bed);
    eprintln!("{:?}", builder.probe(&daemon(bed.buildkit(0))).await.unwrap());
    let (digest, recorder) = pushed(&builder, bed.buildkit(0), &request).await;
    eprintln!("{}", recorder.text());
    assert!(recorder.logged("hello-42"));
    let answered = bed.registry().digest(request.image.name(), digest.as_str()).await.unwrap();
    assert_eq!(answered.as_deref(), Some(digest.as_str()));
    for _ in 0..5 {
        let start = Instant::now();
        let (again, _) = pushed(&builder, bed.buildkit(0), &request).await;
        eprintln!("unchanged: {:?}", start.elapsed());
        assert_eq!(again, digest);
    }
}
