//! Nodes as containers: Debian in systemd-nspawn, with an overlay file system over its image.
//!
//! Mounts exist only in the mount namespace of the node, so that the kernel removes them when its
//! processes have ended.

use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use homestak_engine::ports::{ErrorClass, PortError, StopMode};
use rustix::process::{Pid, Signal};

use super::cgroup::{Cgroup, ResourceLimits};
use super::instance::Instance;
use super::launch::{Supervisor, launch};
use super::node::{FirstBoot, Node};
use super::{enter, error, isolation, tree};
use crate::process;

/// The supervisor script of a container: joins the control groups, mounts the file system, configures the
/// identity on the first start, and restarts the container when it reboots.
const SUPERVISOR: &str = concat!(include_str!("idmap.sh"), include_str!("container.sh"));
/// How many PID namespaces there are between this process and a node: the supervisor's and nspawn's.
const PID_NAMESPACES: usize = 2;
/// The polling interval for the end of a node.
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// How often processes are killed until stopping fails: for 6 seconds.
const KILL_ATTEMPTS: u32 = 200;
/// Arguments that allow a node to run other nodes: capabilities and system calls.
const HOSTING_ARGUMENTS: [&str; 2] = [
    "--capability=all",
    "--system-call-filter=@mount @keyring @privileged @raw-io @module bpf perf_event_open",
];

/// Capabilities that nspawn gives by default, and that nodes without guests do not have.
const DROPPED_CAPABILITIES: &str = "CAP_MKNOD,CAP_DAC_READ_SEARCH";

/// Where nspawn has directories for each container.
const NSPAWN: &str = "/run/systemd/nspawn";
/// The ones that have one directory for each container. A killed nspawn leaves them.
const NSPAWN_DIRECTORIES: [&str; 2] = ["propagate", "unix-export"];

/// How many files `/tmp` and `/dev/shm` may each contain for each MiB of a node's memory. A file takes
/// about 1 KiB of memory.
const FILES_PER_MIB: u64 = 64;

/// Starts a node that does not run.
pub(super) fn start(
    instance: &Instance,
    node: &Node,
    (tree, program): (&Path, &Path),
    group: &Cgroup,
    systemd: bool,
) -> Result<(), PortError> {
    let limits = limits(node);
    let directory = instance.node(&node.uuid);
    mark_stopping(&directory, false)
        .map_err(|error| error::io(&format!("start `{}`", node.name), &error))?;
    let part = instance.part(node.vmid);
    let supervisor = Supervisor {
        text: SUPERVISOR,
        image: tree,
        limits,
        // nspawn is started in the network namespace whose devices the node gets.
        netns: Some(part.clone()),
        arguments: {
            let ids = node
                .ids
                .map_or_else(|| "-".to_owned(), |ids| ids.to_string());
            let mut arguments = vec![ids];
            arguments.extend(nspawn(instance, node, &part, program));
            arguments.extend(bounds(node));
            arguments
        },
    };
    launch(&supervisor, &directory, (&node.name, &part), group, systemd)
}

