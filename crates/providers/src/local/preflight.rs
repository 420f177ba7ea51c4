//! Preflight checks of this machine; each failure names the command that fixes it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use homestak_engine::ports::{Bytes, Mib};

use super::cgroup::Hierarchies;
use super::instance::Instance;
use super::net;
use crate::finding::{Finding, FindingSeverity};
use crate::image::Images;
use crate::process;

/// Debian packages that are needed, each with a program whose presence shows that it is installed.
pub const PACKAGES: [(&str, &str); 8] = [
    ("systemd-container", "systemd-nspawn"),
    ("iproute2", "ip"),
    ("nftables", "nft"),
    ("mmdebstrap", "mmdebstrap"),
    ("openssh-client", "ssh-keygen"),
    ("util-linux", "unshare"),
    ("mount", "mount"),
    ("perl-base", "perl"),
];
/// Disk space of an image and a few nodes.
const ROOM: u64 = 2 << 30;
const OVERLAY: u64 = 0x794c_7630;

/// Checks the machine.
pub fn check(instance: &Instance) -> Vec<Finding> {
    let mut found = vec![root(), packages()];
    found.push(kernel());
    let is_root = rustix::process::geteuid().is_root();
    let probe = is_root.then(|| super::isolation::probe(&instance.images()));
    found.push(users(probe));
    found.push(limits());
    found.extend(directory(instance, is_root));
    found.extend(storage(instance));
    found.push(names());
    found
}

/// What a plan needs of this machine.
#[derive(Clone, Debug, Default)]
pub struct PlanNeeds {
    /// Names of images.
    pub images: BTreeSet<String>,
    /// The memory of the largest new node.
    pub memory: Option<Mib>,
    /// How much new nodes use if all disks are full.
    pub disks: Bytes,
}

/// Checks that the images of a plan are known, and that memory and disk space suffice.
pub fn check_needs(instance: &Instance, needs: &PlanNeeds) -> Vec<Finding> {
    let unknown = needs.images.iter().filter(|name| !Images::is_known(name));
    let mut found: Vec<Finding> = unknown
        .map(|name| {
            let names = Images::names().join(", ");
            let detail = format!("there is no image `{name}` for this machine; available: {names}");
            let fix = "use one of them in the manifest";
            finding(FindingSeverity::Failure, "images", detail, fix)
        })
        .collect();
    // Only warnings: nodes share memory, and disks grow as they fill.
    let warning = |check, detail, fix| finding(FindingSeverity::Warning, check, detail, fix);
    let all = memory();
    if let Some(wanted) = needs.memory.map(Bytes::from).filter(|wanted| *wanted > all) {
        let (all, wanted) = (all.whole_mib(), wanted.whole_mib());
        let detail = format!("this machine has {all}, and a node may use {wanted}");
        found.push(warning("memory", detail, "reduce the memory of the node"));
    }
    let place = super::existing(instance.root());
    let free = rustix::fs::statvfs(place).map(|found| Bytes(found.f_bavail * found.f_frsize));
    if let Ok(free) = free
        && free < needs.disks
    {
        let (free, disks) = (free.whole_mib(), needs.disks.whole_mib());
        let detail = format!(
            "{} has {free} free, up to {disks} may be needed",
            place.display()
        );
        let fix = "free space, or set HOMESTAK_LOCAL_ROOT to a larger disk";
        found.push(warning("storage", detail, fix));
    }
    found
}

/// Returns the memory of this machine.
pub(super) fn memory() -> Bytes {
    let system = rustix::system::sysinfo();
    Bytes(system.totalram.saturating_mul(u64::from(system.mem_unit)))
}

/// Checks that nodes can have their requested fixed addresses.
pub fn check_addresses(instance: &Instance, asked: &[(&str, IpAddr)]) -> Vec<Finding> {
    let check = "addresses";
    if asked.is_empty() {
        return Vec::new();
    }
    let network = match net::expected(instance) {
        Ok(network) => network,
        Err(error) => {
            return vec![finding(
                FindingSeverity::Unknown,
                check,
                error.to_string(),
                "",
            )];
        }
    };
    let outside = asked.iter().filter(|(_, address)| match address {
        IpAddr::V4(address) => !network.is_assignable(*address),
        IpAddr::V6(_) => true,
    });
    let outside = outside.map(|(node, address)| {
        let gateway = network.gateway();
        let detail = format!(
            "`{node}` cannot have {address}: the network of the local host is {network}, with {gateway} as gateway"
        );
        let fix = "use an address of that network, or omit `ip` to have one chosen";
        finding(FindingSeverity::Failure, check, detail, fix)
    });
    outside.collect()
}

