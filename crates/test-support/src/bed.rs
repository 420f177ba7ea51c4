//! A local host of its own for each test, and the machine compared before and after.

use std::collections::BTreeSet;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub use crate::run::Run;

/// A local host of its own: root directory, state, site.
pub struct Bed {
    program: PathBuf,
    picture: fn(&Path) -> BTreeSet<String>,
    place: TempDir,
    before: BTreeSet<String>,
    environment: Vec<(String, String)>,
    shared: Option<Shared>,
    _turn: std::fs::File,
}

/// A connection that is kept open, and where it leads.
struct Shared {
    connection: Child,
    node: String,
    address: String,
    uuid: String,
}

/// How a command reaches a node.
#[derive(Clone, Copy)]
pub enum Way {
    /// Over the connection that is kept open.
    Shared,
    /// Over a connection of its own.
    Anew,
}

/// Tells whether nodes can be made here. Where tests must run (`make test`), they do.
fn is_possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let nspawn = Path::new("/usr/bin/systemd-nspawn").exists();
    let must = std::env::var_os("HOMESTAK_TEST_REQUIRE").is_some();
    if !root || !(nspawn || must) {
        println!("skipped: real nodes need root and systemd-nspawn (tests/prepare installs it)");
        return false;
    }
    true
}

/// Returns which image nodes are made of: tests can be run on another one.
pub fn image() -> String {
    std::env::var("HOMESTAK_TEST_IMAGE").unwrap_or_else(|_| "debian-12".to_owned())
}

impl Bed {
    /// Makes a local host, or says why not. `program` is `homestak`, `shared` the directory of all
    /// tests, and `picture` looks at what a local host with a root could leave on the machine.
    pub fn new(
        program: PathBuf,
        shared: &Path,
        picture: fn(&Path) -> BTreeSet<String>,
    ) -> Option<Self> {
        if !is_possible() {
            return None;
        }
        // One test at a time, whoever runs them.
        let turn = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(shared.join("local.lock"))
            .unwrap();
        turn.lock().unwrap();
        let images = std::env::var_os("HOMESTAK_TEST_IMAGES")
            .map_or_else(|| shared.join("images"), PathBuf::from);
        std::fs::create_dir_all(&images).unwrap();
        let place = tempfile::Builder::new()
            .prefix("bed")
            .tempdir_in(shared)
            .unwrap();
        let root = place.path().join("root");
        for directory in [
            &root,
            &place.path().join("site/manifests"),
            &place.path().join("home"),
        ] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::os::unix::fs::symlink(images, root.join("images")).unwrap();
        let image = image();
        std::fs::write(
            place.path().join("site/site.yaml"),
            format!(
                "schema_version: 2\nid: sitefortests\ndefaults: {{vm_user: ops, image: {image}, preset: tiny}}\n"
            ),
        )
        .unwrap();
        std::fs::create_dir_all(place.path().join("site/presets")).unwrap();
        std::fs::write(
            place.path().join("site/presets/tiny.yaml"),
            "cores: 1\nmemory: 512\ndisk: 4\n",
        )
        .unwrap();
        let mut bed = Self {
            program,
            picture,
            before: BTreeSet::new(),
            place,
            environment: Vec::new(),
            shared: None,
            _turn: turn,
        };
        // The image first: it stays, and is not what is looked at.
        bed.run(&["image", "build", &image]).good();
        bed.before = picture(&bed.root());
        Some(bed)
    }

