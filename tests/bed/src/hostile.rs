//! What a hostile Dockerfile does in its RUN steps. Each step attacks one thing and says what came of it, so that a
//! test can tell a wall from an attempt that was none. Steps are written for bash and run as root on
//! [`crate::Images::debian`].

use std::fmt::{self, Write as _};

/// Everything in the cluster's network that must be closed to builds: the API server by node and by Service, etcd, a
/// kubelet, NATS, Argo CD's address, the node itself, link-local metadata, an outside host that is not listed, and one
/// that is listed for another port.
pub const CLOSED: [&str; 10] = [
    "198.18.0.11:6443",
    "198.19.0.1:443",
    "198.18.0.11:2379",
    "198.18.0.12:10250",
    "198.18.0.4:4222",
    "198.18.0.5:8080",
    "198.18.0.12:22",
    "169.254.169.254:80",
    "198.19.255.11:443",
    "198.19.255.10:80",
];

/// A RUN step; shown as its line in a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    mounts: String,
    command: String,
}

impl Step {
    /// A step of this command.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self { mounts: String::new(), command: command.into() }
    }

    /// What it runs.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    fn with_mount(mut self, mount: &str) -> Self {
        // Writing to a String does not fail.
        let _ = write!(self.mounts, "--mount={mount} ");
        self
    }

    /// The same, and then another in the same step.
    #[must_use]
    pub fn and(self, next: &Self) -> Self {
        Self { mounts: self.mounts + &next.mounts, command: format!("{}; {}", self.command, next.command) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RUN {}{}", self.mounts, self.command)
    }
}

/// A Dockerfile of such steps.
#[must_use]
pub fn dockerfile(base: &str, steps: &[Step]) -> String {
    let mut text = format!("FROM {base}\nUSER 0\nSHELL [\"/bin/bash\", \"-c\"]\n");
    for step in steps {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{step}");
    }
    text
}

/// What the lines say that begin with this word.
pub fn said<'a>(output: &'a str, word: &str) -> Vec<&'a str> {
    let rest = |line: &'a str| line.strip_prefix(word)?.strip_prefix(' ');
    output.lines().filter_map(rest).collect()
}

/// Looks at all processes: `sees NAME` for each.
#[must_use]
pub fn look_at_processes() -> Step {
    Step::new("for at in /proc/[0-9]*; do echo \"sees $(cat $at/comm 2>/dev/null)\"; done")
}

/// Ends every process that it may, and then says `done`.
#[must_use]
pub fn kill_everything() -> Step {
    Step::new("kill -9 -1; echo done")
}

/// Ends the daemon, if it sees one, and waits for what comes of it.
#[must_use]
pub fn kill_the_daemon() -> Step {
    Step::new(
        "for at in /proc/[0-9]*; do \
         [ \"$(cat $at/comm)\" = buildkitd ] && kill -9 ${at#/proc/}; done; sleep 30",
    )
}

/// Looks for keys and for the daemon's folders, mounts and makes a device: `finds` and what, for each that works out,
/// and `searched`.
#[must_use]
pub fn search() -> Step {
    Step::new(
        "{ grep -rls 'PRIVATE KEY' / --exclude-dir={proc,sys,dev,usr}; \
         ls -d /etc/fabrique /run/buildkit /var/lib/buildkit /var/run/secrets; \
         mount -t proc proc /mnt && echo a mount; mknod /dev/mine b 8 0 && echo a device; } | \
         sed 's/^/finds /'; echo searched",
    )
}

/// Looks for the daemon's key behind the processes that it sees: `keys` and how many it could read.
#[must_use]
pub fn search_processes() -> Step {
    Step::new(
        "echo \"keys $(cat /proc/[0-9]*/root/etc/fabrique/tls/tls.key 2>/dev/null | grep -c 'PRIVATE KEY')\"",
    )
}

/// Starts processes without end for a while, and fails.
#[must_use]
pub fn fork_bomb() -> Step {
    Step::new("timeout -s KILL 20 bash -c 'while :; do sleep 15 & done' 2>&1 | tail -1; exit 3")
}

/// Uses a GiB of memory.
#[must_use]
pub fn eat_memory() -> Step {
    Step::new("x=$(head -c 1G /dev/zero | tr '\\0' a); sleep 1")
}

/// Fills the disk with this many MiB, and waits for what comes of it.
#[must_use]
pub fn fill_the_disk(mebibytes: u32) -> Step {
    Step::new(format!("head -c {mebibytes}M /dev/zero > /large; sync; sleep 120"))
}

/// Reads the git token for this host: `token` and its SHA-256.
#[must_use]
pub fn read_token(host: &str) -> Step {
    Step::new("sha256sum < /token | sed 's/^/token /'")
        .with_mount(&format!("type=secret,id=GIT_AUTH_TOKEN.{host},target=/token"))
}

/// Leaves a file in the cache mount of this id, and says `left`.
#[must_use]
pub fn leave_in_cache(id: &str) -> Step {
    in_cache(id, "echo mine > /cache/mine; echo left")
}

/// Looks into the cache mount of this id: `found NAME` for each file, and `looked`.
#[must_use]
pub fn look_into_cache(id: &str) -> Step {
    in_cache(id, "ls /cache | sed 's/^/found /'; echo looked")
}

fn in_cache(id: &str, command: &str) -> Step {
    Step::new(command).with_mount(&format!("type=cache,id={id},target=/cache"))
}

/// Knocks at each address: `open ADDRESS` for those that let it in, and `knocked`.
#[must_use]
pub fn knock(addresses: &[&str]) -> Step {
    Step::new(format!(
        "for at in {}; do \
         timeout 2 bash -c 'exec 3<>/dev/tcp/${{0%:*}}/${{0##*:}}' \"$at\" 2>/dev/null && echo \"open $at\"; \
         done; echo knocked",
        addresses.join(" ")
    ))
}

/// Pushes an image of nothing over a tag of a repository: `forged` and the registry's answer, 000 for none.
#[must_use]
pub fn forge_tag(registry: &str, repository: &str, tag: &str) -> Step {
    const NOTHING: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let at = format!("{registry}/v2/{repository}");
    let config = format!(r#""mediaType":"application/vnd.oci.empty.v1+json","digest":"{NOTHING}","size":2"#);
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{{config}}},"layers":[{{{config}}}]}}"#
    );
    let curl = "curl --silent --max-time 10";
    let put = "--output /dev/null --request PUT --header";
    Step::new(format!(
        "upload=$({curl} --include --request POST {at}/blobs/uploads/ | tr -d '\\r' | \
         sed -n 's/^[Ll]ocation: //p'); \
         {curl} {put} 'content-type: application/octet-stream' --data-binary '{{}}' \
         \"${{upload:-{at}/blobs/uploads/none?none=}}&digest={NOTHING}\"; \
         {curl} {put} 'content-type: {MANIFEST}' --data-binary '{manifest}' \
         --write-out 'forged %{{http_code}}\\n' {at}/manifests/{tag}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_one_keep_their_mounts() {
        let both = look_into_cache("a").and(&Step::new("true"));
        let text = dockerfile("base", &[both]);
        assert!(text.ends_with(
            "RUN --mount=type=cache,id=a,target=/cache ls /cache | sed 's/^/found /'; echo looked; true\n"
        ));
    }

    #[test]
    fn what_is_said_begins_with_its_word() {
        assert_eq!(said("open a:1\nopened b\nopen c:2\nknocked", "open"), ["a:1", "c:2"]);
    }
}
