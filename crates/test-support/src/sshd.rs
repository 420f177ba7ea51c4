//! Real SSH servers on loopback, with host keys of a keyring. They accept the driver's key, and
//! stop when the test ends.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use homestak_engine::ports::GuestUuid;
use homestak_providers::ssh::Keyring;

/// An SSH server that represents a node.
pub struct Sshd {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    child: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The n-th guest.
pub fn guest(nth: u32) -> GuestUuid {
    GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{nth:012x}")).expect("a UUID")
}

/// The user that runs the tests: a server without privileges accepts no other user.
pub fn user() -> String {
    let output = Command::new("id").arg("-un").output().expect("id");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

impl Sshd {
    /// Stops it; connections to its port are refused afterwards.
    pub fn stop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    /// Starts a server at 127.0.0.N with the host key of a guest in a keyring.
    pub fn start(keyring: &Keyring, nth: u8, guest: &GuestUuid, directory: &Path) -> Self {
        let key = keyring.host_key(guest).expect("a host key");
        keyring.driver_key().expect("the driver's key");
        let own = keyring.driver_key_file().with_added_extension("pub");
        // A copy, because the keyring may replace the key while this server runs.
        let file = directory.join(format!("host-key-{nth}"));
        write_private(&file, &key.private);
        let root = user() == "root";
        if root {
            // Normally created by the service of the package, which may never have started.
            _ = std::fs::create_dir("/run/sshd");
        }
        let config = directory.join(format!("sshd-{nth}.conf"));
        let text = format!(
            "HostKey \"{}\"\nAuthorizedKeysFile \"{}\"\nStrictModes no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\nUsePAM {}\nPidFile none\n\
             SetEnv PATH={}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
            file.display(),
            own.display(),
            if root { "yes" } else { "no" },
            // Programs of the test take precedence.
            directory.display(),
        );
        fs_err::write(&config, text).expect("written");
        let address: IpAddr = [127, 0, 0, nth].into();
        for _ in 0..20 {
            let port = free_port(address);
            if let Some(child) = listening(&config, address, port) {
                return Self {
                    address,
                    port,
                    child,
                };
            }
        }
        panic!("no SSH server started");
    }
}

/// Writes a configuration of `ssh` with the ports of the servers.
pub fn client_config(directory: &Path, servers: &[&Sshd]) -> PathBuf {
    let text: String = servers
        .iter()
        .map(|sshd| format!("Host {}\n  Port {}\n", sshd.address, sshd.port))
        .collect();
    let file = directory.join("ssh_config");
    fs_err::write(&file, text).expect("written");
    file
}

fn free_port(address: IpAddr) -> u16 {
    let listener = TcpListener::bind((address, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Starts a server and waits until it logs that it listens; `None` if the port is in use.
fn listening(config: &Path, address: IpAddr, port: u16) -> Option<Child> {
    let mut child = Command::new("/usr/sbin/sshd")
        .args(["-D", "-e", "-f"])
        .arg(config)
        .arg("-o")
        .arg(format!("ListenAddress={address}:{port}"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sshd; tests/prepare installs it");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut log = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        if line.contains("Server listening") {
            // Later output must not fill the pipe.
            std::thread::spawn(move || lines.for_each(drop));
            return Some(child);
        }
        log.push(line);
    }
    _ = child.wait();
    let log = log.join("\n");
    assert!(log.contains("Address already in use"), "sshd: {log}");
    None
}

fn write_private(file: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::write(file, text).expect("written");
    let mode = std::fs::Permissions::from_mode(0o600);
    fs_err::set_permissions(file, mode).expect("changed");
}
