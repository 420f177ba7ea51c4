//! The kinds of steps. Each can be probed, executed and undone, and each is idempotent.
//!
//! Neither the journal nor the order of steps is decided here.

pub(crate) mod configure;
pub(crate) mod create;
mod destroy;
mod image;
pub(crate) mod inside;
pub(crate) mod power;
mod ready;
mod reidentify;
mod size;

use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use homestak_api::runtime::SharedClock;
use homestak_core::plan::{
    DesiredGuest, ExistingGuest, NodePlan, Plan, RequiredImage, Step, StepKind,
};

use crate::events::{EventKind, RunEvents, Subject};
use crate::operate::StepState;
use crate::operate::limits::Limits;
use crate::operate::run_context::RunContext;
use crate::ports::{
    Configurer, GuestRef, GuestUuid, ObservedGuest, PortError, Provider, SeedSource,
};

/// A step with everything it needs.
pub(crate) struct StepTask {
    pub(crate) plan: Arc<Plan>,
    pub(crate) step: Step,
    pub(crate) context: Arc<RunContext>,
    pub(crate) seeds: Arc<dyn SeedSource>,
    pub(crate) configurer: Arc<dyn Configurer>,
    pub(crate) clock: SharedClock,
    pub(crate) hub: Arc<RunEvents>,
    pub(crate) limits: Limits,
    /// Its state before.
    pub(crate) before: StepState,
    /// The mark of the run, which is stored on guests it creates.
    pub(crate) mark: String,
    /// Whether the step changed anything; `None` when that is not recorded.
    pub(crate) changed: Option<bool>,
    /// Whether the node that is configured has reported its start.
    pub(crate) began: Arc<AtomicBool>,
}

/// What a step does. Boxed, so that a task takes the memory of the kind of step it does and not of
/// the largest: very many run at once.
type Work<'t, T> = Pin<Box<dyn Future<Output = Result<T, PortError>> + Send + 't>>;

/// The outcome of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOutcome {
    /// Whether anything was changed.
    pub(crate) changed: bool,
    /// The guest, if the step found it out.
    pub(crate) guest: Option<GuestRef>,
    /// Its address, if the step found it out.
    pub(crate) address: Option<IpAddr>,
    /// Whether undoing kept the guest, because this run did not create it.
    pub(crate) kept: bool,
}

impl StepOutcome {
    pub(crate) fn changed() -> Self {
        Self {
            changed: true,
            ..Self::default()
        }
    }
}

