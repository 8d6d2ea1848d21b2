//! TLS in front of a server that speaks without.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::buildkit::TlsFiles;

const PROGRAM: &str = "
import socket, ssl, sys, threading
listen, to, cert, key = sys.argv[1:]
def place(text):
    host, port = text.rsplit(':', 1)
    return host, int(port)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
def pipe(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(raw):
    try:
        inside = context.wrap_socket(raw, server_side=True)
        there = socket.create_connection(place(to))
    except OSError:
        raw.close()
        return
    threading.Thread(target=pipe, args=(there, inside), daemon=True).start()
    pipe(inside, there)
door = socket.create_server(place(listen))
print('ready', flush=True)
while True:
    raw, _ = door.accept()
    threading.Thread(target=serve, args=(raw,), daemon=True).start()
";
/// A busy machine starts it late.
const LATEST: Duration = Duration::from_secs(30);

/// A door with a certificate. It is closed when this is dropped.
#[derive(Debug)]
pub struct Secured {
    _door: Child,
}

impl Secured {
    /// Listens at `listen` (`address:port`) and passes on to `to`. `there` leads to the network where that is: empty, or
    /// [`Cluster::outside_command`](crate::Cluster::outside_command).
    ///
    /// # Errors
    /// When it cannot listen there, or is not there in time.
    pub async fn open(there: Option<Command>, listen: &str, to: &str, tls: &TlsFiles) -> Result<Self> {
        let mut command = match there {
            Some(mut command) => {
                command.arg("python3");
                command
            }
            None => Command::new("python3"),
        };
        command.args(["-c", PROGRAM, listen, to]).arg(&tls.cert).arg(&tls.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut door = command.spawn().context("starting python3")?;
        let mut lines = BufReader::new(door.stdout.take().context("no output")?).lines();
        let said =
            tokio::time::timeout(LATEST, lines.next_line()).await.context("TLS is not there in time")??;
        said.with_context(|| format!("nobody can listen at {listen}"))?;
        Ok(Self { _door: door })
    }
}
