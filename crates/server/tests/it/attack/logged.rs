//! Accepted requests in the log, at every level: each line has the request it belongs to, and none has
//! a secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{enrolment, hooks};
use crate::raw::{RawClient, request};
use crate::site::{REPO_TOKEN, WEB, v1, v2};

#[tokio::test]
async fn a_server_without_a_certificate_does_not_fill_its_log() {
    let target = hooks::start().await;
    let site = &target.site;
    // The intermediate has expired.
    site.clock.advance(31 * 24 * 3600);
    for _ in 0..30 {
        let refused = RawClient::try_connect(site, site.tls(None)).await;
        assert!(refused.is_err());
    }
    let log = target.log.text();
    let lines = log.lines().filter(|line| line.contains("ERROR"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 20, "{log}");
    for part in ["address=127.0.0.1", "no certificate", "expired"] {
        assert!(lines[0].contains(part), "no {part}: {}", lines[0]);
    }
}

#[tokio::test]
async fn lines_of_accepted_requests_have_their_span_and_no_secret() {
    let mut target = hooks::start().await;
    let sent = hooks::send_valid(&target.site, "one").await;
    assert!(sent < 300, "{sent}");
    let (first, provisioning) = (v1("web", "base"), v2(&target.site.claims(WEB, "web")));
    let repo = STANDARD.encode(format!("x:{REPO_TOKEN}"));
    for secret in [&first, &provisioning, &repo, &REPO_TOKEN.to_owned()] {
        target.secret(secret);
    }
    let bearer = |token: &str| format!("Bearer {token}");
    let requests = [
        ("GET", "/spec/web", bearer(&first), String::new()),
        ("POST", "/v1/enrol", bearer(&provisioning), enrolment()),
        (
            "GET",
            "/tools.git/info/refs",
            format!("Basic {repo}"),
            String::new(),
        ),
        ("GET", "/nowhere", bearer(&first), String::new()),
    ];
    for (method, path, authorization, body) in requests {
        let bytes = request(method, path, &[("authorization", &authorization)], &body);
        let mut client = RawClient::connect(&target.site, None).await;
        client.exchange(&bytes).await.expect("an answer");
    }
    let operator = target.site.operator();
    let nodes = operator.get(format!("{}/v1/nodes", target.site.url)).send();
    assert!(nodes.await.expect("an answer").status().is_success());
    let log = target.log.text();
    for span in [
        "request{method=\"POST\" route=\"/v1/hooks/{name}\" caller=anonymous}",
        "request{method=\"GET\" route=\"/spec/{identity}\" caller=anonymous}",
        "request{method=\"POST\" route=\"/v1/enrol\" caller=anonymous}",
        "request{method=\"GET\" route=\"/{repo}.git/{path}\" caller=anonymous}",
        "request{method=\"GET\" route=\"none\" caller=anonymous}",
        "request{method=\"GET\" route=\"/v1/nodes\" caller=operator op}",
    ] {
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains(span) && line.contains("status="));
        assert!(line.is_some(), "no {span} in\n{log}");
    }
    assert_eq!(target.finish().await, 0);
}
