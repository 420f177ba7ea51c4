//! TLS trust, credentials, limits and connection failures.

mod support;

use std::sync::Arc;
use std::time::Duration;

use homestak_api::trust::{Fingerprint, Trust};
use homestak_engine::ports::{ErrorClass, Provider as _, Sent, StopMode};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Password, Pve, PveLimits};
use support::server::Server;
use support::world::{Fault, World};
use support::{add, check_secret, connect, settings};

#[tokio::test]
async fn another_certificate_is_refused_before_anything_is_sent() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.trust = Trust::Pinned(Fingerprint([7; 32]));
    let error = connect(settings).observe().await.expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.detail.contains("fingerprint"), "{error:?}");
    assert_eq!(server.world().requests, 0);
    check_secret(&error);
}

#[tokio::test]
async fn a_closed_port_is_unreachable_and_nothing_was_sent() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.url = "https://127.0.0.1:9".to_owned();
    let error = connect(settings).observe().await.expect_err("unreachable");
    assert_eq!(error.class, ErrorClass::Unreachable { sent: Sent::No });
    check_secret(&error);
}

#[tokio::test]
async fn plain_http_is_refused() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.url = "http://127.0.0.1:8006".to_owned();
    let clock = Arc::new(support::clock::FastClock::new(1));
    assert!(Pve::new(settings, clock).is_err());
}

#[tokio::test]
async fn an_unknown_token_is_refused_without_showing_it() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    let other = "root@pam!x1=0f0e0d0c-0b0a-4908-8706-0504030201ff";
    settings.credential = Credential::Token(ApiToken::parse(other).expect("a token"));
    let error = connect(settings).observe().await.expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.hint.contains("token"), "{error:?}");
    check_secret(&error);
}

#[tokio::test]
async fn a_login_is_repeated_when_its_ticket_is_rejected() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.credential = Credential::Login {
        user: "root@pam".to_owned(),
        password: Password::new("secret"),
    };
    let pve = connect(settings);
    pve.observe().await.expect("observed");
    pve.observe().await.expect("observed");
    let logins = |server: &Server| {
        let world = server.world();
        world
            .log
            .iter()
            .filter(|line| line.ends_with("/access/ticket"))
            .count()
    };
    assert_eq!(logins(&server), 1);
    let refusal = Fault::Answer(401, "permission denied - invalid PVE ticket");
    server
        .world()
        .faults_on
        .push(("GET /cluster/resources", refusal));
    pve.observe().await.expect("observed");
    assert_eq!(logins(&server), 2);
}

#[tokio::test]
async fn the_reason_phrase_is_read_and_classified() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    for (status, text, class) in [
        (500, "got timeout", ErrorClass::Busy),
        (500, "storage 'x' does not exist", ErrorClass::Missing),
        (
            403,
            "Permission check failed (/vms, VM.Audit)",
            ErrorClass::Refused,
        ),
        (
            501,
            "Method 'GET /cluster/resources' not implemented",
            ErrorClass::Refused,
        ),
        (302, "Found", ErrorClass::Broken),
    ] {
        server
            .world()
            .faults_on
            .push(("GET /cluster/resources", Fault::Answer(status, text)));
        let error = pve.observe().await.expect_err("an error");
        assert_eq!(error.class, class, "{error:?}");
        assert!(error.detail.contains(text), "{error:?}");
    }
}

#[tokio::test]
async fn a_guest_is_found_after_a_response_timeout() {
    let server = Server::start(World::new()).await;
    let limits = PveLimits {
        answer: Duration::from_millis(400),
        ..support::limits()
    };
    let pve = support::client_with(&server, limits);
    server
        .world()
        .faults_on
        .push(("POST /nodes/pve1/qemu", Fault::Silence));
    let guest = pve.create(&support::vm(1)).await.expect("a guest");
    assert_eq!(
        server.world().tagged_with(guest.uuid.as_str()),
        [guest.vmid.and_then(|id| id.number()).expect("an id")]
    );
    assert_eq!(server.world().guests.len(), 1);
}

#[tokio::test]
async fn the_host_of_a_guest_is_called_directly_or_through_the_entry() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let entry = Server::start(world).await;
    let mut world = World::new();
    add(&mut world, 100, 1, |_| {});
    let own = Server::start(world).await;
    let mut settings = settings(&entry);
    let endpoint = Endpoint {
        url: own.url.clone(),
        trust: own.trust.clone(),
    };
    settings.nodes.insert("pve1".to_owned(), endpoint);
    connect(settings.clone())
        .start(&guest)
        .await
        .expect("started");
    assert!(own.world().guests[&100].running);
    assert_eq!(entry.world().requests, 0);
    let unreachable = Endpoint {
        url: "https://127.0.0.1:9".to_owned(),
        trust: own.trust.clone(),
    };
    settings.nodes.insert("pve1".to_owned(), unreachable);
    connect(settings)
        .start(&guest)
        .await
        .expect("started through the entry");
    assert!(entry.world().guests[&100].running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_limited() {
    let server = Server::start(World::new()).await;
    let pve = Arc::new(support::client(&server));
    server.world().pause = Duration::from_millis(5);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let pve = Arc::clone(&pve);
        // Cancel safety: all are waited for.
        tasks.spawn(async move { pve.observe().await.map(|_| ()) });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("no panic").expect("observed");
    }
    let world = server.world();
    assert_eq!(world.requests, 40);
    assert!(
        (2..=4).contains(&world.most_in_flight),
        "{}",
        world.most_in_flight
    );
    assert!(
        world.connections <= 4,
        "connections are reused: {}",
        world.connections
    );
}

#[tokio::test]
async fn without_quorum_changes_stop_and_queries_continue() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    // Slow enough for two calls within the ten seconds in which changes are blocked.
    let clock = Arc::new(support::clock::FastClock::new(10));
    let pve = Pve::new(settings(&server), clock).expect("a client");
    let refusal = Fault::Answer(500, "cluster not ready - no quorum?");
    server
        .world()
        .faults_on
        .push(("POST /status/start", refusal));
    let error = pve.start(&guest).await.expect_err("no quorum");
    assert_eq!(error.class, ErrorClass::Busy);
    let posts = |server: &Server| {
        server
            .world()
            .log
            .iter()
            .filter(|line| line.starts_with("POST"))
            .count()
    };
    assert_eq!(posts(&server), 1);
    pve.start(&guest).await.expect_err("not even tried");
    assert_eq!(posts(&server), 1);
    pve.observe().await.expect("observed");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    pve.start(&guest).await.expect("tried again later");
}

#[tokio::test]
async fn a_ticket_is_sent_with_its_csrf_token_and_renewed() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    let mut settings = settings(&server);
    settings.credential = Credential::Login {
        user: "root@pam".to_owned(),
        password: Password::new("secret"),
    };
    let fast: homestak_api::runtime::SharedClock = Arc::new(support::clock::FastClock::new(200));
    let clock = Arc::new(support::clock::ClockAhead::new(&fast, Duration::ZERO));
    let pve = Pve::new(settings, clock.clone()).expect("a client");
    pve.start(&guest).await.expect("started, which is a change");
    assert_eq!(server.world().logins, 1);
    // A ticket is valid for two hours; a request at the end must still succeed.
    clock.jump(Duration::from_secs(91 * 60));
    pve.stop(&guest, StopMode::Now).await.expect("stopped");
    assert_eq!(server.world().logins, 2);
    assert!(!server.world().guests[&100].running);
}
