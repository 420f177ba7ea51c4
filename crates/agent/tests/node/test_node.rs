//! A node with the agent on it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::test_host::{Run, SshConnection, TestHost, image, text};

/// The path of the agent on the node.
pub const AGENT: &str = "/usr/local/bin/homestak-agent";
/// The directory of its state.
pub const STATE: &str = "/usr/local/etc/homestak/state";
/// A key that opens nothing.
pub const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGa1xU0y8sYFqV1h8v3b0T1mJp6v6m9QxkVxg3p2Jq1d alice@desk";

pub struct TestNode {
    pub host: TestHost,
    address: String,
}

impl TestNode {
    /// Creates a node with the agent on it.
    pub fn new() -> Option<Self> {
        Self::of(&image())
    }

    /// The same with another image.
    pub fn of(image: &str) -> Option<Self> {
        let mut host = crate::new_test_host()?;
        host.run(&["image", "build", image]).good();
        host.manifest("lab", &format!("  - {{name: web, image: {image}}}\n"));
        host.apply("lab");
        host.open_shared_connection("web");
        let address = text(&host.nodes()[0]["address"]);
        let agent = std::fs::read(env!("CARGO_BIN_EXE_homestak-agent")).unwrap();
        let put = format!("sudo tee {AGENT} >/dev/null && sudo chmod 755 {AGENT}");
        host.run_with_input("web", &put, &agent).good();
        Some(Self { host, address })
    }

    /// Runs a command as root.
    pub fn root(&self, command: &str) -> Run {
        self.host
            .run_with_input("web", "sudo sh -e", command.as_bytes())
    }

    /// Runs the agent with a spec on its input.
    pub fn agent(&self, words: &str, spec: &Value) -> Run {
        let command = format!("sudo {AGENT} {words} --spec -");
        self.host
            .run_with_input("web", &command, spec.to_string().as_bytes())
    }

    pub fn apply(&self, spec: &Value) -> Value {
        self.agent("config apply --json-output", spec).json()
    }

    /// Returns how many steps would be executed.
    pub fn dry_run(&self, spec: &Value) -> usize {
        let result = self.agent("config apply --dry-run --json-output", spec);
        result.json()["steps"].as_array().unwrap().len()
    }

    /// Starts a job, whose events can be read.
    pub fn begin(&self, words: &str, spec: &Value, connection: SshConnection) -> Job {
        let command = format!("sudo {AGENT} job run {words}");
        let input = spec.to_string();
        let mut ssh = self
            .host
            .command_with_input("web", &command, input.as_bytes(), connection);
        let mut child = ssh.stdout(Stdio::piped()).spawn().unwrap();
        Job {
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
            events: Vec::new(),
        }
    }

    /// Runs a job to its end.
    pub fn job(&self, words: &str, spec: &Value) -> (i32, Vec<Value>) {
        self.begin(words, spec, SshConnection::Shared).end()
    }

