//! Faults on the wire, seen by a client that speaks TLS and reads bytes.

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

async fn served(faults: &[Fault]) -> (World, Handle) {
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

/// What came, and how it ended.
struct Heard {
    text: String,
    end: Option<io::ErrorKind>,
}

impl Heard {
    /// Returns the first line, how many bytes were promised, and the body.
    fn parts(&self) -> (&str, usize, &str) {
        let (head, body) = self.text.split_once("\r\n\r\n").expect("a whole head");
        let promised = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        let first = head.lines().next().expect("a first line");
        (first, promised.expect("a length"), body)
    }
}

async fn hear(handle: &Handle, method: &str, path: &str, body: &str) -> Heard {
    let mut stream = connect(handle).await;
    send(&mut stream, method, path, body).await;
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes).await.err();
    Heard {
        text: String::from_utf8(bytes).expect("text"),
        end: end.map(|error| error.kind()),
    }
}

async fn get(handle: &Handle, path: &str) -> Heard {
    hear(handle, "GET", path, "").await
}

async fn create(handle: &Handle, vmid: u32) -> Heard {
    hear(
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

async fn guests(world: &World, wanted: usize) {
    while world.guests().len() != wanted || !world.is_quiet() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_fault_is_whole() {
    let (_world, handle) = served(&[]).await;
    let heard = get(&handle, "/version").await;
    let (first, promised, body) = heard.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert_eq!(promised, body.len());
    assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
}

#[tokio::test]
async fn a_reset_before_is_a_reset_and_nothing_is_done() {
    let (world, handle) = served(&[first("/qemu", FaultKind::ResetBefore)]).await;
    let heard = create(&handle, 100).await;
    assert_eq!(
        (heard.text.as_str(), heard.end),
        ("", Some(io::ErrorKind::ConnectionReset))
    );
    assert!(world.guests().is_empty());
    assert_eq!(create(&handle, 100).await.parts().0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_reset_after_is_a_reset_and_all_is_done() {
    let (world, handle) = served(&[first("/qemu", FaultKind::ResetAfter)]).await;
    let heard = create(&handle, 100).await;
    assert_eq!(
        (heard.text.as_str(), heard.end),
        ("", Some(io::ErrorKind::ConnectionReset))
    );
    guests(&world, 1).await;
}

#[tokio::test]
async fn silence_is_silent_whether_it_was_done_or_not() {
    let faults = [
        first("/qemu", FaultKind::Timeout),
        Fault::new(Call::nth(2).path("/qemu"), FaultKind::LostAnswer),
    ];
    let (world, handle) = served(&faults).await;
    for (vmid, made) in [(100, 0), (101, 1)] {
        let mut stream = connect(&handle).await;
        let body = format!("vmid={vmid}");
        send(&mut stream, "POST", "/nodes/pve1/qemu", &body).await;
        guests(&world, made).await;
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
        assert!(read.is_err(), "nothing comes, not even an end");
    }
}

#[tokio::test]
async fn half_an_answer_promises_more_than_it_gives() {
    let (_world, handle) = served(&[first("/version", FaultKind::Truncated)]).await;
    let whole = get(&handle, "/nodes").await;
    assert_eq!(whole.end, None);
    let heard = get(&handle, "/version").await;
    let (first, promised, body) = heard.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert!(
        !body.is_empty() && body.len() < promised,
        "{promised}: {body}"
    );
    assert!(serde_json::from_str::<serde_json::Value>(body).is_err());
}

#[tokio::test]
async fn garbage_is_whole_for_http_and_no_json() {
    let (_world, handle) = served(&[first("/version", FaultKind::Garbage)]).await;
    let heard = get(&handle, "/version").await;
    let (first, promised, body) = heard.parts();
    assert_eq!(first, "HTTP/1.1 200 OK");
    assert_eq!(promised, body.len());
    assert!(serde_json::from_str::<serde_json::Value>(body).is_err());
}

#[tokio::test]
async fn a_call_that_is_repeated_on_the_way_is_answered_for_the_second_time() {
    let (world, handle) = served(&[first("/qemu", FaultKind::RepeatedAnswer)]).await;
    let heard = create(&handle, 100).await;
    assert!(
        heard.parts().0.contains("VM 100 already exists"),
        "{}",
        heard.text
    );
    guests(&world, 1).await;
}

#[tokio::test]
async fn failures_of_the_proxy_have_its_words_and_no_body() {
    for (status, words) in [
        (595, "Connection refused"),
        (596, "Connection timed out"),
        (599, "Too many redirections"),
    ] {
        let (world, handle) = served(&[first("/qemu", FaultKind::Status(status))]).await;
        let heard = create(&handle, 100).await;
        let (first, promised, body) = heard.parts();
        assert_eq!(first, format!("HTTP/1.1 {status} {words}"));
        assert_eq!((promised, body), (0, ""));
        assert!(world.guests().is_empty());
    }
}

#[tokio::test]
async fn a_slow_call_is_answered_in_the_end() {
    let (_world, handle) = served(&[first("/version", FaultKind::Slow(30.0))]).await;
    assert_eq!(get(&handle, "/version").await.parts().0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn an_old_list_is_old_and_of_the_kind_that_was_asked_for() {
    let stale = FaultKind::StaleList(0.0);
    let fault = Fault::new(Call::nth(3).path("/cluster/resources"), stale.clone());
    let again = Fault::new(Call::nth(4).path("/cluster/resources"), stale);
    let (world, handle) = served(&[fault, again]).await;
    let body = |heard: &Heard| heard.parts().2.to_owned();
    let all = body(&get(&handle, "/cluster/resources").await);
    let none = body(&get(&handle, "/cluster/resources?type=vm").await);
    create(&handle, 100).await;
    guests(&world, 1).await;
    assert_eq!(
        body(&get(&handle, "/cluster/resources?type=vm").await),
        none
    );
    assert_eq!(body(&get(&handle, "/cluster/resources").await), all);
    let fresh = body(&get(&handle, "/cluster/resources?type=vm").await);
    assert!(fresh.contains("qemu/100"), "{fresh}");
}

#[tokio::test]
async fn a_world_whose_time_is_stepped_is_stepped_over_the_wire() {
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
            // Cancel safety: it is kept and asked again.
            answer = &mut waiting => break answer,
            // Cancel safety: half a step is a step that was not answered.
            _ = step("seconds=0.01") => {}
        }
    };
    assert_eq!(answer.parts().0, "HTTP/1.1 200 OK");
    assert!(step("seconds=60").await.contains("\"quiet\":true"));
    assert_eq!(world.guests().len(), 1);
    assert!(step("seconds=x").await.starts_with("HTTP/1.1 400"));
}
