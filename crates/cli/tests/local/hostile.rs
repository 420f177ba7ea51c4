//! Attacks by root or a user of a node on the machine and its operator.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::isolation::as_root;
use crate::test_host::{Run, TestHost};

/// A program that writes to the caller's terminal and injects input there.
const TYPING: &str = r#"#!/usr/bin/perl
my $tty;
open($tty, "+<", "/dev/tty") or $tty = \*STDIN;
syswrite($tty, "\e]0;TITLE\a");
for my $key (split(//, "typed by the node\n")) { my $one = $key; ioctl($tty, 0x5412, $one); }
"#;

/// A Router Advertisement with a prefix and a default route.
const ADVERTISE: &str = r#"
use Socket;
socket(my $s, 10, 3, 58) or die "socket: $!";
my ($index) = `cat /sys/class/net/eth0/ifindex` =~ /(\d+)/;
setsockopt($s, 41, 18, pack("i", 255)) or die "hops: $!";
setsockopt($s, 41, 17, pack("i", $index)) or die "link: $!";
my $text = pack("CCnCCnNN", 134, 0, 0, 64, 0x18, 600, 0, 0)
    . pack("CCCCNNN", 3, 4, 64, 0xC0, 600, 600, 0)
    . Socket::inet_pton(10, "2001:db8:66::");
my $all = Socket::pack_sockaddr_in6(0, Socket::inet_pton(10, "ff02::1"), $index);
# A card that was just connected has no address to send from yet.
for (1 .. 50) {
    if (send($s, $text, 0, $all)) { print "sent\n"; exit; }
    select(undef, undef, undef, 0.2);
}
die "send: $!";
"#;

/// Creates directories so deep that their path exceeds the maximum length.
const NEST: &str = r#"
my ($count, @tops) = @ARGV;
for my $top (@tops) {
    chdir $top or next;
    my $created = 0;
    while ($created < $count && mkdir("d") && chdir("d")) { $created++; }
    print "$created\n";
}
"#;

/// Uses more memory and processes than a node may have, and prints whether it was limited.
const GREEDY: &str = r#"#!/usr/bin/perl
my ($taker, $size) = (fork // die("fork: $!"), 700 << 20);
unless ($taker) { my $all = "x" x $size; exit 0; }
waitpid($taker, 0);
print "memory: ", $? == 0 ? "all" : "limited", "\n";
my @children;
while (@children < 5000 && defined(my $child = fork)) {
    unless ($child) { sleep 60; exit; }
    push @children, $child;
}
print "processes: ", @children == 5000 ? "all" : "limited", "\n";
kill "KILL", @children;
"#;

/// Sends a packet to a port of a machine with each source address.
const FORGE: &str = r#"
use Socket;
my ($to, $port, @from) = @ARGV;
socket(my $s, AF_INET, SOCK_RAW, 255) or die "socket: $!";
for my $from (@from) {
    my $udp = pack("nnnn", 5353, $port, 8 + length $from, 0) . $from;
    my $ip = pack("CCnnnCCna4a4", 0x45, 0, 20 + length $udp, 1, 0, 64, 17, 0,
        inet_aton($from), inet_aton($to));
    send($s, $ip . $udp, 0, pack_sockaddr_in(0, inet_aton($to))) or die "send: $!";
}
print "sent\n";
"#;

/// Writes a file on a node as root.
fn put(host: &TestHost, node: &str, path: &str, text: &str) {
    let line = format!("cat >{path} <<'END'\n{text}END\nchmod 755 {path}\n");
    as_root(host, node, &line).good();
}

/// Runs a shell line on a terminal.
fn at_terminal(host: &TestHost, line: &str) -> std::process::Child {
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .envs(
            host.command(&[])
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("SHELL", "/bin/bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("timeout: {what}");
}

#[test]
fn a_node_cannot_type_into_the_terminal_of_the_operator() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    put(&host, "peer-1", "/usr/bin/journalctl", TYPING);
    put(&host, "peer-1", "/usr/bin/script", TYPING);
    let program = env!("CARGO_BIN_EXE_homestak");
    let after = "IFS= read -r -t 3 line; echo \"read [$line]\"";
    for command in [
        "logs peer-1 -n 1",
        "logs peer-1 -n 1 --follow",
        "console peer-1",
        "console peer-1 | cat",
        "console peer-1 </dev/null",
    ] {
        let mut child = at_terminal(&host, &format!("{program} {command}; {after}"));
        let stdin = child.stdin.take();
        let result = Run::from(child.wait_with_output().unwrap());
        drop(stdin);
        assert!(
            result.out.contains("read []"),
            "{command}: {:?}",
            result.out
        );
        // Consoles pass escape codes through; logs do not.
        let is_title = result.out.contains("\x1b]0;TITLE");
        assert!(
            !is_title || command.starts_with("console"),
            "{command}: {:?}",
            result.out
        );
    }
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn following_logs_ends_with_an_interrupt_at_the_terminal() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let program = env!("CARGO_BIN_EXE_homestak");
    let mut child = at_terminal(&host, &format!("{program} logs peer-1 --follow -n 1"));
    let readers = || {
        let counted = host.inside("peer-1", "pgrep -c journalctl");
        counted.out.trim().to_owned()
    };
    wait_until("the journal is followed", || readers() == "1");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\x03").unwrap();
    let result = Run::from(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(result.code, 130, "{:?}", result.out);
    wait_until("no process follows the journal", || readers() == "0");
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn logs_and_consoles_run_within_the_limits_of_the_node() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    put(&host, "peer-1", "/usr/bin/journalctl", GREEDY);
    let limited = "memory: limited\nprocesses: limited\n";
    let logs = host.run(&["logs", "peer-1", "-n", "1"]);
    assert!(logs.out.contains(limited), "{}{}", logs.out, logs.err);
    let console = as_root(&host, "peer-1", "journalctl");
    assert_eq!(console.out, limited, "{}", console.err);
    let program = env!("CARGO_BIN_EXE_homestak");
    let mut child = at_terminal(&host, &format!("{program} console peer-1"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"journalctl; exit 7\n").unwrap();
    let result = Run::from(child.wait_with_output().unwrap());
    drop(stdin);
    let text = result.out.replace('\r', "");
    assert!(text.contains(limited), "{text}");
    assert_eq!(result.code, 7, "{text}");
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn a_node_cannot_spoof_outside_addresses() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    put(&host, "peer-1", "/root/forge", FORGE);
    let default_route = "ip -4 route show default | cut -d' ' -f3";
    let machine = host.inside("peer-1", default_route).good();
    let machine = machine.trim();
    let own = host.nodes()[0]["address"].as_str().unwrap().to_owned();
    // A port that nodes can reach, at an address that only they can reach.
    let service = std::net::UdpSocket::bind((machine, 123)).unwrap();
    let seconds = std::time::Duration::from_secs(20);
    service.set_read_timeout(Some(seconds)).unwrap();
    let line = format!("perl /root/forge {machine} 123 198.51.100.7 {own}");
    assert_eq!(as_root(&host, "peer-1", &line).good(), "sent\n");
    let mut text = [0; 64];
    let length = service.recv(&mut text).unwrap();
    assert_eq!(String::from_utf8_lossy(&text[..length]), own);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn a_node_cannot_become_a_router_of_the_machine() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    put(&host, "peer-1", "/root/advertise", ADVERTISE);
    let sent = as_root(&host, "peer-1", "perl /root/advertise").good();
    assert_eq!(sent, "sent\n");
    // Packets arrive in order, so the advertisement was received when this returns.
    host.inside("peer-1", "true").good();
    let instance = homestak_providers::local::Instance::at(&host.root()).unwrap();
    let link = format!("hs-{}", instance.name());
    for what in ["address", "route"] {
        let shown = Command::new("ip")
            .args(["-6", what, "show", "dev", &link])
            .output()
            .map(Run::from)
            .unwrap();
        assert_eq!(shown.good(), "", "{what} of {link}");
    }
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn a_node_cannot_reach_other_services_of_the_machine() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let service = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = service.local_addr().unwrap().port();
    let line = format!(
        "way=$(ip -4 route show default | cut -d' ' -f3)\n\
         sudo ping -q -c1 -W5 $way >/dev/null && echo pings\n\
         timeout 5 bash -c \"exec 3<>/dev/tcp/$way/{port}\" && echo reaches\n\
         true"
    );
    let result = host.inside("peer-1", &line);
    assert_eq!(result.out.trim(), "pings", "{}", result.err);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn a_node_with_deep_cgroups_and_directories_can_be_destroyed() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    put(&host, "peer-1", "/root/nest", NEST);
    let groups = "cd /sys/fs/cgroup; perl /root/nest 2500 $PWD $PWD/unified $PWD/systemd";
    let created = as_root(&host, "peer-1", groups).good();
    let created: Vec<u32> = created.lines().map(|line| line.parse().unwrap()).collect();
    assert!(created.iter().any(|created| *created > 0), "{created:?}");
    let created = as_root(&host, "peer-1", "perl /root/nest 3000 /root").good();
    assert_eq!(created, "3000\n");
    // It is shown, and destroyed with a low limit of open files.
    let shown = host.nodes();
    assert_eq!(shown[0]["running"], true, "{shown:?}");
    let command = host.command(&["manifest", "destroy", "-M", "one", "-H", "local", "--yes"]);
    let limited = Command::new("prlimit")
        .args(["--nofile=256", "--"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(host.root())
        .env_clear()
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .output()
        .map(Run::from)
        .unwrap();
    limited.good();
    host.assert_unchanged();
}

#[test]
fn clean_continues_after_a_directory_that_cannot_be_removed() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let nodes = host.root().join("nodes");
    let leftover = |number: u32| nodes.join(format!(".gone-00000000-0000-4000-8000-{number:012}"));
    let mounted = leftover(3).join("mounted");
    std::fs::create_dir_all(&mounted).unwrap();
    let mount = |arguments: &[&str]| {
        let done = Command::new(arguments[0])
            .args(&arguments[1..])
            .arg(&mounted)
            .output();
        done.map(Run::from).unwrap().good();
    };
    mount(&["mount", "-t", "tmpfs", "tmpfs"]);
    for number in [1, 2, 4, 5, 6, 7, 8] {
        std::fs::create_dir_all(leftover(number).join("upper")).unwrap();
    }
    let failed = host.run(&["local", "clean"]);
    let remaining: Vec<u32> = (1..=8)
        .filter(|number| leftover(*number).exists())
        .collect();
    mount(&["umount"]);
    assert_eq!(remaining, [3], "{}{}", failed.out, failed.err);
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.err.contains("mounted"), "{}", failed.err);
    host.run(&["local", "clean"]).good();
    host.inside("peer-1", "true").good();
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn logs_of_a_stopped_node_do_not_follow_symlinks() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let line = "sudo logger --tag marked a line of the journal; sudo journalctl --flush --sync";
    host.inside("peer-1", line).good();
    let uuid = host.nodes()[0]["uuid"].as_str().unwrap().to_owned();
    host.inside("peer-1", "sudo systemctl poweroff");
    wait_until("it is stopped", || host.nodes()[0]["running"] == false);
    let logs = || {
        let result = host.run(&["logs", "peer-1", "-n", "500"]);
        (result.code, result.out.contains("a line of the journal"))
    };
    assert_eq!(logs(), (0, true), "its own journal is read");
    let log = host.root().join("nodes").join(uuid).join("upper/var/log");
    let journal = log.join("journal");
    let machine = host.state().with_file_name("journal");
    std::fs::rename(&journal, &machine).unwrap();
    let link = |to: &std::path::Path, at: &std::path::Path| {
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    // Symlinks: the directory itself, one in it, files in it, and a directory above it.
    link(&machine, &journal);
    assert_eq!(logs(), (0, false), "the directory is a link");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let own = std::fs::read_dir(&machine)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    link(&own.path(), &journal.join(own.file_name()));
    assert_eq!(logs(), (0, false), "a directory in it is a link");
    std::fs::remove_file(journal.join(own.file_name())).unwrap();
    std::fs::create_dir(journal.join(own.file_name())).unwrap();
    for file in std::fs::read_dir(own.path()).unwrap().flatten() {
        let at = journal.join(own.file_name()).join(file.file_name());
        link(&file.path(), &at);
    }
    assert_eq!(logs(), (0, false), "files in it are links");
    std::fs::rename(&log, log.with_file_name("log.old")).unwrap();
    link(machine.parent().unwrap(), &log);
    assert_eq!(logs(), (0, false), "a directory above it is a link");
    host.destroy("one");
    host.assert_unchanged();
}
