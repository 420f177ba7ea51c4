//! Faults as seen by a TLS client that reads raw bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::trust::{Fingerprint, Trust, client_config};
use homestak_sim::{Call, Fault, FaultKind, Handle, Pace, World, serve};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const TOKEN: &str = "root@pam!t=secret";

async fn serve_with_faults(faults: &[Fault]) -> (World, Handle) {
    let mut builder = World::builder()
        .pace(Pace::Accelerated(1000.0))
        .token(TOKEN);
    for fault in faults {
        builder = builder.fault(fault.clone());
    }
    let world = builder.build();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let handle = serve(world.clone(), address).await.expect("it is served");
    (world, handle)
}

async fn connect(handle: &Handle) -> TlsStream<TcpStream> {
    let pin = Fingerprint::parse(&handle.fingerprint).expect("a fingerprint");
    let config = client_config(&Trust::Pinned(pin)).expect("a configuration");
    let stream = TcpStream::connect(handle.address)
        .await
        .expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    connector
        .connect(name, stream)
        .await
        .expect("it speaks TLS")
}

async fn send(stream: &mut TlsStream<TcpStream>, method: &str, path: &str, body: &str) {
    let text = format!(
        "{method} /api2/json{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: PVEAPIToken={TOKEN}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.expect("it is read");
    stream.flush().await.expect("it is read");
}

/// The bytes of a response, and the error that ended the connection.
struct RawResponse {
    text: String,
    end: Option<io::ErrorKind>,
}

impl RawResponse {
    /// Returns the status line, the `Content-Length`, and the body.
    fn parts(&self) -> (&str, usize, &str) {
        let (head, body) = self.text.split_once("\r\n\r\n").expect("a whole head");
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        let first = head.lines().next().expect("a first line");
        (first, length.expect("a length"), body)
    }
}

async fn exchange(handle: &Handle, method: &str, path: &str, body: &str) -> RawResponse {
    let mut stream = connect(handle).await;
    send(&mut stream, method, path, body).await;
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes).await.err();
    RawResponse {
        text: String::from_utf8(bytes).expect("text"),
        end: end.map(|error| error.kind()),
    }
}

async fn get(handle: &Handle, path: &str) -> RawResponse {
    exchange(handle, "GET", path, "").await
}

async fn create(handle: &Handle, vmid: u32) -> RawResponse {
    exchange(
        handle,
        "POST",
        "/nodes/pve1/qemu",
        &format!("vmid={vmid}&name=a"),
    )
    .await
}

fn first(path: &str, kind: FaultKind) -> Fault {
    Fault::new(Call::times(1).path(path), kind)
}