/// Records whether a node is being stopped: its supervisor does not restart it then.
pub(super) fn mark_stopping(directory: &Path, is_stopping: bool) -> std::io::Result<()> {
    let mark = directory.join("stopping");
    if is_stopping {
        return fs_err::write(mark, "");
    }
    match fs_err::remove_file(mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The arguments of nspawn.
fn nspawn(instance: &Instance, node: &Node, part: &str, program: &Path) -> Vec<String> {
    let directory = instance.node(&node.uuid);
    let mut arguments: Vec<String> = [
        "--quiet",
        "--keep-unit",
        "--register=no",
        "--boot",
        "--console=read-only",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!("--machine={part}"));
    arguments.push(format!("--uuid={}", node.uuid));
    arguments.push(format!("--directory={}", directory.join("root").display()));
    if let Some(ids) = node.ids {
        arguments.push(format!("--private-users={ids}:{}", isolation::COUNT));
        // The files of the node have these owners already.
        arguments.push("--private-users-ownership=off".to_owned());
        // nspawn creates a network namespace that the node's user namespace owns, and moves the network
        // device of the node into it.
        arguments.push("--network-interface=eth0".to_owned());
    }
    if !node.hosts {
        arguments.push("--capability=CAP_NET_ADMIN".to_owned());
        arguments.push(format!("--drop-capability={DROPPED_CAPABILITIES}"));
        return arguments;
    }
    arguments.extend(HOSTING_ARGUMENTS.map(str::to_owned));
    let nested = directory.join("nested");
    // A plain directory for the guests of the node: an overlay cannot be the upper directory of another
    // overlay.
    arguments.push(format!(
        "--bind={}:{}",
        nested.display(),
        super::instance::ROOT
    ));
    arguments.push(format!(
        "--bind-ro={}:{}/images",
        instance.images().display(),
        super::instance::ROOT
    ));
    arguments.push(format!(
        "--bind-ro={}:/usr/local/bin/homestak",
        program.display()
    ));
    arguments
}

/// The arguments of nspawn that keep one user from exhausting the resources of a node.
fn bounds(node: &Node) -> Vec<String> {
    // By default, the sizes depend on the memory of the machine instead of the node, and ending processes
    // does not free the memory of files.
    let (size, files) = (node.memory.0 / 4, node.memory.0 * FILES_PER_MIB);
    let memory = ["/tmp", "/dev/shm"].map(|path| {
        format!("--tmpfs={path}:mode=1777,nosuid,nodev,size={size}M,nr_inodes={files}")
    });
    let mut arguments = memory.to_vec();
    let tasks = user_tasks(node);
    arguments.extend(tasks.map(|tasks| format!("--rlimit=RLIMIT_NPROC={tasks}")));
    arguments
}

fn limits(node: &Node) -> ResourceLimits {
    ResourceLimits {
        memory: node.memory,
        cores: node.cores,
    }
}

/// Returns how many processes one user of a node may have. `None` without a user namespace: the kernel
/// counts processes by user id, so that those of the machine and of other nodes would be counted too.
pub(super) fn user_tasks(node: &Node) -> Option<u64> {
    node.ids.map(|_| limits(node).tasks() / 2)
}

/// Writes the first-boot data of a node.
pub(super) fn prepare(
    instance: &Instance,
    node: &Node,
    seed: &[(&str, &str)],
) -> std::io::Result<()> {
    let directory = instance.node(&node.uuid);
    // The images of containers have an empty resolv.conf.
    let servers = node.identity.dns.iter();
    let servers: String = servers.map(|one| format!("nameserver {one}\n")).collect();
    fs_err::create_dir_all(directory.join("upper/etc"))?;
    fs_err::write(directory.join("upper/etc/resolv.conf"), servers)?;
    match node.first_boot {
        FirstBoot::Direct => {
            let script = super::identity::script(&node.identity, node.hosts, false);
            write_private(&directory.join("first-boot"), &script)?;
        }
        FirstBoot::CloudInit => {
            let seed_directory = directory.join("upper/var/lib/cloud/seed/nocloud");
            fs_err::create_dir_all(&seed_directory)?;
            for (name, text) in seed {
                write_private(&seed_directory.join(name), text)?;
            }
        }
    }
    let Some(ids) = node.ids else { return Ok(()) };
    // The directory contains only what was written above.
    let upper = directory.join("upper").display().to_string();
    process::run("chown", &["-R", "-h", &format!("{ids}:{ids}"), &upper])
        .map(|_| ())
        .map_err(std::io::Error::other)
}

/// Removes the first-boot data of cloud-init. The supervisor removes the script of a direct first boot
/// when it has run.
pub(super) fn discard(instance: &Instance, node: &Node, group: &Cgroup) -> std::io::Result<()> {
    let (parent, seed) = ("var/lib/cloud/seed", "/var/lib/cloud/seed/nocloud");
    if node.first_boot == FirstBoot::Direct {
        return Ok(());
    }
    match enter::ContainerEntry::of(node, group) {
        // Removed inside the running node: the layers of a mounted overlay must not be changed.
        Some(entry) => {
            let mut words = entry.in_own_session(&[], &["rm", "-rf", seed]);
            let program = words.remove(0);
            process::run(&program, &words)
                .map(|_| ())
                .map_err(std::io::Error::other)
        }
        // Without following symbolic links, which users of the node can create.
        None => match tree::open(&instance.node(&node.uuid).join("upper"), parent) {
            Ok(parent) => tree::remove(&parent, c"nocloud"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        },
    }
}

/// Returns the first process inside a node.
pub(super) fn init(group: &Cgroup) -> Option<Pid> {
    let is_first = |pid: &Pid| {
        let text = fs_err::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        // The PID of a process in each of its namespaces, from the outermost to the innermost one. The
        // first process of a guest of the node also ends in 1, but has more numbers.
        line.is_some_and(|line| {
            let numbers: Vec<&str> = line.split_whitespace().collect();
            numbers.last() == Some(&"1") && numbers.len() == own_namespace_depth() + PID_NAMESPACES
        })
    };
    group.processes().into_iter().find(is_first)
}

/// Returns the number of PID namespaces that this process is in.
fn own_namespace_depth() -> usize {
    let text = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.map_or(1, |line| line.split_whitespace().count())
}

/// Stops a node. Fails with `Busy` if processes of it remain.
pub(super) fn stop(group: &Cgroup, mode: StopMode) -> Result<(), PortError> {
    if let StopMode::Graceful(timeout) = mode {
        let is_nspawn = |pid: &&Pid| comm(**pid) == "systemd-nspawn";
        let processes = group.processes();
        // nspawn passes the signal on to the first process of the node.
        for pid in processes.iter().filter(is_nspawn) {
            let _ = rustix::process::kill_process(*pid, Signal::TERM);
        }
        if wait_until_ended(group, timeout) {
            return Ok(());
        }
    }
    end(group, KILL_ATTEMPTS, Cgroup::kill)
}

/// Kills the processes of a node. Repeated, because processes may fork in the meantime.
fn end(group: &Cgroup, attempts: u32, kill: impl Fn(&Cgroup)) -> Result<(), PortError> {
    for _ in 0..attempts {
        kill(group);
        if wait_until_ended(group, POLL_INTERVAL) {
            return Ok(());
        }
    }
    let remaining: Vec<String> = group
        .processes()
        .into_iter()
        .map(|pid| format!("{} ({})", pid.as_raw_nonzero(), comm(pid)))
        .collect();
    let detail = match remaining.is_empty() {
        true => "processes may remain: its control groups cannot be read".to_owned(),
        false => format!("processes survived SIGKILL: {}", remaining.join(", ")),
    };
    Err(PortError {
        class: ErrorClass::Busy,
        ..PortError::refused(
            "stop a node",
            detail,
            "they may wait for a device: try again later, or restart this machine",
        )
    })
}

/// Waits until a node has no processes; returns whether it has none within a timeout.
pub(super) fn wait_until_ended(group: &Cgroup, timeout: Duration) -> bool {
    let attempts = timeout.as_millis() / POLL_INTERVAL.as_millis();
    for attempt in 0..=attempts {
        if !group.is_alive() {
            return true;
        }
        if attempt < attempts {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    false
}

/// Returns the name of a process.
fn comm(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    fs_err::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Removes leftovers of a killed nspawn.
pub(super) fn remove_leftovers(part: &str) {
    for directory in NSPAWN_DIRECTORIES {
        let path = Path::new(NSPAWN).join(directory).join(part);
        let _ = process::run(
            "umount",
            &["--quiet", "--recursive", &path.to_string_lossy()],
        );
        let _ = super::node::remove_tree(&path);
    }
}

/// Returns the names of containers with leftovers of nspawn.
pub(super) fn leftover_names(prefix: &str) -> BTreeSet<String> {
    names_in(Path::new(NSPAWN), prefix)
}

fn names_in(nspawn: &Path, prefix: &str) -> BTreeSet<String> {
    let directories = NSPAWN_DIRECTORIES.iter();
    let entries = directories.filter_map(|name| fs_err::read_dir(nspawn.join(name)).ok());
    let names = entries
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Writes a file that only root can read.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::Hierarchies;
    use super::*;

    #[test]
    fn leftovers_in_every_directory_of_nspawn_are_found_once() {
        let nspawn = tempfile::tempdir().expect("a directory");
        for path in [
            "propagate/hs-a-100",
            "propagate/hs-a-101",
            "propagate/other",
            "unix-export/hs-a-101",
            "unix-export/hs-a-102",
        ] {
            fs_err::create_dir_all(nspawn.path().join(path)).expect("created");
        }
        let found = names_in(nspawn.path(), "hs-a-");
        let expected = ["hs-a-100", "hs-a-101", "hs-a-102"].map(str::to_owned);
        assert_eq!(found, expected.into());
        assert!(names_in(&nspawn.path().join("none"), "hs-a-").is_empty());
    }

    #[test]
    fn processes_that_survive_the_kill_are_an_error() {
        let top = tempfile::tempdir().expect("a directory");
        let hierarchies = Hierarchies {
            unified: Some(top.path().to_owned()),
            ..Hierarchies::default()
        };
        let group = Cgroup::new(hierarchies, "a", "hs-a-100");
        let has_no_effect = |_: &Cgroup| ();
        assert!(end(&group, 2, has_no_effect).is_ok(), "there are none");
        let path = top.path().join("homestak-a/hs-a-100");
        fs_err::create_dir_all(&path).expect("created");
        let own = std::process::id();
        fs_err::write(path.join("cgroup.procs"), format!("{own}\n")).expect("written");
        let error = end(&group, 2, has_no_effect).expect_err("it is alive");
        assert!(
            error.detail.contains(&format!("SIGKILL: {own} (")),
            "{error:?}"
        );
        assert_eq!(error.class, ErrorClass::Busy);
    }
}
