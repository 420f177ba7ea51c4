//! The server that runs start for nodes that fetch their specs: shared, and never left behind.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

/// Returns a port that is free until someone else takes it, which a test that fails shows.
pub(crate) fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

pub(crate) fn command(env: &TestEnv, port: u16, line: &str) -> std::process::Command {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let agent = env.work().join("agent");
    std::fs::write(&agent, "program").unwrap();
    let mut command = env.command(&arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_STATE", env.work().join("state"))
        .env("HOMESTAK_AGENT", agent)
        .env("HOMESTAK_SERVER", format!("https://127.0.0.1:{port}"));
    command
}

pub(crate) fn run(env: &TestEnv, port: u16, line: &str) -> Run {
    Run::of(&mut command(env, port, line))
}

/// Returns the exit code of `server status`, and the process id of the server.
fn status(env: &TestEnv, port: u16) -> (i32, Value) {
    let run = run(env, port, &format!("server status --json --port {port}"));
    let shown: Value = serde_json::from_str(&run.out).unwrap();
    (run.code, shown["pid"].clone())
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..300 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what}");
}

/// Starts to apply a manifest whose node never reports. Returns when the run waits for it.
fn apply(host: &TestPve, port: u16, manifest: &str) -> Child {
    let node = format!(
        "  - {{name: {manifest}, spec: base, preset: vm-small, image: debian-12, execution: {{mode: pull}}}}\n"
    );
    host.manifest(manifest, "", &node);
    let log = host.env.work().join(format!("{manifest}.log"));
    let line = format!("manifest apply -M {manifest} -H father --yes");
    let child = command(&host.env, port, &line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let seen = || std::fs::read_to_string(&log).unwrap();
    wait_until(&seen(), || seen().contains("configuring"));
    child
}

#[test]
fn two_runs_share_a_server_which_ends_after_both_were_killed() {
    let host = TestPve::quick();
    let port = free_port();
    assert_eq!(status(&host.env, port).0, 1);
    let mut first = apply(&host, port, "one");
    let (code, server) = status(&host.env, port);
    assert_eq!(code, 0);
    let mut second = apply(&host, port, "two");
    assert_eq!(status(&host.env, port), (0, server.clone()));
    let listed = run(&host.env, port, "token list --json-output").json();
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2, "{listed}");
    let id = listed["tokens"][0]["id"].as_str().unwrap();
    let line = format!("token revoke {id} --json-output");
    let revoked = run(&host.env, port, &line).json();
    assert!(revoked["revoked"].is_i64(), "{revoked}");

    first.kill().unwrap();
    first.wait().unwrap();
    // The other run still uses it, and so may others.
    run(&host.env, port, "node list").good();
    assert_eq!(status(&host.env, port), (0, server));
    second.kill().unwrap();
    second.wait().unwrap();
    wait_until("the server still runs", || status(&host.env, port).0 == 1);

    // What both left is continued, by a server of its own.
    let mut again = apply(&host, port, "one");
    wait_until("no server was started", || status(&host.env, port).0 == 0);
    again.kill().unwrap();
    again.wait().unwrap();
    wait_until("the server still runs", || status(&host.env, port).0 == 1);
}

#[test]
fn a_server_that_stays_is_used_by_runs_of_its_site_and_refused_by_those_of_another() {
    let host = TestPve::quick();
    let port = free_port();
    run(&host.env, port, &format!("server start --port {port}")).good();
    let (code, server) = status(&host.env, port);
    assert_eq!(code, 0);
    let mut user = apply(&host, port, "one");
    user.kill().unwrap();
    user.wait().unwrap();

    let other = TestEnv::new();
    let refused = run(&other, port, "node list");
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
    for words in [
        format!("Port {port} of this machine is used"),
        "server of another site".to_owned(),
        "homestak server stop".to_owned(),
        "HOMESTAK_SERVER=https://ADDRESS:PORT".to_owned(),
    ] {
        assert!(refused.err.contains(&words), "{words}: {}", refused.err);
    }
    // One answers, and does not serve that site.
    assert_eq!(status(&other, port).0, 2);
    assert_eq!(status(&host.env, port), (0, server));
    run(&host.env, port, &format!("server stop --port {port}")).good();
    assert_eq!(status(&host.env, port).0, 1);
}

#[test]
fn a_server_that_is_reloaded_while_it_starts_still_starts() {
    let env = TestEnv::new();
    let port = free_port();
    // What a server needs is published.
    run(&env, port, "server publish").good();
    let file = env.work().join("server.pid");
    let line = format!(
        "server start --foreground --port {port} --pid-file {}",
        file.display()
    );
    let mut server = command(&env, port, &line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    let has_started = || std::fs::read_to_string(&file).is_ok_and(|text| !text.is_empty());
    while !has_started() && server.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let is_listening = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    while !is_listening() && server.try_wait().unwrap().is_none() {
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }
    let ended = server.try_wait().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(ended, None);
}

#[test]
fn a_revoked_token_stays_revoked_when_the_server_loses_its_registry() {
    let host = TestPve::quick();
    let port = free_port();
    let start = format!("server start --port {port}");
    let stop = format!("server stop --port {port}");
    run(&host.env, port, &start).good();
    let mut user = apply(&host, port, "one");
    user.kill().unwrap();
    user.wait().unwrap();
    let tokens = || {
        let listed = run(&host.env, port, "token list --json-output").json();
        listed["tokens"].as_array().unwrap().clone()
    };
    let lose_registry = || {
        run(&host.env, port, &stop).good();
        let servers = host.env.work().join("state/server");
        for site in std::fs::read_dir(servers).unwrap() {
            let registry = site.unwrap().path().join("state");
            std::fs::remove_dir_all(registry).unwrap();
        }
        run(&host.env, port, &start).good();
    };
    lose_registry();
    assert_eq!(
        tokens().len(),
        1,
        "an open one comes from what is published"
    );
    let id = tokens()[0]["id"].as_str().unwrap().to_owned();
    run(&host.env, port, &format!("token revoke {id}")).good();
    assert!(tokens()[0]["revoked"].is_i64());
    lose_registry();
    assert_eq!(tokens(), Vec::<Value>::new());
    run(&host.env, port, &stop).good();
}
