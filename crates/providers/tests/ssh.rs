//! Commands over real SSH: host keys, output and errors.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use homestak_core::doc::timeouts::Timeouts;
use homestak_engine::ports::Sent;
use homestak_providers::push::{AgentBinary, PushError, PushLimits, Pusher};
use homestak_providers::ssh::{HostKeyPolicy, Keyring, Ssh, SshError, Stream};
use homestak_test_support::sshd::{Sshd, client_config, guest, user};

fn keyring(directory: &Path) -> Keyring {
    Keyring::new(directory.join("ssh"))
}

fn client(keyring: &Keyring, sshd: &Sshd, nth: u32, directory: &Path) -> Ssh {
    let config = client_config(directory, &[sshd]);
    Ssh::to(keyring, sshd.address, &user(), guest(nth).as_str()).with_config_file(Some(config))
}

#[test]
fn commands_run_on_a_node_whose_key_is_pinned() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
    let output = ssh
        .run("cat; echo no >&2; exit 3", b"hello")
        .expect("it runs");
    let (out, err) = (output.stdout.as_slice(), output.stderr.as_slice());
    assert_eq!((output.status, out, err), (3, &b"hello"[..], &b"no\n"[..]));
    let own = ssh.run("echo Permission denied '(' >&2; exit 255", b"");
    assert_eq!(own.expect("the command's own code").status, 255);
    let lines_seen = Mutex::new(Vec::new());
    let status = ssh.follow("echo one; echo two; printf three", b"", &|stream, line| {
        lines_seen
            .lock()
            .expect("unpoisoned")
            .push((stream, line.to_owned()));
    });
    assert_eq!(status.expect("it runs"), 0);
    let lines = ["one", "two", "three"].map(|line| (Stream::Out, line.to_owned()));
    assert_eq!(lines_seen.into_inner().expect("unpoisoned"), lines);
    ssh.close();
}

#[test]
fn commands_share_a_connection_until_the_keys_are_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
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
fn a_different_host_key_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    keyring.host_key(&guest(2)).expect("created");
    // The server of one node responds at the address of another.
    let ssh = client(&keyring, &sshd, 2, directory.path());
    let error = ssh.run("touch /nowhere/at/all", b"").expect_err("refused");
    assert!(matches!(error, SshError::HostKeyDiffers), "{error}");
}

#[test]
fn an_unpinned_host_key_must_be_confirmed() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path()).with_host_key_policy(HostKeyPolicy::Ask);
    let error = ssh.run("true", b"").expect_err("nobody was asked");
    assert!(matches!(error, SshError::HostKeyUnknown), "{error}");
    fs_err::copy(keyring.known_hosts(), keyring.seen_hosts()).expect("confirmed");
    assert_eq!(ssh.run("true", b"").expect("it runs").status, 0);
    ssh.close();
}

#[test]
fn unreachable_and_denied_are_distinguished() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let mut sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
    // Another driver's key is denied.
    let other = Keyring::new(directory.path().join("other"));
    other.driver_key().expect("created");
    fs_err::copy(other.driver_key_file(), keyring.driver_key_file()).expect("copied");
    let error = ssh.run("true", b"").expect_err("it does not let in");
    assert!(matches!(error, SshError::Denied { .. }), "{error}");
    sshd.stop();
    let error = ssh.run("true", b"").expect_err("the server has stopped");
    let SshError::Unreachable { message, sent, .. } = error else {
        panic!("{error}");
    };
    assert!(message.contains("Connection refused"), "{message}");
    assert_eq!(sent, Sent::No);
}

#[test]
fn agent_ports_and_local_commands_are_not_forwarded() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
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
    // The same in an interactive session, unless options are given.
    let person = ssh.arguments();
    let has = |word: &str| person.iter().any(|one| one == word);
    assert!(has("ForwardAgent=no") && has("ClearAllForwardings=yes"));
}

#[test]
fn endless_output_is_limited() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
    let error = ssh.run("cat /dev/zero", b"").expect_err("it has no end");
    assert!(error.to_string().contains("more than 16 MiB"), "{error}");
    // Lines are passed on as they arrive; a very long one in parts.
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

#[test]
fn slow_output_times_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
    let with_deadline = ssh.clone().with_timeout(Duration::from_secs(1));
    // It prints now and then, prints nothing, or does not read its input.
    for line in ["while :; do printf .; sleep 0.1; done", "sleep 1000"] {
        let error = with_deadline
            .run(line, &[0; 5_000_000])
            .expect_err("it times out");
        assert!(
            matches!(error, SshError::TimedOut { seconds: 1 }),
            "{error}"
        );
    }
    let output = ssh.run("wc -c", &[0; 5_000_000]).expect("it runs");
    assert_eq!(output.stdout, b"5000000\n");
    ssh.close();
}

