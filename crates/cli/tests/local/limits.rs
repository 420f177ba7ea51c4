//! What a node uses too much of is its own loss.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::bed::{Bed, image};
use crate::isolation::as_root;

#[test]
fn memory_beyond_the_limit_ends_a_process_inside_and_nothing_outside() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("greedy", 1);
    bed.apply("greedy");
    // Half of the limit is fine, twice as much is not.
    let eat = |mib: u32| {
        format!("head -c {mib}M /dev/zero | tail -c {mib}M >/dev/null; echo ${{PIPESTATUS[1]}}")
    };
    assert_eq!(bed.inside("peer-1", &eat(200)).good().trim(), "0");
    let said = bed.inside("peer-1", &eat(1_024));
    assert_ne!(said.out.trim(), "0", "{}", said.err);
    // The node goes on.
    bed.inside("peer-1", "true").good();
    bed.destroy("greedy");
    bed.is_as_before();
}

#[test]
fn a_burst_of_processes_is_stopped_at_the_nodes_own_limit() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("burst", 1);
    bed.apply("burst");
    let burst = "for n in $(seq 6000); do sleep 20 & done 2>&1 | grep -c -i -m1 'fork'";
    let said = bed.inside(
        "peer-1",
        &format!("timeout 60 bash -c \"{}\"", burst.replace('$', "\\$")),
    );
    assert!(
        said.out.trim() == "1" || said.code != 0,
        "{} {}",
        said.out,
        said.err
    );
    assert_eq!(bed.run(&["local", "show"]).code, 0);
    bed.destroy("burst");
    bed.is_as_before();
}

#[test]
fn a_user_who_fills_directories_in_memory_does_not_end_the_node() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("full", 1);
    bed.apply("full");
    let boot = |bed: &Bed| as_root(bed, "peer-1", "stat -c %Z /proc/1; pgrep -x sshd").good();
    let before = boot(&bed);
    // More than the node has memory, in two places.
    for place in ["/dev/shm", "/tmp"] {
        let fill = format!("dd if=/dev/zero of={place}/x bs=1M count=600 2>&1");
        let said = bed.inside("peer-1", &fill);
        assert!(
            said.out.contains("No space left"),
            "{} {}",
            said.out,
            said.err
        );
    }
    assert_eq!(boot(&bed), before);
    // They are what they were otherwise.
    let line = "stat -c %a:%U /tmp /dev/shm | sort -u; \\
                findmnt -n -o OPTIONS /tmp | grep -v nosuid.*nodev; \\
                findmnt -n -o OPTIONS /dev/shm | grep -v nosuid.*nodev; true";
    assert_eq!(bed.inside("peer-1", line).good(), "1777:root\n");
    bed.destroy("full");
    bed.is_as_before();
}

#[test]
fn a_node_that_ends_because_a_user_took_all_its_memory_comes_back() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("taken", 1);
    bed.apply("taken");
    // A file without a name, in memory: no process is larger for it, so that others are ended first.
    let take = "perl -e 'my $name = \"x\"; open(my $file, \">&=\", syscall(319, $name, 0));
                my $part = \"x\" x 1048576; for (1 .. 600) { syswrite($file, $part) }'";
    let said = bed.inside("peer-1", take);
    assert_ne!(said.code, 0, "{}{}", said.out, said.err);
    let reached = (0..60).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        bed.nodes()[0]["running"] == true && bed.inside("peer-1", "true").code == 0
    });
    // The kernel chooses whom it ends. Where that is the container as a whole, it is shown as stopped.
    if !reached {
        assert_eq!(bed.nodes()[0]["running"], false);
        bed.apply("taken");
        bed.inside("peer-1", "true").good();
    }
    bed.destroy("taken");
    bed.is_as_before();
}

#[test]
fn a_user_who_starts_processes_without_end_leaves_some_for_root() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("burst", 1);
    bed.apply("burst");
    let burst =
        "nohup perl -e 'while (defined(my $child = fork)) { unless ($child) { sleep 60; exit } }
                 print STDERR \"no more\"; sleep 60' >/tmp/said 2>&1 </dev/null &
                 until grep -q 'no more' /tmp/said; do sleep 0.2; done";
    bed.inside("peer-1", burst).good();
    let said = as_root(
        &bed,
        "peer-1",
        "for n in $(seq 100); do sleep 1 & done; wait; echo done",
    );
    assert_eq!((said.out.as_str(), said.err.as_str()), ("done\n", ""));
    bed.destroy("burst");
    bed.is_as_before();
}

/// Makes groups wherever a node can, also in hierarchies that it mounts itself, and says how many.
const GROUPS: &str = r#"
mkdir -p /mnt/named /mnt/pids /mnt/memory
mount -t cgroup -o none,name=systemd named /mnt/named
mount -t cgroup -o pids pids /mnt/pids
mount -t cgroup -o memory memory /mnt/memory
perl -e '
    my $made = 0;
    for my $top (grep { -d } @ARGV) {
        for my $n (1 .. 6000) { mkdir("$top/made-$n") or last; $made++; }
    }
    print "$made\n";
' $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts) 2>&1
"#;

#[test]
fn a_node_makes_no_groups_without_end() {
    let Some(bed) = crate::new_bed() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    if !mounts.contains(" - cgroup2 ") {
        println!("skipped: version 1 of control groups has no such limit");
        return;
    }
    bed.peers("many", 1);
    bed.apply("many");
    let said = as_root(&bed, "peer-1", GROUPS);
    let made: u32 = said.out.trim().parse().unwrap();
    assert!((1..4_096).contains(&made), "{made}: {}", said.err);
    bed.inside("peer-1", "true").good();
    bed.destroy("many");
    bed.is_as_before();
}

#[test]
fn processes_of_the_machine_do_not_count_for_users_of_a_node_that_has_the_same_ids() {
    let Some(bed) = crate::new_bed() else { return };
    let host = format!(
        "  - {{name: outer, type: pve, image: {}, memory: 1024}}\n",
        image()
    );
    bed.manifest("host", &host);
    bed.apply("host");
    // They end with what they read from.
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
    let said = bed.inside("outer", line);
    drop(processes.stdin.take());
    processes.wait().unwrap();
    assert_eq!(said.out, "runs\n", "{}", said.err);
    bed.destroy("host");
    bed.is_as_before();
}
