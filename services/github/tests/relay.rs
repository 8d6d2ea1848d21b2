//! The way to GitHub over real sockets: it leads to one place, for as long as it is there.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::net::SocketAddr;
use std::time::Duration;

use fabrique_bed::wait_until;
use fabrique_github::{Relay, RelayConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(30);

/// Says back whatever it is told.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                drop(tokio::io::copy(&mut from, &mut to).await);
            });
        }
    });
    address
}

fn config(to: SocketAddr, proxy: Option<SocketAddr>) -> RelayConfig {
    RelayConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        to: format!("https://{to}/").parse().unwrap(),
        proxy: proxy.map(|proxy| format!("http://{proxy}/").parse().unwrap()),
    }
}

/// Asks for a tunnel: the connection, and the first line of the answer.
async fn ask(relay: SocketAddr, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(relay).await.unwrap();
    stream.write_all(format!("{request}\r\nHost: any\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(SOON, stream.read_u8()).await.unwrap().unwrap());
    }
    let line = String::from_utf8(head).unwrap().lines().next().unwrap().to_owned();
    (stream, line)
}

async fn tunnel(relay: SocketAddr, to: SocketAddr) -> TcpStream {
    let (stream, line) = ask(relay, &format!("CONNECT {to} HTTP/1.1")).await;
    assert_eq!(line, "HTTP/1.1 200 Connection established");
    stream
}

/// What is said through it comes back.
async fn carries(stream: &mut TcpStream) {
    let said = vec![7; 200_000];
    let (mut from, mut to) = stream.split();
    let mut heard = vec![0; said.len()];
    let (sent, read) = tokio::join!(to.write_all(&said), from.read_exact(&mut heard));
    sent.unwrap();
    read.unwrap();
    assert!(heard == said, "something else came back");
}

#[tokio::test]
async fn it_leads_to_one_place_and_nowhere_else() {
    let (to, elsewhere) = (echo().await, echo().await);
    let relay = Relay::open(config(to, None)).await.unwrap();
    carries(&mut tunnel(relay.address(), to).await).await;
    let (_, line) = ask(relay.address(), &format!("CONNECT {elsewhere} HTTP/1.1")).await;
    assert_eq!(line, "HTTP/1.1 403 Forbidden");
    let (_, line) = ask(relay.address(), &format!("GET http://{to}/ HTTP/1.1")).await;
    assert_eq!(line, "HTTP/1.1 405 Method Not Allowed");
}

#[tokio::test]
async fn it_goes_through_another_proxy_where_that_is_the_way_out_and_says_when_that_refuses() {
    let (to, elsewhere) = (echo().await, echo().await);
    let next = Relay::open(config(to, None)).await.unwrap();
    let relay = Relay::open(config(to, Some(next.address()))).await.unwrap();
    carries(&mut tunnel(relay.address(), to).await).await;
    let relay = Relay::open(config(elsewhere, Some(next.address()))).await.unwrap();
    let (_, line) = ask(relay.address(), &format!("CONNECT {elsewhere} HTTP/1.1")).await;
    assert_eq!(line, "HTTP/1.1 502 Bad Gateway");
}

#[tokio::test]
async fn it_ends_with_what_is_under_way_in_it_when_it_is_dropped() {
    let to = echo().await;
    let relay = Relay::open(config(to, None)).await.unwrap();
    let address = relay.address();
    let mut stream = tunnel(address, to).await;
    drop(relay);
    let ended = tokio::time::timeout(SOON, stream.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    wait_until("nobody to listen", SOON, || async { TcpStream::connect(address).await.err() }).await.unwrap();
}

#[tokio::test]
async fn it_is_closed_when_nothing_is_under_way_or_its_time_is_over() {
    let to = echo().await;
    let relay = Relay::open(config(to, None)).await.unwrap();
    let stream = tunnel(relay.address(), to).await;
    assert!(!relay.close(Duration::from_millis(300)).await, "it was cut off");
    drop(stream);
    let relay = Relay::open(config(to, None)).await.unwrap();
    let mut stream = tunnel(relay.address(), to).await;
    let address = relay.address();
    let closing = tokio::spawn(relay.close(SOON));
    carries(&mut stream).await;
    let mut second = tunnel(address, to).await;
    drop(stream);
    carries(&mut second).await;
    drop(second);
    assert!(closing.await.unwrap(), "it waited for what was under way");
}
