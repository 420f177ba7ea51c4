//! A world of its own for each test: home, site, working directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) use homestak_test_support::run::Run;
use tempfile::TempDir;

/// A private place with a home, and a site that was started there.
pub(crate) struct World {
    root: TempDir,
}

impl World {
    /// Makes a world without a site.
    pub(crate) fn bare() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("home")).unwrap();
        std::fs::create_dir(root.path().join("work")).unwrap();
        Self { root }
    }

    /// Makes a world with the stock site in `work/site`, and a host `father`.
    pub(crate) fn new() -> Self {
        let world = Self::bare();
        assert_eq!(world.run(&["site", "init", "site"]).code, 0);
        world.write(
            "nodes/father.yaml",
            "host: father\napi_endpoint: https://192.0.2.61:8006\napi_token: father\ndatastore: local-zfs\nip: 192.0.2.61\n",
        );
        world.write("hosts/father.yaml", "host: father\nip: 192.0.2.61\n");
        world.secrets(
            "api_tokens:\n  father: root@pam!homestak=token-value\npasswords:\n  vm_root: $6$salt$hash-value\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\nauth:\n  signing_key: \"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\"\n",
        );
        world
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    pub(crate) fn site(&self) -> PathBuf {
        self.work().join("site")
    }

    /// Writes a file of the site.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.site().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes the site's secrets, privately.
    pub(crate) fn secrets(&self, text: &str) {
        self.write("secrets.yaml", text);
        set_mode(&self.site().join("secrets.yaml"), 0o600);
    }

    /// Returns the program with nothing of the outside in its environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homestak"));
        command.args(arguments).current_dir(self.work()).env_clear();
        command
            .env("HOME", self.home())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("USER", "ops");
        command
    }

    /// Runs without a site of one's own.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().map(Run::from).unwrap()
    }

    /// Runs on the site of this world.
    pub(crate) fn on_site(&self, arguments: &[&str]) -> Run {
        self.command(arguments)
            .env("HOMESTAK_SITE_CONFIG", "site")
            .output()
            .map(Run::from)
            .unwrap()
    }

    /// Runs on the site of this world, with something on stdin.
    pub(crate) fn with_input(&self, arguments: &[&str], input: &str) -> Run {
        let mut child = self
            .command(arguments)
            .env("HOMESTAK_SITE_CONFIG", "site")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().map(Run::from).unwrap()
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
