//! Nodes that configure themselves while agents, whole nodes, the server and the driver are killed at
//! random times: all end ready, and none converges twice at once.

use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use homestak_test_support::random::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::modes::write_site;
use crate::test_host::TestHost;

/// Number of nodes, number of kills, and the seed.
fn scale() -> (usize, usize, u64) {
    let seed = std::env::var("HOMESTAK_TEST_SEED").ok();
    let seed = seed.and_then(|text| text.parse().ok()).unwrap_or(0);
    println!("HOMESTAK_TEST_SEED={seed} repeats it");
    match std::env::var_os("HOMESTAK_TEST_FULL").is_some() {
        true => (20, 60, seed),
        false => (3, 8, seed),
    }
}

/// A driver that applies the manifest. It is killed when it is dropped, so that a test that fails
/// leaves none behind.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a driver. Its output is in the test's directory.
fn start_driver(host: &TestHost) -> Driver {
    let log = host.state().with_file_name("driver.log");
    let log = std::fs::File::options().append(true).create(true).open(log);
    let child = host
        .command(&["manifest", "apply", "-M", "fleet", "-H", "local", "--yes"])
        .stdout(Stdio::null())
        .stderr(log.unwrap())
        .spawn();
    Driver(child.unwrap())
}

fn kill(pid: i32) {
    // It may have ended by itself.
    _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// Returns the processes of a node, each with its command line.
pub fn processes(instance: &str, node: &Value) -> Vec<(i32, String)> {
    let group = format!("hs-{instance}-{}", node["id"]);
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let of_node = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_inside = groups.split(['/', '\n']).any(|part| part == group);
        is_inside.then(|| (pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    of_node.collect()
}

/// Kills what obtains and applies the spec of a node. Returns whether there was anything.
fn kill_agent(instance: &str, node: &Value) -> bool {
    let mut found = processes(instance, node).into_iter();
    let agent = found.find(|(_, line)| {
        line.contains("homestak-agent pull") || line.contains("/homestak/first-boot")
    });
    agent.map(|(pid, _)| kill(pid)).is_some()
}

/// Kills a node as a power failure would: at once, so it waits for the last process. A node with
/// processes counts as running, and nothing would start it.
fn kill_node(instance: &str, node: &Value) -> bool {
    let mut found = processes(instance, node).into_iter();
    let container = found.find(|(_, line)| line.starts_with("systemd-nspawn"));
    let Some((pid, _)) = container else {
        return false;
    };
    kill(pid);
    for _ in 0..3000 {
        if processes(instance, node).is_empty() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}", processes(instance, node));
}

/// Executes a script in a node, before it accepts logins too. `None` if the node does not run.
fn enter(instance: &str, node: &Value, script: &str) -> Option<Output> {
    let mut found = processes(instance, node).into_iter();
    let (init, _) = found.find(|(_, line)| line.trim_end() == "/usr/lib/systemd/systemd")?;
    let done = Command::new("nsenter")
        .args(["--all", &format!("--target={init}"), "sh", "-c", script])
        .output();
    Some(done.unwrap())
}

/// Starts another pull in a node that has the agent. Returns whether it was started.
fn start_pull(instance: &str, node: &Value) -> bool {
    let agent = "/usr/local/bin/homestak-agent";
    let script = format!("test -x {agent} && exec systemd-run --quiet --collect {agent} pull");
    enter(instance, node, &script).is_some_and(|done| done.status.success())
}

/// Returns what shows why a node did not become ready.
fn journal(instance: &str, node: &Value) -> String {
    let script = "systemctl --no-pager status 'homestak*'; systemctl list-jobs; \
                  journalctl --no-pager -n 200; ls -laR /usr/local/etc/homestak; ps -ef";
    let done = enter(instance, node, script);
    done.map_or_else(String::new, |done| {
        String::from_utf8_lossy(&done.stdout).into_owned()
    })
}

/// Starts a server that keeps the reports of all attempts of a node.
fn start_server(host: &TestHost) {
    host.write("server.toml", "reports_per_node = 2000\n");
    let settings = host.root().with_file_name("site").join("server.toml");
    let settings = settings.display().to_string();
    host.run(&["server", "start", "--settings", &settings])
        .good();
}

fn kill_server(host: &TestHost) {
    let status = host.run(&["server", "status", "--json"]).json();
    kill(i32::try_from(status["pid"].as_i64().unwrap()).unwrap());
    start_server(host);
}

/// Returns a run of a node that reported again after another one had begun, so that both converged at
/// once. A run reports each of its steps.
fn concurrent_run(reports: &[Value]) -> Option<&str> {
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    let mut current = "";
    for report in reports {
        let run = report["run"].as_str().unwrap();
        if run != current {
            if ended.contains(run) {
                return Some(run);
            }
            ended.insert(current);
            current = run;
        }
    }
    None
}

#[test]
fn runs_that_converge_at_once_are_recognised_by_their_reports() {
    let reports = |runs: &str| -> Vec<Value> {
        let runs = runs.split(' ').map(|run| json!({ "run": run }));
        runs.collect()
    };
    assert_eq!(concurrent_run(&reports("a a b c c")), None);
    assert_eq!(concurrent_run(&reports("a a b a c")), Some("a"));
    assert_eq!(concurrent_run(&reports("a b c c b")), Some("b"));
}

#[test]
fn nodes_end_ready_and_converge_once_at_a_time_whatever_is_killed_meanwhile() {
    let Some(host) = crate::host() else { return };
    let (n_nodes, n_kills, seed) = scale();
    let mut random = Random(seed);
    write_site(&host);
    let nodes: String = (1..=n_nodes)
        .map(|n| format!("  - {{name: node-{n}, spec: base, execution: {{mode: pull}}}}\n"))
        .collect();
    host.manifest("fleet", &nodes);
    let instance = homestak_providers::local::Instance::at(&host.root()).unwrap();
    let instance = instance.name();
    start_server(&host);
    let mut driver = start_driver(&host);
    while host.nodes().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (mut killed, mut n_second) = ([0; 4], 0);
    while killed.iter().sum::<usize>() < n_kills {
        // When something is killed is the point of this test.
        std::thread::sleep(Duration::from_millis(random.below(1200)));
        let all = host.nodes();
        let chosen = usize::try_from(random.below(n_nodes as u64)).unwrap();
        let Some(node) = all.get(chosen) else {
            continue;
        };
        let (choice, second) = (random.below(8), random.below(2) == 0);
        // A second pull, while the node may be pulling.
        if second && start_pull(instance, node) {
            n_second += 1;
        }
        match choice {
            0..=3 => killed[0] += usize::from(kill_agent(instance, node)),
            4 | 5 => {
                if !kill_node(instance, node) {
                    continue;
                }
                killed[1] += 1;
                // Waiting for a node that is off would time out: the next apply starts it.
                drop(driver);
                driver = start_driver(&host);
            }
            6 => {
                kill_server(&host);
                killed[2] += 1;
            }
            _ => {
                drop(driver);
                driver = start_driver(&host);
                killed[3] += 1;
            }
        }
    }
    println!("killed: agents, nodes, servers, drivers: {killed:?}; second pulls: {n_second}");
    // A few may all have been too early.
    assert!(
        n_second > 0 || n_kills < 60,
        "no node was to converge twice"
    );
    drop(driver);
    let run = host.manifest_run("apply", "fleet", &["--yes"]);
    let failed = run.out.lines().filter(|line| line.contains(" failed "));
    let names: BTreeSet<&str> = failed.filter_map(|line| line.split(' ').next()).collect();
    for node in host.nodes() {
        if node["name"]
            .as_str()
            .is_some_and(|name| names.contains(name))
        {
            println!("{}:\n{}", node["name"], journal(instance, &node));
        }
    }
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let plan = host.manifest_run("plan", "fleet", &[]).good();
    assert!(plan.contains("Nothing to do."), "{plan}");
    for n in 1..=n_nodes {
        let node = format!("node-{n}");
        host.inside(
            &node,
            // The watch of a node that was started moments ago may not run yet.
            "set -ex\nsudo test -s /usr/local/etc/homestak/state/config-complete.json\n\
             sudo test ! -e /usr/local/etc/homestak/state/config-failed.json\n\
             for n in $(seq 100); do\n\
             sudo homestak status | grep -qx complete && break || sleep 0.2\ndone\n\
             sudo homestak status | grep -qx complete\ncommand -v tree\nid alice",
        )
        .good();
        // Two at once wait for each other.
        let pull = "sudo homestak-agent pull";
        host.inside(&node, &format!("{pull} & {pull} && wait $!"))
            .good();
        let shown = host.run(&["node", "show", &node, "--json-output"]).json();
        let reports = shown["reports"].as_array().unwrap();
        let ends = |one: &&Value| one["state"] == "converged" || one["state"] == "failed";
        let last = reports.iter().rev().find(ends).unwrap();
        assert_eq!(last["state"], "converged", "{node}: {last}");
        assert_eq!(last["generation"], shown["generation"], "{node}");
        assert_eq!(concurrent_run(reports), None, "{node}: {reports:#?}");
    }
    host.destroy("fleet");
    host.run(&["server", "stop"]).good();
    host.assert_unchanged();
}
