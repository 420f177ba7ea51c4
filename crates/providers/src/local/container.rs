//! Nodes as containers: Debian in systemd-nspawn, on an overlay over its image.
//!
//! Mounts exist only in the mount namespace of the node, so that they end with its processes.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use homestak_engine::ports::{PortError, StopMode};
use rustix::process::{Pid, Signal};

use super::cgroup::{Cgroup, ResourceLimits};
use super::instance::Instance;
use super::launch::{Supervisor, launch};
use super::node::{FirstBoot, Node};
use super::{enter, isolation, tree};
use crate::process;

/// The supervisor script of a container: joins its groups, mounts, configures the identity on the
/// first start, and restarts the container when it reboots.
const SUPERVISOR: &str = concat!(include_str!("idmap.sh"), include_str!("container.sh"));
/// How many PID namespaces a node is below ours: the supervisor's and nspawn's.
const LEVELS: usize = 2;
/// The polling interval for the end of a node.
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// System calls and capabilities of a node that others run on.
const HOSTING: [&str; 2] = [
    "--capability=all",
    "--system-call-filter=@mount @keyring @privileged @raw-io @module bpf perf_event_open",
];

/// Capabilities that nodes without guests do not get.
const DROPPED: &str = "CAP_MKNOD,CAP_DAC_READ_SEARCH";

/// How many files `/tmp` and `/dev/shm` may have for each MiB of a node's memory: each takes about
/// 1 KiB.
const FILES: u64 = 64;

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
    let part = instance.part(node.vmid);
    let supervisor = Supervisor {
        text: SUPERVISOR,
        image: tree,
        limits,
        // nspawn shows the devices of the network it is started in.
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
        // Its tree has these ids already.
        arguments.push("--private-users-ownership=off".to_owned());
        // A network namespace that belongs to the node's users, with our network card in it.
        arguments.push("--network-interface=eth0".to_owned());
    }
    if !node.hosts {
        arguments.push("--capability=CAP_NET_ADMIN".to_owned());
        arguments.push(format!("--drop-capability={DROPPED}"));
        return arguments;
    }
    arguments.extend(HOSTING.map(str::to_owned));
    let nested = directory.join("nested");
    // A plain directory: an overlay cannot be written to on top of another.
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
    // nspawn's own sizes are parts of the machine's memory, and what is in these directories is not
    // freed by ending processes.
    let (size, files) = (node.memory.0 / 4, node.memory.0 * FILES);
    let memory = ["/tmp", "/dev/shm"].map(|place| {
        format!("--tmpfs={place}:mode=1777,nosuid,nodev,size={size}M,nr_inodes={files}")
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

/// Returns how many processes one user of a node may have. The kernel counts them by id: where the
/// ids are the machine's, those of others would count.
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
    // Trees of containers have an empty resolv.conf.
    let servers = node.identity.dns.iter();
    let servers: String = servers.map(|one| format!("nameserver {one}\n")).collect();
    fs_err::create_dir_all(directory.join("upper/etc"))?;
    fs_err::write(directory.join("upper/etc/resolv.conf"), servers)?;
    match node.first_boot {
        FirstBoot::Direct => {
            let script = super::identity::script(&node.identity, node.hosts, false);
            secret(&directory.join("first-boot"), &script)?;
        }
        FirstBoot::CloudInit => {
            let place = directory.join("upper/var/lib/cloud/seed/nocloud");
            fs_err::create_dir_all(&place)?;
            for (name, text) in seed {
                secret(&place.join(name), text)?;
            }
        }
    }
    let Some(ids) = node.ids else { return Ok(()) };
    // Nothing but what was written here is in it yet.
    let upper = directory.join("upper").display().to_string();
    process::run("chown", &["-R", "-h", &format!("{ids}:{ids}"), &upper])
        .map(|_| ())
        .map_err(std::io::Error::other)
}

/// Removes the first-boot data.
pub(super) fn discard(instance: &Instance, node: &Node, group: &Cgroup) -> std::io::Result<()> {
    let (above, seed) = ("var/lib/cloud/seed", "/var/lib/cloud/seed/nocloud");
    if node.first_boot == FirstBoot::Direct {
        return Ok(());
    }
    match enter::ContainerEntry::of(node, group) {
        // Inside the node: the layers of a mounted overlay must not be changed.
        Some(entry) => {
            let mut words = entry.in_own_session(&[], &["rm", "-rf", seed]);
            let program = words.remove(0);
            process::run(&program, &words)
                .map(|_| ())
                .map_err(std::io::Error::other)
        }
        // Links are not followed.
        None => match tree::open(&instance.node(&node.uuid).join("upper"), above) {
            Ok(above) => tree::remove(&above, c"nocloud"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        },
    }
}

/// Returns the first process inside of a node.
pub(super) fn init(group: &Cgroup) -> Option<Pid> {
    let is_first = |pid: &Pid| {
        let text = fs_err::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        // Its number in the innermost namespace; one of a node within the node is further in.
        line.is_some_and(|line| {
            let numbers: Vec<&str> = line.split_whitespace().collect();
            numbers.last() == Some(&"1") && numbers.len() == own_depth() + LEVELS
        })
    };
    group.processes().into_iter().find(is_first)
}

fn own_depth() -> usize {
    let text = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.map_or(1, |line| line.split_whitespace().count())
}

/// Stops a node.
pub(super) fn stop(group: &Cgroup, halt: StopMode) {
    if let StopMode::Graceful(patience) = halt {
        let is_nspawn = |pid: &&Pid| comm(**pid) == "systemd-nspawn";
        let processes = group.processes();
        // It passes the signal on to the node's first process.
        for pid in processes.iter().filter(is_nspawn) {
            let _ = rustix::process::kill_process(*pid, Signal::TERM);
        }
        if ended(group, patience) {
            return;
        }
    }
    // Repeated, because processes may fork meanwhile.
    for _ in 0..200 {
        group.kill();
        if ended(group, POLL_INTERVAL) {
            return;
        }
    }
}

pub(super) fn ended(group: &Cgroup, patience: Duration) -> bool {
    let attempts = patience.as_millis() / POLL_INTERVAL.as_millis();
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

fn comm(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    fs_err::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Removes leftovers of a killed nspawn.
pub(super) fn sweep(part: &str) {
    for place in ["propagate", "unix-export"] {
        let path = Path::new("/run/systemd/nspawn").join(place).join(part);
        let _ = process::run(
            "umount",
            &["--quiet", "--recursive", &path.to_string_lossy()],
        );
        let _ = super::node::remove_tree(&path);
    }
}

/// Returns the names of containers with leftovers of nspawn.
pub(super) fn traces(prefix: &str) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir("/run/systemd/nspawn/propagate") else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn secret(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}
