//! Jobs of real nodes: through the server and over SSH, and updates over several nodes, from a package
//! source of ours.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::pull::server_has_ended;
use crate::test_host::{Run, TestHost, text};

const SPEC: &str = "\
schema_version: 1
access:
  posture: free
  users:
    - {name: ops, sudo: true}
config:
  files:
    - {path: /etc/motd, content: \"made by homestak\\n\"}
run: {TRIGGER, updates: all, window: \"WINDOW\"}
";

/// Makes a package source with a package in version 1, which is installed, and version 2, whose script
/// is `$1`. There is no other source.
const SOURCE: &str = r#"
set -e; rm -rf /srv/repo; mkdir -p /srv/repo; cd /srv/repo; umask 022
make() {
    d=$(mktemp -d); mkdir $d/DEBIAN
    printf 'Package: thing\nVersion: %s\nArchitecture: all\nMaintainer: Nobody <nobody@lab.example>\nDescription: none\n' "$1" >$d/DEBIAN/control
    printf '#!/bin/sh\n%s\n' "$2" >$d/DEBIAN/postinst; chmod 755 $d/DEBIAN/postinst
    dpkg-deb --build $d thing-$1.deb >/dev/null; rm -rf $d
}
make "$1" true; dpkg -i thing-$1.deb >/dev/null; rm thing-$1.deb
make "$2" "$3"
for file in *.deb; do
    dpkg-deb --field $file
    echo "Filename: ./$file"; echo "Size: $(stat -c %s $file)"; echo "SHA256: $(sha256sum $file | cut -d' ' -f1)"; echo
done >Packages
rm -f /etc/apt/sources.list.d/*; rm -rf /var/lib/apt/lists/*
echo 'deb [trusted=yes] file:/srv/repo ./' >/etc/apt/sources.list
"#;

/// A script of a package that does not end before a file exists.
const BLOCKS: &str = "echo begun; until [ -e /srv/go ]; do sleep 0.2; done";

/// An agent that claims to have updated its node, which then differs from its spec.
const LIAR: &str = r#"
agent=/usr/local/bin/homestak-agent; mv $agent /srv/agent
cat >$agent <<'SCRIPT'
#!/bin/sh
case "$* " in
*" update "*" --dry-run "* | *" collect "*) exec /srv/agent "$@" ;;
*" update "*) touch /srv/lied; echo '{"state": "succeeded", "result": {"changed": true}}' ;;
*" check "*)
    if [ ! -e /srv/lied ]; then exec /srv/agent "$@"; fi
    echo '{"state": "succeeded", "result": {"differences": ["package:thing"]}}' ;;
*) exec /srv/agent "$@" ;;
esac
SCRIPT
chmod 755 $agent
"#;

/// Returns a window of the day that is closed now.
fn closed_window() -> String {
    let hour = jiff::Timestamp::now().as_second().rem_euclid(86_400) / 3_600;
    format!("{:02}:00-{:02}:00", (hour + 6) % 24, (hour + 7) % 24)
}

pub fn write(host: &TestHost, trigger: &str, window: &str, nodes: &str) {
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    let spec = SPEC.replace("TRIGGER", trigger).replace("WINDOW", window);
    host.write("specs/web.yaml", &spec);
    host.manifest("lab", nodes);
}

pub fn apply(host: &TestHost) {
    let run = host.manifest_run("apply", "lab", &["--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
}

pub fn run(host: &TestHost, line: &str) -> Run {
    let words: Vec<&str> = line.split_whitespace().collect();
    host.run(&words)
}

/// Runs a job, asserts how it ended, and returns it.
pub fn job(host: &TestHost, line: &str, code: i32, state: &str) -> Value {
    let done = run(host, &format!("node job {line} --json-output -v"));
    assert_eq!(done.code, code, "{line}: {}{}", done.out, done.err);
    let mut words = line.split(' ');
    let (node, kind) = (words.next().unwrap(), words.next().unwrap());
    let span = format!("job{{node={node:?} kind={kind:?}}}");
    assert!(done.err.contains(&span), "{line}: {}", done.err);
    let out: Value = serde_json::from_str(&done.out).unwrap();
    let mut job = out["job"].clone();
    assert_eq!(text(&job["state"]), state, "{line}: {out}");
    job["route"] = out["route"].clone();
    job
}

/// Gives a node another version of a package.
pub fn offer(host: &TestHost, node: &str, versions: [&str; 2], script: &str) {
    let [from, to] = versions;
    let line = format!("sudo sh -s {from} {to} '{script}'");
    let done = host.run_with_input(node, &line, SOURCE.as_bytes());
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
}

pub fn version(host: &TestHost, node: &str) -> String {
    let line = "dpkg-query -W -f '${Version} ${db:Status-Status}' thing";
    host.inside(node, line).good()
}

pub fn wait(what: &str, is_done: impl Fn() -> bool) {
    for _ in 0..300 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("still waiting for {what}");
}

/// Kills the server without a chance to end.
pub fn kill_server(host: &TestHost) {
    let status = run(host, "server status --json").json();
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn state_of(host: &TestHost, id: &str) -> String {
    let shown = run(host, &format!("job show {id} --json-output")).json();
    text(&shown["job"]["state"])
}

/// Queues a job that is not waited for.
fn queue(host: &TestHost, line: &str) -> String {
    text(&job(host, &format!("{line} --detach"), 0, "queued")["id"])
}

/// What every kind of job does, whichever way it reaches the node.
fn every_kind(host: &TestHost, route: &str) {
    let checked = job(host, "web check", 0, "succeeded");
    assert_eq!(checked["route"], route, "{checked}");
    assert_eq!(
        checked["outcome"]["result"]["differences"],
        Value::Null,
        "{checked}"
    );
    job(host, "web converge", 0, "succeeded");
    let collected = job(host, "web collect", 0, "succeeded");
    let collected = &collected["outcome"]["result"]["collected"];
    assert_eq!(collected["status"], "complete", "{collected}");
    assert!(
        text(&collected["facts"]["os"]).contains("Debian"),
        "{collected}"
    );
    let shown = run(host, "node job web collect").good();
    assert!(!shown.contains("made by homestak"), "{shown}");

    // Outside the window, updates and restarts are refused, and nothing changes.
    offer(host, "web", ["1", "2"], "echo updated");
    let refused = job(host, "web update", 3, "refused");
    assert!(
        text(&refused["outcome"]["message"]).contains("window"),
        "{refused}"
    );
    job(host, "web reboot --yes", 3, "refused");
    assert_eq!(version(host, "web"), "1 installed");
    let planned = job(host, "web update --dry-run --force", 0, "succeeded");
    let package = &planned["outcome"]["result"]["packages"][0];
    assert_eq!(package["name"], "thing", "{planned}");
    assert_eq!([&package["from"], &package["to"]], ["1", "2"], "{planned}");
    assert_eq!(version(host, "web"), "1 installed");
    let shown = run(host, "node job web update --force");
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);
    assert!(shown.out.contains("thing 1 -> 2"), "{}", shown.out);
    // What the script of the package prints.
    assert!(
        shown.err.lines().any(|line| line == "updated"),
        "{}",
        shown.err
    );
    assert_eq!(version(host, "web"), "2 installed");

    let started = || host.inside("web", "stat -c %Y /proc/1").good();
    let before = started();
    let restarted = job(host, "web reboot --force --yes", 0, "succeeded");
    assert_eq!(
        restarted["outcome"]["result"]["rebooted"], true,
        "{restarted}"
    );
    wait("the node to accept logins", || {
        host.inside("web", "true").code == 0
    });
    assert_ne!(started(), before);
}

#[test]
fn a_node_that_pulls_takes_jobs_from_the_server_at_most_once() {
    let Some(host) = crate::host() else { return };
    let pulls = "  - {name: web, spec: web, execution: {mode: pull}}\n";
    write(
        &host,
        "trigger: schedule, interval: 10s",
        &closed_window(),
        pulls,
    );
    apply(&host);
    server_has_ended(&host);
    // Nobody could take it.
    let refused = run(&host, "node job web check --detach");
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("server start"), "{}", refused.err);
    // A server is started for the time of the command.
    job(&host, "web check", 0, "succeeded");
    server_has_ended(&host);

    run(&host, "server start").good();
    every_kind(&host, "server");
    let listed = run(&host, "job list web --json-output").json();
    assert!(listed["jobs"].as_array().unwrap().len() > 5, "{listed}");
    let shown = run(&host, "node show web --json-output").json();
    assert_eq!(shown["result"], "converged", "{shown}");
    assert_eq!(shown["reported_generation"], shown["generation"], "{shown}");
    let status = run(&host, "manifest status -M lab --json-output").json();
    let report = &status["runs"][0]["nodes"][0]["report"];
    assert_eq!(report["behind"], false, "{status}");
    assert_eq!(report["silent"], false, "{status}");

    // What a node has not taken is cancelled or expires, and is never taken afterwards.
    host.inside("web", "sudo systemctl stop homestak-pull")
        .good();
    let cancelled = queue(&host, "web converge");
    let expired = queue(&host, "web converge --expires 1");
    run(&host, &format!("job cancel {cancelled} --json-output")).good();
    // The answer may have been lost.
    run(&host, &format!("job cancel {cancelled}")).good();
    // One that is followed ends with it.
    job(&host, "web check --expires 1", 1, "expired");
    wait("the job to expire", || {
        state_of(&host, &expired) == "expired"
    });
    host.inside("web", "sudo systemctl start homestak-pull")
        .good();
    job(&host, "web check", 0, "succeeded");
    assert_eq!(state_of(&host, &cancelled), "cancelled");
    assert_eq!(state_of(&host, &expired), "expired");
    let late = run(&host, &format!("job cancel {expired}"));
    assert_eq!(late.code, 3, "{}{}", late.out, late.err);

    // The node ends a job at its time limit.
    offer(&host, "web", ["2", "3"], BLOCKS);
    let limited = "web update --force --no-reboot --time-limit 5";
    let ended = job(&host, limited, 1, "failed");
    let message = text(&ended["outcome"]["message"]);
    assert!(message.contains("time limit of 5 s"), "{ended}");
    // The next job completes the installation, unless the next pass did.
    host.inside("web", "sudo touch /srv/go").good();
    job(&host, "web update --force --no-reboot", 0, "succeeded");
    assert_eq!(version(&host, "web"), "3 installed");
    host.inside("web", "sudo rm /srv/go").good();

    // The server is killed while a job runs; its result arrives at the next one.
    offer(&host, "web", ["3", "4"], BLOCKS);
    let id = queue(&host, "web update --force");
    // Its output arrives while it runs.
    wait("output of the job", || {
        let shown = run(&host, &format!("job show {id} --json-output")).json();
        let state = text(&shown["job"]["state"]);
        assert!(["queued", "taken"].contains(&state.as_str()), "{shown}");
        state == "taken" && !text(&shown["output"]).is_empty()
    });
    kill_server(&host);
    host.inside("web", "sudo touch /srv/go").good();
    run(&host, "server start").good();
    wait("the result", || state_of(&host, &id) == "succeeded");
    assert_eq!(version(&host, "web"), "4 installed");
    host.destroy("lab");
    run(&host, "server stop").good();
    host.assert_unchanged();
}

#[test]
fn a_node_that_is_configured_over_ssh_runs_jobs_there_and_none_twice() {
    let Some(host) = crate::host() else { return };
    let nodes = "  - {name: web, spec: web}\n";
    write(&host, "trigger: manual", &closed_window(), nodes);
    apply(&host);
    every_kind(&host, "ssh");
    offer(&host, "web", ["2", "3"], "date +%N >>/srv/times");
    let done = job(&host, "web update --force", 0, "succeeded");
    let id = text(&done["id"]);
    let again = job(
        &host,
        &format!("web update --force --ssh --id {id}"),
        0,
        "succeeded",
    );
    assert_eq!(again["outcome"], done["outcome"]);
    for (kind, id) in [("update", "0".repeat(32)), ("reboot", id)] {
        let line = format!("web {kind} --force --yes --ssh --id {id}");
        let refused = job(&host, &line, 3, "refused");
        let message = text(&refused["outcome"]["message"]);
        assert!(message.contains("nothing was run"), "{refused}");
    }
    host.inside("web", "test $(wc -l </srv/times) = 1").good();

    // Lines arrive while the job runs.
    offer(&host, "web", ["3", "4"], BLOCKS);
    let words = ["node", "job", "web", "update", "--force"];
    let mut command = host.command(&words);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut updating = command.spawn().unwrap();
    let lines = BufReader::new(updating.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line == "begun"));
    assert_eq!(updating.try_wait().unwrap(), None);
    host.inside("web", "sudo touch /srv/go").good();
    lines.for_each(drop);
    assert!(updating.wait().unwrap().success());
    assert_eq!(version(&host, "web"), "4 installed");

    // A node without an agent is reported, with the command that installs one.
    host.inside("web", "sudo rm /usr/local/bin/homestak-agent")
        .good();
    let missing = run(&host, "node job web check");
    assert_eq!(missing.code, 1, "{}{}", missing.out, missing.err);
    for words in ["has no agent", "homestak manifest apply -M lab -H local"] {
        assert!(missing.err.contains(words), "{words}: {}", missing.err);
    }
    host.destroy("lab");
    host.assert_unchanged();
}

/// The command of a staged update.
pub const UPDATE: &str = "--timeout boot=20 node update -M lab --json-output";

/// Runs a staged update, and returns its output and the states of its nodes.
pub fn update(host: &TestHost, more: &str, code: i32) -> (Value, Vec<String>) {
    updated(&run(host, &format!("{UPDATE} {more}")), code)
}

/// Returns the output of a staged update and the states of its nodes.
pub fn updated(done: &Run, code: i32) -> (Value, Vec<String>) {
    assert_eq!(done.code, code, "{}{}", done.out, done.err);
    let out: Value = serde_json::from_str(&done.out).unwrap();
    let nodes = out["nodes"].as_array().unwrap().clone();
    let states = ["a", "b", "c"].map(|name| {
        let node = nodes.iter().find(|node| node["node"] == name).unwrap();
        text(&node["state"])
    });
    (out, states.into())
}

#[test]
fn an_update_over_three_nodes_stops_at_one_that_does_not_come_back_healthy() {
    let Some(host) = crate::host() else { return };
    let nodes = "  - {name: a, spec: web}\n  - {name: b, spec: web}\n  - {name: c, spec: web}\n";
    let closed = closed_window();
    write(&host, "trigger: manual", &closed, nodes);
    apply(&host);
    for node in ["a", "c"] {
        offer(&host, node, ["1", "2"], "true");
    }
    offer(&host, "b", ["1", "2"], "echo changed >/etc/motd");
    let versions = || ["a", "b", "c"].map(|node| version(&host, node));

    // Outside the window.
    let (plan, states) = update(&host, "--dry-run", 0);
    assert_eq!(states, ["planned"; 3]);
    let message = text(&plan["nodes"][0]["message"]);
    assert!(message.contains(&closed), "{plan}");
    let (done, states) = update(&host, "--yes", 3);
    assert_eq!(states, ["refused", "not-started", "not-started"], "{done}");
    assert_eq!(text(&done["stopped"]), "`a` refused", "{done}");
    assert_eq!(versions(), ["1 installed"; 3]);
    write(&host, "trigger: manual", "00:00-24:00", nodes);
    // Only settings of the agent differ, which no resource of the nodes shows.
    let diff = run(&host, "spec diff a");
    assert_eq!(diff.code, 3, "{}{}", diff.out, diff.err);
    assert!(diff.out.contains("00:00-24:00"), "{}", diff.out);
    apply(&host);
    run(&host, "spec diff a").good();

    let (plan, states) = update(&host, "--dry-run", 0);
    assert_eq!(states, ["planned", "planned", "planned"]);
    assert_eq!(plan["nodes"][0]["packages"][0]["to"], "2", "{plan}");
    assert_eq!(plan["nodes"][0]["window"][0], "00:00-24:00", "{plan}");
    let unasked = run(&host, "node update -M lab");
    assert_eq!(unasked.code, 3, "{}{}", unasked.out, unasked.err);
    assert_eq!(versions(), ["1 installed"; 3]);

    let (done, states) = update(&host, "--yes", 1);
    assert_eq!(states, ["updated", "unhealthy", "not-started"], "{done}");
    assert!(text(&done["stopped"]).contains("`b`"), "{done}");
    assert_eq!(versions(), ["2 installed", "2 installed", "1 installed"]);

    // Corrected, the same command continues.
    apply(&host);
    let (_, states) = update(&host, "--yes", 0);
    assert_eq!(states, ["up-to-date", "up-to-date", "updated"]);
    let (_, states) = update(&host, "--yes", 0);
    assert_eq!(states, ["up-to-date"; 3]);

    // A package that cannot be configured: nothing newer is left to install, but the node is not up to
    // date.
    offer(&host, "a", ["2", "2.1"], "test -e /srv/fixed");
    let (done, states) = update(&host, "--yes", 1);
    assert_eq!(states, ["failed", "up-to-date", "up-to-date"], "{done}");
    let (plan, states) = update(&host, "--dry-run", 0);
    assert_eq!(states, ["planned", "up-to-date", "up-to-date"], "{plan}");
    let message = text(&plan["nodes"][0]["message"]);
    assert!(message.contains("not complete"), "{plan}");
    host.inside("a", "sudo touch /srv/fixed").good();
    let (done, states) = update(&host, "--yes", 0);
    assert_eq!(states, ["updated", "up-to-date", "up-to-date"], "{done}");
    assert_eq!(versions()[0], "2.1 installed");

    // One that claims to be updated.
    for node in ["a", "b", "c"] {
        offer(&host, node, ["2", "3"], "true");
    }
    let lies = host.run_with_input("a", "sudo sh -e", LIAR.as_bytes());
    assert_eq!(lies.code, 0, "{}{}", lies.out, lies.err);
    let (done, states) = update(&host, "--yes", 1);
    assert_eq!(
        states,
        ["unhealthy", "not-started", "not-started"],
        "{done}"
    );
    let message = text(&done["nodes"][0]["message"]);
    assert!(message.contains("package:thing"), "{done}");
    assert_eq!(versions(), ["2 installed"; 3]);
    host.inside("a", "sudo mv /srv/agent /usr/local/bin/homestak-agent")
        .good();

    // One that cannot be reached afterwards.
    offer(
        &host,
        "a",
        ["2", "3"],
        "systemctl --no-block disable --now ssh",
    );
    let (done, states) = update(&host, "--yes", 1);
    assert_eq!(
        states,
        ["unhealthy", "not-started", "not-started"],
        "{done}"
    );
    for node in ["b", "c"] {
        assert_eq!(version(&host, node), "2 installed");
    }
    host.destroy("lab");
    host.assert_unchanged();
}
