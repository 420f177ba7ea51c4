//! The privileges that keys of a VM need, and the checks that create, change and restore share.

use super::{ApiError, Context, permission};
use crate::guest::drive::{Drive, is_drive};
use crate::schema::property;
use crate::world::Kind;

/// Parameters of create and change that are not keys of the configuration.
pub(crate) const NOT_CONFIG: [&str; 18] = [
    "node",
    "vmid",
    "digest",
    "delete",
    "revert",
    "force",
    "skiplock",
    "background_delay",
    "pool",
    "storage",
    "archive",
    "start",
    "unique",
    "bwlimit",
    "live-restore",
    "ha-managed",
    "import-working-storage",
    "cdrom",
];

/// The privilege that a key needs.
enum Requirement {
    Privilege(&'static str),
    Any(&'static [&'static str]),
    Root,
}

fn requirement(key: &str, cdrom: bool) -> Requirement {
    use Requirement::{Any, Privilege, Root};
    let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
    if is_drive(key) || stem == "unused" {
        return Privilege(if cdrom {
            "VM.Config.CDROM"
        } else {
            "VM.Config.Disk"
        });
    }
    match stem {
        "net" => return Privilege("VM.Config.Network"),
        "ipconfig" => return Any(&["VM.Config.Cloudinit", "VM.Config.Network"]),
        "serial" => return Privilege("VM.Config.HWType"),
        "usb" | "hostpci" | "parallel" => return Root,
        "virtiofs" => return Privilege("VM.Config.Options"),
        _ => {}
    }
    match key {
        "cores" | "cpu" | "cpulimit" | "cpuunits" | "numa" | "smp" | "sockets" | "vcpus"
        | "affinity" => Privilege("VM.Config.CPU"),
        "memory" | "balloon" | "shares" | "allow-ksm" => Privilege("VM.Config.Memory"),
        "boot" | "bootdisk" | "vmstatestorage" => Privilege("VM.Config.Disk"),
        "acpi" | "hotplug" | "kvm" | "machine" | "scsihw" | "smbios1" | "tablet" | "vga"
        | "watchdog" | "audio0" | "rng0" => Privilege("VM.Config.HWType"),
        "agent" | "autostart" | "bios" | "description" | "keyboard" | "localtime"
        | "migrate_downtime" | "migrate_speed" | "name" | "onboot" | "ostype" | "protection"
        | "reboot" | "startdate" | "startup" | "tdf" | "template" | "tags" | "freeze" => {
            Privilege("VM.Config.Options")
        }
        "cicustom" | "cipassword" | "citype" | "ciuser" | "ciupgrade" | "nameserver"
        | "searchdomain" | "sshkeys" => Any(&["VM.Config.Cloudinit", "VM.Config.Network"]),
        _ => Root,
    }
}

/// Fails unless the caller may set these keys of a VM. `cdrom` returns whether a key is a CD-ROM.
pub(crate) fn may_set<'a>(
    context: &Context,
    vmid: u32,
    pool: Option<&str>,
    keys: impl Iterator<Item = &'a str>,
    cdrom: impl Fn(&str) -> bool,
) -> Result<(), ApiError> {
    if context.is_root() {
        return Ok(());
    }
    for key in keys {
        match requirement(key, cdrom(key)) {
            Requirement::Privilege(name) => permission::require_guest(context, vmid, pool, name)?,
            Requirement::Any(names) => {
                let path = format!("/vms/{vmid}");
                let wanted: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
                let pooled = pool.is_some_and(|pool| {
                    wanted
                        .iter()
                        .any(|name| permission::allows(context, &format!("/pool/{pool}"), name))
                });
                if !pooled {
                    permission::require_any(context, &path, &wanted)?;
                }
            }
            Requirement::Root => return Err(format!("only root can set '{key}' config").into()),
        }
        if key == "startup" {
            permission::require(context, "/", "Sys.Modify")?;
        }
    }
    Ok(())
}

/// Fails unless the caller may use the bridge of a network.
pub(crate) fn may_use_bridge(context: &Context, text: &str) -> Result<(), ApiError> {
    let parts = property::split(text, "model");
    match property::part(&parts, "bridge") {
        Some(bridge) => permission::require(
            context,
            &format!("/sdn/zones/localnetwork/{bridge}"),
            "SDN.Use",
        ),
        None => Ok(()),
    }
}

/// Fails if a caller other than `root@pam` sets `skiplock`.
pub(crate) fn check_skiplock(context: &Context) -> Result<(), ApiError> {
    if context.text("skiplock").is_some() && !context.is_root() {
        return Err(ApiError::parameter(
            "skiplock",
            "Only root may use this option.",
        ));
    }
    Ok(())
}

/// Adds a hardware address to a network without one: `virtio` becomes `virtio=BC:...`.
pub(crate) fn with_mac(context: &Context, text: &str) -> String {
    let mut parts = property::split(text, "model");
    let has = parts.iter().any(|(key, value)| {
        (value.matches(':').count() == 5 && key != "bridge") || key == "macaddr"
    });
    if has {
        return text.to_owned();
    }
    let address = context.world.state().random.mac();
    for (key, value) in &mut parts {
        if key == "model" {
            *key = std::mem::replace(value, address.clone());
            break;
        }
    }
    property::join(&parts, "")
}

/// Whether the value of a drive is a CD-ROM.
pub(crate) fn is_cdrom(text: &str) -> bool {
    Drive::parse(Kind::Qemu, text).is_cdrom()
}
