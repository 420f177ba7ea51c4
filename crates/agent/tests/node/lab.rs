//! A node with the agent on it.

use serde_json::{Value, json};

use crate::bed::{Bed, Run, text};

/// Where the agent is on the node.
pub const AGENT: &str = "/usr/local/bin/homestak-agent";
/// Where its state is.
pub const STATE: &str = "/usr/local/etc/homestak/state";
/// A key that opens nothing.
pub const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGa1xU0y8sYFqV1h8v3b0T1mJp6v6m9QxkVxg3p2Jq1d alice@desk";

pub struct Lab {
    pub bed: Bed,
    address: String,
}

impl Lab {
    /// Makes a node and puts the agent on it.
    pub fn new() -> Option<Self> {
        let mut bed = Bed::new()?;
        bed.manifest("lab", "  - {name: web}\n");
        bed.apply("lab");
        bed.share("web");
        let address = text(&bed.nodes()[0]["address"]);
        let agent = std::fs::read(env!("CARGO_BIN_EXE_homestak-agent")).unwrap();
        let put = format!("sudo tee {AGENT} >/dev/null && sudo chmod 755 {AGENT}");
        bed.feed("web", &put, &agent).good();
        Some(Self { bed, address })
    }

    /// Runs a command as root.
    pub fn root(&self, command: &str) -> Run {
        self.bed.feed("web", "sudo sh -e", command.as_bytes())
    }

    /// Runs the agent with a spec on its input.
    pub fn agent(&self, words: &str, spec: &Value) -> Run {
        let command = format!("sudo {AGENT} {words} --spec -");
        self.bed.feed("web", &command, spec.to_string().as_bytes())
    }

    pub fn apply(&self, spec: &Value) -> Value {
        self.agent("config apply --json-output", spec).json()
    }

    /// Returns the ids of what differs, and checks the exit code that goes with it.
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

    /// Returns what the agent says about its state.
    pub fn status(&self) -> Value {
        self.root(&format!("{AGENT} status --json-output")).json()
    }

    /// Returns every file of the configuration with its mode, owner and content. The times of
    /// lists of packages and backups that tools make of the accounts are no part of it.
    pub fn picture(&self) -> String {
        let command = "cd /; find etc home root usr/local/etc -xdev \\( -name '*-' -o -name '*.prev' -o -name lock -o -name .pwd.lock -o -name .cache \\) -prune -o -printf '%p %m %u:%g %l\\n' | sort; \
             find etc home root -xdev -type f ! -name '*-' ! -name .pwd.lock -print0 | sort -z | xargs -0 sha256sum; \
             ip -br address show eth0; hostname; sysctl net.ipv4.ip_forward; \
             systemctl list-unit-files --no-legend --state=enabled; systemctl is-active cron nftables fail2ban ssh || true";
        self.root(command).good()
    }

    /// A spec with something of every kind.
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
                "k3s": { "role": "server" },
            },
            "run": { "trigger": "manual" },
        })
    }
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