    /// Follows a job over new connections, until one succeeds.
    pub fn follow(&self, words: &str) -> (i32, Vec<Value>) {
        let command = format!("sudo -n {AGENT} job follow {words}");
        for _ in 0..100 {
            let run = self.run_separately(&command);
            if run.code != 255 && !run.err.contains("password is required") {
                return (run.code, events(&run.out));
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("the node is unreachable");
    }

    /// Runs a command over a new connection.
    pub fn run_separately(&self, command: &str) -> Run {
        let mut ssh = self
            .host
            .command_with_input("web", command, b"", SshConnection::New);
        ssh.output().map(Run::from).unwrap()
    }

    /// Returns the part of a snapshot that a reverted job must not change.
    pub fn system_snapshot(&self) -> Vec<String> {
        let ours = |line: &&str| !line.contains("usr/local/etc");
        self.snapshot()
            .lines()
            .filter(ours)
            .map(str::to_owned)
            .collect()
    }

    /// Returns the ids of the differences, and checks the exit code.
    pub fn check(&self, spec: &Value) -> Vec<String> {
        let run = self.agent("config check --json-output", spec);
        let result: Value = serde_json::from_str(&run.out).unwrap();
        let changes = result["changes"].as_array().unwrap();
        assert_eq!(
            run.code,
            if result["settled"] == true { 0 } else { 3 },
            "{}",
            run.err
        );
        changes.iter().map(|change| text(&change["id"])).collect()
    }

    /// Returns the status of the agent.
    pub fn status(&self) -> Value {
        self.root(&format!("{AGENT} status --json-output")).json()
    }

    /// Returns every configuration file with its mode, owner and digest, without times and backups of
    /// the account databases.
    pub fn snapshot(&self) -> String {
        let command = "cd /; find etc home root usr/local/etc -xdev \\( -name '*-' -o -name '*.prev' -o -name lock -o -name .pwd.lock -o -name .cache \\) -prune -o -printf '%p %m %u:%g %l\\n' | sort; \
             find etc home root -xdev -type f ! -name '*-' ! -name .pwd.lock -print0 | sort -z | xargs -0 sha256sum; \
             ip -br address show eth0; hostname; sysctl net.ipv4.ip_forward; \
             systemctl list-unit-files --no-legend --state=enabled; systemctl is-active cron nftables fail2ban ssh || true";
        self.root(command).good()
    }

    /// A spec with resources of every kind.
    pub fn spec(&self, posture: &str) -> Value {
        let gateway = self.root("ip -json route show default").json();
        let dns = self
            .root("sed -n 's/^nameserver //p' /etc/resolv.conf")
            .good();
        json!({
            "schema_version": 1,
            "identity": { "hostname": "web", "domain": "lab.example" },
            "network": { "ip": format!("{}/20", self.address), "gateway": gateway[0]["gateway"], "dns": [dns.trim()] },
            "access": {
                "posture": posture,
                "users": [
                    { "name": "alice", "sudo": true, "ssh_keys": [KEY] },
                    { "name": "bob", "sudo": false, "ssh_keys": [KEY] },
                ],
                "_posture": settings(posture),
            },
            "platform": {
                "packages": ["tree", "cron"],
                "services": { "enable": ["cron"], "disable": ["nftables"] },
            },
            "config": {
                "timezone": "Europe/Berlin",
                "files": [{ "path": "/etc/motd", "content": "managed\n" }],
                "sysctl": { "net.ipv4.ip_forward": 1 },
                "converge": { "foreign_keys": "remove" },
                "pve": { "remove_subscription_nag": true },
                "x-k3s": { "role": "server" },
            },
            "run": { "trigger": "manual" },
        })
    }
}

/// A running job and its connection.
pub struct Job {
    child: Child,
    lines: BufReader<ChildStdout>,
    pub events: Vec<Value>,
}

impl Job {
    /// Reads up to the next event of a kind.
    pub fn until(&mut self, kind: &str) -> Value {
        while let Some(event) = self.next() {
            if event["event"] == kind {
                return event;
            }
        }
        panic!("no {kind} in {:#?}", self.events);
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let event: Value = serde_json::from_str(&line).unwrap();
        // Keepalives occur at any time.
        if event["event"] == "alive" {
            return self.next();
        }
        self.events.push(event.clone());
        Some(event)
    }

    /// Reads to the end.
    pub fn end(mut self) -> (i32, Vec<Value>) {
        while self.next().is_some() {}
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (code, std::mem::take(&mut self.events))
    }

    /// Ends the connection.
    pub fn disconnect(mut self) -> Vec<Value> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::take(&mut self.events)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads events.
pub fn events(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] != "alive")
        .collect()
}

/// Returns the result at the end of events.
pub fn result(events: &[Value]) -> &Value {
    let last = events.last().unwrap();
    assert_eq!(last["event"], "end", "{events:#?}");
    &last["result"]
}

/// The stock postures.
pub fn settings(posture: &str) -> Value {
    let (root, passwords, nopasswd, banning, packages): (_, _, _, _, &[&str]) = match posture {
        "dev" => ("yes", "yes", true, false, &["strace"]),
        "local" => ("prohibit-password", "no", true, false, &[]),
        "stage" => ("prohibit-password", "no", false, true, &["strace"]),
        "prod" => ("no", "no", false, true, &[]),
        other => panic!("{other}"),
    };
    json!({
        "auth": { "method": "network" },
        "ssh": { "port": 22, "permit_root_login": root, "password_authentication": passwords },
        "sudo": { "nopasswd": nopasswd },
        "fail2ban": { "enabled": banning },
        "packages": packages,
    })
}