/// Installs what is missing; returns what was installed.
pub fn setup() -> Result<Vec<&'static str>, String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(missing);
    }
    let mut wanted = missing.clone();
    if is_distribution("ubuntu") {
        wanted.push("debian-archive-keyring");
    }
    apt(&["update", "-q"])?;
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(&wanted);
    apt(&install)?;
    Ok(wanted)
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let mut command = process::command("apt-get");
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let done = process::finish(command, "apt-get", "");
    done.map(|_| ()).map_err(|error| error.to_string())
}

fn missing() -> Vec<&'static str> {
    PACKAGES
        .into_iter()
        .filter(|(_, program)| process::find(program).is_none())
        .map(|(package, _)| package)
        .collect()
}

fn finding(severity: FindingSeverity, check: &'static str, detail: String, fix: &str) -> Finding {
    Finding {
        severity,
        check,
        detail,
        fix: fix.to_owned(),
    }
}

fn root() -> Finding {
    let check = "privileges";
    if rustix::process::geteuid().is_root() {
        return finding(
            FindingSeverity::Good,
            check,
            "running as root".to_owned(),
            "",
        );
    }
    finding(
        FindingSeverity::Failure,
        check,
        "nodes on this machine need root (namespaces, mounts, network links)".to_owned(),
        "run it with sudo; without root, use `-H sim`, which simulates a host",
    )
}

fn packages() -> Finding {
    let check = "packages";
    let missing = missing();
    if missing.is_empty() {
        return finding(
            FindingSeverity::Good,
            check,
            "all packages are installed".to_owned(),
            "",
        );
    }
    let detail = format!("missing: {}", missing.join(", "));
    if Path::new("/usr/bin/apt-get").exists() {
        let fix = "homestak local setup installs them (or --setup)";
        return finding(FindingSeverity::Failure, check, detail, fix);
    }
    let fix = "nodes on this machine need Debian or Ubuntu; `-H sim` works everywhere";
    finding(FindingSeverity::Failure, check, detail, fix)
}

fn kernel() -> Finding {
    let check = "kernel";
    let known = fs_err::read_to_string("/proc/filesystems").unwrap_or_default();
    let has = |name: &str| {
        known
            .lines()
            .any(|line| line.split_whitespace().last() == Some(name))
    };
    let mut missing = Vec::new();
    if !has("overlay") && process::run("modprobe", &["overlay"]).is_err() {
        missing.push("overlayfs");
    }
    let namespaces = ["mnt", "net", "pid", "uts", "ipc"];
    if namespaces
        .iter()
        .any(|name| !Path::new("/proc/self/ns").join(name).exists())
    {
        missing.push("namespaces");
    }
    if missing.is_empty() {
        return finding(
            FindingSeverity::Good,
            check,
            "overlayfs and namespaces are available".to_owned(),
            "",
        );
    }
    finding(
        FindingSeverity::Failure,
        check,
        format!("the kernel lacks {}", missing.join(", ")),
        "use a Debian kernel, or `-H sim`",
    )
}

/// Reports whether containers have their own user namespace; `None` when that was not tried.
fn users(probe: Option<Result<(), String>>) -> Finding {
    let check = "isolation";
    let Some(probe) = probe else {
        return finding(
            FindingSeverity::Unknown,
            check,
            "only root can check whether containers have separate user ids".to_owned(),
            "run it with sudo",
        );
    };
    match probe {
        Ok(()) => finding(
            FindingSeverity::Good,
            check,
            "containers have separate user ids (user namespaces, idmapped mounts), except nodes that host other nodes".to_owned(),
            "",
        ),
        Err(why) => finding(
            FindingSeverity::Warning,
            check,
            format!("root in a container is root on this machine: {why}"),
            "needs Linux 5.19, user namespaces (sysctl user.max_user_namespaces), perl, and a file system with idmapped mounts (ext4, xfs, btrfs); run only what you trust",
        ),
    }
}

fn limits() -> Finding {
    let check = "limits";
    let hierarchies = Hierarchies::of_machine();
    if hierarchies.unified.is_none() && hierarchies.old.is_empty() {
        let fix = "mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup";
        return finding(
            FindingSeverity::Failure,
            check,
            "no control groups are mounted".to_owned(),
            fix,
        );
    }
    let missing = hierarchies.missing();
    if missing.is_empty() {
        return finding(
            FindingSeverity::Good,
            check,
            "memory, CPU and processes can be limited".to_owned(),
            "",
        );
    }
    let detail = format!("not limited: {}", missing.join(", "));
    finding(
        FindingSeverity::Warning,
        check,
        detail,
        "enable these in the kernel's control groups",
    )
}

