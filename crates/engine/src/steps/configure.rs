//! Makes a node inside what its spec says.
//!
//! In: a step with its node, which was reached. Out: whether anything was changed.
//! Never: how; the configurer knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use homestak_core::plan::{Action, AppliedSpec, NodePlan};

use super::{Came, Task};
use crate::events::What;
use crate::ports::{Class, Inner, PortError, Remark, Sent};

pub(super) async fn probe(task: &Task) -> Result<Option<Came>, PortError> {
    let found = task.configurer.check(&inner(task).await?).await?;
    Ok(found.settled.then(Came::default))
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    task.look(&task.guest()?).await?;
    let node = inner(task).await?;
    let changed = task.configurer.converge(&node, hear(task)).await?;
    Ok(Came {
        changed,
        ..Came::default()
    })
}

/// Makes the node again what it was, where that is known. A node that this run created goes as a
/// whole.
pub(super) async fn undo(task: &Task) -> Result<Came, PortError> {
    let Some(before) = earlier(task.node()?, task.changed) else {
        return Ok(Came::default());
    };
    let node = inner(task).await?;
    let changed = task.configurer.revert(&node, before, hear(task)).await?;
    Ok(Came {
        changed,
        ..Came::default()
    })
}

/// Returns what a node was inside before the plan, when undoing the plan brings it back.
pub(crate) fn earlier(node: &NodePlan, changed: Option<bool>) -> Option<&AppliedSpec> {
    if changed == Some(false) || matches!(node.action, Action::Create | Action::Replace) {
        return None;
    }
    let before = node.found.as_ref()?.configured.as_ref()?;
    let config = node.config.as_ref()?;
    (before.digest != config.digest).then_some(before)
}

fn hear(task: &Task) -> Arc<dyn Fn(Remark) + Send + Sync> {
    let (hub, subject, began) = (task.hub.clone(), task.subject(), task.began.clone());
    Arc::new(move |remark: Remark| {
        let subject = subject.clone();
        hub.tell(match remark {
            Remark::Began => return began.store(true, Ordering::Relaxed),
            Remark::Warning(text) => What::Warning { subject, text },
            Remark::Waiting(what) => What::Waiting { subject, what },
            Remark::Doing(what) | Remark::Image { what, .. } => What::Doing { subject, what },
        });
    })
}

/// Puts together what is known of the node.
async fn inner(task: &Task) -> Result<Inner, PortError> {
    let node = task.node()?;
    let missing = |what: &str| PortError::bug("read the plan", &what);
    let config = node.config.as_ref();
    let config = config.ok_or_else(|| missing("the node has no spec"))?;
    let guest = task.guest()?;
    let address = match task.board.address(&node.name) {
        Some(address) => address,
        None => {
            let found = task.provider().await?.address(&guest).await?.address();
            found.ok_or_else(|| PortError {
                class: Class::Unreachable { sent: Sent::No },
                ..PortError::refused(
                    &format!("configure `{}`", node.name),
                    "it has no address",
                    "does it run? `homestak manifest status` tells",
                )
            })?
        }
    };
    let inner = Inner::of(node, config, guest.uuid, address);
    inner.ok_or_else(|| missing("the node is not wanted"))
}
