//! A simulated Proxmox VE in the test process, which a site has as the host `father`.

use std::process::Command;

use homestak_sim::persistent::stock;
use homestak_sim::{Handle, Pace, Timing, serve};

use crate::support::{Run, TestEnv};

const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";

/// A site, and a simulated host of it in this process.
pub(crate) struct TestPve {
    /// Home, site and working directory.
    pub(crate) env: TestEnv,
    /// The simulated state behind the API.
    pub(crate) pve: homestak_sim::World,
    // Dropping it stops the server.
    _runtime: tokio::runtime::Runtime,
    _handle: Handle,
}

impl TestPve {
    /// Starts a host with accelerated time.
    pub(crate) fn quick() -> Self {
        Self::new(Pace::Accelerated(200.0), Timing::default())
    }

    /// Starts a host.
    pub(crate) fn new(pace: Pace, timing: Timing) -> Self {
        let builder = homestak_sim::World::builder().pace(pace).timing(timing);
        Self::serving(builder.host("pve1"))
    }

    /// Starts a cluster of two machines: `father` is `pve1`, `mother` is `pve2`.
    pub(crate) fn cluster() -> Self {
        let builder = homestak_sim::World::builder().pace(Pace::Accelerated(200.0));
        let host = Self::serving(builder.host("pve1").host("pve2"));
        host.host_entry("mother", "pve2");
        host
    }

    /// Writes another host entry of the same API for one of its machines.
    pub(crate) fn host_entry(&self, name: &str, machine: &str) {
        let file = self.env.site().join("nodes/father.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        self.env.write(
            &format!("nodes/{name}.yaml"),
            &text.replace("node: pve1", &format!("node: {machine}")),
        );
        let secrets = std::fs::read_to_string(self.env.site().join("secrets.yaml")).unwrap();
        self.env.secrets(&secrets.replace(
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
        let env = TestEnv::new();
        env.write(
            "nodes/father.yaml",
            &format!(
                "node: pve1\napi_endpoint: {}\nfingerprint: \"{}\"\ndatastore: local\n",
                handle.url(),
                handle.fingerprint
            ),
        );
        env.secrets(&format!(
            "api_tokens:\n  father: {TOKEN}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\n"
        ));
        Self {
            env,
            pve,
            _runtime: runtime,
            _handle: handle,
        }
    }

    /// Writes a manifest. Simulated guests run no SSH, so it is not verified.
    pub(crate) fn manifest(&self, name: &str, settings: &str, nodes: &str) {
        self.env.write(
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

    /// Writes a manifest of `number` machines.
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

    /// Returns a command with this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.env.command(arguments);
        command.env("HOMESTAK_SITE_CONFIG", "site");
        command
    }

    /// Runs the program with this site.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.env.on_site(arguments)
    }

    /// Returns the sorted names of guests, with ` (off)` at those that do not run.
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

    /// Returns the state directory.
    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.env.home().join(".local/state/homestak")
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
