//! What a server accepts after it lost its registry, and what it reports when it reads everything again.

use homestak_api::publication::{FirstContact, IssuedToken, PublishedRevocation};
use homestak_server::settings::ServerSettings;
use homestak_server::{Server, ServerOptions};
use rcgen::KeyPair;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::site::{DB, TestSite, WEB, at, enrol, enrol_by, v2};

fn revocation() -> Option<PublishedRevocation> {
    Some(PublishedRevocation {
        at: at(5).as_second(),
        reason: "stolen".to_owned(),
    })
}

fn token(id: &str) -> Option<IssuedToken> {
    Some(IssuedToken {
        id: id.to_owned(),
        issued: at(0).as_second(),
        expires: at(3600).as_second(),
    })
}

/// Starts a server with an empty registry that serves what is published.
async fn start_without_registry(site: &TestSite) -> (String, DropGuard) {
    let server = Server::open(ServerOptions {
        settings: Box::new(|| {
            Ok(ServerSettings {
                bind: [127, 0, 0, 1].into(),
                port: 0,
                ..ServerSettings::default()
            })
        }),
        published: site.directory.path().to_owned(),
        state: site.root.path().join("another-state"),
        listener: None,
        clock: site.clock.clone(),
        hostname: "localhost".to_owned(),
    });
    let server = server.await.expect("it starts");
    let (url, stop) = (
        format!("https://{}", server.address()),
        CancellationToken::new(),
    );
    tokio::spawn(server.run(stop.clone()));
    (url, stop.drop_guard())
}

async fn try_to_enrol((site, url): (&TestSite, &str), id: &str) -> u16 {
    let mut claims = site.claims(WEB, "web");
    if let Some(guest) = &mut claims.guest {
        guest.token_id = id.to_owned();
    }
    let key = KeyPair::generate().expect("a key");
    let client = site.client(None);
    let answer = enrol(&client, url, WEB, "web", &key, &v2(&claims)).await;
    answer.status().as_u16()
}

#[tokio::test]
async fn a_revocation_outlives_the_registry() {
    let site = TestSite::start().await;
    site.publish(WEB, "web", |spec| spec.revoked = revocation());
    let (url, _guard) = start_without_registry(&site).await;
    assert_eq!(try_to_enrol((&site, &url), "t-web").await, 403);
}

#[tokio::test]
async fn neither_a_certificate_nor_a_used_token_is_accepted_after_the_registry_was_lost() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    // The driver does so once it has seen that the node has enrolled.
    site.publish(WEB, "web", |spec| spec.token = None);
    let (url, _guard) = start_without_registry(&site).await;
    let answer = web.get(format!("{url}/spec/web")).send().await;
    assert_eq!(answer.expect("an answer").status(), 401);
    assert_eq!(try_to_enrol((&site, &url), "t-web").await, 403);
}

#[tokio::test]
async fn the_network_does_not_enrol_a_node_that_had_a_token_after_the_registry_was_lost() {
    let site = TestSite::start_with(ServerSettings::default(), |info| {
        info.trusted_networks = vec!["127.0.0.0/8".to_owned()];
    });
    let site = site.await;
    let network = |token: Option<IssuedToken>| {
        site.publish(WEB, "web", |spec| {
            spec.first_contact = FirstContact::Network;
            spec.token = token;
        });
    };
    network(token("t-web"));
    site.enrol(WEB, "web").await;
    // As the driver does once it has seen that the node has enrolled.
    network(None);
    let key = KeyPair::generate().expect("a key");
    let by_network = async |url: &str| {
        let client = site.client(None);
        let answer = enrol_by(&client, url, WEB, "web", &key, None).await;
        let spec = client.get(format!("{url}/spec/web")).send().await;
        let spec = spec.expect("an answer").status().as_u16();
        (answer.status().as_u16(), spec)
    };
    let (url, _guard) = start_without_registry(&site).await;
    assert_eq!(by_network(&url).await, (400, 400));
}

#[tokio::test]
async fn a_new_token_lets_a_revoked_node_enrol_again_and_ends_what_it_had() {
    let site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    site.publish(WEB, "web", |spec| spec.revoked = revocation());
    assert_eq!((site.reload)(), ["`web` revoked"]);
    site.publish(WEB, "web", |spec| spec.token = token("t-again"));
    assert_eq!((site.reload)(), ["`web` may enrol again"]);
    let answer = web.get(format!("{}/spec/web", site.url)).send().await;
    assert_eq!(answer.expect("an answer").status(), 401);
    assert_eq!(try_to_enrol((&site, &site.url), "t-web").await, 403);
    assert_eq!(try_to_enrol((&site, &site.url), "t-again").await, 201);
}

#[tokio::test]
async fn a_reload_lists_nodes_whose_certificates_are_no_longer_accepted() {
    let site = TestSite::start().await;
    site.enrol(WEB, "web").await;
    site.enrol(DB, "db").await;
    site.publish(WEB, "web", |spec| spec.revoked = revocation());
    site.publish(DB, "db", |spec| spec.token = token("t-again"));
    let changes = (site.reload)();
    assert_eq!(changes, ["`web` revoked", "`db` may enrol again"]);
    assert_eq!((site.reload)(), Vec::<String>::new());
}

#[tokio::test]
async fn a_reload_names_each_kind_of_change() {
    let site = TestSite::start().await;
    let mut published = site.directory.read().expect("read");
    published.site.trusted_networks = vec!["10.0.0.0/8".to_owned()];
    published
        .site
        .operators
        .insert("AA".to_owned(), "x".to_owned());
    let keys = &mut published.secrets.token_keys;
    keys.insert("k2".to_owned(), "00ff".to_owned().into());
    let written = site.directory.put_site(&published.site, &published.secrets);
    written.expect("written");
    let changes = (site.reload)();
    assert_eq!(changes, ["operators", "token keys", "trusted networks"]);
}
