//! How git is started: nothing inherited, nothing from configuration files, one token at most.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::process::Command;

use crate::config::GitConfig;
use crate::error::GitError;
use crate::remote::Remote;
use crate::run::{Stopped, run};

/// Characters of git's messages that go into an error.
const SHOWN: usize = 400;

/// Starts git.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    settings: Arc<Vec<(String, String)>>,
    search_path: OsString,
    home: PathBuf,
}

impl Git {
    pub(crate) fn new(config: &GitConfig) -> Self {
        let mut settings: Vec<(String, String)> = [
            ("core.hooksPath", "/dev/null"),
            ("core.fsmonitor", "false"),
            // A clone that a power cut damaged is made again; what must last is on the forge.
            ("core.fsync", "none"),
            ("core.useReplaceRefs", "false"),
            ("core.logAllRefUpdates", "false"),
            ("credential.helper", ""),
            ("fastimport.unpackLimit", "100"),
            ("fetch.unpackLimit", "100"),
            ("gc.auto", "0"),
            ("http.followRedirects", "false"),
            // A peer that sends nothing for half a minute is gone.
            ("http.lowSpeedLimit", "1"),
            ("http.lowSpeedTime", "30"),
            ("maintenance.auto", "false"),
            ("protocol.allow", "never"),
            ("protocol.http.allow", "always"),
            ("protocol.https.allow", "always"),
            ("protocol.version", "2"),
            // Volumes are often owned by another user; whoever may write here may run fabrique anyway.
            ("safe.directory", "*"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if config.allow_file {
            settings.push(("protocol.file.allow".to_owned(), "always".to_owned()));
        }
        if let Some(file) = &config.ca_file {
            settings.push(("http.sslCAInfo".to_owned(), file.to_string_lossy().into_owned()));
        }
        Self {
            settings: Arc::new(settings),
            search_path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
            home: config.state_dir.clone(),
        }
    }

    /// A call of git with these arguments; the first is the subcommand.
    pub(crate) fn call<'a>(&'a self, args: &[&str]) -> Call<'a> {
        Call {
            git: self,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            repository: None,
            remote: None,
            input: Bytes::new(),
            timeout: Duration::from_secs(30),
            limit: 1 << 20,
            literal: true,
        }
    }
}

/// One call of git, to be run.
#[derive(Debug, Clone)]
pub(crate) struct Call<'a> {
    git: &'a Git,
    args: Vec<String>,
    repository: Option<&'a Path>,
    remote: Option<&'a Remote>,
    input: Bytes,
    timeout: Duration,
    limit: u64,
    literal: bool,
}

impl<'a> Call<'a> {
    /// In this bare repository.
    pub(crate) fn at(mut self, repository: &'a Path) -> Self {
        self.repository = Some(repository);
        self
    }

    /// With this remote's credentials.
    pub(crate) fn with(mut self, remote: &'a Remote) -> Self {
        self.remote = Some(remote);
        self
    }

