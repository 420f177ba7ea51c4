//! Configures a node: applies its spec inside it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use homestak_core::plan::{Action, AppliedSpec, NodePlan};

use super::{StepOutcome, StepTask};
use crate::events::EventKind;
use crate::ports::{ConfigTarget, ErrorClass, PortError, ProviderEvent, Sent};

pub(super) async fn probe(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let found = task.configurer.check(&config_target(task).await?).await?;
    Ok(found.settled.then(StepOutcome::default))
}

pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    task.inspect(&task.guest()?).await?;
    let node = config_target(task).await?;
    let changed = task
        .configurer
        .converge(&node, event_reporter(task))
        .await?;
    Ok(StepOutcome {
        changed,
        ..StepOutcome::default()
    })
}

/// Restores the previous configuration, if it is known. A node that this run created is not
/// reverted: undoing the step that created it deletes it.
pub(super) async fn undo(task: &StepTask) -> Result<StepOutcome, PortError> {
    let Some(before) = config_to_restore(task.node()?, task.changed) else {
        return Ok(StepOutcome::default());
    };
    let node = config_target(task).await?;
    let changed = task
        .configurer
        .revert(&node, before, event_reporter(task))
        .await?;
    Ok(StepOutcome {
        changed,
        ..StepOutcome::default()
    })
}

/// Returns the configuration that undoing the plan restores. A node that configures itself takes
/// only what is published, and its mode is not restored.
pub(crate) fn config_to_restore(node: &NodePlan, changed: Option<bool>) -> Option<&AppliedSpec> {
    let is_new = matches!(node.action, Action::Create | Action::Replace);
    if changed == Some(false) || is_new || node.pulls() || node.changes_mode() {
        return None;
    }
    let before = node.found.as_ref()?.configured.as_ref()?;
    let config = node.config.as_ref()?;
    (before.digest != config.digest).then_some(before)
}

fn event_reporter(task: &StepTask) -> Arc<dyn Fn(ProviderEvent) + Send + Sync> {
    let (hub, subject, began) = (task.hub.clone(), task.subject(), task.began.clone());
    Arc::new(move |event: ProviderEvent| {
        let subject = subject.clone();
        hub.emit(match event {
            ProviderEvent::Began => return began.store(true, Ordering::Relaxed),
            ProviderEvent::Warning(text) => EventKind::Warning { subject, text },
            ProviderEvent::Waiting(what) => EventKind::Waiting { subject, what },
            ProviderEvent::Doing(what) | ProviderEvent::Image { what, .. } => {
                EventKind::Doing { subject, what }
            }
        });
    })
}

/// Returns the node to configure: its spec, its guest and its address.
async fn config_target(task: &StepTask) -> Result<ConfigTarget, PortError> {
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
    let manifest = &task.plan.manifest;
    let target = ConfigTarget::of(manifest, (node, config), guest.uuid, address);
    target.ok_or_else(|| missing("the plan does not create or keep the node"))
}
