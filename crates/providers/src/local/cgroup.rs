//! Control groups (version 1, 2 or both) that contain and limit the processes of a node.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use homestak_engine::ports::{Bytes, Mib};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::{Pid, Signal};

use super::tree;

/// How many processes and threads a node may have for each CPU, and at least.
const TASKS_PER_CORE: u64 = 2_048;
const TASKS: u64 = 4_096;
/// Version 1 hierarchies that a node has a group in, beside systemd's.
const RESOURCES: [&str; 4] = ["memory", "pids", "cpu", "freezer"];
const PERIOD: u64 = 100_000;

/// What a node may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResourceLimits {
    /// Memory.
    pub(super) memory: Mib,
    /// CPUs.
    pub(super) cores: u32,
}

impl ResourceLimits {
    /// Returns how many processes and threads there may be.
    pub(super) fn tasks(&self) -> u64 {
        TASKS.max(u64::from(self.cores) * TASKS_PER_CORE)
    }

    fn quota(&self) -> u64 {
        u64::from(self.cores) * PERIOD
    }
}

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// Where version 2 is mounted.
    pub(super) unified: Option<PathBuf>,
    /// Version 1, by resource; `systemd` is the one without.
    pub(super) old: Vec<(String, PathBuf)>,
    /// Whether systemd runs the machine and creates the groups.
    pub(super) systemd: bool,
}

