//! Shells and commands on nodes, with real SSH servers on loopback addresses.

use std::process::Command;

use homestak_core::observed::{GuestKind, GuestRef};
use homestak_core::plan::{
    Action, NodeLocation, NodePlan, NodeRecord, NodeStatus, OnError, PLAN_FORMAT, Plan, Verb,
};
use homestak_engine::journal::{Entry, Journal as _, RunOutcome, StepEvent};
use homestak_providers::local::{Engine, FirstBoot, Instance, Node};
use homestak_providers::ssh::Keyring;
use homestak_test_support::sshd::{Sshd, client_config, guest, user};
use jiff::Timestamp;

use crate::support::{Run, TestEnv};

/// Recorded nodes, and an SSH server for some of them.
pub(crate) struct SshNodes {
    pub(crate) env: TestEnv,
    servers: Vec<Sshd>,
}

impl SshNodes {
    pub(crate) fn new() -> Self {
        Self {
            env: TestEnv::without_site(),
            servers: Vec::new(),
        }
    }

    fn state(&self) -> std::path::PathBuf {
        self.env.home().join(".local/state/homestak")
    }

    fn keyring(&self) -> Keyring {
        Keyring::new(self.state().join("ssh"))
    }

    /// Starts a server with the host key of the n-th guest, at 127.0.0.(10 + n).
    pub(crate) fn serve(&mut self, nth: u32) {
        let at = u8::try_from(10 + nth).unwrap();
        let server = Sshd::start(&self.keyring(), at, &guest(nth), &self.env.work());
        self.servers.push(server);
    }

    /// Records a run that created nodes; each has the number of its guest.
    pub(crate) fn record(&self, manifest: &str, host: &str, nodes: &[(&str, u32)]) {
        let records = nodes.iter().map(|(name, nth)| NodeRecord {
            name: (*name).to_owned(),
            host: host.to_owned(),
            location: NodeLocation::Host(host.to_owned()),
            site: None,
            guest: GuestRef {
                uuid: guest(*nth),
                kind: GuestKind::Vm,
                vmid: Some((100 + nth).into()),
                host: host.to_owned(),
            },
            status: NodeStatus::Ready,
            source: None,
            address: Some([127, 0, 0, u8::try_from(10 + nth).unwrap()].into()),
            user: Some(user()),
            configured: None,
            hosts_guests: None,
        });
        record_run(self, manifest, host, records.collect());
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let servers: Vec<&Sshd> = self.servers.iter().collect();
        let mut command = self.env.command(arguments);
        command.env(
            "HOMESTAK_SSH_CONFIG",
            client_config(&self.env.work(), &servers),
        );
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        Run::of(&mut self.command(arguments))
    }
}

impl Drop for SshNodes {
    fn drop(&mut self) {
        // Shared connections end with the test.
        for nth in 0..8 {
            _ = self.keyring().forget(&guest(nth));
        }
    }
}

fn record_run(nodes: &SshNodes, manifest: &str, host: &str, records: Vec<NodeRecord>) {
    let plan = Plan {
        format: PLAN_FORMAT,
        verb: Verb::Apply,
        site: None,
        manifest: manifest.to_owned(),
        hosts: vec![host.to_owned()],
        on_error: OnError::Stop,
        parallelism: 1,
        verify_ssh: true,
        timeout_buffer: homestak_core::units::Seconds(0),
        timeouts: homestak_core::doc::timeouts::Timeouts::default(),
        nodes: records.iter().map(planned).collect(),
        images: Vec::new(),
        steps: homestak_core::plan::Steps::default(),
        foreign: Vec::new(),
        refusals: Vec::new(),
        estimate: None,
        measured: false,
    };
    let at = Timestamp::UNIX_EPOCH;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let journal = homestak_store::Sqlite::open(&nodes.state()).unwrap();
        let run = journal.begin("apply", &plan, "run", at).await.unwrap();
        for record in records {
            let entry = Entry {
                step: None,
                happened: StepEvent::Done { changed: true },
                at,
                record: Some(record),
            };
            journal.append(run, &entry).await.unwrap();
        }
        journal.end(run, RunOutcome::Done, at).await.unwrap();
    });
}

fn planned(record: &NodeRecord) -> NodePlan {
    NodePlan {
        name: record.name.clone(),
        host: record.host.clone(),
        location: record.location.clone(),
        depth: 0,
        action: Action::Create,
        reasons: Vec::new(),
        wanted: None,
        found: None,
        config: None,
        simulated: false,
        reidentified: None,
        recorded: None,
    }
}