impl StepTask {
    /// Returns the outcome of a step that is done already.
    pub(crate) fn probe(&self) -> Work<'_, Option<StepOutcome>> {
        match self.step.kind {
            StepKind::Image => Box::pin(image::probe(self)),
            StepKind::Create => Box::pin(create::probe(self)),
            StepKind::Start => Box::pin(power::is_running(self)),
            // It polls by itself.
            StepKind::Ready => Box::pin(ready(Ok(None))),
            // Removing what does not exist is harmless, and faster than probing.
            StepKind::Discard => Box::pin(ready(Ok(None))),
            StepKind::Configure => Box::pin(configure::probe(self)),
            StepKind::Reshape => Box::pin(size::has_size(self)),
            StepKind::Grow => Box::pin(size::is_grown(self)),
            StepKind::Stop => Box::pin(power::is_stopped(self)),
            StepKind::Destroy => Box::pin(destroy::probe(self)),
            StepKind::Reidentify => Box::pin(reidentify::probe(self)),
        }
    }

    /// Executes the step. Safe when it was done before, in part or whole.
    pub(crate) fn act(&self) -> Work<'_, StepOutcome> {
        match self.step.kind {
            StepKind::Image => Box::pin(image::act(self)),
            StepKind::Create => Box::pin(create::act(self)),
            StepKind::Start => Box::pin(power::start(self)),
            StepKind::Ready => Box::pin(ready::act(self)),
            StepKind::Discard => Box::pin(ready::discard(self)),
            StepKind::Configure => Box::pin(configure::act(self)),
            StepKind::Reshape => Box::pin(size::reshape(self)),
            StepKind::Grow => Box::pin(size::grow(self)),
            StepKind::Stop => Box::pin(power::stop(self)),
            StepKind::Destroy => Box::pin(destroy::act(self)),
            StepKind::Reidentify => Box::pin(reidentify::act(self)),
        }
    }

    /// Undoes the step. Safe when it never ran, half ran or ran, and when it was undone before.
    pub(crate) fn undo(&self) -> Work<'_, StepOutcome> {
        match self.step.kind {
            // Others may use the image.
            StepKind::Image => Box::pin(ready(Ok(StepOutcome::default()))),
            StepKind::Create => Box::pin(create::undo(self)),
            StepKind::Start => Box::pin(power::undo_start(self)),
            // First-boot data is of no use to a guest that is up.
            StepKind::Ready | StepKind::Discard => Box::pin(ready(Ok(StepOutcome::default()))),
            StepKind::Configure => Box::pin(configure::undo(self)),
            StepKind::Reshape => Box::pin(size::undo_reshape(self)),
            // Disks never shrink.
            StepKind::Grow => Box::pin(ready(Ok(StepOutcome::default()))),
            StepKind::Stop => Box::pin(power::undo_stop(self)),
            // A deleted guest cannot be restored; the plan reports that.
            StepKind::Destroy => Box::pin(ready(Ok(StepOutcome::default()))),
            // Both identities belong to the site, and later runs expect the new one.
            StepKind::Reidentify => Box::pin(ready(Ok(StepOutcome::default()))),
        }
    }

    /// Returns whether it was started before, so that it may be done already.
    pub(crate) fn was_begun(&self) -> bool {
        self.before != StepState::Untouched
    }

    /// Returns whether it was started and its outcome is not recorded, because the program ended.
    fn is_unanswered(&self) -> bool {
        let open = matches!(self.before, StepState::Begun | StepState::Undoing);
        open && self.changed.is_none()
    }

    /// Returns the node or image the step is about.
    pub(crate) fn subject(&self) -> Subject {
        subject(&self.plan, &self.step)
    }

    pub(crate) fn node(&self) -> Result<&NodePlan, PortError> {
        let node = self.step.node.and_then(|at| self.plan.nodes.get(at));
        node.ok_or_else(|| PortError::bug("read the plan", &"the step has no node"))
    }

    fn wanted(&self) -> Result<&DesiredGuest, PortError> {
        let wanted = self.node()?.wanted.as_ref();
        wanted.ok_or_else(|| PortError::bug("read the plan", &"the node is not planned"))
    }

    fn found(&self) -> Result<&ExistingGuest, PortError> {
        let found = self.node()?.found.as_ref();
        found.ok_or_else(|| PortError::bug("read the plan", &"the node has no guest"))
    }

    fn need(&self) -> Result<&RequiredImage, PortError> {
        let need = self.step.image.and_then(|at| self.plan.images.get(at));
        need.ok_or_else(|| PortError::bug("read the plan", &"the step has no image"))
    }

    /// Returns the guest of the step: the existing one for steps that delete or change it,
    /// otherwise the new one.
    fn guest(&self) -> Result<GuestRef, PortError> {
        let node = self.node()?;
        let replaced = node.wanted.as_ref().zip(node.found.as_ref());
        let replaced = replaced.is_some_and(|(new, old)| new.uuid != old.guest.uuid);
        let old = matches!(self.step.kind, StepKind::Stop | StepKind::Destroy);
        if node.wanted.is_none() || replaced && old {
            return Ok(self.found()?.guest.clone());
        }
        if let Some(guest) = self.context.guest(&node.name) {
            return Ok(guest);
        }
        // Never seen; its identity is enough to find it.
        let found = node.found.as_ref().map(|found| found.guest.clone());
        let guest = found.or_else(|| planned(node));
        guest.ok_or_else(|| PortError::bug("read the plan", &"the node has no guest"))
    }

    /// Inspects a guest, and refuses one of another site or on another host than planned. `None`
    /// when it does not exist.
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let there = self.provider().await?.inspect(guest).await?;
        if let Some(there) = &there {
            self.require_tags(there)?;
            self.require_site(guest, there)?;
        }
        if let Some(there) = there.as_ref().filter(|there| there.host != guest.host) {
            return Err(self.refused(
                there,
                format!(
                    "it is on {} now, and the plan names it on {}",
                    there.host, guest.host
                ),
                "make a new plan",
            ));
        }
        Ok(there)
    }

    /// Returns whether this run created a guest, by its mark.
    fn is_created(&self, there: &ObservedGuest) -> bool {
        there.run.as_deref() == Some(self.mark.as_str())
    }

    /// Refuses a guest without tags.
    fn require_tags(&self, there: &ObservedGuest) -> Result<(), PortError> {
        if there.uuid.is_some() {
            return Ok(());
        }
        let name = &self.node()?.name;
        let ObservedGuest { vmid: id, host, .. } = there;
        Err(self.refused(
            there,
            format!(
                "guest {id} on {host} carries the identity of `{name}`, but its tags were removed; it is not changed"
            ),
            &format!(
                "to keep it, homestak manifest resume --mark-resolved {name}; otherwise restore its tags `homestak*`"
            ),
        ))
    }

    /// Returns whether the plan found a guest of the first format, without a site.
    fn is_first_form(&self, guest: &GuestUuid) -> Result<bool, PortError> {
        let found = self.node()?.found.as_ref();
        Ok(found.is_some_and(|found| found.legacy_identity && found.guest.uuid == *guest))
    }

    /// Refuses a guest of another site.
    fn require_site(&self, guest: &GuestRef, there: &ObservedGuest) -> Result<(), PortError> {
        let site = self.plan.site.as_ref();
        let first_form = site.is_none() || self.is_first_form(&guest.uuid)?;
        let why = match &there.site {
            Some(other) if Some(other) != site => format!("it carries the site `{other}`"),
            None if !first_form => "it carries no site".to_owned(),
            Some(_) | None => return Ok(()),
        };
        let hint = "if it is of this site, correct its tag `homestak-s-*`";
        Err(self.refused(there, why, hint))
    }

    fn refused(&self, there: &ObservedGuest, detail: String, hint: &str) -> PortError {
        let doing = format!("{} guest {}", self.step.kind.name(), there.vmid);
        PortError::refused(&doing, detail, hint)
    }

    async fn provider(&self) -> Result<Arc<dyn Provider>, PortError> {
        let node = self.node()?;
        self.context.provider(&node.host, &node.location).await
    }

    pub(crate) fn report_waiting(&self, what: impl Into<String>) {
        self.hub.emit(EventKind::Waiting {
            subject: self.subject(),
            what: what.into(),
        });
    }
}

/// Returns the node or image a step is about.
pub(crate) fn subject(plan: &Plan, step: &Step) -> Subject {
    let node = step.node.and_then(|at| plan.nodes.get(at));
    let image = step.image.and_then(|at| plan.images.get(at));
    match (node, image) {
        (Some(node), _) => Subject::Node(node.name.clone()),
        (None, Some(image)) => Subject::Image {
            name: image.name.clone(),
            location: image.location.to_string(),
        },
        (None, None) => Subject::Run,
    }
}

/// Returns the planned guest of a node; `None` for a node that is removed.
pub(crate) fn planned(node: &NodePlan) -> Option<GuestRef> {
    let wanted = node.wanted.as_ref()?;
    Some(GuestRef {
        uuid: wanted.uuid.clone(),
        kind: wanted.kind,
        vmid: wanted.vmid,
        host: wanted.host.clone(),
    })
}
