//! Root or a user of a node against the machine and whoever works there.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::bed::{Bed, Run};
use crate::isolation::as_root;

/// A program that writes to the terminal of whoever runs it, and types a line there.
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

/// Makes directories within directories, with names that no path can hold in the end.
const NEST: &str = r#"
my ($count, @tops) = @ARGV;
for my $top (@tops) {
    chdir $top or next;
    my $made = 0;
    while ($made < $count && mkdir("d") && chdir("d")) { $made++; }
    print "$made\n";
}
"#;

/// Takes more memory than a node has, and more processes, and says how far that went.
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

/// Sends a packet to a port of a machine in the name of each address.
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

/// Writes a file of a node as root there.
fn put(bed: &Bed, node: &str, path: &str, text: &str) {
    let line = format!("cat >{path} <<'END'\n{text}END\nchmod 755 {path}\n");
    as_root(bed, node, &line).good();
}

/// Runs a line of a shell at a terminal.
fn at_terminal(bed: &Bed, line: &str) -> std::process::Child {
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .envs(
            bed.command(&[])
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
    panic!("never: {what}");
}

#[test]
fn a_node_types_nothing_into_the_terminal_of_whoever_looks_into_it() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    put(&bed, "peer-1", "/usr/bin/journalctl", TYPING);
    put(&bed, "peer-1", "/usr/bin/script", TYPING);
    let program = env!("CARGO_BIN_EXE_homestak");
    let after = "IFS= read -r -t 3 line; echo \"read [$line]\"";
    for command in [
        "logs peer-1 -n 1",
        "logs peer-1 -n 1 --follow",
        "console peer-1",
        "console peer-1 | cat",
        "console peer-1 </dev/null",
    ] {
        let mut child = at_terminal(&bed, &format!("{program} {command}; {after}"));
        let stdin = child.stdin.take();
        let said = Run::from(child.wait_with_output().unwrap());
        drop(stdin);
        assert!(said.out.contains("read []"), "{command}: {:?}", said.out);
        // A console is for what the node prints; logs are text.
        let is_title = said.out.contains("\x1b]0;TITLE");
        assert!(
            !is_title || command.starts_with("console"),
            "{command}: {:?}",
            said.out
        );
    }
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn following_logs_ends_with_an_interrupt_at_the_terminal() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let program = env!("CARGO_BIN_EXE_homestak");
    let mut child = at_terminal(&bed, &format!("{program} logs peer-1 --follow -n 1"));
    let readers = || {
        let counted = bed.inside("peer-1", "pgrep -c journalctl");
        counted.out.trim().to_owned()
    };
    wait_until("the journal is followed", || readers() == "1");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\x03").unwrap();
    let said = Run::from(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(said.code, 130, "{:?}", said.out);
    wait_until("nobody follows the journal", || readers() == "0");
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn what_logs_and_consoles_run_has_what_the_node_may_have() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    put(&bed, "peer-1", "/usr/bin/journalctl", GREEDY);
    let limited = "memory: limited\nprocesses: limited\n";
    let logs = bed.run(&["logs", "peer-1", "-n", "1"]);
    assert!(logs.out.contains(limited), "{}{}", logs.out, logs.err);
    let console = as_root(&bed, "peer-1", "journalctl");
    assert_eq!(console.out, limited, "{}", console.err);
    let program = env!("CARGO_BIN_EXE_homestak");
    let mut child = at_terminal(&bed, &format!("{program} console peer-1"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"journalctl; exit 7\n").unwrap();
    let said = Run::from(child.wait_with_output().unwrap());
    drop(stdin);
    let text = said.out.replace('\r', "");
    assert!(text.contains(limited), "{text}");
    assert_eq!(said.code, 7, "{text}");
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn a_node_sends_nothing_in_the_name_of_addresses_outside() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    put(&bed, "peer-1", "/root/forge", FORGE);
    let way = "ip -4 route show default | cut -d' ' -f3";
    let machine = bed.inside("peer-1", way).good();
    let machine = machine.trim();
    let own = bed.nodes()[0]["address"].as_str().unwrap().to_owned();
    // A port that nodes reach, at an address that only they have.
    let service = std::net::UdpSocket::bind((machine, 123)).unwrap();
    let seconds = std::time::Duration::from_secs(20);
    service.set_read_timeout(Some(seconds)).unwrap();
    let line = format!("perl /root/forge {machine} 123 198.51.100.7 {own}");
    assert_eq!(as_root(&bed, "peer-1", &line).good(), "sent\n");
    let mut text = [0; 64];
    let length = service.recv(&mut text).unwrap();
    assert_eq!(String::from_utf8_lossy(&text[..length]), own);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn a_node_becomes_no_router_of_the_machine() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    put(&bed, "peer-1", "/root/advertise", ADVERTISE);
    let sent = as_root(&bed, "peer-1", "perl /root/advertise").good();
    assert_eq!(sent, "sent\n");
    // What is sent later arrives later.
    bed.inside("peer-1", "true").good();
    let realm = homestak_providers::local::Instance::at(&bed.root()).unwrap();
    let link = format!("hs-{}", realm.name());
    for what in ["address", "route"] {
        let shown = Command::new("ip")
            .args(["-6", what, "show", "dev", &link])
            .output()
            .map(Run::from)
            .unwrap();
        assert_eq!(shown.good(), "", "{what} of {link}");
    }
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn a_node_reaches_no_service_of_the_machine_that_is_not_meant_for_it() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let service = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = service.local_addr().unwrap().port();
    let line = format!(
        "way=$(ip -4 route show default | cut -d' ' -f3)\n\
         sudo ping -q -c1 -W5 $way >/dev/null && echo pings\n\
         timeout 5 bash -c \"exec 3<>/dev/tcp/$way/{port}\" && echo reaches\n\
         true"
    );
    let said = bed.inside("peer-1", &line);
    assert_eq!(said.out.trim(), "pings", "{}", said.err);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn a_node_with_deep_groups_and_directories_is_removed_like_any_other() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    put(&bed, "peer-1", "/root/nest", NEST);
    let groups = "cd /sys/fs/cgroup; perl /root/nest 2500 $PWD $PWD/unified $PWD/systemd";
    let made = as_root(&bed, "peer-1", groups).good();
    let made: Vec<u32> = made.lines().map(|line| line.parse().unwrap()).collect();
    assert!(made.iter().any(|made| *made > 0), "{made:?}");
    let made = as_root(&bed, "peer-1", "perl /root/nest 3000 /root").good();
    assert_eq!(made, "3000\n");
    // It is looked at and removed by one who may have few files open.
    let shown = bed.nodes();
    assert_eq!(shown[0]["running"], true, "{shown:?}");
    let command = bed.command(&["manifest", "destroy", "-M", "one", "-H", "local", "--yes"]);
    let limited = Command::new("prlimit")
        .args(["--nofile=256", "--"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(bed.root())
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
    bed.is_as_before();
}

#[test]
fn cleaning_goes_on_after_what_cannot_be_removed() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let nodes = bed.root().join("nodes");
    let gone = |number: u32| nodes.join(format!(".gone-00000000-0000-4000-8000-{number:012}"));
    let mounted = gone(3).join("mounted");
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
        std::fs::create_dir_all(gone(number).join("upper")).unwrap();
    }
    let failed = bed.run(&["local", "clean"]);
    let left: Vec<u32> = (1..=8).filter(|number| gone(*number).exists()).collect();
    mount(&["umount"]);
    assert_eq!(left, [3], "{}{}", failed.out, failed.err);
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.err.contains("mounted"), "{}", failed.err);
    bed.run(&["local", "clean"]).good();
    bed.inside("peer-1", "true").good();
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn logs_of_a_stopped_node_are_its_own_wherever_its_links_lead() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let line = "sudo logger --tag marked a line of the journal; sudo journalctl --flush --sync";
    bed.inside("peer-1", line).good();
    let uuid = bed.nodes()[0]["uuid"].as_str().unwrap().to_owned();
    bed.inside("peer-1", "sudo systemctl poweroff");
    wait_until("it is stopped", || bed.nodes()[0]["running"] == false);
    let logs = || {
        let said = bed.run(&["logs", "peer-1", "-n", "500"]);
        (said.code, said.out.contains("a line of the journal"))
    };
    assert_eq!(logs(), (0, true), "its own journal is read");
    let log = bed.root().join("nodes").join(uuid).join("upper/var/log");
    let journal = log.join("journal");
    let machine = bed.state().with_file_name("journal");
    std::fs::rename(&journal, &machine).unwrap();
    let link = |to: &std::path::Path, at: &std::path::Path| {
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    // The directory itself, one in it, a file, and a directory above it.
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
    bed.destroy("one");
    bed.is_as_before();
}
