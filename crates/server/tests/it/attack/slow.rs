//! Floods, and clients that are slow at every stage of a connection.

use std::net::IpAddr;

use homestak_server::settings::{Limits, ServerSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::{BY_PARSER, Target, enrolment};
use crate::raw::{RawAnswer, RawClient, request};
use crate::site::{TestSite, v1};

fn short(limits: Limits) -> ServerSettings {
    ServerSettings {
        limits,
        ..ServerSettings::default()
    }
}

async fn ask_from(last: u8, site: &TestSite, path: &str, token: Option<&str>) -> RawAnswer {
    let from = IpAddr::from([127, 0, 0, last]);
    let connected = RawClient::connect_from(from, site, site.tls(None)).await;
    let header = token.map(|token| format!("Bearer {token}"));
    let header = header.as_deref();
    let headers: Vec<_> = header
        .map(|text| ("authorization", text))
        .into_iter()
        .collect();
    let mut client = connected.expect("a connection");
    let answer = client.exchange(&request("GET", path, &headers, "")).await;
    answer.expect("an answer")
}

async fn is_healthy(site: &TestSite) -> bool {
    ask_from(1, site, "/health", None).await.status == 200
}

#[tokio::test]
async fn guessing_is_slowed_down_by_address_and_by_token_and_others_are_not_affected() {
    let target = Target::start().await;
    let site = &target.site;
    let good = v1("web", "base");
    for nth in 0..10 {
        let guess = format!("{nth}{good}");
        assert_eq!(
            ask_from(9, site, "/spec/web", Some(&guess)).await.status,
            401
        );
    }
    for path in ["/spec/web", "/v1/agents/x86_64"] {
        let held = ask_from(9, site, path, Some(&good)).await;
        assert_eq!((held.status, held.refusal().0.as_str()), (429, "E303"));
        let wait: u64 = held
            .header("retry-after")
            .expect("a wait")
            .parse()
            .expect("seconds");
        assert!((1..=12).contains(&wait), "{wait}");
    }
    let enrol = request(
        "POST",
        "/v1/enrol",
        &[("authorization", "Bearer a.b")],
        &enrolment(),
    );
    let from = IpAddr::from([127, 0, 0, 9]);
    let connected = RawClient::connect_from(from, site, site.tls(None)).await;
    let held = connected.expect("a connection").exchange(&enrol).await;
    assert_eq!(held.expect("an answer").status, 429);
    assert_eq!(ask_from(9, site, "/health", None).await.status, 200);
    assert_eq!(
        ask_from(8, site, "/spec/web", Some(&good)).await.status,
        200
    );
    // A client that waits as long as `Retry-After` requires is answered.
    let held = ask_from(9, site, "/spec/web", Some(&good)).await;
    let wait: u64 = held
        .header("retry-after")
        .expect("a wait")
        .parse()
        .expect("seconds");
    site.clock.advance(wait);
    assert_eq!(
        ask_from(9, site, "/spec/web", Some(&good)).await.status,
        200
    );
    // One token from many addresses.
    let one = v1("db", "base");
    for last in 20..30 {
        assert_eq!(
            ask_from(last, site, "/spec/web", Some(&one)).await.status,
            401
        );
    }
    assert_eq!(
        ask_from(30, site, "/spec/web", Some(&one)).await.status,
        429
    );
    assert_eq!(
        ask_from(30, site, "/spec/web", Some(&good)).await.status,
        200
    );
    assert!(target.log.text().contains("too many failed attempts"));
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_client_that_does_not_continue_is_closed_at_each_stage() {
    let target = Target::start_with(short(Limits {
        handshake: 1,
        idle: 1,
        request: 1,
        ..Limits::default()
    }));
    let target = target.await;
    let site = &target.site;
    // Nothing at all, and the beginning of a handshake.
    for bytes in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = TcpStream::connect(site.address()).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        let mut rest = Vec::new();
        _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "{rest:?}");
    }
    target.log.wait_for("TLS handshake timed out", 0).await;
    for head in [
        "",
        "G",
        "GET /health HTTP/1.1\r\n",
        "GET /health HTTP/1.1\r\nhost: x\r\nx: ",
    ] {
        let mut client = RawClient::connect(site, None).await;
        client.send(head.as_bytes()).await;
        assert!(client.is_closed().await, "{head}");
    }
    target.log.wait_for(BY_PARSER, 0).await;
    let mut client = RawClient::connect(site, None).await;
    client
        .send(&request(
            "POST",
            "/v1/enrol",
            &[("content-length", "100")],
            "{",
        ))
        .await;
    let refused = client.answer(false).await.expect("an answer");
    assert_eq!(
        (refused.status, refused.refusal().0.as_str()),
        (408, "E100")
    );
    assert!(client.is_closed().await);
    assert!(is_healthy(site).await);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed() {
    let target = Target::start_with(short(Limits {
        write: 1,
        ..Limits::default()
    }));
    let target = target.await;
    // More than the buffers of the kernel take.
    target.site.publish_agent("x86_64", &vec![7; 64 << 20]);
    (target.site.reload)();
    let token = format!("Bearer {}", v1("web", "base"));
    let mut client = RawClient::connect(&target.site, None).await;
    let agent = request("GET", "/v1/agents/x86_64", &[("authorization", &token)], "");
    client.send(&agent).await;
    target.log.wait_for(BY_PARSER, 0).await;
    assert!(is_healthy(&target.site).await);
    assert_eq!(target.finish().await, 0);
}

/// Opens TCP connections that send these bytes and nothing else.
async fn silent(site: &TestSite, count: usize, last: u8, bytes: &[u8]) -> Vec<TcpStream> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind((IpAddr::from([127, 0, 0, last]), 0).into())
            .expect("bound");
        let mut stream = socket.connect(site.address()).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        open.push(stream);
    }
    open
}