/// Reports why the root directory cannot be used.
fn directory(instance: &Instance, is_root: bool) -> Option<Finding> {
    let refusal = instance.check_marker().err()?;
    let severity = match is_root {
        true => FindingSeverity::Failure,
        false => FindingSeverity::Unknown,
    };
    let root = instance.root().display();
    let detail = format!("{root} cannot be used: {}", refusal.detail);
    let fix = match refusal.hint.as_str() {
        "" if is_root => "set HOMESTAK_LOCAL_ROOT to a separate directory",
        "" => "run it with sudo",
        hint => hint,
    };
    Some(finding(severity, "directory", detail, fix))
}

fn storage(instance: &Instance) -> Vec<Finding> {
    let check = "storage";
    let place = super::existing(instance.root());
    let shown = place.display();
    let kind =
        rustix::fs::statfs(place).map(|found| u64::try_from(found.f_type).unwrap_or_default());
    let space = rustix::fs::statvfs(place).map(|found| found.f_bavail * found.f_frsize);
    let mut found = Vec::new();
    if kind.is_ok_and(|kind| kind == OVERLAY) {
        found.push(finding(
            FindingSeverity::Failure,
            check,
            format!("{shown} is on an overlay file system, which cannot hold another writable overlay"),
            "set HOMESTAK_LOCAL_ROOT to a directory of a plain file system (ext4, xfs, btrfs, tmpfs)",
        ));
    }
    match space {
        Ok(free) if free < ROOM => found.push(finding(
            FindingSeverity::Failure,
            check,
            format!(
                "{shown} has {} MiB free; an image and a few nodes need {} MiB",
                free >> 20,
                ROOM >> 20
            ),
            "free space, or set HOMESTAK_LOCAL_ROOT to a larger disk",
        )),
        Ok(free) => found.push(finding(
            FindingSeverity::Good,
            check,
            format!("{shown} has {} MiB free", free >> 20),
            "",
        )),
        Err(error) => found.push(finding(
            FindingSeverity::Unknown,
            check,
            format!("{shown} cannot be inspected: {error}"),
            "",
        )),
    }
    found
}

fn names() -> Finding {
    let check = "name servers";
    let servers = super::net::name_servers();
    if servers.is_empty() {
        let detail = "the machine has no name server that nodes can reach".to_owned();
        let fix = "add one to /etc/resolv.conf; otherwise nodes cannot install packages";
        return finding(FindingSeverity::Warning, check, detail, fix);
    }
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    finding(FindingSeverity::Good, check, servers.join(", "), "")
}

fn is_distribution(name: &str) -> bool {
    let text = fs_err::read_to_string("/etc/os-release").unwrap_or_default();
    let mut words = text.lines().filter_map(|line| line.strip_prefix("ID="));
    words.any(|word| word.trim_matches('"') == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolation_that_was_not_tried_is_unknown() {
        assert_eq!(users(None).severity, FindingSeverity::Unknown);
        assert_eq!(users(Some(Ok(()))).severity, FindingSeverity::Good);
        let refused = users(Some(Err("no idmapped mounts".to_owned())));
        assert_eq!(refused.severity, FindingSeverity::Warning);
    }

    #[test]
    fn what_a_plan_needs_is_checked() {
        let place = tempfile::tempdir().unwrap();
        let instance = Instance::at(place.path()).unwrap();
        assert!(check_needs(&instance, &PlanNeeds::default()).is_empty());
        let needs = PlanNeeds {
            images: ["debian-12", "windows"].map(str::to_owned).into(),
            memory: Some(Mib(1 << 30)),
            disks: Bytes(1 << 60),
        };
        let found = check_needs(&instance, &needs);
        let found: Vec<_> = found.iter().map(|one| (one.check, one.severity)).collect();
        let expected = [
            ("images", FindingSeverity::Failure),
            ("memory", FindingSeverity::Warning),
            ("storage", FindingSeverity::Warning),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn preflight_reports_an_unusable_root() {
        let place = tempfile::tempdir().unwrap();
        let severity = |path: &Path, is_root| {
            let instance = Instance::at(path).unwrap();
            directory(&instance, is_root).map(|found| found.severity)
        };
        assert_eq!(severity(place.path(), true), None);
        assert_eq!(severity(&place.path().join("new"), true), None);
        let file = place.path().join("letters.txt");
        fs_err::write(&file, "").unwrap();
        assert_eq!(severity(place.path(), true), Some(FindingSeverity::Failure));
        assert_eq!(severity(&file, true), Some(FindingSeverity::Failure));
        assert_eq!(severity(&file, false), Some(FindingSeverity::Unknown));
    }
}
