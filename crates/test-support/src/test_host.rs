//! A separate local host for each test, with a comparison of the machine before and after.

use std::collections::BTreeSet;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub use crate::run::Run;

/// A local host with its own root directory, state and site.
pub struct TestHost {
    program: PathBuf,
    list_resources: fn(&Path) -> BTreeSet<String>,
    directory: TempDir,
    before: BTreeSet<String>,
    environment: Vec<(String, String)>,
    shared: Option<SharedConnection>,
    _lock: std::fs::File,
}

/// An SSH connection to a node that is kept open for several commands.
struct SharedConnection {
    connection: Child,
    node: String,
    address: String,
    uuid: String,
}

/// Which SSH connection a command uses.
#[derive(Clone, Copy)]
pub enum SshConnection {
    /// The connection that is kept open.
    Shared,
    /// A new connection.
    New,
}

/// Returns whether nodes can be created on this machine. With `HOMESTAK_TEST_REQUIRE` (`make test`)
/// tests fail rather than being skipped.
fn is_possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let nspawn = Path::new("/usr/bin/systemd-nspawn").exists();
    let required = std::env::var_os("HOMESTAK_TEST_REQUIRE").is_some();
    if !root || !(nspawn || required) {
        println!("skipped: real nodes need root and systemd-nspawn (tests/prepare installs it)");
        return false;
    }
    true
}

/// Returns the image of the nodes; `HOMESTAK_TEST_IMAGE` selects another one.
pub fn image() -> String {
    std::env::var("HOMESTAK_TEST_IMAGE").unwrap_or_else(|_| "debian-12".to_owned())
}

impl TestHost {
    /// Creates a local host, or prints why it cannot. `program` is `homestak`, `shared` the directory
    /// of all tests, and `list_resources` lists what a local host could leave on the machine.
    pub fn new(
        program: PathBuf,
        shared: &Path,
        list_resources: fn(&Path) -> BTreeSet<String>,
    ) -> Option<Self> {
        if !is_possible() {
            return None;
        }
        // One test at a time, also across processes and checkouts: servers share the default port.
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open("/run/homestak-tests.lock")
            .unwrap();
        lock.lock().unwrap();
        // A file system flushes everything when a node flushes one file: after a build, systemd of a
        // node on a slow disk has waited more than a minute.
        rustix::fs::sync();
        let images = std::env::var_os("HOMESTAK_TEST_IMAGES")
            .map_or_else(|| shared.join("images"), PathBuf::from);
        std::fs::create_dir_all(&images).unwrap();
        let directory = tempfile::Builder::new()
            .prefix("host")
            .tempdir_in(shared)
            .unwrap();
        let root = directory.path().join("root");
        for path in [
            &root,
            &directory.path().join("site/manifests"),
            &directory.path().join("home"),
        ] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(images, root.join("images")).unwrap();
        let image = image();
        std::fs::write(
            directory.path().join("site/site.yaml"),
            format!(
                "schema_version: 2\nid: sitefortests\ndefaults: {{vm_user: ops, image: {image}, preset: tiny}}\n"
            ),
        )
        .unwrap();
        std::fs::create_dir_all(directory.path().join("site/presets")).unwrap();
        std::fs::write(
            directory.path().join("site/presets/tiny.yaml"),
            "cores: 1\nmemory: 512\ndisk: 4\n",
        )
        .unwrap();
        let mut host = Self {
            program,
            list_resources,
            before: BTreeSet::new(),
            directory,
            environment: Vec::new(),
            shared: None,
            _lock: lock,
        };
        // The image is built first: it is kept, and must not count as a leftover.
        host.run(&["image", "build", &image, "--json-output"])
            .good();
        host.before = list_resources(&host.root());
        Some(host)
    }

    /// Returns the root directory of the host.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Returns the state directory.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Sets an environment variable for all later runs.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Writes a manifest.
    pub fn manifest(&self, name: &str, nodes: &str) {
        let path = self
            .directory
            .path()
            .join(format!("site/manifests/{name}.yaml"));
        std::fs::write(
            path,
            format!("schema_version: 2\nname: {name}\nnodes:\n{nodes}"),
        )
        .unwrap();
    }

