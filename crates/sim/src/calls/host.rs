//! Read-only calls about one host: status, network, DNS, time, services.

use serde_json::{Value, json};

use super::cluster::{long_version, root_disk};
use super::{ApiError, Context, Outcome};

/// The simulated kernel release.
const KERNEL: &str = "6.17.2-1-pve";

pub(crate) fn status(context: &Context) -> Outcome {
    let uptime = context.world.uptime() as u64;
    let state = context.world.state();
    let host = state
        .hosts
        .get(&context.node)
        .ok_or_else(|| ApiError::new(500, "no such host"))?;
    let (total, used) = root_disk(&state, &host.name);
    let busy = host.memory / 20;
    Ok(json!({
        "uptime": uptime,
        "cpu": 0.05,
        "wait": 0,
        "idle": 0,
        "loadavg": ["0.10", "0.12", "0.09"],
        "ksm": { "shared": 0 },
        "boot-info": { "mode": "efi" },
        "kversion": format!("Linux {KERNEL} #1 SMP PREEMPT_DYNAMIC"),
        "current-kernel": {
            "sysname": "Linux",
            "release": KERNEL,
            "version": "#1 SMP PREEMPT_DYNAMIC",
            "machine": "x86_64",
        },
        "pveversion": long_version(),
        "memory": {
            "total": host.memory,
            "used": busy,
            "free": host.memory - busy,
            "available": host.memory - busy,
        },
        "swap": { "total": 0, "used": 0, "free": 0 },
        "rootfs": {
            "total": total,
            "used": used,
            "free": total.saturating_sub(used),
            "avail": total.saturating_sub(used),
        },
        "cpuinfo": {
            "cpus": host.cpus,
            "cores": host.cpus,
            "sockets": 1,
            "hvm": "1",
            "vendor": "GenuineIntel",
            "family": "6",
            "model": "Pretended CPU",
            "mhz": "2400.000",
            "flags": "fpu vme de pse tsc msr vmx",
            "user_hz": 100,
        },
    })
    .into())
}

pub(crate) fn network(context: &Context) -> Outcome {
    let state = context.world.state();
    let host = state
        .hosts
        .get(&context.node)
        .ok_or_else(|| ApiError::new(500, "no such host"))?;
    let mut list = vec![json!({
        "iface": "eno1",
        "type": "eth",
        "active": 1,
        "families": ["inet"],
        "method": "manual",
        "method6": "manual",
        "priority": 3,
    })];
    // A bridge needs `SDN.Use` or `SDN.Audit`; the network card is always listed.
    let listed = |bridge: &str| {
        let path = format!("/sdn/zones/localnetwork/{bridge}");
        context.is_root()
            || ["SDN.Use", "SDN.Audit"]
                .iter()
                .any(|name| state.allows(&context.identity, &path, name))
    };
    for (at, bridge) in host.bridges.iter().enumerate() {
        if !listed(bridge) {
            continue;
        }
        let mut shown = json!({
            "iface": bridge,
            "type": "bridge",
            "active": 1,
            "autostart": 1,
            "families": ["inet"],
            "method": if at == 0 { "static" } else { "manual" },
            "method6": "manual",
            "bridge_ports": if at == 0 { "eno1" } else { "" },
            "bridge_stp": "off",
            "bridge_fd": "0",
            "priority": 4 + at,
        });
        if at == 0 {
            shown["address"] = json!(host.address);
            shown["netmask"] = json!("24");
            shown["cidr"] = json!(format!("{}/24", host.address));
            let gateway = host.address.rsplit_once('.').map_or("", |(net, _)| net);
            shown["gateway"] = json!(format!("{gateway}.1"));
        }
        list.push(shown);
    }
    if let Some(kind) = context.text("type") {
        list.retain(|entry| {
            entry["type"] == kind || (kind == "any_bridge" && entry["type"] == "bridge")
        });
    }
    Ok(json!(list).into())
}

/// The name server of every host.
pub(crate) const DNS: &str = "192.0.2.53";

pub(crate) fn dns() -> Outcome {
    Ok(json!({ "dns1": DNS }).into())
}

pub(crate) fn time(context: &Context) -> Outcome {
    let now = context.world.epoch();
    Ok(json!({ "timezone": "Etc/UTC", "time": now, "localtime": now }).into())
}

pub(crate) fn services() -> Outcome {
    let running = [
        ("cron", "Regular background program processing daemon"),
        ("pve-cluster", "The Proxmox VE cluster filesystem"),
        ("pvedaemon", "PVE API Daemon"),
        ("pveproxy", "PVE API Proxy Server"),
        ("pvescheduler", "Proxmox VE scheduler"),
        ("pvestatd", "PVE Status Daemon"),
        ("qmeventd", "PVE Qemu Event Daemon"),
        ("sshd", "OpenBSD Secure Shell server"),
        ("systemd-journald", "Journal Service"),
    ];
    let absent = [
        "chrony",
        "corosync",
        "ksmtuned",
        "lxcfs",
        "postfix",
        "pve-firewall",
        "pve-ha-crm",
        "pve-ha-lrm",
        "spiceproxy",
        "syslog",
        "systemd-timesyncd",
    ];
    let mut list: Vec<Value> = running
        .iter()
        .map(|(name, description)| {
            json!({
                "service": name, "name": name, "desc": description,
                "state": "running", "active-state": "active", "unit-state": "enabled",
            })
        })
        .collect();
    list.extend(absent.iter().map(|name| {
        json!({
            "service": name, "name": name, "desc": format!("{name}.service"),
            "state": "dead", "active-state": "inactive", "unit-state": "not-found",
        })
    }));
    Ok(json!(list).into())
}