    /// Returns the root directory of the host.
    pub fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// Returns the state directory.
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// Sets a variable for every run from here on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Writes a manifest.
    pub fn manifest(&self, name: &str, nodes: &str) {
        let path = self
            .place
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
        let path = self.place.path().join("site").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes so many peers.
    pub fn peers(&self, name: &str, count: usize) {
        let nodes: String = (1..=count)
            .map(|n| format!("  - {{name: peer-{n}}}\n"))
            .collect();
        self.manifest(name, &nodes);
    }

    /// Returns the program with nothing of the outside in its environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.place.path())
            .env_clear()
            .env("HOME", self.place.path().join("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("HOMESTAK_SITE_CONFIG", self.place.path().join("site"))
            .env("HOMESTAK_STATE", self.state())
            .env("HOMESTAK_LOCAL_ROOT", self.root())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().map(Run::from).unwrap()
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
        self.at(&text(&found["address"]), &text(&found["uuid"]), command)
    }

    /// Runs a command in a node at an address, which is known by its UUID.
    pub fn at(&self, address: &str, uuid: &str, command: &str) -> Run {
        self.ssh(address, uuid, command, "ControlPath=none")
            .output()
            .map(Run::from)
            .unwrap()
    }

    /// Keeps a connection to a node open that later commands share. One that has just booted may
    /// greet before it lets anyone in.
    pub fn share(&mut self, node: &str) {
        let nodes = self.nodes();
        let found = nodes.iter().find(|one| one["name"] == node).unwrap();
        let (address, uuid) = (text(&found["address"]), text(&found["uuid"]));
        let (path, log) = (
            self.place.path().join("shared"),
            self.place.path().join("log"),
        );
        self.close();
        for _ in 0..10 {
            let mut ssh = self.ssh(&address, &uuid, "sleep 3600", "ControlMaster=yes");
            ssh.stdout(Stdio::null());
            let said = std::fs::File::create(&log).unwrap();
            let mut connection = ssh.stderr(said).spawn().unwrap();
            while connection.try_wait().unwrap().is_none() && !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            if path.exists() {
                self.shared = Some(Shared {
                    connection,
                    node: node.to_owned(),
                    address,
                    uuid,
                });
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        let said = std::fs::read_to_string(log).unwrap();
        panic!("no connection to {node}: {said}");
    }

    /// Leads a port of the node behind the open connection to one of this machine.
    pub fn lead(&self, there: u16, here: u16) {
        let shared = self.shared.as_ref().unwrap();
        let path = self.place.path().join("shared");
        let done = Command::new("ssh")
            .args(["-F", "/dev/null", "-o"])
            .arg(format!("ControlPath={}", path.display()))
            .args(["-O", "forward", "-R"])
            .arg(format!("{there}:127.0.0.1:{here}"))
            .arg(format!("ops@{}", shared.address))
            .output()
            .map(Run::from)
            .unwrap();
        done.good();
    }

    /// Closes the connection that is kept open.
    pub fn close(&mut self) {
        if let Some(mut shared) = self.shared.take() {
            let _ = shared.connection.kill();
            let _ = shared.connection.wait();
            let _ = std::fs::remove_file(self.place.path().join("shared"));
        }
    }

    /// Runs a command in a node that reads its input.
    pub fn feed(&self, node: &str, command: &str, input: &[u8]) -> Run {
        self.fed(node, command, input, Way::Shared)
            .output()
            .map(Run::from)
            .unwrap()
    }

    /// Returns a command in a node that will read this input.
    pub fn fed(&self, node: &str, command: &str, input: &[u8], way: Way) -> Command {
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
        let sharing = match way {
            Way::Shared => "ControlMaster=no",
            Way::Anew => "ControlPath=none",
        };
        let mut ssh = self.ssh(&address, &uuid, command, sharing);
        ssh.stdin(file);
        ssh
    }

    /// `sharing` is an option that says how the shared connection is used.
    fn ssh(&self, address: &str, uuid: &str, command: &str, sharing: &str) -> Command {
        let ssh = self.state().join("ssh");
        let option = |text: String| ["-o".to_owned(), text];
        let known = format!("UserKnownHostsFile={}", ssh.join("known_hosts").display());
        let mut ssh_command = Command::new("ssh");
        let shared = self.place.path().join("shared");
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
        panic!("{node} did not come back: {}", started().err);
    }

    /// Requires that the machine is as it was.
    pub fn is_as_before(&self) {
        let now = (self.picture)(&self.root());
        // The numbers of leases that were seen are kept as long as the root is.
        let left: Vec<&String> = (now.difference(&self.before))
            .filter(|line| !line.ends_with("/root/fences.json"))
            .collect();
        // The root directory itself may have gone with the last node.
        let gone: Vec<&String> = (self.before.difference(&now))
            .filter(|line| !line.starts_with("file: "))
            .collect();
        assert!(
            left.is_empty() && gone.is_empty(),
            "left: {left:#?}\ngone: {gone:#?}"
        );
    }
}

impl Drop for Bed {
    /// A test that failed leaves nothing to the next.
    fn drop(&mut self) {
        self.close();
        if std::thread::panicking() {
            let _ = self.command(&["local", "clean", "--all", "--yes"]).output();
        }
    }
}

/// Returns a JSON text.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
