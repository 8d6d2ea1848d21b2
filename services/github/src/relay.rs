//! The forge's way to GitHub, which is there as long as this is: a proxy that connects to one host on one port.
//!
//! The forge fetches by itself and has no way out of its own. While it is told to fetch, the job that tells it listens
//! here, and the forge's git asks for a tunnel (`CONNECT`). Inside is TLS between git and GitHub, so that neither tokens nor
//! sources are seen on the way. There is nothing to close but the process: however it ends, the way ends with it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use url::Url;

use crate::error::GithubError;

/// Tunnels at once. Gitea fetches a few mirrors at a time.
const TUNNELS: u32 = 64;
/// The longest request for a tunnel, and the longest answer of the next proxy.
const MOST_HEAD: usize = 8 << 10;
/// How long one may take to ask for a tunnel, and how long the other side may take to be there.
const GREETING: Duration = Duration::from_secs(10);
/// A tunnel in which nothing moved for so long is closed. A server that counts objects tells of it every few seconds.
const SILENCE: Duration = Duration::from_mins(2);
/// Between two looks at whether a way is in use.
const PAUSE: Duration = Duration::from_millis(100);
const CHUNK: usize = 32 << 10;

/// Where a relay listens and leads to.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Leads to the host and port of this URL, which is https, and nowhere else.
    pub to: Url,
    /// The proxy on the way there, where there is no other way out.
    pub proxy: Option<Url>,
}

/// An open way to one place. It ends, with everything that is under way in it, when this is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    tunnels: Arc<Semaphore>,
    serving: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Relay {
    /// Opens the way.
    ///
    /// # Errors
    /// When the URL leads nowhere, or nobody may listen there.
    pub async fn open(config: RelayConfig) -> Result<Self, GithubError> {
        let way =
            Arc::new(Way { to: place(&config.to)?, proxy: config.proxy.as_ref().map(place).transpose()? });
        let cannot = |error: io::Error| {
            GithubError::Configuration(format!("nobody can listen on {}: {error}", config.listen))
        };
        let listener = TcpListener::bind(config.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let tunnels = Arc::new(Semaphore::new(TUNNELS as usize));
        let serving = tokio::spawn(serve(listener, way, Arc::clone(&tunnels)));
        Ok(Self { address, tunnels, serving })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the way once nothing is under way in it, or after `limit`. Whether nothing was cut off. Until then it is open to
    /// others: what is fetched may need a second tunnel.
    pub async fn close(self, limit: Duration) -> bool {
        let unused = async {
            // Whoever waited for the permits would keep them from new tunnels.
            while self.tunnels.try_acquire_many(TUNNELS).is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        timeout(limit, unused).await.is_ok()
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
}

impl Place {
    fn told(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    async fn reached(&self) -> io::Result<TcpStream> {
        let connecting = TcpStream::connect((self.host.trim_matches(['[', ']']), self.port));
        let stream = timeout(GREETING, connecting).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn place(url: &Url) -> Result<Place, GithubError> {
    let parts = url.host_str().zip(url.port_or_known_default());
    let (host, port) =
        parts.ok_or_else(|| GithubError::Configuration(format!("{url} names no host and port")))?;
    Ok(Place { host: host.to_ascii_lowercase(), port })
}

struct Way {
    to: Place,
    proxy: Option<Place>,
}

async fn serve(listener: TcpListener, way: Arc<Way>, tunnels: Arc<Semaphore>) {
    // Dropped with this task, and every tunnel with it.
    let mut under_way = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = under_way.join_next() => continue,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a connection that is gone again.
                tracing::warn!(%error, "a connection to the way to GitHub is lost");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (way, permit) = (Arc::clone(&way), Arc::clone(&tunnels).try_acquire_owned().ok());
        under_way.spawn(async move {
            match tunnel(stream, &way, permit).await {
                Ok(bytes) => tracing::info!(%from, to = way.to.told(), bytes, "the way to GitHub was used"),
                Err(error) => tracing::warn!(%from, %error, "no way to GitHub"),
            }
        });
    }
}

/// Answers one request for a tunnel, and is the tunnel. How many bytes went through it.
async fn tunnel(mut stream: TcpStream, way: &Way, permit: Option<OwnedSemaphorePermit>) -> io::Result<u64> {
    let (head, rest) = timeout(GREETING, head(&mut stream)).await??;
    let refusal = match judged(&head, &way.to) {
        Err(refusal) => Some(refusal),
        Ok(()) if permit.is_none() => Some((503, "Service Unavailable", "too many tunnels".to_owned())),
        Ok(()) => None,
    };
    if let Some((status, word, why)) = refusal {
        return Err(refuse(&mut stream, status, word, &why).await);
    }
    let mut there = match way.reached().await {
        Ok(there) => there,
        Err(error) => {
            let why = format!("{} cannot be reached: {error}", way.to.told());
            return Err(refuse(&mut stream, 502, "Bad Gateway", &why).await);
        }
    };
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    there.write_all(&rest).await?;
    Ok(both_ways(stream, there).await)
}

impl Way {
    /// A connection to the place, through the next proxy where there is one.
    async fn reached(&self) -> io::Result<TcpStream> {
        let Some(proxy) = &self.proxy else { return self.to.reached().await };
        let mut stream = proxy.reached().await?;
        let to = self.to.told();
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await?;
        let (head, rest) = timeout(GREETING, head(&mut stream)).await??;
        let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
        // TLS begins with whoever asked for the tunnel.
        if status == "200" && rest.is_empty() {
            return Ok(stream);
        }
        let status: String = status.chars().filter(char::is_ascii_digit).take(3).collect();
        Err(io::Error::other(format!("the proxy at {} answers {status}", proxy.told())))
    }
}

/// Whether a request asks for a tunnel to the one place.
fn judged(head: &str, to: &Place) -> Result<(), (u16, &'static str, String)> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "CONNECT" {
        return Err((405, "Method Not Allowed", "only tunnels are made here (CONNECT)".to_owned()));
    }
    if target.eq_ignore_ascii_case(&to.told()) {
        return Ok(());
    }
    Err((403, "Forbidden", format!("this way leads to {} and nowhere else", to.told())))
}

/// Says no, and returns it as the error that it is.
async fn refuse(stream: &mut TcpStream, status: u16, word: &str, why: &str) -> io::Error {
    let length = why.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status} {word}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}\n"
    );
    match stream.write_all(answer.as_bytes()).await {
        Ok(()) => io::Error::other(why.to_owned()),
        Err(error) => error,
    }
}

/// The lines up to the empty one, and what came behind it already.
async fn head(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let rest = read.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&read).into_owned(), rest));
        }
        if read.len() > MOST_HEAD {
            return Err(io::Error::other(format!("a head of more than {MOST_HEAD} bytes")));
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Until both sides have said everything, one is gone, or nothing moves any more. How many bytes went through.
async fn both_ways(here: TcpStream, there: TcpStream) -> u64 {
    let moved = AtomicU64::new(0);
    let (from_here, to_here) = here.into_split();
    let (from_there, to_there) = there.into_split();
    let through =
        async { tokio::try_join!(pipe(from_here, to_there, &moved), pipe(from_there, to_here, &moved)) };
    tokio::select! {
        // Whoever is cut off tells of it.
        _ = through => {}
        () = silence(&moved) => {}
    }
    moved.load(Ordering::Relaxed)
}

async fn pipe(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..read]).await?;
        moved.fetch_add(read as u64, Ordering::Relaxed);
    }
}

