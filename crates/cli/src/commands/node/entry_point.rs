//! Finds how a node is entered without SSH.

use homestak_core::observed::GuestKind;
use homestak_core::plan::NodeLocation;
use homestak_driver::hosts::local::{self, LOCAL, Local, Node};
use homestak_driver::nodes::{self, RecordedNode};
use homestak_driver::runs::{Journal, RunSelector};
use homestak_driver::{DriverError, Session};

use crate::args::NodeArgs;
use crate::settings::Settings;

/// How a node is entered from this machine, which depends on its location.
pub(super) enum EntryPoint {
    /// On this machine.
    Local(Box<(Local, Node)>),
    /// In a node of this machine that is its host; the names of both.
    InNode(Box<RecordedNode>, String),
    /// On a host with its own console.
    OnHost(Box<RecordedNode>),
}

/// Finds a node. One without a record may still be on this machine: inside a node there is no
/// journal.
pub(super) async fn find(
    journal: &dyn Journal,
    which: &NodeArgs,
    session: &Session,
    settings: &Settings,
) -> Result<EntryPoint, DriverError> {
    let all = nodes::all(journal, session, &which.selector()).await?;
    let known = match nodes::named(&all, &which.node) {
        Ok(known) => known.clone(),
        Err(error) => {
            let mut here = on_machine(settings, |node| {
                let manifest = which.manifest.as_ref();
                node.name == which.node && manifest.is_none_or(|name| *name == node.manifest)
            })?;
            return match (here.pop(), here.is_empty()) {
                (Some(node), true) => Ok(EntryPoint::Local(Box::new(node))),
                _ => Err(error),
            };
        }
    };
    let name = known.name().to_owned();
    if known.traits.is_simulated {
        return Err(DriverError::refused(format!(
            "`{name}` is simulated and has no console or logs."
        ))
        .hint("homestak sim status shows the simulator"));
    }
    if !known.traits.has_direct_shell {
        return Ok(EntryPoint::OnHost(Box::new(known)));
    }
    match &known.record.location {
        NodeLocation::Host(_) => {
            let uuid = &known.record.guest.uuid;
            let mut here = on_machine(settings, |node| node.guest() == uuid)?;
            let found = here.pop().ok_or_else(|| {
                DriverError::failed(format!("`{name}` is no longer on this machine."))
                    .hint("homestak local show lists the nodes of this machine")
            })?;
            Ok(EntryPoint::Local(Box::new(found)))
        }
        NodeLocation::Inside(parent) => {
            let which = RunSelector {
                manifest: Some(known.scope.manifest.clone()),
                host: Some(known.scope.host.clone()),
            };
            let all = nodes::all(journal, session, &which).await?;
            let mut all = all.list.into_iter();
            let parent = all.find(|node| node.name() == parent).ok_or_else(|| {
                DriverError::failed(format!(
                    "There is no record of `{parent}`, which `{name}` runs on."
                ))
            })?;
            Ok(EntryPoint::InNode(Box::new(parent), name))
        }
    }
}

/// Returns nodes of this machine.
fn on_machine(
    settings: &Settings,
    is_meant: impl Fn(&Node) -> bool,
) -> Result<Vec<(Local, Node)>, DriverError> {
    let local = local::open(&settings.driver);
    let local = local.map_err(|error| DriverError::of_host(LOCAL, &error))?;
    let nodes = local
        .nodes()
        .map_err(|error| DriverError::of_host(LOCAL, &error))?;
    let nodes = nodes.into_iter().map(|(node, _)| node);
    Ok(nodes
        .filter(is_meant)
        .map(|node| (local.clone(), node))
        .collect())
}

/// Refuses what only root can do.
pub(super) fn require_root(doing: &str) -> Result<(), DriverError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(DriverError::refused(format!("{doing} needs root.")).hint("repeat it with sudo"))
}

/// Returns the command on its host that opens a guest's console, if there is one.
pub(super) fn of_host(known: &RecordedNode) -> Option<String> {
    let guest = &known.record.guest;
    let commands = known.traits.console?;
    let command = match guest.kind {
        GuestKind::Vm => commands.vm,
        GuestKind::Ct => commands.ct,
    };
    let id = guest
        .vmid
        .map_or_else(|| "ID".to_owned(), |vmid| vmid.to_string());
    Some(format!("on {}, as root: {command} {id}", guest.host))
}
