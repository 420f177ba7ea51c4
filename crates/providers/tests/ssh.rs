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
