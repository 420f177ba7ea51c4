//! The environment of a test: home, site and working directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) use homestak_test_support::run::Run;
use tempfile::TempDir;

/// A temporary directory with a home, a working directory and, usually, a site.
pub(crate) struct TestEnv {
    root: TempDir,
}

impl TestEnv {
    /// Creates an environment without a site.
    pub(crate) fn without_site() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("home")).unwrap();
        std::fs::create_dir(root.path().join("work")).unwrap();
        Self { root }
    }

    /// Creates an environment with the stock site in `work/site` and a host `father`.
    pub(crate) fn new() -> Self {
        let env = Self::without_site();
        assert_eq!(env.run(&["site", "init", "site"]).code, 0);
        env.write(
            "nodes/father.yaml",
            "host: father\napi_endpoint: https://192.0.2.61:8006\napi_token: father\ndatastore: local-zfs\nip: 192.0.2.61\n",
        );
        env.write("hosts/father.yaml", "host: father\nip: 192.0.2.61\n");
        env.secrets(
            "api_tokens:\n  father: root@pam!homestak=token-value\npasswords:\n  vm_root: $6$salt$hash-value\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\nauth:\n  signing_key: \"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\"\n",
        );
        env
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

    /// Writes the secrets of the site with mode 0600.
    pub(crate) fn secrets(&self, text: &str) {
        self.write("secrets.yaml", text);
        set_mode(&self.site().join("secrets.yaml"), 0o600);
    }

    /// Returns a command that inherits no environment variables.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homestak"));
        command.args(arguments).current_dir(self.work()).env_clear();
        command
            .env("HOME", self.home())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("USER", "ops");
        command
    }

    /// Runs without setting a site.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        Run::of(&mut self.command(arguments))
    }

    /// Runs with the site of this environment.
    pub(crate) fn on_site(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).env("HOMESTAK_SITE_CONFIG", "site"))
    }

    /// Runs with the site of this environment and input on stdin.
    pub(crate) fn with_input(&self, arguments: &[&str], input: &str) -> Run {
        let mut command = self.command(arguments);
        let mut child = command
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
        Run::of_output(&command, child.wait_with_output().unwrap())
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