    /// Writes a file of the site.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join("site").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes a manifest with `count` nodes, `peer-1` and so on.
    pub fn peers(&self, name: &str, count: usize) {
        let nodes: String = (1..=count)
            .map(|n| format!("  - {{name: peer-{n}}}\n"))
            .collect();
        self.manifest(name, &nodes);
    }

    /// Returns a command of the program with a clean environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("HOME", self.directory.path().join("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("HOMESTAK_SITE_CONFIG", self.directory.path().join("site"))
            .env("HOMESTAK_STATE", self.state())
            .env("HOMESTAK_LOCAL_ROOT", self.root())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(&mut self.command(arguments))
    }

    /// Runs a command on a manifest of this host.
    pub fn manifest_run(&self, verb: &str, name: &str, more: &[&str]) -> Run {
        let mut arguments = vec!["manifest", verb, "-M", name, "-H", "local"];
        arguments.extend(more);
        self.run(&arguments)
    }

    /// Applies a manifest.
    pub fn apply(&self, name: &str) {
        self.manifest_run("apply", name, &["--yes"]).good();
    }

    /// Destroys a manifest.
    pub fn destroy(&self, name: &str) {
        self.manifest_run("destroy", name, &["--yes"]).good();
    }

    /// Returns the nodes of the host.
    pub fn nodes(&self) -> Vec<Value> {
        let shown = self.run(&["local", "show", "--json-output"]).json();
        shown["nodes"].as_array().unwrap().clone()
    }

    /// Returns the names of the nodes of the host.
    pub fn names(&self) -> Vec<String> {
        let nodes = self.nodes();
        let mut names: Vec<String> = nodes.iter().map(|node| text(&node["name"])).collect();
        names.sort();
        names
    }

    /// Runs a command in a node, over SSH with its pinned key.
    pub fn inside(&self, node: &str, command: &str) -> Run {
        let found = self
            .nodes()
            .into_iter()
            .find(|one| one["name"] == node)
            .unwrap();
        self.run_at(&text(&found["address"]), &text(&found["uuid"]), command)
    }

    /// Runs a command in a node at an address; its host key is looked up by UUID.
    pub fn run_at(&self, address: &str, uuid: &str, command: &str) -> Run {
        self.ssh(address, uuid, command, "ControlPath=none")
            .output()
            .map(Run::from)
            .unwrap()
    }

    /// Opens a connection to a node that later commands share. A node that has just booted may
    /// accept connections before it accepts logins, so this is retried.
    pub fn open_shared_connection(&mut self, node: &str) {
        let nodes = self.nodes();
        let found = nodes.iter().find(|one| one["name"] == node).unwrap();
        let (address, uuid) = (text(&found["address"]), text(&found["uuid"]));
        let (path, log) = (
            self.directory.path().join("shared"),
            self.directory.path().join("log"),
        );
        self.close_shared_connection();
        for _ in 0..10 {
            let mut ssh = self.ssh(&address, &uuid, "sleep 3600", "ControlMaster=yes");
            ssh.stdout(Stdio::null());
            let stderr = std::fs::File::create(&log).unwrap();
            let mut connection = ssh.stderr(stderr).spawn().unwrap();
            while connection.try_wait().unwrap().is_none() && !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            if path.exists() {
                self.shared = Some(SharedConnection {
                    connection,
                    node: node.to_owned(),
                    address,
                    uuid,
                });
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        let stderr = std::fs::read_to_string(log).unwrap();
        panic!("no connection to {node}: {stderr}");
    }

    /// Forwards a port of the node to a port of this machine, over the shared connection.
    pub fn forward_port(&self, node_port: u16, local_port: u16) {
        let shared = self.shared.as_ref().unwrap();
        let path = self.directory.path().join("shared");
        let done = Command::new("ssh")
            .args(["-F", "/dev/null", "-o"])
            .arg(format!("ControlPath={}", path.display()))
            .args(["-O", "forward", "-R"])
            .arg(format!("{node_port}:127.0.0.1:{local_port}"))
            .arg(format!("ops@{}", shared.address))
            .output()
            .map(Run::from)
            .unwrap();
        done.good();
    }

    /// Closes the shared connection.
    pub fn close_shared_connection(&mut self) {
        if let Some(mut shared) = self.shared.take() {
            let _ = shared.connection.kill();
            let _ = shared.connection.wait();
            let _ = std::fs::remove_file(self.directory.path().join("shared"));
        }
    }

    /// Runs a command in a node with this input.
    pub fn run_with_input(&self, node: &str, command: &str, input: &[u8]) -> Run {
        self.command_with_input(node, command, input, SshConnection::Shared)
            .output()
            .map(Run::from)
            .unwrap()
    }

    /// Returns a command in a node with this input.
    pub fn command_with_input(
        &self,
        node: &str,
        command: &str,
        input: &[u8],
        connection: SshConnection,
    ) -> Command {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(input).unwrap();
        file.rewind().unwrap();
        let (address, uuid) = match self.shared.as_ref().filter(|shared| shared.node == node) {
            Some(shared) => (shared.address.clone(), shared.uuid.clone()),
            None => {
                let nodes = self.nodes();
                let found = nodes.iter().find(|one| one["name"] == node).unwrap();
                (text(&found["address"]), text(&found["uuid"]))
            }
        };
        let sharing = match connection {
            SshConnection::Shared => "ControlMaster=no",
            SshConnection::New => "ControlPath=none",
        };
        let mut ssh = self.ssh(&address, &uuid, command, sharing);
        ssh.stdin(file);
        ssh
    }

    /// `sharing` is the `ssh` option that controls use of the shared connection.
    fn ssh(&self, address: &str, uuid: &str, command: &str, sharing: &str) -> Command {
        let ssh = self.state().join("ssh");
        let option = |text: String| ["-o".to_owned(), text];
        let known = format!("UserKnownHostsFile={}", ssh.join("known_hosts").display());
        let mut ssh_command = Command::new("ssh");
        let shared = self.directory.path().join("shared");
        ssh_command
            .arg("-i")
            .arg(ssh.join("id_ed25519"))
            .args(option(sharing.to_owned()))
            .args(option(format!("ControlPath={}", shared.display())))
            .args(option(known))
            .args(option(format!("HostKeyAlias={uuid}")))
            .args(option("StrictHostKeyChecking=yes".to_owned()))
            .args(option("BatchMode=yes".to_owned()))
            .args(option("ConnectTimeout=10".to_owned()))
            .args(["-F", "/dev/null"])
            .arg(format!("ops@{address}"))
            .arg(command)
            .stdin(Stdio::null());
        ssh_command
    }

    /// Reboots a node and waits until it is back.
    pub fn reboot(&self, node: &str) {
        let started = || self.inside(node, "stat -c %Y /proc/1");
        let before = started().good();
        self.inside(node, "sudo systemctl reboot");
        // An emulated machine takes minutes where a container takes seconds.
        for _ in 0..1_000 {
            let now = started();
            if now.code == 0 && now.out != before {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("{node} did not reboot: {}", started().err);
    }

    /// Asserts that nothing was left on the machine.
    pub fn assert_unchanged(&self) {
        let now = (self.list_resources)(&self.root());
        // Fence numbers of leases are kept as long as the root directory exists.
        let left: Vec<&String> = (now.difference(&self.before))
            .filter(|line| !line.ends_with("/root/fences.json"))
            .collect();
        // The root directory itself may have been removed with the last node.
        let missing: Vec<&String> = (self.before.difference(&now))
            .filter(|line| !line.starts_with("file: "))
            .collect();
        assert!(
            left.is_empty() && missing.is_empty(),
            "left: {left:#?}\nmissing: {missing:#?}"
        );
    }
}

impl Drop for TestHost {
    /// Cleans up after a failed test.
    fn drop(&mut self) {
        self.close_shared_connection();
        if std::thread::panicking() {
            let _ = self.command(&["local", "clean", "--all", "--yes"]).output();
            // The next test needs the port.
            let _ = self.command(&["server", "stop"]).output();
        }
    }
}

/// Returns a JSON string, or an empty one.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
