//! What happens to connections when the server stops, and to its certificate with time.

use std::time::Duration;

use homestak_api::trust::client_not_after;
use homestak_server::settings::{Limits, ServerSettings};

use crate::raw::{RawClient, request};
use crate::site::{TestSite, WEB, at};

#[tokio::test]
async fn a_stop_answers_the_request_in_progress_and_closes_idle_connections() {
    let mut site = TestSite::start().await;
    let report = r#"{"run":"1","state":"converged","agent":"0.1.0"}"#;
    let (web, _) = site.enrolled(WEB, "web").await;
    let mut idle = RawClient::connect(&site, None).await;
    let health = request("GET", "/health", &[], "");
    assert_eq!(idle.exchange(&health).await.expect("an answer").status, 200);
    let mut busy = RawClient::connect(&site, Some(web)).await;
    let bytes = request("POST", "/v1/reports", &[("expect", "100-continue")], report);
    let (head, body) = bytes.split_at(bytes.len() - report.len());
    busy.send(head).await;
    // The server has begun to read the body.
    assert_eq!(busy.answer(false).await.expect("an answer").status, 100);
    let ended = site.stop();
    assert!(idle.is_closed().await);
    let refused = RawClient::try_connect(&site, site.tls(None)).await;
    assert!(refused.is_err(), "no new connections");
    busy.send(body).await;
    assert_eq!(busy.answer(false).await.expect("an answer").status, 201);
    assert!(busy.is_closed().await);
    ended.await.expect("it ended");
}