#[test]
fn ssh_passes_on_arguments_input_and_exit_code() {
    let mut nodes = SshNodes::new();
    nodes.serve(1);
    nodes.record("m", "father", &[("web", 1)]);
    let run = nodes.run(&["ssh", "web", "--", "printf", "%s|", "a b", "$HOME", "it's"]);
    assert_eq!(
        (run.code, run.out.as_str()),
        (0, "a b|$HOME|it's|"),
        "{}",
        run.err
    );
    let run = nodes.run(&["ssh", "web", "--", "echo one | tr o O; exit 7"]);
    assert_eq!((run.code, run.out.as_str()), (7, "One\n"), "{}", run.err);
    let mut child = nodes
        .command(&["ssh", "web", "--", "cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"hello").unwrap();
    drop(input);
    assert_eq!(Run::from(child.wait_with_output().unwrap()).out, "hello");
}

#[test]
fn a_node_with_another_host_key_is_refused() {
    let mut nodes = SshNodes::new();
    nodes.serve(1);
    nodes.record("m", "father", &[("web", 1)]);
    // It answers with its old key, and a new one was recorded since.
    nodes.keyring().forget(&guest(1)).unwrap();
    nodes.keyring().host_key(&guest(1)).unwrap();
    for arguments in [&["ssh", "web"][..], &["ssh", "web", "--", "true"]] {
        let run = nodes.run(arguments);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(
            run.err
                .contains("The host key at 127.0.0.11 is not that of `web`"),
            "{}",
            run.err
        );
        assert!(run.err.contains("known_hosts"), "{}", run.err);
    }
    let run = nodes.run(&["exec", "web", "--", "true"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("is not that of `web`"), "{}", run.err);
    // No key is recorded.
    nodes.keyring().forget(&guest(1)).unwrap();
    let run = nodes.run(&["ssh", "web"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err.contains("is not known to this driver"),
        "{}",
        run.err
    );
}

#[test]
fn exec_prefixes_lines_with_the_node_and_reports_exit_codes() {
    let mut nodes = SshNodes::new();
    nodes.serve(1);
    nodes.serve(2);
    nodes.serve(3);
    nodes.servers[2].stop();
    nodes.record(
        "m",
        "father",
        &[("web", 1), ("worker-2", 2), ("worker-3", 3)],
    );
    let line = "echo at $SSH_CONNECTION; echo oh >&2";
    let run = nodes.run(&["exec", "web,worker-2", "--", line]);
    assert_eq!(run.code, 0, "{}", run.err);
    let mut lines: Vec<&str> = run.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{}", run.out);
    assert!(lines[0].starts_with("web      | at 127."), "{}", run.out);
    assert!(lines[1].starts_with("worker-2 | at 127."), "{}", run.out);
    assert!(run.err.contains("web      | oh"), "{}", run.err);
    // One exits with a code, one does not answer.
    let line = "case $SSH_CONNECTION in *127.0.0.11*) exit 3;; esac";
    let run = nodes.run(&["exec", "w*", "--parallel", "2", "--", line]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        run.err.contains("worker-3: `worker-3` is not reachable"),
        "{}",
        run.err
    );
    for end in ["web: exit code 3", "Succeeded on 1 of 3 nodes."] {
        assert!(run.err.contains(end), "{}", run.err);
    }
    let json = nodes.run(&["exec", "--all", "--json-output", "--", "echo hi; exit 4"]);
    assert_eq!(json.code, 1);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["kind"], &json["success"]),
        (&"exec".into(), &false.into())
    );
    let results = json["results"].as_array().unwrap();
    let codes: Vec<_> = results
        .iter()
        .map(|one| (one["node"].as_str().unwrap(), one["exit"].as_i64()))
        .collect();
    assert_eq!(
        codes,
        [("web", Some(4)), ("worker-2", Some(4)), ("worker-3", None)]
    );
    assert_eq!(results[0]["stdout"], "hi\n");
    assert_eq!(results[0]["stderr"], "");
    assert!(
        results[2]["error"]["message"]
            .as_str()
            .unwrap()
            .contains("not reachable")
    );
}

#[test]
fn unknown_and_ambiguous_node_names_are_errors() {
    let nodes = SshNodes::new();
    let run = nodes.run(&["ssh", "web"]);
    assert_eq!(run.code, 1);
    let state = format!("{} records no such node", nodes.state().display());
    assert!(
        run.err.contains(&state) && run.err.contains("sudo"),
        "{}",
        run.err
    );
    nodes.record("one", "father", &[("web", 1)]);
    nodes.record("two", "father", &[("web", 2), ("db", 3)]);
    let run = nodes.run(&["ssh", "web"]);
    assert_eq!(run.code, 2);
    for which in ["-M one -H father", "-M two -H father"] {
        assert!(run.err.contains(which), "{}", run.err);
    }
    let run = nodes.run(&["ssh", "wbe", "-M", "two"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("did you mean `web`?"), "{}", run.err);
    let run = nodes.run(&["exec", "x*", "--", "true"]);
    assert!(run.err.contains("No node matches `x*`"), "{}", run.err);
    assert!(run.err.contains("available: db, web"), "{}", run.err);
    assert_eq!(
        nodes.run(&["exec", "--", "true"]).code,
        2,
        "no node is named"
    );
    assert_eq!(nodes.run(&["exec", "web"]).code, 2, "no command is named");
}

#[test]
fn nodes_of_the_same_name_are_distinguished_by_manifest() {
    let mut nodes = SshNodes::new();
    nodes.serve(1);
    nodes.serve(2);
    nodes.record("one", "father", &[("web", 1)]);
    nodes.record("two", "father", &[("web", 2)]);
    let run = nodes.run(&["exec", "--all", "--", "echo", "hi"]);
    let mut lines: Vec<&str> = run.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one/web | hi", "two/web | hi"], "{}", run.err);
    let run = nodes.run(&["exec", "web", "-M", "two", "--", "echo", "hi"]);
    assert_eq!(run.out, "web | hi\n");
}

#[test]
fn without_ssh_keygen_nothing_is_created_and_the_package_is_named() {
    let nodes = SshNodes::new();
    nodes.env.run(&["site", "init", "site"]).good();
    let apply = ["manifest", "apply", "-M", "n1-push", "-H", "sim", "--yes"];
    let mut command = nodes.command(&apply);
    command
        .env("PATH", "/nowhere")
        .env("HOMESTAK_SITE_CONFIG", "site");
    let run = command.output().map(Run::from).unwrap();
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        run.err.contains("ssh-keygen is not installed"),
        "{}",
        run.err
    );
    assert!(
        run.err.contains("apt-get install openssh-client"),
        "{}",
        run.err
    );
    assert!(
        nodes.run(&["manifest", "history"]).out.is_empty(),
        "no run was recorded"
    );
    nodes.run(&["sim", "stop"]).good();
}

#[test]
fn commands_on_simulated_nodes_are_refused() {
    let nodes = SshNodes::new();
    nodes.record("m", "sim", &[("web", 1)]);
    let all = [
        &["ssh", "web"][..],
        &["exec", "--all", "--", "true"],
        &["console", "web"],
        &["logs", "web"],
    ];
    for arguments in all {
        let run = nodes.run(arguments);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(run.err.contains("`web` is simulated"), "{}", run.err);
    }
}

#[test]
fn console_of_a_proxmox_ve_guest_names_the_command_for_its_host() {
    let mut nodes = SshNodes::new();
    nodes.serve(1);
    nodes.servers[0].stop();
    nodes.record("m", "father", &[("web", 1)]);
    let run = nodes.run(&["console", "web"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err.contains("on father, as root: qm terminal 101"),
        "{}",
        run.err
    );
    let run = nodes.run(&["logs", "web"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("not reachable"), "{}", run.err);
    assert!(run.err.contains("qm terminal 101"), "{}", run.err);
}

/// Writes the files of a virtual machine of the local host.
fn machine(nodes: &SshNodes, name: &str, nth: u32) -> std::path::PathBuf {
    let root = nodes.env.work().join("root");
    let wanted = homestak_core::firstboot::FirstBootConfig {
        uuid: guest(nth),
        hostname: name.to_owned(),
        user: user(),
        keys: Vec::new(),
        host_key: None,
        mac: "02:00:00:00:00:01".to_owned(),
        address: None,
        gateway: None,
        dns: Vec::new(),
        packages: Vec::new(),
        enrolment: None,
    };
    let node = Node {
        uuid: guest(nth),
        reidentified: None,
        site: None,
        run: None,
        name: name.to_owned(),
        manifest: "m".to_owned(),
        vmid: 100 + nth,
        kind: GuestKind::Vm,
        engine: Engine::Machine,
        first_boot: FirstBoot::CloudInit,
        cores: 1,
        memory: homestak_core::units::Mib(512),
        disk: homestak_core::units::Gib(4),
        address: ([10, 0, 0, 7].into(), 24),
        image: "debian-12".to_owned(),
        tree: root.join("images/none"),
        hosts: false,
        ids: None,
        identity: wanted,
    };
    let directory = Instance::at(&root).unwrap().node(&guest(nth));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(
        directory.join("node.json"),
        serde_json::to_vec(&node).unwrap(),
    )
    .unwrap();
    directory
}

#[test]
fn the_console_of_a_virtual_machine_is_its_serial_port() {
    use std::io::{Read as _, Write as _};
    let nodes = SshNodes::new();
    nodes.record("m", "local", &[("web", 1)]);
    let directory = machine(&nodes, "web", 1);
    let console = || {
        let mut command = nodes.command(&["console", "web"]);
        command
            .env("HOMESTAK_LOCAL_ROOT", nodes.env.work().join("root"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let off = Run::from(console().wait_with_output().unwrap());
    assert_eq!(off.code, 1, "{}", off.err);
    assert!(off.err.contains("does not answer"), "{}", off.err);
    let line = std::os::unix::net::UnixListener::bind(directory.join("serial.sock")).unwrap();
    let far = std::thread::spawn(move || {
        let (mut stream, _) = line.accept().unwrap();
        stream.write_all(b"web login: ").unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        stream.write_all(b"Password: ").unwrap();
        received
    });
    let mut child = console();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"root\n").unwrap();
    drop(input);
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(
        (run.code, run.out.as_str()),
        (0, "web login: Password: "),
        "{}",
        run.err
    );
    assert_eq!(far.join().unwrap(), "root\n");
}
