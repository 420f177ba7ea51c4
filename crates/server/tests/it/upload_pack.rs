//! git's smart protocol: who receives what, which requests are refused, and when processes end.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use homestak_server::settings::{Limits, ServerSettings};

use crate::raw::{RawClient, request};
use crate::repos::{RepoSite, git_in, good};
use crate::site::REPO_TOKEN;

const REQUEST: &str = "application/x-git-upload-pack-request";
const LIST: &str = "/tools.git/info/refs?service=git-upload-pack";
const FETCH: &str = "/tools.git/git-upload-pack";

fn line(text: &str) -> String {
    format!("{:04x}{text}\n", text.len() + 5)
}

/// Returns a request for objects, in version 2 of the protocol.
fn want(id: &str) -> String {
    let lines = [
        line("no-progress"),
        line(&format!("want {id}")),
        line("done"),
    ];
    format!("{}0001{}0000", line("command=fetch"), lines.concat())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("compressed");
    encoder.finish().expect("compressed")
}

/// Status, content type and body of an answer.
type Received = (u16, String, Vec<u8>);

impl RepoSite {
    /// Sends a request with the token.
    async fn send(&self, path: &str, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> Received {
        let (client, url) = (self.site.client(None), format!("{}{path}", self.site.url));
        let mut request = match body {
            None => client.get(url),
            Some(body) => client.post(url).body(body),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.bearer_auth(REPO_TOKEN).send().await;
        let answer = answer.expect("an answer");
        let kind = answer.headers()["content-type"].to_str().expect("text");
        let (status, kind) = (answer.status().as_u16(), kind.to_owned());
        (status, kind, answer.bytes().await.expect("a body").to_vec())
    }

    /// Sends a request in version 2 of the protocol.
    async fn fetch(&self, body: &str) -> Received {
        let headers = [("content-type", REQUEST), ("git-protocol", "version=2")];
        let body = body.as_bytes().to_vec();
        self.send(FETCH, &headers, Some(body)).await
    }

    fn head(&self) -> String {
        good(&git_in(&self.work(), &["rev-parse", "HEAD"]))
    }

    /// Publishes more than the buffers of a connection hold.
    fn publish_large(&self) {
        let mut state: u64 = 16;
        let bytes = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        });
        let bytes: Vec<u8> = bytes.take(32 << 20).collect();
        fs_err::write(self.work().join("large"), bytes).expect("written");
        self.commit();
        self.publish("tools");
    }

    /// Requests everything, and reads no more than the start of the answer.
    async fn stall(&self) -> RawClient {
        let token = format!("Bearer {REPO_TOKEN}");
        let headers = [
            ("authorization", token.as_str()),
            ("content-type", REQUEST),
            ("git-protocol", "version=2"),
        ];
        let mut client = RawClient::connect(&self.site, None).await;
        let asked = request("POST", FETCH, &headers, &want(&self.head()));
        client.send(&asked).await;
        let answer = client.answer(true).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.head);
        client
    }

    /// Returns how many processes work on the copy.
    fn processes(&self) -> usize {
        let copy = self.site.directory.repo_path("tools");
        let all = fs_err::read_dir("/proc").expect("read");
        all.filter(|entry| {
            let path = entry.as_ref().expect("an entry").path();
            let line = fs_err::read(path.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_in = fs_err::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == copy);
            is_in || line.contains(copy.to_str().expect("text"))
        })
        .count()
    }

    /// Waits until no process works on the copy.
    fn wait_for_the_end(&self) {
        for _ in 0..100 {
            if self.processes() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{} processes are left", self.processes());
    }
}

