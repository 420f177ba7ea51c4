//! Commands over real SSH: who is believed, what comes back, and what went wrong.
#![expect(clippy::disallowed_methods, reason = "real servers are started")]

#[path = "support/sshd.rs"]
mod sshd;

use std::path::Path;
use std::sync::Mutex;

use homestak_engine::ports::Sent;
use homestak_providers::ssh::{Keyring, Ssh, SshError, Stream, Trust};
use sshd::{Sshd, client_config, guest, user};

fn keyring(directory: &Path) -> Keyring {
    Keyring::new(directory.join("ssh"))
}

fn way(keyring: &Keyring, sshd: &Sshd, nth: u32, directory: &Path) -> Ssh {
    let config = client_config(directory, &[sshd]);
    Ssh::to(keyring, sshd.address, &user(), guest(nth).as_str()).configured(Some(config))
}

#[test]
fn commands_run_on_a_node_whose_key_is_pinned() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path());
    let output = ssh
        .run("cat; echo no >&2; exit 3", b"hello")
        .expect("it runs");
    let (out, err) = (output.stdout.as_slice(), output.stderr.as_slice());
    assert_eq!((output.status, out, err), (3, &b"hello"[..], &b"no\n"[..]));
    let own = ssh.run("echo Permission denied '(' >&2; exit 255", b"");
    assert_eq!(own.expect("the command's own code").status, 255);
    let heard = Mutex::new(Vec::new());
    let status = ssh.follow("echo one; echo two; printf three", b"", &|stream, line| {
        heard
            .lock()
            .expect("unpoisoned")
            .push((stream, line.to_owned()));
    });
    assert_eq!(status.expect("it runs"), 0);
    let lines = ["one", "two", "three"].map(|line| (Stream::Out, line.to_owned()));
    assert_eq!(heard.into_inner().expect("unpoisoned"), lines);
    ssh.close();
}

#[test]
fn commands_share_a_connection_until_the_guest_is_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path());
    let connection = || {
        let output = ssh.run("echo $SSH_CONNECTION", b"").expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let first = connection();
    assert_eq!(first, connection(), "the same ports");
    let shared = directory.path().join("ssh/shared");
    assert_eq!(fs_err::read_dir(&shared).expect("there").count(), 1);
    keyring.forget(&guest(1)).expect("forgotten");
    assert_eq!(fs_err::read_dir(&shared).expect("there").count(), 0);
    let error = ssh.run("true", b"").expect_err("nobody knows it any more");
    assert!(matches!(error, SshError::HostKeyUnknown), "{error}");
}

#[test]
fn whoever_has_another_key_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    keyring.host_key(&guest(2)).expect("made");
    // The server of one answers at the address of another.
    let ssh = way(&keyring, &sshd, 2, directory.path());
    let error = ssh.run("touch /nowhere/at/all", b"").expect_err("refused");
    assert!(matches!(error, SshError::HostKeyDiffers), "{error}");
}

#[test]
fn whoever_makes_its_own_key_is_believed_only_when_a_person_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path()).trusting(Trust::Asked);
    let error = ssh.run("true", b"").expect_err("nobody was asked");
    assert!(matches!(error, SshError::HostKeyUnknown), "{error}");
    fs_err::copy(keyring.known_hosts(), keyring.seen_hosts()).expect("a person said yes");
    assert_eq!(ssh.run("true", b"").expect("it runs").status, 0);
    ssh.close();
}

#[test]
fn a_node_that_does_not_answer_or_does_not_let_in_is_told_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let mut sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path());
    // Another driver's key opens nothing.
    let other = Keyring::new(directory.path().join("other"));
    other.own().expect("made");
    fs_err::copy(other.own_file(), keyring.own_file()).expect("copied");
    let error = ssh.run("true", b"").expect_err("it does not let in");
    assert!(matches!(error, SshError::Denied { .. }), "{error}");
    sshd.stop();
    let error = ssh.run("true", b"").expect_err("it is gone");
    let SshError::Unreachable { said, sent } = error else {
        panic!("{error}");
    };
    assert!(said.contains("Connection refused"), "{said}");
    assert_eq!(sent, Sent::No);
}

#[test]
fn a_node_gets_neither_the_agent_nor_ports_nor_programs_of_whoever_reaches_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path());
    let (agent, ran) = (directory.path().join("agent"), directory.path().join("ran"));
    let _agent = std::os::unix::net::UnixListener::bind(&agent).expect("a socket");
    let port = {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        free.local_addr().expect("an address").port()
    };
    let config = directory.path().join("ssh_config");
    let text = fs_err::read_to_string(&config).expect("read");
    let own = format!(
        "Host *\n  ForwardAgent {}\n  PermitLocalCommand yes\n  LocalCommand touch {}\n  \
         RemoteForward {port} 127.0.0.1:9\n",
        agent.display(),
        ran.display()
    );
    fs_err::write(&config, text + &own).expect("written");
    let line = format!(
        "echo \"agent=$SSH_AUTH_SOCK\"; (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo port"
    );
    let line = format!("bash -c {}", homestak_providers::ssh::quote(&line));
    let output = ssh.run(&line, b"").expect("it runs");
    ssh.close();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "agent=\n");
    assert!(!ran.exists(), "a program was run here");
    // A person at a terminal gets the same, unless they ask for more.
    let person = ssh.arguments();
    let has = |word: &str| person.iter().any(|one| one == word);
    assert!(has("ForwardAgent=no") && has("ClearAllForwardings=yes"));
}

#[test]
fn a_node_that_prints_without_end_does_not_fill_the_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = way(&keyring, &sshd, 1, directory.path());
    let error = ssh.run("cat /dev/zero", b"").expect_err("it has no end");
    assert!(error.to_string().contains("more than 16 MiB"), "{error}");
    // Lines are handed out as they come; one without an end comes in parts.
    let longest = Mutex::new(0);
    let line = "head -c 5000000 /dev/zero; echo; echo end";
    let status = ssh.follow(line, b"", &|_, text| {
        let mut longest = longest.lock().expect("unpoisoned");
        *longest = text.len().max(*longest);
    });
    assert_eq!(status.expect("it runs"), 0);
    assert_eq!(longest.into_inner().expect("unpoisoned"), 1 << 20);
    ssh.close();
}
