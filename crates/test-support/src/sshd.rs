//! Real SSH servers on loopback, with host keys of a keyring.
//!
//! In: a keyring, guests. Out: servers that let in whoever has the driver's key.
//! Never: a server that outlives its test.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use homestak_engine::ports::GuestUuid;
use homestak_providers::ssh::Keyring;

/// A server that stands for a node.
pub struct Sshd {
    /// Where it is.
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

/// The user that tests run as: a server without privileges lets in nobody else.
pub fn user() -> String {
    let output = Command::new("id").arg("-un").output().expect("id");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

impl Sshd {
    /// Ends it; nobody answers at its port any more.
    pub fn stop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    /// Starts a server at 127.0.0.N with the host key of a guest in a keyring.
    pub fn start(keyring: &Keyring, nth: u8, guest: &GuestUuid, directory: &Path) -> Self {
        let key = keyring.host_key(guest).expect("a host key");
        keyring.driver_key().expect("the driver's key");
        let own = keyring.own_file().with_added_extension("pub");
        // Taken over under another name: the ring may make another one while this one serves.
        let file = directory.join(format!("host-key-{nth}"));
        write_private(&file, &key.private);
        let root = user() == "root";
        if root {
            // The package makes it when its service starts, which it may never have.
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
            // Programs of the test come first.
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
        panic!("no server came up");
    }
}

/// Writes a configuration of `ssh` that knows the ports of servers.
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

/// Starts a server and waits until it says that it listens; `None` when someone took the port.
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
    let mut said = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        if line.contains("Server listening") {
            // Whatever it says later must not fill the pipe.
            std::thread::spawn(move || lines.for_each(drop));
            return Some(child);
        }
        said.push(line);
    }
    _ = child.wait();
    let said = said.join("\n");
    assert!(said.contains("Address already in use"), "sshd: {said}");
    None
}

fn write_private(file: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::write(file, text).expect("written");
    let mode = std::fs::Permissions::from_mode(0o600);
    fs_err::set_permissions(file, mode).expect("changed");
}
