//! Waits until a node is reached, and then takes its first-boot data away.
//!
//! In: a step with its node. Out: its address.
//! Never: a wait without an end.

use std::net::IpAddr;
use std::time::Duration;

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::NodePlan;

use super::{Came, Task};
use crate::ports::{Class, PortError, Reach, Sent, ssh_ports};

/// The first pause between two looks.
const FIRST: Duration = Duration::from_millis(200);
/// The longest pause between two looks.
const LONGEST: Duration = Duration::from_secs(2);
/// The longest time a look takes that counts: an answer comes within a minute or not at all. A
/// clock that is set during a wait must not use up all patience.
const LOOK: Duration = Duration::from_secs(60);

fn reached(address: IpAddr) -> Came {
    Came {
        address: Some(address),
        ..Came::default()
    }
}

enum Look {
    Reached(IpAddr),
    /// What it lacks.
    NotYet(&'static str),
}

async fn once(task: &Task) -> Result<Look, PortError> {
    let node = task.node()?;
    let guest = task.guest()?;
    let provider = task.provider().await?;
    let address = match provider.address(&guest).await? {
        Reach::At(address) => address,
        Reach::NoAgent => return Ok(Look::NotYet("its guest agent")),
        Reach::NoAddress => return Ok(Look::NotYet("its address")),
    };
    let places = task.board.places();
    let ports = ssh_ports(node, node.config.as_ref());
    if task.plan.verify_ssh && !places.answers(&node.host, address, &ports).await? {
        return Ok(Look::NotYet("its SSH"));
    }
    if task.board.hosts_others(&node.name) {
        let inside = places.inside(&node.host, &node.name, address).await;
        let able = match inside {
            Ok(inside) => inside.capabilities().await.map(|can| can.writable),
            Err(error) => Err(error),
        };
        match able {
            Ok(true) => {}
            Ok(false) => return Ok(Look::NotYet("its cluster to have quorum")),
            Err(error) if matches!(error.class, Class::Unreachable { .. } | Class::Busy) => {
                return Ok(Look::NotYet("its API"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Look::Reached(address))
}

/// Looks until the node is reached. While its host does not answer, the patience with hosts
/// counts, and not that with the node.
pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    let node = task.node()?;
    let limits = &task.limits.timeouts;
    let levels = u32::try_from(node.depth).unwrap_or(u32::MAX);
    let patience = limits.of(Limit::Boot) + Duration::from(task.plan.timeout_buffer) * levels;
    let mut waited = Duration::ZERO;
    let mut away = Duration::ZERO;
    let mut pause = FIRST;
    let mut said = "";
    loop {
        let begun = task.clock.now();
        let (lacks, lost) = match once(task).await {
            Ok(Look::Reached(address)) => return Ok(reached(address)),
            Ok(Look::NotYet(what)) => (what, None),
            // A host under load answers later.
            Err(error) if matches!(error.class, Class::Unreachable { .. } | Class::Busy) => {
                ("its host to answer", Some(error))
            }
            Err(error) => return Err(error),
        };
        if lacks != said {
            task.waits_for(lacks);
            said = lacks;
        }
        let looked = Duration::try_from(task.clock.now().duration_since(begun));
        let spent = looked.unwrap_or_default().min(LOOK);
        // A look that took long was a pause itself.
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
                    return Err(late(node, patience, lacks));
                }
                waited += rest;
            }
        }
        task.clock.sleep(rest).await;
        pause = (pause * 3 / 2).min(LONGEST);
    }
}

/// Says what a node still lacked when patience ended.
fn late(node: &NodePlan, patience: Duration, lacks: &str) -> PortError {
    PortError {
        class: Class::Unreachable { sent: Sent::No },
        ..PortError::refused(
            &format!("reach `{}`", node.name),
            format!("waited {} s for {lacks}", patience.as_secs()),
            "look at its console; `homestak manifest resume` continues from here, and \
             `--timeout boot=SECONDS` waits longer",
        )
    }
}

pub(super) async fn discard(task: &Task) -> Result<Came, PortError> {
    let (provider, guest) = (task.provider().await?, task.guest()?);
    task.look(&guest).await?;
    provider.discard_seed(&guest).await?;
    Ok(Came::changed())
}
