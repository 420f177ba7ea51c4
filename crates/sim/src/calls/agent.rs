//! Calls that the guest agent answers once the guest has booted, the interfaces of containers, and
//! the cloud-init data of VMs.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Context, Outcome};
use crate::world::Kind;

/// How long Proxmox VE waits for an agent that does not answer.
const AGENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Fails unless the agent answers. As on PVE, a failure occupies a worker for three seconds.
async fn require_agent(context: &Context) -> Result<u32, super::ApiError> {
    let vmid = context.vmid()?;
    let now = context.world.now();
    let (running, enabled, answers) = {
        let state = context.world.state();
        let guest = state.guest(&context.node, Kind::Qemu, vmid)?;
        (
            guest.running.is_some(),
            guest.agent_is_enabled(),
            guest.agent_answers(now),
        )
    };
    if !running {
        return Err(format!("VM {vmid} is not running").into());
    }
    if !enabled {
        return Err("No QEMU guest agent configured".into());
    }
    if !answers {
        context.world.sleep(AGENT_TIMEOUT).await;
        return Err("QEMU guest agent is not running".into());
    }
    Ok(vmid)
}

pub(crate) async fn ping(context: &Context) -> Outcome {
    require_agent(context).await?;
    Ok(json!({ "result": {} }).into())
}

pub(crate) async fn interfaces(context: &Context) -> Outcome {
    let vmid = require_agent(context).await?;
    let now = context.world.now();
    let state = context.world.state();
    let guest = state.guest(&context.node, Kind::Qemu, vmid)?;
    Ok(guest.interfaces_at(now).into())
}

pub(crate) async fn host_name(context: &Context) -> Outcome {
    let vmid = require_agent(context).await?;
    let state = context.world.state();
    let name = state.guest(&context.node, Kind::Qemu, vmid)?.name();
    Ok(json!({ "result": { "host-name": name } }).into())
}

pub(crate) async fn os_info(context: &Context) -> Outcome {
    require_agent(context).await?;
    Ok(json!({ "result": {
        "id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 13 (trixie)",
        "version": "13 (trixie)", "version-id": "13", "machine": "x86_64",
        "kernel-release": "6.12.0-amd64", "kernel-version": "#1 SMP",
    } })
    .into())
}

pub(crate) async fn exec(context: &Context) -> Outcome {
    require_agent(context).await?;
    let pid = context.world.state().tasks.next_pid();
    Ok(json!({ "pid": pid }).into())
}

pub(crate) async fn exec_status(context: &Context) -> Outcome {
    require_agent(context).await?;
    Ok(json!({ "exited": 1, "exitcode": 0, "out-data": "" }).into())
}

pub(crate) fn container_interfaces(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let now = context.world.now();
    let state = context.world.state();
    let guest = state.guest(&context.node, Kind::Lxc, vmid)?;
    // A stopped container has no interfaces, which is no error.
    let shown = guest.running.as_ref().map(|_| guest.interfaces_at(now));
    Ok(shown.unwrap_or(Value::Null).into())
}

pub(crate) fn cloudinit_dump(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let which = context.text("type").unwrap_or("user");
    let state = context.world.state();
    let guest = state.guest(&context.node, Kind::Qemu, vmid)?;
    Ok(json!(guest.cloudinit_dump(which, super::host::DNS)).into())
}

pub(crate) fn cloudinit_pending(context: &Context) -> Outcome {
    let vmid = context.vmid()?;
    let state = context.world.state();
    let guest = state.guest(&context.node, Kind::Qemu, vmid)?;
    let list: Vec<Value> = [
        "cicustom",
        "cipassword",
        "citype",
        "ciuser",
        "nameserver",
        "searchdomain",
        "sshkeys",
    ]
    .iter()
    .filter_map(|key| {
        guest
            .config
            .value(key)
            .map(|value| json!({ "key": key, "value": value }))
    })
    .collect();
    Ok(json!(list).into())
}

/// Regenerates the cloud-init drive.
pub(crate) fn cloudinit_update(context: &Context) -> Outcome {
    context.exists(Kind::Qemu, context.vmid()?)?;
    Ok(Value::Null.into())
}