#[test]
fn a_killed_driver_leaves_no_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory.path());
    let ssh = client(&keyring, &sshd, 1, directory.path());
    let there = Mutex::new(Vec::new());
    let on_event = |_, _: &str| {
        let entries = fs_err::read_dir(directory.path().join("ssh")).expect("read");
        let names = entries.map(|entry| entry.expect("read").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        there.lock().expect("unpoisoned").extend(names);
    };
    ssh.follow("echo now", b"", &on_event).expect("it runs");
    ssh.close();
    let there = there.into_inner().expect("unpoisoned");
    assert!(!there.is_empty());
    assert!(!there.iter().any(|name| name.starts_with('.')), "{there:?}");
}

/// A node on which the agent was replaced by a script. `$asked` is the requested command.
fn misbehaving(directory: &Path, script: &str) -> (Sshd, Ssh, Pusher) {
    let keyring = keyring(directory);
    let sshd = Sshd::start(&keyring, 2, &guest(1), directory);
    let (file, public) = (
        directory.join("agent"),
        keyring.driver_key_file().with_added_extension("pub"),
    );
    let script = format!(
        "cd {}; asked=$SSH_ORIGINAL_COMMAND\n{script}",
        directory.display()
    );
    fs_err::write(&file, script).expect("written");
    let key = fs_err::read_to_string(&public).expect("read");
    let forced = format!("command=\"sh {}\" {key}", file.display());
    fs_err::write(&public, forced).expect("written");
    let ssh = client(&keyring, &sshd, 1, directory);
    let agent = AgentBinary::read(&file, &directory.join("agent.json")).expect("read");
    (
        sshd,
        ssh,
        Pusher::new(
            agent,
            &Timeouts::parse("confirm=5").expect("it is a setting"),
        ),
    )
}

fn converge(ssh: &Ssh, pusher: &Pusher) -> Result<bool, PushError> {
    let done = pusher.converge(ssh, ssh, "{}", &|_| {}, &|| false);
    ssh.close();
    done
}

#[test]
fn a_job_is_confirmed_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"
case "$asked" in
*confirm\'\ *|*"job' 'confirm"*|*"job confirm"*) echo >>confirms; sleep 1000 ;;
*) for n in $(seq 200); do
     echo "{\"n\":$n,\"event\":\"confirm\",\"within\":18446744073709551615}"
   done
   until [ -e confirms ]; do sleep 0.1; done; sleep 1
   echo '{"n":201,"event":"end","success":true,"result":{}}' ;;
esac"#;
    let (_sshd, ssh, pusher) = misbehaving(directory.path(), script);
    assert!(!converge(&ssh, &pusher).expect("it ends"));
    let confirms = fs_err::read(directory.path().join("confirms")).expect("asked");
    assert_eq!(confirms.len(), 1, "connections");
}

#[test]
fn a_misbehaving_node_is_not_followed_forever() {
    let steps = r#"awk 'BEGIN { while (1) printf "{\"n\":%d,\"event\":\"step\",\"words\":\"s\"}\n", ++n }'"#;
    let again = r#"echo >>tries; n=$(wc -l <tries); echo "{\"n\":$n,\"event\":\"step\",\"words\":\"s\"}"; exit 255"#;
    let beats = r#"while :; do echo '{"n":0,"event":"alive"}'; sleep 0.1; done"#;
    let beats_once = r#"echo '{"n":0,"event":"alive"}'; sleep 1000"#;
    let short = Duration::from_secs(1);
    let limits = PushLimits {
        tries_in_all: 3,
        ..PushLimits::from(&Timeouts::default())
    };
    let quick = PushLimits::from(&Timeouts::parse("silence=1,config=3").unwrap());
    let quiet = PushLimits {
        silent_without_beats: short,
        ..limits
    };
    for (script, limits, expected) in [
        (steps, limits, "more than 50000 lines"),
        ("cat /dev/zero", limits, "more than 16 MiB"),
        (again, limits, "could not be restored in 3 tries"),
        (beats, quick, "took more than 3 s"),
        (beats_once, quick, "has not reported for 1 s"),
        ("sleep 1000", quiet, "has not reported for 1 s"),
        ("exit 96", limits, "exited with 96"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (_sshd, ssh, pusher) = misbehaving(directory.path(), script);
        let error = converge(&ssh, &pusher.with_limits(limits)).expect_err(script);
        assert!(error.to_string().contains(expected), "{script}: {error}");
    }
}

#[test]
fn following_a_node_can_be_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"echo '{"n":1,"event":"step","words":"s"}'; sleep 1000"#;
    let (_sshd, ssh, pusher) = misbehaving(directory.path(), script);
    let enough = AtomicBool::new(false);
    let on_event = |_: &_| enough.store(true, Ordering::Relaxed);
    let stop = || enough.load(Ordering::Relaxed);
    let error = pusher.converge(&ssh, &ssh, "{}", &on_event, &stop);
    ssh.close();
    assert!(matches!(error, Err(PushError::Abandoned)), "{error:?}");
}