async fn wait_for_guests(world: &World, wanted: usize) {
    while world.guests().len() != wanted || !world.is_idle() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_fault_is_complete() {
    let (_world, handle) = serve_with_faults(&[]).await;
    let response = get(&handle, "/version").await;
    let (first, length, body) = response.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert_eq!(length, body.len());
    assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
}

#[tokio::test]
async fn reset_before_resets_the_connection_and_changes_nothing() {
    let (world, handle) = serve_with_faults(&[first("/qemu", FaultKind::ResetBefore)]).await;
    let response = create(&handle, 100).await;
    assert_eq!(
        (response.text.as_str(), response.end),
        ("", Some(io::ErrorKind::ConnectionReset))
    );
    assert!(world.guests().is_empty());
    assert_eq!(create(&handle, 100).await.parts().0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn reset_after_resets_the_connection_after_the_call() {
    let (world, handle) = serve_with_faults(&[first("/qemu", FaultKind::ResetAfter)]).await;
    let response = create(&handle, 100).await;
    assert_eq!(
        (response.text.as_str(), response.end),
        ("", Some(io::ErrorKind::ConnectionReset))
    );
    wait_for_guests(&world, 1).await;
}

#[tokio::test]
async fn timeout_and_lost_answer_send_nothing() {
    let faults = [
        first("/qemu", FaultKind::Timeout),
        Fault::new(Call::nth(2).path("/qemu"), FaultKind::LostAnswer),
    ];
    let (world, handle) = serve_with_faults(&faults).await;
    for (vmid, made) in [(100, 0), (101, 1)] {
        let mut stream = connect(&handle).await;
        let body = format!("vmid={vmid}");
        send(&mut stream, "POST", "/nodes/pve1/qemu", &body).await;
        wait_for_guests(&world, made).await;
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
        assert!(read.is_err(), "no data and no end of the connection");
    }
}

#[tokio::test]
async fn a_truncated_answer_is_shorter_than_its_content_length() {
    let (_world, handle) = serve_with_faults(&[first("/version", FaultKind::Truncated)]).await;
    let whole = get(&handle, "/nodes").await;
    assert_eq!(whole.end, None);
    let response = get(&handle, "/version").await;
    let (first, length, body) = response.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert!(!body.is_empty() && body.len() < length, "{length}: {body}");
    assert!(serde_json::from_str::<serde_json::Value>(body).is_err());
}

#[tokio::test]
async fn garbage_is_valid_http_and_invalid_json() {
    let (_world, handle) = serve_with_faults(&[first("/version", FaultKind::Garbage)]).await;
    let response = get(&handle, "/version").await;
    let (first, length, body) = response.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert_eq!(length, body.len());
    assert!(serde_json::from_str::<serde_json::Value>(body).is_err());
}

#[tokio::test]
async fn a_repeated_call_gets_the_answer_of_the_second_one() {
    let (world, handle) = serve_with_faults(&[first("/qemu", FaultKind::RepeatedAnswer)]).await;
    let response = create(&handle, 100).await;
    assert!(
        response.parts().0.contains("VM 100 already exists"),
        "{}",
        response.text
    );
    wait_for_guests(&world, 1).await;
}

#[tokio::test]
async fn proxy_errors_have_a_reason_phrase_and_no_body() {
    for (status, reason) in [
        (595, "Connection refused"),
        (596, "Connection timed out"),
        (599, "Too many redirections"),
    ] {
        let (world, handle) = serve_with_faults(&[first("/qemu", FaultKind::Status(status))]).await;
        let response = create(&handle, 100).await;
        let (first, length, body) = response.parts();
        assert_eq!(first, format!("HTTP/1.1 {status} {reason}"));
        assert_eq!((length, body), (0, ""));
        assert!(world.guests().is_empty());
    }
}

#[tokio::test]
async fn a_slow_call_is_answered() {
    let (_world, handle) = serve_with_faults(&[first("/version", FaultKind::Slow(30.0))]).await;
    assert_eq!(get(&handle, "/version").await.parts().0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_stale_list_answers_the_same_request() {
    let stale = FaultKind::StaleList(0.0);
    let fault = Fault::new(Call::nth(3).path("/cluster/resources"), stale.clone());
    let again = Fault::new(Call::nth(4).path("/cluster/resources"), stale);
    let (world, handle) = serve_with_faults(&[fault, again]).await;
    let body = |response: &RawResponse| response.parts().2.to_owned();
    let all = body(&get(&handle, "/cluster/resources").await);
    let none = body(&get(&handle, "/cluster/resources?type=vm").await);
    create(&handle, 100).await;
    wait_for_guests(&world, 1).await;
    assert_eq!(
        body(&get(&handle, "/cluster/resources?type=vm").await),
        none
    );
    assert_eq!(body(&get(&handle, "/cluster/resources").await), all);
    let fresh = body(&get(&handle, "/cluster/resources?type=vm").await);
    assert!(fresh.contains("qemu/100"), "{fresh}");
}

#[tokio::test]
async fn time_can_be_stepped_over_the_wire() {
    let world = World::builder().pace(Pace::Stepped).token(TOKEN).build();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let handle = serve(world.clone(), address).await.expect("it is served");
    let step = |body: &'static str| {
        let handle = handle.clone();
        async move {
            let mut stream = connect(&handle).await;
            let text = format!(
                "POST /sim/step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Authorization: PVEAPIToken={TOKEN}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(text.as_bytes()).await.expect("it is read");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("text");
            answer
        }
    };
    assert!(
        step("seconds=5")
            .await
            .contains("\"now\":\"2026-01-01T00:00:05Z\"")
    );
    let mut waiting = std::pin::pin!(create(&handle, 100));
    let answer = loop {
        tokio::select! {
            // Cancel safety: the pinned future is polled again.
            answer = &mut waiting => break answer,
            // Cancel safety: the step takes effect or not; the loop repeats it.
            _ = step("seconds=0.01") => {}
        }
    };
    assert_eq!(answer.parts().0, "HTTP/1.1 200 OK");
    assert!(step("seconds=60").await.contains("\"quiet\":true"));
    assert_eq!(world.guests().len(), 1);
    assert!(step("seconds=x").await.starts_with("HTTP/1.1 400"));
}