    pub(crate) fn input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = input.into();
        self
    }

    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// At most so many bytes of output.
    pub(crate) fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Paths may begin with `:(…)`, which says how they are meant; otherwise each is taken letter for letter.
    pub(crate) fn pathspecs(mut self) -> Self {
        self.literal = false;
        self
    }

    /// Runs it; any exit code is an answer.
    pub(crate) async fn run(&self) -> Result<Output, GitError> {
        let name = self.name();
        let finished = run(self.command(), self.input.clone(), self.timeout, self.limit).await;
        let finished = finished.map_err(|stopped| match stopped {
            Stopped::Io(source) => GitError::Run { command: name.clone(), source },
            Stopped::TimedOut => GitError::TimedOut { command: name.clone(), after: self.timeout },
            Stopped::TooMuch => GitError::TooMuchOutput { command: name.clone(), limit: self.limit },
        })?;
        Ok(Output {
            command: name,
            code: finished.status.code(),
            stdout: finished.stdout.into(),
            stderr: String::from_utf8_lossy(&finished.stderr).into_owned(),
        })
    }

    /// Runs it; anything but 0 is an error.
    pub(crate) async fn output(&self) -> Result<Output, GitError> {
        let output = self.run().await?;
        if output.succeeded() { Ok(output) } else { Err(output.failure()) }
    }

    fn name(&self) -> String {
        self.args.first().cloned().unwrap_or_default()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        command.args(&self.args).env_clear().current_dir(&self.git.home);
        command.env("PATH", &self.git.search_path);
        // Without a home of its own curl would look for a .netrc in the user's.
        command.env("HOME", &self.git.home).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        let literal = if self.literal { "1" } else { "0" };
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_LITERAL_PATHSPECS", literal);
        if let Some(repository) = self.repository {
            command.env("GIT_DIR", repository);
        }
        let header = self.remote.and_then(Remote::setting);
        let settings = self.git.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let header = header.as_ref().map(|(key, value)| (key.as_str(), value.as_str()));
        let mut count = 0;
        for (key, value) in settings.chain(header) {
            command.env(format!("GIT_CONFIG_KEY_{count}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command
    }
}

/// What git answered.
#[derive(Debug)]
pub(crate) struct Output {
    command: String,
    /// Nothing when a signal ended it.
    code: Option<i32>,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: String,
}

impl Output {
    pub(crate) fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// The error that this output is, sorted by what the forge said if it was asked.
    pub(crate) fn failure(&self) -> GitError {
        let said = shown(&self.stderr);
        match answer(&self.stderr) {
            Answer::Unreachable => GitError::Unreachable(said),
            Answer::Refused => GitError::Refused(said),
            Answer::DiskFull => GitError::DiskFull { command: self.command.clone() },
            Answer::Other => GitError::Failed { command: self.command.clone(), said },
        }
    }
}

/// Who is to blame for a failed conversation with the forge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No connection, a connection cut off, or a server error.
    Unreachable,
    /// 401, 403, 404, 410 or 423.
    Refused,
    /// Not the forge: there was no room for what it sent.
    DiskFull,
    /// Something else.
    Other,
}

/// Reads git's messages, for which there is no other source: a failed fetch ends with 128 whatever happened.
pub(crate) fn answer(stderr: &str) -> Answer {
    const UNREACHABLE: [&str; 8] = [
        "Failed to connect",
        "Could not resolve host",
        "Connection timed out",
        "Connection refused",
        "Recv failure",
        "Empty reply from server",
        "the remote end hung up unexpectedly",
        "early EOF",
    ];
    const REFUSED: [&str; 3] = ["could not read Username", "Authentication failed", "not found"];
    match http_status(stderr) {
        Some(401 | 403 | 404 | 410 | 423) => return Answer::Refused,
        Some(408 | 429 | 500..) => return Answer::Unreachable,
        Some(_) | None => {}
    }
    let fatal = |line: &&str| line.starts_with("fatal: ") || line.starts_with("error: ");
    let lines: Vec<&str> = stderr.lines().filter(fatal).collect();
    let says = |words: &[&str]| lines.iter().any(|line| words.iter().any(|word| line.contains(word)));
    if says(&["No space left on device"]) {
        Answer::DiskFull
    } else if says(&UNREACHABLE) {
        Answer::Unreachable
    } else if says(&REFUSED) {
        Answer::Refused
    } else if lines.iter().any(|line| line.starts_with("fatal: unable to access")) {
        // The first request did not get an answer: TLS, a proxy, a reset connection.
        Answer::Unreachable
    } else {
        Answer::Other
    }
}

/// The HTTP status that git reports, if it reports one.
fn http_status(stderr: &str) -> Option<u16> {
    let after = ["The requested URL returned error: ", "RPC failed; HTTP "]
        .iter()
        .find_map(|mark| stderr.split_once(mark).map(|(_, rest)| rest))?;
    after.get(..3)?.parse().ok()
}

/// Messages as one line without control characters, cut.
pub(crate) fn shown(stderr: &str) -> String {
    let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    let line = lines.collect::<Vec<_>>().join("; ");
    let mut clean = line.chars().filter(|c| !c.is_control());
    let mut text: String = clean.by_ref().take(SHOWN).collect();
    if clean.next().is_some() {
        text.push('…');
    }
    if text.is_empty() { "no message".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forges_answer_is_told_from_a_local_fault() {
        for (stderr, expected) in [
            ("fatal: unable to access 'http://x/': The requested URL returned error: 403", Answer::Refused),
            (
                "fatal: unable to access 'http://x/': The requested URL returned error: 502",
                Answer::Unreachable,
            ),
            (
                "fatal: unable to access 'http://x/': Failed to connect to x port 80 after 0 ms",
                Answer::Unreachable,
            ),
            ("fatal: could not read Username for 'http://x': terminal prompts disabled", Answer::Refused),
            ("fatal: repository 'http://x/a.git/' not found", Answer::Refused),
            (
                "error: RPC failed; HTTP 504 curl 22\nfatal: the remote end hung up unexpectedly",
                Answer::Unreachable,
            ),
            ("error: object file objects/ab/cd is empty\nfatal: loose object is corrupt", Answer::Other),
            ("fatal: write error: No space left on device\nfatal: early EOF", Answer::DiskFull),
            ("remote: fatal: not found", Answer::Other),
        ] {
            assert_eq!(answer(stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn messages_are_one_short_line() {
        assert_eq!(shown("  a\x1b[31m\n\nhint: b\nc \n"), "a[31m; c");
        assert!(shown(&"é".repeat(5000)).chars().count() <= SHOWN + 1);
        assert_eq!(shown("\n"), "no message");
    }
}