fn has_pack(received: &Received) -> bool {
    received.2.windows(4).any(|part| part == b"PACK")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_are_listed_in_the_version_that_the_client_asks_for() {
    let site = RepoSite::start().await;
    let kind = "application/x-git-upload-pack-advertisement";
    let prefix = "001e# service=git-upload-pack\n0000";
    for (version, start) in [
        (None, prefix.to_owned()),
        (Some("version=1"), format!("{prefix}000eversion 1\n")),
        (Some("version=2"), "000eversion 2\n".to_owned()),
        (Some("version=3"), prefix.to_owned()),
        (Some("version=2:command=x"), prefix.to_owned()),
    ] {
        let headers = version.map(|version| ("git-protocol", version));
        let headers: Vec<(&str, &str)> = headers.into_iter().collect();
        let (status, found, body) = site.send(LIST, &headers, None).await;
        assert_eq!((status, found.as_str()), (200, kind), "{version:?}");
        let text = String::from_utf8_lossy(&body);
        assert!(text.starts_with(&start), "{version:?}: {text}");
        let has_list = text.contains(&format!("{} refs/heads/_working", site.head()));
        assert_eq!(has_list, !start.ends_with("2\n"), "{version:?}: {text}");
    }
    let token = format!("Bearer {REPO_TOKEN}");
    let headers = [("authorization", token.as_str())];
    let head = site.ask("HEAD", LIST, &headers).await;
    assert_eq!(
        (head.status, head.header("content-type")),
        (200, Some(kind))
    );
    assert_eq!(head.header("cache-control"), Some("private, no-cache"));

    let plain = site.send("/tools.git/info/refs", &[], None).await;
    assert_eq!((plain.0, plain.1.as_str()), (200, "text/plain"));
    // Where it has no meaning, the parameter is ignored.
    let plain = site
        .send("/tools.git/HEAD?service=git-receive-pack", &[], None)
        .await;
    assert_eq!((plain.0, plain.1.as_str()), (200, "text/plain"));
    for service in [
        "git-receive-pack",
        "git-upload-archive",
        "",
        "git-upload-pack%00",
        "sh",
    ] {
        let path = format!("/tools.git/info/refs?service={service}");
        let (status, _, body) = site.send(&path, &[], None).await;
        let text = String::from_utf8_lossy(&body);
        assert_eq!(status, 403, "{service}: {text}");
        assert!(text.contains("can only be read"), "{service}: {text}");
    }
    let push = site.git(&["-C", "work", "push", "-q", &site.url("tools"), "HEAD:x"]);
    assert!(!push.status.success());
    let error = String::from_utf8_lossy(&push.stderr).into_owned();
    assert!(error.contains("403"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smart_protocol_needs_the_token_and_a_published_repository() {
    let site = RepoSite::start().await;
    let token = format!("Bearer {REPO_TOKEN}");
    for (method, path) in [
        ("GET", LIST),
        ("POST", FETCH),
        ("POST", "/none.git/git-upload-pack"),
    ] {
        site.site.clock.advance(60);
        let kind = ("content-type", REQUEST);
        let without = site.ask(method, path, &[kind]).await;
        assert_eq!(without.status, 401, "{method} {path}");
        let wrong = [kind, ("authorization", "Bearer wrong")];
        let wrong = site.ask(method, path, &wrong).await;
        assert_eq!(wrong.status, 403, "{method} {path}");
    }
    site.site.clock.advance(60);
    for (path, status) in [
        ("/none.git/git-upload-pack", 404),
        ("/none.git/info/refs?service=git-upload-pack", 404),
        ("/..git/git-upload-pack", 400),
        ("/.git/git-upload-pack", 400),
        ("/...git/git-upload-pack", 400),
        ("/%74ools.git/git-upload-pack", 400),
        ("/%2e%2e%2ftools.git/git-upload-pack", 400),
        ("/..%2ftools.git/git-upload-pack", 400),
        ("/tools%00.git/git-upload-pack", 400),
        ("/--help.git/git-upload-pack", 400),
        ("/tools.git.git/git-upload-pack", 400),
        ("/repos/tools.git/git-upload-pack", 400),
        ("/../tools.git/git-upload-pack", 400),
        ("/tools.git/../tools.git/git-upload-pack", 405),
        ("/tools.git/./git-upload-pack", 405),
        ("/tools.git//git-upload-pack", 405),
        ("/tools.git/GIT-UPLOAD-PACK", 405),
        ("/tools.git/git-receive-pack", 405),
        ("/tools.git/info/refs", 405),
    ] {
        let headers = [("content-type", REQUEST), ("authorization", token.as_str())];
        let method = if path.contains('?') { "GET" } else { "POST" };
        let answer = site.ask(method, path, &headers).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_large_requests_are_refused() {
    let site = RepoSite::start().await;
    let all = want(&site.head());
    assert!(has_pack(&site.fetch(&all).await));
    let post = |kind: &'static str, encoding: Option<&'static str>, body: Vec<u8>| {
        let mut headers = vec![("content-type", kind), ("git-protocol", "version=2")];
        headers.extend(encoding.map(|encoding| ("content-encoding", encoding)));
        let site = &site;
        async move { site.send(FETCH, &headers, Some(body)).await }
    };
    let text = |text: &str| text.as_bytes().to_vec();
    let received = post(REQUEST, Some("gzip"), gzip(all.as_bytes())).await;
    assert_eq!(
        (received.0, received.1.as_str()),
        (200, "application/x-git-upload-pack-result")
    );
    assert!(has_pack(&received));
    let cut = gzip(all.as_bytes());
    for (kind, encoding, body, status) in [
        ("text/plain", None, text(&all), 415),
        ("application/json", None, text("{}"), 415),
        (REQUEST, Some("deflate"), text(&all), 415),
        (REQUEST, Some("gzip, gzip"), text(&all), 415),
        (REQUEST, Some("gzip"), text(&all), 400),
        (REQUEST, Some("gzip"), cut[..cut.len() / 2].to_vec(), 400),
        (REQUEST, Some("gzip"), Vec::new(), 400),
        (REQUEST, Some("gzip"), gzip(&vec![0; 16 << 20]), 413),
        (REQUEST, None, vec![b'0'; (1 << 20) + 1], 413),
        (REQUEST, None, text("zzzz"), 400),
        (REQUEST, None, text(&line("want no object")), 400),
        (REQUEST, None, vec![0xff; 4096], 400),
        (REQUEST, None, text(&line("command=push")), 400),
        (REQUEST, None, text(&line("command=$(id)")), 400),
        (REQUEST, None, text(&want("../../secrets")), 400),
        (REQUEST, None, text("0000"), 200),
        // An incomplete line ends the request.
        (REQUEST, None, text("fff0x"), 200),
        (REQUEST, None, vec![b'0'; 1 << 20], 200),
    ] {
        let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let (found, _, body) = post(kind, encoding, body).await;
        let body = String::from_utf8_lossy(&body);
        assert_eq!(found, status, "{kind} {encoding:?} {start}: {body}");
    }
    // The same without a version of the protocol.
    for body in ["zzzz", "", "0001", "0009want", "fff0x"] {
        let headers = [("content-type", REQUEST)];
        let (status, ..) = site.send(FETCH, &headers, Some(text(body))).await;
        assert!(matches!(status, 200 | 400), "{body}: {status}");
    }
    let token = format!("Bearer {REPO_TOKEN}");
    let headers = [
        ("content-type", REQUEST),
        ("authorization", token.as_str()),
        ("transfer-encoding", "chunked"),
    ];
    assert_eq!(site.ask("POST", FETCH, &headers).await.status, 411);
    // Every answer was sent, and no process is left.
    assert!(has_pack(&site.fetch(&all).await));
    site.wait_for_the_end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_removed_is_not_sent_by_its_id() {
    let site = RepoSite::start().await;
    let before = site.head();
    fs_err::write(site.work().join("secret"), "SECRET\n").expect("written");
    site.commit();
    site.publish("tools");
    let removed = site.head();
    let file = good(&git_in(&site.work(), &["rev-parse", "HEAD:secret"]));
    for id in [&removed, &file] {
        assert!(has_pack(&site.fetch(&want(id)).await), "it is published");
    }
    good(&git_in(&site.work(), &["reset", "-q", "--hard", &before]));
    good(&git_in(
        &site.work(),
        &["reflog", "expire", "--expire=all", "--all"],
    ));
    good(&git_in(&site.work(), &["gc", "-q", "--prune=now"]));
    site.publish("tools");
    for id in [&removed, &file] {
        let refused = site.fetch(&want(id)).await;
        let text = String::from_utf8_lossy(&refused.2);
        assert!(text.contains("not our ref"), "{text}");
        assert!(!has_pack(&refused));
    }
    assert!(has_pack(&site.fetch(&want(&before)).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_copy_is_executed() {
    let site = RepoSite::start().await;
    let copy = site.site.directory.repo_path("tools");
    let executed = site.files.path().join("executed");
    let script = site.files.path().join("script");
    let text = format!("#!/bin/sh\necho \"$0\" >>{}\n", executed.display());
    let write = |path: &Path| {
        fs_err::write(path, &text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs_err::set_permissions(path, mode).expect("set");
    };
    write(&script);
    _ = fs_err::create_dir(copy.join("hooks"));
    for hook in [
        "pre-upload-pack",
        "post-upload-pack",
        "reference-transaction",
        "pre-auto-gc",
    ] {
        write(&copy.join("hooks").join(hook));
    }
    let script = script.display();
    let config = format!(
        "[core]\n repositoryformatversion = 1\n bare = true\n fsmonitor = {script}\n\
         sshCommand = {script}\n gitProxy = {script}\n alternateRefsCommand = {script}\n\
         pager = {script}\n askPass = {script}\n[uploadpack]\n packObjectsHook = {script}\n\
         allowFilter = true\n[extensions]\n partialClone = origin\n\
         [remote \"origin\"]\n url = ext::{script}\n promisor = true\n\
         [protocol]\n allow = always\n[credential]\n helper = {script}\n\
         [gc]\n auto = 1\n[trace2]\n eventTarget = {}\n",
        executed.display()
    );
    fs_err::write(copy.join("config"), config).expect("written");
    good(&site.git(&["clone", "-q", "--depth", "1", &site.url("tools"), "shallow"]));
    good(&site.git(&["clone", "-q", &site.url("tools"), "full"]));
    site.fetch(&want(&"1".repeat(40))).await;
    let executed = fs_err::read_to_string(executed);
    assert!(executed.is_err(), "{executed:?}");
}

#[test]
fn processes_end_when_their_client_leaves_and_when_the_server_stops() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (site, client) = runtime.block_on(async {
        let site = RepoSite::start().await;
        site.publish_large();
        let client = site.stall().await;
        assert!(site.processes() > 0);
        drop(client);
        site.wait_for_the_end();
        let client = site.stall().await;
        (site, client)
    });
    assert!(site.processes() > 0);
    // As the program does after the grace period.
    drop(runtime);
    site.wait_for_the_end();
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_share_of_an_address_wait_and_are_refused_after_the_time_limit() {
    let limits = Limits {
        request: 3,
        ..Limits::default()
    };
    let site = RepoSite::start_with(ServerSettings {
        limits,
        ..ServerSettings::default()
    })
    .await;
    site.publish_large();
    let mut stalled = Vec::new();
    for _ in 0..2 {
        stalled.push(site.stall().await);
    }
    assert_eq!(site.send(LIST, &[], None).await.0, 408);
    // Files do not wait for them.
    assert_eq!(site.send("/tools.git/HEAD", &[], None).await.0, 200);
    drop(stalled);
    assert_eq!(site.send(LIST, &[], None).await.0, 200);
    tokio::task::block_in_place(|| site.wait_for_the_end());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_does_not_keep_out_others() {
    let site = RepoSite::start().await;
    let head = format!(
        "POST {FETCH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {REPO_TOKEN}\r\n\
         Content-Type: {REQUEST}\r\nContent-Length: 100\r\n\r\n"
    );
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let from = [127, 0, 0, 2].into();
        let client = RawClient::connect_from(from, &site.site, site.site.tls(None)).await;
        let mut client = client.expect("connected");
        client.send(head.as_bytes()).await;
        waiting.push(client);
    }
    // They are being processed.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let listed = tokio::time::timeout(Duration::from_secs(10), site.send(LIST, &[], None));
    assert_eq!(listed.await.expect("not kept out").0, 200);
    drop(waiting);
}
