//! Resource limits of nodes.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::isolation::as_root;
use crate::test_host::{TestHost, image};

#[test]
fn exceeding_the_memory_limit_kills_only_a_process_inside() {
    let Some(host) = crate::host() else { return };
    host.peers("greedy", 1);
    host.apply("greedy");
    // Less than the limit succeeds, twice as much does not.
    let allocate = |mib: u32| {
        format!("head -c {mib}M /dev/zero | tail -c {mib}M >/dev/null; echo ${{PIPESTATUS[1]}}")
    };
    assert_eq!(host.inside("peer-1", &allocate(200)).good().trim(), "0");
    let result = host.inside("peer-1", &allocate(1_024));
    assert_ne!(result.out.trim(), "0", "{}", result.err);
    // The node still runs.
    host.inside("peer-1", "true").good();
    host.destroy("greedy");
    host.assert_unchanged();
}

#[test]
fn a_fork_bomb_stops_at_the_process_limit_of_the_node() {
    let Some(host) = crate::host() else { return };
    host.peers("burst", 1);
    host.apply("burst");
    let burst = "for n in $(seq 6000); do sleep 20 & done 2>&1 | grep -c -i -m1 'fork'";
    let result = host.inside(
        "peer-1",
        &format!("timeout 60 bash -c \"{}\"", burst.replace('$', "\\$")),
    );
    assert!(
        result.out.trim() == "1" || result.code != 0,
        "{} {}",
        result.out,
        result.err
    );
    assert_eq!(host.run(&["local", "show"]).code, 0);
    host.destroy("burst");
    host.assert_unchanged();
}

#[test]
fn filling_tmpfs_does_not_stop_the_node() {
    let Some(host) = crate::host() else { return };
    host.peers("full", 1);
    host.apply("full");
    let boot =
        |host: &TestHost| as_root(host, "peer-1", "stat -c %Z /proc/1; pgrep -x sshd").good();
    let before = boot(&host);
    // More than the node has memory, in two places.
    for directory in ["/dev/shm", "/tmp"] {
        let fill = format!("dd if=/dev/zero of={directory}/x bs=1M count=600 2>&1");
        let result = host.inside("peer-1", &fill);
        assert!(
            result.out.contains("No space left"),
            "{} {}",
            result.out,
            result.err
        );
    }
    assert_eq!(boot(&host), before);
    // Their modes and mount options are unchanged.
    let line = "stat -c %a:%U /tmp /dev/shm | sort -u; \\
                findmnt -n -o OPTIONS /tmp | grep -v nosuid.*nodev; \\
                findmnt -n -o OPTIONS /dev/shm | grep -v nosuid.*nodev; true";
    assert_eq!(host.inside("peer-1", line).good(), "1777:root\n");
    host.destroy("full");
    host.assert_unchanged();
}

#[test]
fn a_node_that_ran_out_of_memory_recovers() {
    let Some(host) = crate::host() else { return };
    host.peers("taken", 1);
    host.apply("taken");
    // memfd_create: the memory counts for no process, so the kernel kills other processes first.
    let take = "perl -e 'my $name = \"x\"; open(my $file, \">&=\", syscall(319, $name, 0));
                my $part = \"x\" x 1048576; for (1 .. 600) { syswrite($file, $part) }'";
    let result = host.inside("peer-1", take);
    assert_ne!(result.code, 0, "{}{}", result.out, result.err);
    let reached = (0..60).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        host.nodes()[0]["running"] == true && host.inside("peer-1", "true").code == 0
    });
    // The kernel chooses what it kills. If that is the whole container, it is shown as stopped.
    if !reached {
        assert_eq!(host.nodes()[0]["running"], false);
        host.apply("taken");
        host.inside("peer-1", "true").good();
    }
    host.destroy("taken");
    host.assert_unchanged();
}

#[test]
fn a_fork_bomb_of_a_user_leaves_processes_for_root() {
    let Some(host) = crate::host() else { return };
    host.peers("burst", 1);
    host.apply("burst");
    let burst =
        "nohup perl -e 'while (defined(my $child = fork)) { unless ($child) { sleep 60; exit } }
                 print STDERR \"no more\"; sleep 60' >/tmp/output 2>&1 </dev/null &
                 until grep -q 'no more' /tmp/output; do sleep 0.2; done";
    host.inside("peer-1", burst).good();
    let result = as_root(
        &host,
        "peer-1",
        "for n in $(seq 100); do sleep 1 & done; wait; echo done",
    );
    assert_eq!((result.out.as_str(), result.err.as_str()), ("done\n", ""));
    host.destroy("burst");
    host.assert_unchanged();
}

/// Creates cgroups wherever a node can, also in hierarchies that it mounts, and prints how many.
const GROUPS: &str = r#"
mkdir -p /mnt/named /mnt/pids /mnt/memory
mount -t cgroup -o none,name=systemd named /mnt/named
mount -t cgroup -o pids pids /mnt/pids
mount -t cgroup -o memory memory /mnt/memory
perl -e '
    my $created = 0;
    for my $top (grep { -d } @ARGV) {
        for my $n (1 .. 6000) { mkdir("$top/made-$n") or last; $created++; }
    }
    print "$created\n";
' $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts) 2>&1
"#;

#[test]
fn the_number_of_cgroups_of_a_node_is_limited() {
    let Some(host) = crate::host() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    if !mounts.contains(" - cgroup2 ") {
        println!("skipped: version 1 of control groups has no such limit");
        return;
    }
    host.peers("many", 1);
    host.apply("many");
    let result = as_root(&host, "peer-1", GROUPS);
    let created: u32 = result.out.trim().parse().unwrap();
    assert!((1..4_096).contains(&created), "{created}: {}", result.err);
    host.inside("peer-1", "true").good();
    host.destroy("many");
    host.assert_unchanged();
}

#[test]
fn processes_of_the_machine_do_not_count_against_users_of_a_node_with_the_same_ids() {
    let Some(host) = crate::host() else { return };
    let node = format!(
        "  - {{name: outer, type: pve, image: {}, memory: 1024}}\n",
        image()
    );
    host.manifest("host", &node);
    host.apply("host");
    // They exit when their stdin is closed.
    let many = "for (1 .. 2100) { unless (fork) { sysread(STDIN, my $end, 1); exit } }
                syswrite(STDOUT, \"ready\"); sysread(STDIN, my $end, 1)";
    let mut processes = Command::new("setpriv")
        .args(["--reuid", "61234", "--clear-groups", "perl", "-e", many])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    let mut stdout = processes.stdout.take().unwrap();
    stdout.read_exact(&mut ready).unwrap();
    let line = "sudo setpriv --reuid 61234 --clear-groups sh -c '(true); echo runs'";
    let result = host.inside("outer", line);
    drop(processes.stdin.take());
    processes.wait().unwrap();
    assert_eq!(result.out, "runs\n", "{}", result.err);
    host.destroy("host");
    host.assert_unchanged();
}
