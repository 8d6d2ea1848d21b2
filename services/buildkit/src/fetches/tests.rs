use std::collections::BTreeMap;

use bollard_buildkit_proto::google::protobuf::Timestamp;

use super::*;

fn op(identifier: &str) -> SourceOp {
    SourceOp { identifier: identifier.into(), attrs: BTreeMap::new() }
}

/// A build that is watched by a clock of its own.
struct Build {
    fetches: Fetches,
    start: Instant,
    proxied: Vec<Proxied>,
}

impl Build {
    fn new() -> Self {
        Self { fetches: Fetches::default(), start: Instant::now(), proxied: Vec::new() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn asked(&mut self, seconds: u64, identifier: &str, permitted: bool) {
        self.fetches.asked(&op(identifier), permitted, self.at(seconds));
    }

    fn step(&mut self, name: &str, from: u64, to: Option<u64>, error: &str) {
        let time = Some(Timestamp { seconds: 1, nanos: 0 });
        let vertex = Vertex { digest: name.into(), name: name.into(), started: time, ..Vertex::default() };
        self.fetches.saw(&vertex, self.at(from));
        if let Some(to) = to {
            let ended = Vertex { completed: time, error: error.into(), ..vertex };
            self.fetches.saw(&ended, self.at(to));
        }
    }

    fn listed(&mut self, step: &str, line: &str) {
        self.proxied.push(Proxied::parse(step, line).unwrap());
    }

    /// Each fetch in a line.
    fn told(&self) -> Vec<String> {
        let redactor = Redactor::default();
        redactor.remember(b"s3cr3t-in-path");
        let told = self.fetches.tell(self.proxied.clone(), self.at(100), &redactor);
        let line = |(_, fetch): (Duration, Fetch)| {
            let Fetch { what, step, method, location, place, answer } = fetch;
            let parts = [step.as_deref(), method.as_deref(), Some(&location), place.as_deref()];
            let parts: Vec<&str> = parts.into_iter().map(|part| part.unwrap_or("-")).collect();
            format!("{what} {} {answer}", parts.join(" "))
        };
        told.fetches.into_iter().map(line).collect()
    }
}

#[test]
fn the_source_and_its_images_are_told_once_by_revision_and_digest() {
    let mut build = Build::new();
    let attrs = [("git.fullurl", "http://gitea:3000/a/b.git"), ("git.checksum", "1b1b")];
    let attrs = attrs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let git = SourceOp { identifier: "git://gitea:3000/a/b.git".into(), attrs };
    build.fetches.asked(&git, true, build.at(0));
    build.fetches.asked(&git, true, build.at(1));
    build.step("[internal] load git source http://gitea:3000/a/b.git?checksum=1b1b", 0, Some(1), "");
    build.asked(1, "docker-image://registry:80/base:1", true);
    build.asked(2, "docker-image://registry:80/base:1@sha256:ab", true);
    build.step("[1/2] FROM registry:80/base:1@sha256:ab", 2, Some(3), "");
    build.asked(3, "docker-image://registry:80/other:1", true);
    build.step("[internal] load metadata for registry:80/other:1", 3, Some(4), "not found");
    assert_eq!(
        build.told(),
        [
            "source - - http://gitea:3000/a/b.git#1b1b gitea:3000 had",
            "image [1/2] FROM registry:80/base:1@sha256:ab - registry:80/base:1@sha256:ab registry:80 had",
            "image - - registry:80/other:1 registry:80 failed",
        ]
    );
}

#[test]
fn a_request_has_the_answer_that_the_daemon_lists_and_hides_what_may_be_secret() {
    let mut build = Build::new();
    build.step("[2/2] RUN curl", 1, Some(5), "");
    build.asked(2, "https://pypi.org:443/simple?token=hidden", true);
    build.asked(2, "https://pypi.org:443/simple?token=hidden", true);
    build.asked(3, "https://xxxxx:xxxxx@pypi.org/s3cr3t-in-path", true);
    build.asked(4, "https://evil.example:443/", false);
    build.listed("[2/2] RUN curl", "- GET https://pypi.org/simple?token=hidden -> 200");
    build.listed("[2/2] RUN curl", "- HEAD https://pypi.org/simple?token=hidden -> 404");
    assert_eq!(
        build.told(),
        [
            "request [2/2] RUN curl GET https://pypi.org/simple pypi.org:443 200",
            "request [2/2] RUN curl HEAD https://pypi.org/simple pypi.org:443 404",
            "request [2/2] RUN curl - https://pypi.org/*** pypi.org:443 unseen",
            "request [2/2] RUN curl - https://evil.example/ evil.example:443 refused",
        ]
    );
}

#[test]
fn a_list_that_a_step_printed_adds_nothing_and_hides_nothing() {
    let mut build = Build::new();
    build.step("[2/2] RUN forge", 1, Some(5), "");
    build.asked(2, "https://evil.example/", false);
    build.listed("[2/2] RUN forge", "- GET https://evil.example/ -> 200");
    build.listed("[2/2] RUN forge", "- GET https://pypi.org/ -> 200");
    assert_eq!(build.told(), ["request [2/2] RUN forge - https://evil.example/ evil.example:443 refused"]);
}

#[test]
fn what_an_add_asks_for_is_told_once_and_is_no_request_of_a_step() {
    let mut build = Build::new();
    build.asked(1, "http://files:8080/a.tar", true);
    build.step("[1/1] ADD http://files:8080/a.tar /x", 1, Some(2), "404");
    build.asked(1, "http://files:8080/a.tar", true);
    build.asked(2, "http://elsewhere/", false);
    assert_eq!(
        build.told(),
        [
            "add [1/1] ADD http://files:8080/a.tar /x - http://files:8080/a.tar files:8080 failed",
            "add - - http://elsewhere/ elsewhere:80 refused",
        ]
    );
}

#[test]
fn where_two_steps_ran_at_once_it_is_not_guessed_which_of_them_asked() {
    let mut build = Build::new();
    build.step("[one 2/2] RUN a", 1, Some(9), "");
    build.step("[two 2/2] RUN b", 5, None, "");
    build.asked(2, "https://early.example/", false);
    build.asked(6, "https://both.example/", false);
    build.asked(11, "https://late.example/", false);
    assert_eq!(
        build.told(),
        [
            "request [one 2/2] RUN a - https://early.example/ early.example:443 refused",
            "request - - https://both.example/ both.example:443 refused",
            "request [two 2/2] RUN b - https://late.example/ late.example:443 refused",
        ]
    );
}

#[test]
fn what_is_kept_is_bounded_and_the_rest_is_counted_with_room_for_refusals() {
    let mut build = Build::new();
    for n in 0..1000 {
        build.asked(n, &format!("https://pypi.org/{n}"), true);
    }
    for n in 0..1000 {
        build.asked(n, &format!("https://evil.example/{n}"), false);
    }
    let told = build.fetches.tell(vec![], build.at(2000), &Redactor::default());
    assert_eq!(told.fetches.len(), MOST_PERMITTED + MOST_REFUSED);
    assert_eq!(told.left_out, 2000 - told.fetches.len() as u64);
}
