//! Waits until a node is reachable, and removes its first-boot data.

use std::net::IpAddr;
use std::time::Duration;

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::NodePlan;

use super::{StepOutcome, StepTask};
use crate::ports::{ErrorClass, GuestAddress, PortError, Sent, ssh_ports};

/// The first pause between two checks.
const FIRST: Duration = Duration::from_millis(200);
/// The longest pause between two checks.
const LONGEST: Duration = Duration::from_secs(2);
/// The longest duration of a check that counts towards the time limit: requests time out within a
/// minute. A clock that is set during a wait must not exhaust the limit.
const LONGEST_CHECK: Duration = Duration::from_secs(60);

fn reached(address: IpAddr) -> StepOutcome {
    StepOutcome {
        address: Some(address),
        ..StepOutcome::default()
    }
}

enum Readiness {
    Reached(IpAddr),
    /// What is missing.
    NotYet(&'static str),
}

async fn check(task: &StepTask) -> Result<Readiness, PortError> {
    let node = task.node()?;
    let guest = task.guest()?;
    let provider = task.provider().await?;
    let address = match provider.address(&guest).await? {
        GuestAddress::At(address) => address,
        GuestAddress::NoAgent => return Ok(Readiness::NotYet("its guest agent")),
        GuestAddress::NoAddress => return Ok(Readiness::NotYet("its address")),
    };
    let connector = task.context.connector();
    let ports = ssh_ports(node, node.config.as_ref());
    if task.plan.verify_ssh
        && needs_ssh(task, node)
        && !connector.ssh_answers(&node.host, address, &ports).await?
    {
        return Ok(Readiness::NotYet("its SSH"));
    }
    if task.context.hosts_others(&node.name) {
        let inside = connector.inside(&node.host, &node.name, address).await;
        let able = match inside {
            Ok(inside) => inside.capabilities().await.map(|can| can.writable),
            Err(error) => Err(error),
        };
        match able {
            Ok(true) => {}
            Ok(false) => return Ok(Readiness::NotYet("its cluster to have quorum")),
            Err(error)
                if matches!(
                    error.class,
                    ErrorClass::Unreachable { .. } | ErrorClass::Busy
                ) =>
            {
                return Ok(Readiness::NotYet("its API"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Readiness::Reached(address))
}

/// Returns whether the driver logs in to a node: not to one that configures itself and hosts no
/// others, once it is in that mode.
fn needs_ssh(task: &StepTask, node: &NodePlan) -> bool {
    !node.pulls() || node.changes_mode() || task.context.hosts_others(&node.name)
}

/// Polls until the node is reachable. While its host does not answer, the time limit of hosts
/// counts, not that of the node.
pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    let node = task.node()?;
    let limits = &task.limits.timeouts;
    let levels = u32::try_from(node.depth).unwrap_or(u32::MAX);
    let patience = limits.of(Limit::Boot) + Duration::from(task.plan.timeout_buffer) * levels;
    let mut waited = Duration::ZERO;
    let mut away = Duration::ZERO;
    let mut pause = FIRST;
    let mut reported = "";
    loop {
        let begun = task.clock.now();
        let (lacks, lost) = match check(task).await {
            Ok(Readiness::Reached(address)) => return Ok(reached(address)),
            Ok(Readiness::NotYet(what)) => (what, None),
            // A host under load answers later.
            Err(error)
                if matches!(
                    error.class,
                    ErrorClass::Unreachable { .. } | ErrorClass::Busy
                ) =>
            {
                ("its host to answer", Some(error))
            }
            Err(error) => return Err(error),
        };
        if lacks != reported {
            task.report_waiting(lacks);
            reported = lacks;
        }
        let checked = Duration::try_from(task.clock.now().duration_since(begun));
        let spent = checked.unwrap_or_default().min(LONGEST_CHECK);
        // A probe that took long was a pause itself.
        let rest = pause.saturating_sub(spent).max(FIRST);
        match lost {
            Some(error) if away + spent > limits.of(Limit::Api) => {
                let seconds = limits.of(Limit::Api).as_secs();
                return Err(PortError {
                    detail: format!("no answer for {seconds} s: {}", error.detail).into(),
                    hint: "`homestak manifest resume` continues from here".into(),
                    ..error
                });
            }
            Some(_) => away += spent + rest,
            None => {
                away = Duration::ZERO;
                waited += spent;
                if waited > patience {
                    return Err(not_ready(node, patience, lacks));
                }
                waited += rest;
            }
        }
        task.clock.sleep(rest).await;
        pause = (pause * 3 / 2).min(LONGEST);
    }
}

/// Makes the error for a node that is not ready in time.
fn not_ready(node: &NodePlan, patience: Duration, lacks: &str) -> PortError {
    PortError {
        class: ErrorClass::Unreachable { sent: Sent::No },
        ..PortError::refused(
            &format!("reach `{}`", node.name),
            format!(
                "timed out after {} s waiting for {lacks}",
                patience.as_secs()
            ),
            "check its console; `homestak manifest resume` continues from here, and \
             `--timeout boot=SECONDS` waits longer",
        )
    }
}

pub(super) async fn discard(task: &StepTask) -> Result<StepOutcome, PortError> {
    let (provider, guest) = (task.provider().await?, task.guest()?);
    task.inspect(&guest).await?;
    provider.discard_seed(&guest).await?;
    Ok(StepOutcome::changed())
}