impl Hierarchies {
    /// Reads the hierarchies of the machine.
    pub(super) fn of_machine() -> Self {
        let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            systemd: Path::new("/run/systemd/system").is_dir(),
            ..Self::read(&mounts)
        }
    }

    fn read(mounts: &str) -> Self {
        let mut found = Self::default();
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let Some(path) = before.split(' ').nth(4).map(PathBuf::from) else {
                continue;
            };
            let mut after = after.split(' ');
            let (kind, options) = (
                after.next().unwrap_or_default(),
                after.nth(1).unwrap_or_default(),
            );
            match kind {
                "cgroup2" => found.unified = Some(path),
                "cgroup" => {
                    for option in options.split(',') {
                        let name = option.strip_prefix("name=").unwrap_or(option);
                        if name == "systemd" || RESOURCES.contains(&name) {
                            found.old.push((name.to_owned(), path.clone()));
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Returns whether version 2 is all there is, with its rule that a group has either processes
    /// or groups.
    pub(super) fn is_v2_only(&self) -> bool {
        self.unified.is_some() && self.old.is_empty()
    }

    /// Returns the limits that the machine cannot enforce.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let unified = self
            .unified
            .as_ref()
            .map(|path| path.join("cgroup.controllers"));
        let unified = unified
            .and_then(|path| fs_err::read_to_string(path).ok())
            .unwrap_or_default();
        let has = |name: &str| {
            unified.split_whitespace().any(|one| one == name)
                || self.old.iter().any(|(one, _)| one == name)
        };
        ["memory", "pids", "cpu"]
            .into_iter()
            .filter(|name| !has(name))
            .collect()
    }
}

/// The groups of one node.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    hierarchies: Hierarchies,
    /// Below a hierarchy, where we make groups ourselves.
    own: PathBuf,
    /// Below a hierarchy, where systemd makes them for us.
    unit: PathBuf,
}

impl Cgroup {
    /// Names the groups of a node; nothing is created yet.
    pub(super) fn new(hierarchies: Hierarchies, instance: &str, part: &str) -> Self {
        Self {
            hierarchies,
            own: Path::new(&format!("homestak-{instance}")).join(part),
            unit: Path::new("system.slice").join(format!("{part}.service")),
        }
    }

    /// Creates the groups that systemd does not, with their limits, and returns those that the
    /// node's first process must be put into.
    pub(super) fn make(&self, limits: ResourceLimits) -> std::io::Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        for (resource, path) in &self.hierarchies.old {
            if resource == "systemd" && self.hierarchies.systemd {
                continue;
            }
            let group = path.join(&self.own);
            match make_writable(path, &group) {
                Ok(()) => {}
                // Optional; preflight reports what is missing.
                Err(_) if resource == "freezer" => continue,
                Err(error) => return Err(error),
            }
            for (file, value) in v1_limits(resource, limits) {
                write(&group.join(file), &value)?;
            }
            made.push(group);
        }
        if let Some(unified) = self
            .hierarchies
            .unified
            .as_ref()
            .filter(|_| !self.hierarchies.systemd)
        {
            let group = unified.join(&self.own);
            fs_err::create_dir_all(&group)?;
            if self.hierarchies.is_v2_only() {
                let parent = group.parent().unwrap_or(unified);
                for above in [unified.as_path(), parent] {
                    for resource in ["+memory", "+pids", "+cpu"] {
                        let _ = write(&above.join("cgroup.subtree_control"), resource);
                    }
                }
                for (file, value) in v2_limits(limits) {
                    write(&group.join(file), &value)?;
                }
            }
            made.push(group);
        }
        Ok(made)
    }

    /// Returns the properties of the unit that systemd runs the node in.
    pub(super) fn properties(&self, limits: ResourceLimits) -> Vec<String> {
        vec![
            "Delegate=yes".to_owned(),
            format!("MemoryMax={}M", limits.memory.0),
            format!("TasksMax={}", limits.tasks()),
            format!("CPUQuota={}%", u64::from(limits.cores) * 100),
        ]
    }

    /// Returns the group in version 2, where its processes are not allowed beside groups.
    pub(super) fn split(&self) -> Option<PathBuf> {
        let unified = self
            .hierarchies
            .unified
            .as_ref()
            .filter(|_| self.hierarchies.is_v2_only())?;
        let below = if self.hierarchies.systemd {
            &self.unit
        } else {
            &self.own
        };
        Some(unified.join(below))
    }

    /// Returns the groups that one more process of a node that runs must be put into.
    pub(super) fn groups_to_join(&self) -> Vec<PathBuf> {
        if let Some(split) = self.split() {
            return vec![split.join("keeper")];
        }
        let resources = self.hierarchies.old.iter();
        let resources = resources.map(|(resource, path)| (resource.as_str(), path));
        let all = resources.chain(self.hierarchies.unified.iter().map(|path| ("", path)));
        let groups = all.filter_map(|(resource, path)| {
            // Those without a limit are not always there.
            let is_limit = !matches!(resource, "" | "systemd" | "freezer");
            let below = match resource {
                "" | "systemd" if self.hierarchies.systemd => &self.unit,
                _ => &self.own,
            };
            let group = path.join(below);
            (is_limit || group.is_dir()).then_some(group)
        });
        groups.collect()
    }

    /// Returns every process in the groups.
    pub(super) fn processes(&self) -> Vec<Pid> {
        let mut found = std::collections::BTreeSet::new();
        let mut keep = |pid| {
            found.insert(pid);
            false
        };
        for top in self.places() {
            any(&top, &mut keep);
        }
        let alive = |pid: &i32| !is_zombie(*pid);
        found
            .into_iter()
            .filter(alive)
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Returns whether any process is in the groups.
    pub(super) fn is_alive(&self) -> bool {
        let mut alive = |pid| !is_zombie(pid);
        self.places().iter().any(|top| any(top, &mut alive))
    }

    /// Kills every process.
    pub(super) fn kill(&self) {
        for pid in self.processes() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Removes the groups, once they are empty.
    pub(super) fn remove(&self) {
        for top in self.places() {
            remove_groups(&top);
            if let Some(parent) = top.parent().filter(|_| top.ends_with(&self.own)) {
                // Refused while other nodes are there.
                let _ = fs_err::remove_dir(parent);
            }
        }
    }

    /// Returns all existing groups of the node.
    fn places(&self) -> Vec<PathBuf> {
        let tops = self.hierarchies.old.iter().map(|(_, path)| path);
        let tops = tops.chain(&self.hierarchies.unified);
        tops.flat_map(|top| [top.join(&self.own), top.join(&self.unit)])
            .filter(|path| path.is_dir())
            .collect()
    }
}

/// Returns the names of nodes that have control groups.
pub(super) fn parts(hierarchies: &Hierarchies, instance: &str) -> Vec<String> {
    let tops = hierarchies.old.iter().map(|(_, path)| path);
    let tops = tops.chain(&hierarchies.unified);
    let mut names: Vec<String> = tops
        .filter_map(|top| fs_err::read_dir(top.join(format!("homestak-{instance}"))).ok())
        .flatten()
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn v1_limits(resource: &str, limits: ResourceLimits) -> Vec<(&'static str, String)> {
    match resource {
        "memory" => vec![(
            "memory.limit_in_bytes",
            Bytes::from(limits.memory).0.to_string(),
        )],
        "pids" => vec![("pids.max", limits.tasks().to_string())],
        "cpu" => vec![
            ("cpu.cfs_period_us", PERIOD.to_string()),
            ("cpu.cfs_quota_us", limits.quota().to_string()),
        ],
        _ => Vec::new(),
    }
}

fn v2_limits(limits: ResourceLimits) -> [(&'static str, String); 3] {
    [
        ("memory.max", Bytes::from(limits.memory).0.to_string()),
        ("pids.max", limits.tasks().to_string()),
        ("cpu.max", format!("{} {PERIOD}", limits.quota())),
    ]
}

/// Creates a group. Inside a node the hierarchies are mounted read-only and must be remounted.
fn make_writable(hierarchy: &Path, group: &Path) -> std::io::Result<()> {
    match fs_err::create_dir_all(group) {
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            let path = hierarchy.to_string_lossy();
            crate::process::run("mount", &["-o", "remount,rw,bind", &path])
                .map_err(std::io::Error::other)?;
            fs_err::create_dir_all(group)
        }
        other => other,
    }
}

fn write(path: &Path, value: &str) -> std::io::Result<()> {
    fs_err::write(path, value)
}

/// Returns whether something holds for any process of a group and those below it.
fn any(group: &Path, holds: &mut dyn FnMut(i32) -> bool) -> bool {
    let mut visit = |group: &OwnedFd| {
        let text = processes_in(group).unwrap_or_default();
        let mut pids = text.lines().filter_map(|line| line.parse::<i32>().ok());
        if pids.any(&mut *holds) {
            return Ok(None);
        }
        groups_in(group).map(Some)
    };
    let top = tree::open(group, "");
    let found = top.and_then(|top| tree::walk(top, &mut visit, &mut |_, _| Ok(())));
    // A group that cannot be read may have processes.
    found.unwrap_or_else(|error| error.kind() != std::io::ErrorKind::NotFound)
}

fn remove_groups(group: &Path) {
    let mut remove = |parent: &OwnedFd, name: &CStr| {
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        Ok(())
    };
    if let Ok(top) = tree::open(group, "") {
        let mut visit = |group: &OwnedFd| groups_in(group).map(Some);
        let _ = tree::walk(top, &mut visit, &mut remove);
    }
    let _ = fs_err::remove_dir(group);
}

fn processes_in(group: &OwnedFd) -> std::io::Result<String> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(group, c"cgroup.procs", how, Mode::empty())?;
    std::io::read_to_string(std::fs::File::from(file))
}

/// Returns the groups in a group; none when it was removed meanwhile.
fn groups_in(group: &OwnedFd) -> std::io::Result<Vec<CString>> {
    let entries = match tree::entries(group) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let groups = entries.into_iter().filter(|(_, kind)| kind.is_dir());
    Ok(groups.map(|(name, _)| name).collect())
}

/// Returns whether a process has exited.
fn is_zombie(pid: i32) -> bool {
    let text = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = text
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 24 0:21 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
26 25 0:22 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
27 25 0:23 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
28 25 0:24 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
29 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
";
    const PURE: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn both_cgroup_versions_are_detected() {
        let found = Hierarchies::read(HYBRID);
        assert_eq!(
            found.unified.as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
        let names: Vec<&str> = found.old.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["systemd", "memory", "cpu"]);
        assert!(!found.is_v2_only());
    }

    #[test]
    fn cgroup_v2_alone_is_detected() {
        let found = Hierarchies::read(PURE);
        assert!(found.is_v2_only());
        let group = Cgroup::new(found, "local", "hs-local-100");
        assert_eq!(
            group.split().as_deref(),
            Some(Path::new("/sys/fs/cgroup/homestak-local/hs-local-100"))
        );
    }

    #[test]
    fn entering_a_node_joins_a_group_of_every_limit() {
        let groups = |mounts: &str, systemd| {
            let hierarchies = Hierarchies {
                systemd,
                ..Hierarchies::read(mounts)
            };
            Cgroup::new(hierarchies, "none", "hs-none-100").groups_to_join()
        };
        let own = |resource: &str| {
            Path::new("/sys/fs/cgroup")
                .join(resource)
                .join("homestak-none/hs-none-100")
        };
        // Also if they were removed: then joining fails.
        for systemd in [false, true] {
            assert_eq!(groups(HYBRID, systemd), [own("memory"), own("cpu,cpuacct")]);
        }
        assert_eq!(groups(PURE, false), [own("").join("keeper")]);
        let unit = Path::new("/sys/fs/cgroup/system.slice/hs-none-100.service/keeper");
        assert_eq!(groups(PURE, true), [unit]);
    }

    #[test]
    fn deeply_nested_groups_are_read_and_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let top = place.path().join("top");
        fs_err::create_dir_all(top.join("other")).expect("created");
        tree::tests::nest(&top, 2_500, |here| {
            tree::tests::write(here, c"cgroup.procs", "4242\n");
        });
        let mut seen = Vec::new();
        let mut note = |pid| {
            seen.push(pid);
            false
        };
        assert!(!any(&top, &mut note));
        assert_eq!(seen, [4242]);
        assert!(any(&top, &mut |pid| pid == 4242));
        assert!(!any(&place.path().join("none"), &mut |_| true));
        // Control files are removed with their groups; here there are none.
        crate::local::node::remove_tree(&top).expect("removed");
        fs_err::create_dir_all(top.join("other")).expect("created");
        tree::tests::nest(&top, 2_500, |_| {});
        remove_groups(&top);
        assert!(!top.exists());
    }

    #[test]
    fn an_exited_process_is_not_running() {
        assert!(is_zombie(i32::MAX));
        assert!(!is_zombie(
            i32::try_from(std::process::id()).expect("a pid")
        ));
    }
}