async fn silence(moved: &AtomicU64) {
    loop {
        let before = moved.load(Ordering::Relaxed);
        tokio::time::sleep(SILENCE).await;
        if moved.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(head: &str) -> u16 {
        let to = place(&"https://github.com/".parse().unwrap()).unwrap();
        judged(head, &to).err().map_or(200, |(status, ..)| status)
    }

    #[test]
    fn only_a_tunnel_to_the_one_host_and_port_is_made() {
        assert_eq!(answer("CONNECT github.com:443 HTTP/1.1\r\nHost: github.com:443\r\n\r\n"), 200);
        assert_eq!(answer("CONNECT GitHub.com:443 HTTP/1.1\r\n\r\n"), 200);
        for elsewhere in
            ["github.com:22", "github.com", "evil.example:443", "github.com.evil.example:443", ""]
        {
            assert_eq!(answer(&format!("CONNECT {elsewhere} HTTP/1.1\r\n\r\n")), 403, "{elsewhere}");
        }
        for other in
            ["GET http://github.com/ HTTP/1.1\r\n\r\n", "connect github.com:443 HTTP/1.1\r\n\r\n", ""]
        {
            assert_eq!(answer(other), 405, "{other}");
        }
    }

    #[test]
    fn a_place_has_the_port_of_its_scheme_unless_it_names_another() {
        let told = |url: &str| place(&url.parse().unwrap()).unwrap().told();
        assert_eq!(told("https://GitHub.example/org/"), "github.example:443");
        assert_eq!(told("http://proxy:3128/"), "proxy:3128");
        assert_eq!(told("https://[2001:db8::1]:8443/"), "[2001:db8::1]:8443");
        assert!(place(&"unix:/run/proxy".parse().unwrap()).is_err());
    }
}
