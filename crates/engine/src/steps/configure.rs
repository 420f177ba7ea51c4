//! Applies its spec inside a node.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use homestak_core::plan::{Action, AppliedSpec, NodePlan};

use super::{StepOutcome, Task};
use crate::events::EventKind;
use crate::ports::{ConfigTarget, ErrorClass, PortError, ProviderEvent, Sent};

pub(super) async fn probe(task: &Task) -> Result<Option<StepOutcome>, PortError> {
    let found = task.configurer.check(&inner(task).await?).await?;
    Ok(found.settled.then(StepOutcome::default))
}

pub(super) async fn act(task: &Task) -> Result<StepOutcome, PortError> {
    task.inspect(&task.guest()?).await?;
    let node = inner(task).await?;
    let changed = task.configurer.converge(&node, hear(task)).await?;
    Ok(StepOutcome {
        changed,
        ..StepOutcome::default()
    })
}

/// Reverts the configuration, where the earlier one is known. A node created by this run is deleted
/// as a whole.
pub(super) async fn undo(task: &Task) -> Result<StepOutcome, PortError> {
    let Some(before) = earlier(task.node()?, task.changed) else {
        return Ok(StepOutcome::default());
    };
    let node = inner(task).await?;
    let changed = task.configurer.revert(&node, before, hear(task)).await?;
    Ok(StepOutcome {
        changed,
        ..StepOutcome::default()
    })
}

/// Returns the configuration that undoing the plan restores.
pub(crate) fn earlier(node: &NodePlan, changed: Option<bool>) -> Option<&AppliedSpec> {
    if changed == Some(false) || matches!(node.action, Action::Create | Action::Replace) {
        return None;
    }
    let before = node.found.as_ref()?.configured.as_ref()?;
    let config = node.config.as_ref()?;
    (before.digest != config.digest).then_some(before)
}

fn hear(task: &Task) -> Arc<dyn Fn(ProviderEvent) + Send + Sync> {
    let (hub, subject, began) = (task.hub.clone(), task.subject(), task.began.clone());
    Arc::new(move |remark: ProviderEvent| {
        let subject = subject.clone();
        hub.emit(match remark {
            ProviderEvent::Began => return began.store(true, Ordering::Relaxed),
            ProviderEvent::Warning(text) => EventKind::Warning { subject, text },
            ProviderEvent::Waiting(what) => EventKind::Waiting { subject, what },
            ProviderEvent::Doing(what) | ProviderEvent::Image { what, .. } => {
                EventKind::Doing { subject, what }
            }
        });
    })
}

/// Describes the node.
async fn inner(task: &Task) -> Result<ConfigTarget, PortError> {
    let node = task.node()?;
    let missing = |what: &str| PortError::bug("read the plan", &what);
    let config = node.config.as_ref();
    let config = config.ok_or_else(|| missing("the node has no spec"))?;
    let guest = task.guest()?;
    let address = match task.context.address(&node.name) {
        Some(address) => address,
        None => {
            let found = task.provider().await?.address(&guest).await?.address();
            found.ok_or_else(|| PortError {
                class: ErrorClass::Unreachable { sent: Sent::No },
                ..PortError::refused(
                    &format!("configure `{}`", node.name),
                    "it has no address",
                    "check that it runs: homestak manifest status",
                )
            })?
        }
    };
    let inner = ConfigTarget::of(node, config, guest.uuid, address);
    inner.ok_or_else(|| missing("the node is not wanted"))
}