#[tokio::test]
async fn a_stop_does_not_wait_longer_than_the_grace_period() {
    let limits = Limits {
        grace: 0,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    let mut site = TestSite::start_with(settings, |_| ()).await;
    let mut slow = RawClient::connect(&site, None).await;
    let headers = [("content-length", "100"), ("expect", "100-continue")];
    slow.send(&request("POST", "/v1/enrol", &headers, "")).await;
    assert_eq!(slow.answer(false).await.expect("an answer").status, 100);
    site.stop().await.expect("it ended");
}

#[tokio::test]
async fn a_stop_answers_a_node_that_waits_for_jobs_at_once() {
    let limits = Limits {
        grace: 3600,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    let mut site = TestSite::start_with(settings, |_| ()).await;
    let (web, operator) = (site.enrol(WEB, "web").await, site.operator());
    site.clock.advance(60);
    let offers = web.get(format!("{}/v1/offers?wait=20", site.url));
    let held = tokio::spawn(async move { offers.send().await.expect("an answer").status() });
    // The node waits once its contact is recorded.
    let now = homestak_api::runtime::Clock::now(&*site.clock).as_second();
    let url = format!("{}/v1/nodes/{WEB}", site.url);
    loop {
        let node = operator.get(&url).send().await.expect("an answer");
        let node: serde_json::Value = node.json().await.expect("JSON");
        if node["last_contact"] == now {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // By itself, the wait would end only after 16 s or more.
    let ended = tokio::time::timeout(Duration::from_secs(10), site.stop());
    ended.await.expect("it ends at once").expect("it ended");
    assert_eq!(held.await.expect("it ended"), 200);
}

#[tokio::test]
async fn nodes_reach_the_server_by_the_name_that_is_published() {
    let site = TestSite::start().await;
    let name = "server.example.org";
    let health = async || {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(site.tls(None))
            .no_proxy()
            .resolve(name, site.address());
        let url = format!("https://{name}:{}/health", site.address().port());
        client.build().expect("a client").get(url).send().await
    };
    assert!(
        health().await.is_err(),
        "the certificate is for other names"
    );
    let mut published = site.directory.read().expect("read");
    published.site.server_names = vec![name.to_owned(), "localhost".to_owned()];
    let written = site.directory.put_site(&published.site, &published.secrets);
    written.expect("written");
    assert_eq!((site.reload)(), ["names of the server"]);
    assert_eq!(health().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn the_certificate_of_the_server_is_renewed_before_it_expires() {
    let site = TestSite::start().await;
    let shown = async || RawClient::connect(&site, None).await.server_certificate();
    let end = |shown: &[u8]| client_not_after(&shown.into()).expect("a certificate");
    let first = shown().await;
    assert_eq!(shown().await, first);
    let day = 24 * 3600;
    site.clock.set(at(19 * day));
    assert_eq!(
        shown().await,
        first,
        "more than a third of its time is left"
    );
    site.clock.set(at(21 * day));
    let second = shown().await;
    assert_ne!(second, first, "without a reload");
    assert_eq!(shown().await, second);
    // No certificate outlives the intermediate; the driver has published a new one.
    assert_eq!(end(&second), at(30 * day).as_second());
    site.publish_intermediate(at(21 * day));
    (site.reload)();
    assert_eq!(end(&shown().await), at(51 * day).as_second());
}

#[tokio::test]
async fn each_address_of_the_machine_has_a_certificate_of_its_own() {
    let mut site = TestSite::start().await;
    site.set(|settings| settings.bind = [0, 0, 0, 0].into());
    site.kill_and_start_again().await;
    let shown = async |last: u8| {
        let address = ([127, 0, 0, last], site.address().port()).into();
        let from = [127, 0, 0, 1].into();
        // The client compares the address with those of the certificate.
        let connected = RawClient::connect_to(from, address, site.tls(None)).await;
        connected.expect("a connection").server_certificate()
    };
    let (one, two) = (shown(1).await, shown(2).await);
    assert_ne!(one, two);
    assert_eq!((shown(1).await, shown(2).await), (one, two));
}

#[tokio::test]
async fn a_reload_applies_limits_to_new_connections_and_to_the_next_stop() {
    let limits = Limits {
        grace: 3600,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    let mut site = TestSite::start_with(settings, |_| ()).await;
    site.set_limits(Limits { idle: 1, ..limits });
    assert_eq!((site.reload)(), ["setting `limits`"]);
    let within = Duration::from_secs(10);
    let health = request("GET", "/health", &[], "");
    let mut idle = RawClient::connect(&site, None).await;
    assert_eq!(idle.exchange(&health).await.expect("an answer").status, 200);
    let closed = tokio::time::timeout(within, idle.is_closed()).await;
    assert!(closed.expect("before the earlier limit"));
    site.set_limits(Limits {
        connections: 2,
        grace: 0,
        ..limits
    });
    (site.reload)();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = RawClient::connect(&site, None).await;
        assert!(client.exchange(&health).await.is_some());
        open.push(client);
    }
    let closed = tokio::time::timeout(within, open[0].is_closed()).await;
    assert!(closed.expect("before the earlier limit"), "the oldest");
    let headers = [("content-length", "100"), ("expect", "100-continue")];
    let slow = &mut open[2];
    slow.send(&request("POST", "/v1/enrol", &headers, "")).await;
    assert_eq!(slow.answer(false).await.expect("an answer").status, 100);
    let ended = tokio::time::timeout(within, site.stop()).await;
    ended.expect("without the earlier grace").expect("it ended");
}

#[tokio::test]
async fn what_the_server_records_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;

    let mut site = TestSite::start().await;
    let state = site.root.path().join("state");
    let mode = |path: &std::path::Path| {
        let mode = fs_err::metadata(path)
            .expect("it exists")
            .permissions()
            .mode();
        mode & 0o777
    };
    site.enrol(crate::site::WEB, "web").await;
    assert_eq!(mode(&state), 0o700);
    let files = ["server.db", "server.db-wal", "server.db-shm"];
    for file in files {
        assert_eq!(mode(&state.join(file)), 0o600, "{file}");
    }
    // One of an earlier version.
    for file in files {
        let wide = std::fs::Permissions::from_mode(0o644);
        fs_err::set_permissions(state.join(file), wide).expect("set");
    }
    site.kill_and_start_again().await;
    assert_eq!(mode(&state.join("server.db")), 0o600);
}
