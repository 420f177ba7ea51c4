//! A Proxmox VE called `father` that the test serves itself, so that it can look into it.

use std::process::Command;

use homestak_sim::kept::stock;
use homestak_sim::{Handle, Pace, Timing, serve};

use crate::support::{Run, World};

const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";

/// A site, and a simulated host of it in this process.
pub(crate) struct Father {
    /// The site.
    pub(crate) site: World,
    /// What is behind the API.
    pub(crate) pve: homestak_sim::World,
    // Serves for as long as it is there.
    _runtime: tokio::runtime::Runtime,
    _handle: Handle,
}

impl Father {
    /// Serves a host whose time goes quickly.
    pub(crate) fn quick() -> Self {
        Self::new(Pace::Accelerated(200.0), Timing::default())
    }

    /// Serves a host.
    pub(crate) fn new(pace: Pace, timing: Timing) -> Self {
        let builder = homestak_sim::World::builder().pace(pace).timing(timing);
        Self::serving(builder.host("pve1"))
    }

    /// Serves a cluster of two machines: `father` is `pve1`, `mother` is `pve2`.
    pub(crate) fn cluster() -> Self {
        let builder = homestak_sim::World::builder().pace(Pace::Accelerated(200.0));
        let father = Self::serving(builder.host("pve1").host("pve2"));
        father.host_entry("mother", "pve2");
        father
    }

    /// Writes a host entry of the same API for one of its machines, with a token of its own.
    pub(crate) fn host_entry(&self, name: &str, machine: &str) {
        let file = self.site.site().join("nodes/father.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        self.site.write(
            &format!("nodes/{name}.yaml"),
            &text.replace("node: pve1", &format!("node: {machine}")),
        );
        let secrets = std::fs::read_to_string(self.site.site().join("secrets.yaml")).unwrap();
        self.site.secrets(&secrets.replace(
            "api_tokens:\n",
            &format!("api_tokens:\n  {name}: {TOKEN}\n"),
        ));
    }

    fn serving(builder: homestak_sim::Builder) -> Self {
        let builder = builder.storage("local").token(TOKEN);
        let pve = stock(builder).build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = runtime.block_on(serve(pve.clone(), listen)).unwrap();
        let site = World::new();
        site.write(
            "nodes/father.yaml",
            &format!(
                "node: pve1\napi_endpoint: {}\nfingerprint: \"{}\"\ndatastore: local\n",
                handle.url(),
                handle.fingerprint
            ),
        );
        site.secrets(&format!(
            "api_tokens:\n  father: {TOKEN}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\n"
        ));
        Self {
            site,
            pve,
            _runtime: runtime,
            _handle: handle,
        }
    }

    /// Writes a manifest. Simulated guests run no SSH, so it is not waited for.
    pub(crate) fn manifest(&self, name: &str, settings: &str, nodes: &str) {
        self.site.write(
            &format!("manifests/{name}.yaml"),
            &format!(
                "schema_version: 2\nname: {name}\nsettings: {{verify_ssh: false, {settings}}}\nnodes:\n{nodes}"
            ),
        );
    }

    /// Writes a manifest of one machine.
    pub(crate) fn single(&self) {
        self.manifest(
            "single-node",
            "",
            "  - {name: test-vm, spec: base, preset: vm-small, image: debian-12}\n",
        );
    }

    /// Writes a manifest of so many machines side by side.
    pub(crate) fn workers(&self, number: usize, settings: &str) {
        let nodes: String = (1..=number)
            .map(|n| {
                format!(
                    "  - {{name: worker-{n}, spec: base, preset: vm-small, image: debian-12}}\n"
                )
            })
            .collect();
        self.manifest("workers", settings, &nodes);
    }

    /// Returns the program on this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.site.command(arguments);
        command.env("HOMESTAK_SITE_CONFIG", "site");
        command
    }

    /// Runs the program on this site.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.site.on_site(arguments)
    }

    /// Returns the names of guests, sorted, with a mark at those that do not run.
    pub(crate) fn guests(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .pve
            .guests()
            .iter()
            .map(|guest| {
                let name = &guest.config["name"];
                let off = if guest.running { "" } else { " (off)" };
                format!("{name}{off}")
            })
            .collect();
        names.sort();
        names
    }

    /// Returns the directory of the program's memory.
    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.site.home().join(".local/state/homestak")
    }
}

/// Returns the events of a run: kind, node, step.
pub(crate) fn events(out: &str) -> Vec<(String, String, String)> {
    let text = |json: &serde_json::Value, key: &str| json[key].as_str().unwrap_or("").to_owned();
    out.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|json| json.get("event").is_some())
        .map(|json| {
            (
                text(&json, "event"),
                text(&json, "subject"),
                text(&json, "step"),
            )
        })
        .collect()
}

/// Returns the nodes for which a step was done, in order.
pub(crate) fn order(out: &str, step: &str) -> Vec<String> {
    let done = events(out)
        .into_iter()
        .filter(|(event, _, kind)| event == "step-done" && kind == step);
    done.map(|(_, node, _)| node).collect()
}
