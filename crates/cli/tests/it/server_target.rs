//! A permanent server: it reads a directory of its own, on this machine or on another one.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use homestak_providers::ssh::Keyring;
use homestak_test_support::sshd::{Sshd, guest, user};

use crate::server::Site;
use crate::support::{Run, mode, set_mode};

/// A user and group without any rights.
const NOBODY: u32 = 65534;

/// A site with a permanent server.
struct Permanent {
    site: Site,
    target: String,
    ssh_config: Option<PathBuf>,
    server: Option<Child>,
}

impl Drop for Permanent {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Permanent {
    /// Creates the directories. Root uses another user for the server.
    fn new() -> Self {
        let site = Site::new();
        let work = site.env.work();
        // The other user must reach them.
        set_mode(work.parent().unwrap(), 0o711);
        for (name, bits) in [("published", 0o2750), ("server-state", 0o700)] {
            let path = work.join(name);
            std::fs::create_dir(&path).unwrap();
            if is_root() {
                let owner = (name == "server-state").then_some(NOBODY);
                std::os::unix::fs::chown(&path, owner, Some(NOBODY)).unwrap();
            }
            set_mode(&path, bits);
        }
        Self {
            target: work.join("published").display().to_string(),
            ssh_config: None,
            server: None,
            site,
        }
    }

    fn published(&self) -> PathBuf {
        self.site.env.work().join("published")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.site.command(line);
        command.env("HOMESTAK_PUBLISH_TO", &self.target);
        if let Some(config) = &self.ssh_config {
            command.env("HOMESTAK_SSH_CONFIG", config);
        }
        command
    }

    fn run(&self, line: &str) -> Run {
        Run::of(&mut self.command(line))
    }

    /// Starts the server as the systemd unit does: without the site and its keys.
    fn start(&mut self) {
        let program = env!("CARGO_BIN_EXE_homestak");
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
                command.args(ids).args(["--clear-groups", program]);
                command
            }
            false => Command::new(program),
        };
        let work = self.site.env.work();
        command
            .args(["server", "start", "--foreground", "--published"])
            .arg(work.join("published"))
            .arg("--state")
            .arg(work.join("server-state"))
            .args(["--port", &self.site.port.to_string()])
            .env_clear()
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.server = Some(command.spawn().unwrap());
        for _ in 0..100 {
            if self.run("server status").code == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}", self.run("server status").out);
    }

    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            _ = server.kill();
            _ = server.wait();
        }
    }

    /// Compares what the driver has with what the server reads: the same files, which only the driver
    /// and the server's group can read.
    fn is_copied(&self) {
        let sites = self.site.env.work().join("state/server");
        let own = std::fs::read_dir(sites).unwrap().next().unwrap().unwrap();
        let own = own.path().join("published");
        let (from, to) = (
            files(&own, &own),
            files(&self.published(), &self.published()),
        );
        assert_eq!(from, to);
        assert!(from.len() >= 4, "{from:?}");
        let group = std::fs::metadata(self.published()).unwrap().gid();
        for (name, _) in from {
            let path = self.published().join(&name);
            assert_eq!(mode(&path), 0o640, "{name}");
            assert_eq!(std::fs::metadata(&path).unwrap().gid(), group, "{name}");
        }
        assert_eq!(mode(&self.published().join("agents")), 0o2750);
    }

    /// Goes through what a driver does with a permanent server.
    fn is_used(&mut self) {
        let run = self.run("node list");
        assert_eq!(run.code, 1, "{}", run.out);
        assert!(run.err.contains("this site publishes to"), "{}", run.err);
        self.run("server publish").good();
        self.is_copied();
        self.start();
        let status = self.run("server status --json");
        let status: serde_json::Value = serde_json::from_str(&status.good()).unwrap();
        assert_eq!(status["pid"], serde_json::Value::Null);
        assert_eq!(status["healthy"], true);
        self.run("node list").good();

        // A change is copied and read.
        let site = self.site.env.site().join("site.yaml");
        let mut text = std::fs::read_to_string(&site).unwrap();
        text += "trusted_networks: [10.9.0.0/16]\n";
        std::fs::write(&site, text).unwrap();
        let reloaded = self.run("server reload").good();
        assert_eq!(reloaded, "trusted networks\n");
        self.run("server rotate-key token").good();
        self.run("server rotate-key site").good();
        self.is_copied();

        // It is not this driver's to stop or to replace.
        let run = self.run("server stop");
        assert_eq!(run.code, 3, "{}", run.err);
        let run = self.run("server start");
        assert_eq!(run.code, 3, "{}", run.err);
        self.stop();
        let run = self.run("node list");
        assert_eq!(run.code, 1, "{}", run.out);
        assert_eq!(self.run("server status").code, 1);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn files(root: &Path, directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(root, &path));
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            all.push((name, std::fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_server_of_another_user_serves_what_the_driver_publishes_to_its_directory() {
    Permanent::new().is_used();
}

#[test]
fn what_is_published_is_copied_to_another_machine_over_ssh() {
    let mut permanent = Permanent::new();
    let work = permanent.site.env.work();
    let keys = Keyring::new(work.join("sshd-keys"));
    let sshd = Sshd::start(&keys, 71, &guest(1), &work);
    let config = work.join("ssh_config");
    let text = |known: &str| {
        format!(
            "Host {}\n  Port {}\n  IdentityFile {}\n  IdentitiesOnly yes\n  HostKeyAlias {}\n  \
             UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n",
            sshd.address,
            sshd.port,
            keys.driver_key_file().display(),
            guest(1)
        )
    };
    permanent.ssh_config = Some(config.clone());
    permanent.target = format!("{}@{}:{}", user(), sshd.address, permanent.target);

    // An unknown machine gets nothing.
    std::fs::write(&config, text("/dev/null")).unwrap();
    let run = permanent.run("server publish");
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("host key"), "{}", run.err);
    assert_eq!(std::fs::read_dir(permanent.published()).unwrap().count(), 0);

    std::fs::write(&config, text(&keys.known_hosts().display().to_string())).unwrap();
    permanent.is_used();

    // What the driver no longer publishes is removed, and a missing directory is named.
    let leftover = permanent.published().join("specs/leftover.json");
    std::fs::create_dir_all(leftover.parent().unwrap()).unwrap();
    std::fs::write(&leftover, "{}").unwrap();
    permanent.run("server publish").good();
    assert!(!leftover.exists());
    permanent.target += "-missing";
    let run = permanent.run("server publish");
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("published-missing"), "{}", run.err);
}