/// Allows as many open files as the system does.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("allowed");
}

#[tokio::test]
async fn thousands_of_half_open_connections_do_not_keep_a_healthy_client_out() {
    raise_file_limit();
    let target = Target::start_with(short(Limits {
        connections: 1500,
        connections_per_address: 1000,
        ..Limits::default()
    }));
    let target = target.await;
    let site = &target.site;
    // More than there may be from one address, and in total.
    let mut open = silent(site, 1200, 1, b"").await;
    assert!(is_healthy(site).await, "from the same address");
    open.extend(silent(site, 600, 2, b"\x16\x03\x01").await);
    open.extend(silent(site, 200, 3, b"GET / HTTP/1.1\r\n\r\n").await);
    let good = v1("web", "base");
    for last in [1, 2, 3, 4] {
        let answer = ask_from(last, site, "/spec/web", Some(&good)).await;
        assert_eq!(answer.status, 200, "127.0.0.{last}");
    }
    drop(open);
    assert_eq!(target.finish().await, 0);
}

#[tokio::test]
async fn slow_bodies_and_idle_connections_do_not_keep_a_healthy_client_out() {
    let target = Target::start_with(short(Limits {
        connections: 40,
        connections_per_address: 30,
        ..Limits::default()
    }));
    let target = target.await;
    let site = &target.site;
    let mut open = Vec::new();
    for last in [1, 2] {
        for nth in 0..35 {
            let from = IpAddr::from([127, 0, 0, last]);
            let client = RawClient::connect_from(from, site, site.tls(None)).await;
            let mut client = client.expect("a connection");
            let bytes = match nth % 2 {
                0 => request("POST", "/v1/enrol", &[("content-length", "100")], "{"),
                _ => b"GET /hea".to_vec(),
            };
            client.send(&bytes).await;
            open.push(client);
        }
    }
    for last in [1, 2, 3] {
        let answer = ask_from(last, site, "/spec/web", Some(&v1("web", "base"))).await;
        assert_eq!(answer.status, 200, "127.0.0.{last}");
    }
    drop(open);
    assert_eq!(target.finish().await, 0);
}
