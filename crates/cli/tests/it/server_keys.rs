//! Replacing keys of the site and certificates of its servers while a server runs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::server::Site;

/// Runs `openssl` in a directory.
fn openssl(directory: &Path, line: &str) -> String {
    let output = Command::new("openssl")
        .args(line.split_whitespace())
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{line}: {output:?}",
        output = output.stderr
    );
    text.trim().to_owned()
}

/// Creates a self-signed certificate, and returns its fingerprint.
fn certificate(directory: &Path, name: &str) -> String {
    openssl(
        directory,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=own \
             -addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
        ),
    );
    let shown = openssl(
        directory,
        &format!("x509 -in {name}.pem -noout -fingerprint -sha256"),
    );
    shown.split_once('=').unwrap().1.to_owned()
}

fn json(site: &Site, line: &str) -> Value {
    site.run(&format!("{line} --json-output")).json()
}

#[test]
fn a_server_with_an_own_certificate_is_healthy_and_the_certificate_can_be_renewed() {
    let site = Site::new();
    let (work, port) = (site.env.work(), site.port);
    let first = certificate(&work, "first");
    for kind in ["key", "pem"] {
        let from = work.join(format!("first.{kind}"));
        std::fs::copy(from, work.join(format!("own.{kind}"))).unwrap();
    }
    let line = format!("server start --port {port} --cert own.pem --key own.key");
    let started = json(&site, &line);
    assert_eq!(started["fingerprint"], first);
    assert_eq!(site.status().0, 0);
    site.run("node list").good();
    let shown = openssl(
        &work,
        &format!("s_client -connect 127.0.0.1:{port} -CAfile first.pem -verify_return_error"),
    );
    assert!(shown.contains("Verify return code: 0"), "{shown}");

    // The next certificate is announced before it is used.
    let second = certificate(&work, "second");
    let trusted = json(&site, "server trust second.pem");
    assert_eq!(trusted["certificates"], serde_json::json!([first, second]));
    for kind in ["key", "pem"] {
        let from = work.join(format!("second.{kind}"));
        std::fs::copy(from, work.join(format!("own.{kind}"))).unwrap();
    }
    let reloaded = site.run(&format!("server reload --port {port}")).good();
    assert_eq!(reloaded, format!("certificate: now {second}\n"));
    assert_eq!(site.status().0, 0);
    let refused = site.run(&format!("server trust --remove {first}"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    let trusted = json(&site, &format!("server trust --remove {first} --yes"));
    assert_eq!(trusted["certificates"], serde_json::json!([second]));
    assert_eq!(json(&site, "server trust"), trusted);
    site.run("node list").good();

    // A server with a certificate that was not announced is unhealthy until it is announced.
    certificate(&work, "third");
    for kind in ["key", "pem"] {
        let from = work.join(format!("third.{kind}"));
        std::fs::copy(from, work.join(format!("own.{kind}"))).unwrap();
    }
    site.run(&format!("server reload --port {port}")).good();
    let (code, status) = site.status();
    assert_eq!((code, &status["healthy"]), (2, &Value::from(false)));
    site.run("server trust third.pem").good();
    assert_eq!(site.status().0, 0);
    site.run(&format!("server stop --port {port}")).good();
}

#[test]
fn a_certificate_that_no_server_can_use_is_not_announced_to_nodes() {
    let site = Site::new();
    let (work, port) = (site.env.work(), site.port);
    certificate(&work, "first");
    certificate(&work, "second");
    std::fs::write(work.join("empty.pem"), "").unwrap();
    for (cert, key, why) in [
        (
            "first.pem",
            "second.key",
            "the key `second.key` is not that of the certificate",
        ),
        ("empty.pem", "first.key", "empty.pem"),
        ("first.pem", "empty.pem", "empty.pem"),
        ("first.pem", "missing.key", "missing.key"),
    ] {
        let line = format!("server start --port {port} --cert {cert} --key {key}");
        let failed = site.run(&line);
        assert_eq!(failed.code, 1, "{}", failed.err);
        let err = failed.err.to_lowercase();
        assert!(err.contains(why), "{err}");
        assert!(!err.contains("from now on"), "{err}");
    }
    assert_eq!(
        json(&site, "server trust")["certificates"],
        serde_json::json!([])
    );

    // A server that runs is not restarted for another certificate, so that is not announced either.
    site.run(&format!("server start --port {port}")).good();
    let line = format!("server start --port {port} --cert first.pem --key first.key");
    let refused = site.run(&line);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(
        refused.err.contains("homestak server trust first.pem"),
        "{}",
        refused.err
    );
    assert_eq!(
        json(&site, "server trust")["certificates"],
        serde_json::json!([])
    );
    site.run(&format!("server stop --port {port}")).good();
}

#[test]
fn a_server_is_recognised_by_the_root_of_an_own_authority() {
    let site = Site::new();
    let (work, port) = (site.env.work(), site.port);
    let root = {
        openssl(
            &work,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=root \
             -keyout root.key -out root.pem",
        );
        let shown = openssl(&work, "x509 -in root.pem -noout -fingerprint -sha256");
        shown.split_once('=').unwrap().1.to_owned()
    };
    site.run("server trust root.pem").good();
    let issue = || {
        std::fs::write(work.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
        openssl(
            &work,
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=s -keyout own.key \
             -out own.csr",
        );
        openssl(
            &work,
            "x509 -req -in own.csr -CA root.pem -CAkey root.key -CAcreateserial -days 30 \
             -extfile names -out leaf.pem",
        );
        let [leaf, root] =
            ["leaf.pem", "root.pem"].map(|name| std::fs::read_to_string(work.join(name)).unwrap());
        std::fs::write(work.join("own.pem"), leaf + &root).unwrap();
    };
    issue();
    std::fs::write(
        work.join("server.toml"),
        "cert = \"own.pem\"\nkey = \"own.key\"\n",
    )
    .unwrap();
    let line = format!("server start --port {port} --settings server.toml");
    assert_eq!(json(&site, &line)["fingerprint"], root);
    // A renewed certificate of the same authority needs no announcement.
    issue();
    let reloaded = site.run(&format!("server reload --port {port}")).good();
    assert!(reloaded.starts_with("certificate: now "), "{reloaded}");
    assert_eq!(site.status().0, 0);
    let trusted = json(&site, "server trust");
    assert_eq!(trusted["certificates"], serde_json::json!([root]));
    site.run("server check --settings server.toml").good();
    certificate(&work, "own");
    let checked = site.run("server check --settings server.toml");
    assert_eq!(checked.code, 1, "{}", checked.out);
    assert!(
        checked.out.contains("do not know this certificate"),
        "{}",
        checked.out
    );
    site.run(&format!("server stop --port {port}")).good();
}

#[test]
fn site_and_token_keys_are_replaced_in_two_steps() {
    let site = Site::new();
    let port = site.port;
    site.run(&format!("server start --port {port}")).good();
    for key in ["site", "token"] {
        let early = site.run(&format!("server rotate-key {key} --retire --yes"));
        assert_eq!(early.code, 3, "{}", early.err);
        let first = json(&site, &format!("server rotate-key {key}"));
        assert_eq!(first["retired"], serde_json::json!([]));
        // The old key signs until it is retired; tokens are minted with the new one at once.
        let next = match key {
            "site" => &first["next"],
            _ => &first["current"],
        };
        assert!(next.is_string(), "{first}");
        let asked = site.run(&format!("server rotate-key {key} --retire"));
        assert_eq!(asked.code, 3, "{}", asked.err);
        let second = json(&site, &format!("server rotate-key {key} --retire --yes"));
        assert_eq!(second["current"], *next);
        assert_eq!(second["retired"].as_array().unwrap().len(), 1);
        assert_ne!(second["retired"][0], second["current"]);
    }
    // The server has read all changes already: a reload changes nothing.
    let reloaded = site.run(&format!("server reload --port {port}"));
    assert_eq!((reloaded.code, reloaded.out.as_str()), (0, ""));
    site.run("server check").good();
    site.run("node list").good();
    site.run(&format!("server stop --port {port}")).good();
}

#[test]
fn lost_keys_are_reported_and_commands_that_only_show_generate_none() {
    let site = Site::new();
    site.run("server publish").good();
    site.run("server check").good();
    let keys = site.env.work().join("state/site-keys");
    std::fs::remove_dir_all(&keys).unwrap();
    let run = site.run("server check");
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(
        run.out.contains("site.key and authority.json missing"),
        "{}",
        run.out
    );
    let run = site.run("server status");
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("When the server is lost"), "{}", run.err);
    assert!(!keys.exists());

    let run = site.run("server publish");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("until they enrol again"), "{}", run.err);
    let run = site.run("server publish");
    assert!(!run.err.contains("warning"), "{}", run.err);
    site.run("server check").good();
}
