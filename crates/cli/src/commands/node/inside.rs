//! Which way leads into a node without SSH to itself.

use homestak_core::observed::GuestKind;
use homestak_core::plan::NodeLocation;
use homestak_driver::hosts::local::{self, LOCAL, Local, Node};
use homestak_driver::nodes::{self, RecordedNode};
use homestak_driver::runs::{Journal, RunSelector};
use homestak_driver::{DriverError, Session};

use crate::args::NodeArgs;
use crate::settings::Settings;

/// Where a node is, as seen from here.
pub(super) enum Inside {
    /// On this machine.
    Here(Box<(Local, Node)>),
    /// In a node of this machine, which knows it; by the names of both.
    In(Box<RecordedNode>, String),
    /// On a host that has its own ways.
    Elsewhere(Box<RecordedNode>),
}

/// Finds a node. One that no run here has made may still be on this machine: inside a node, nobody
/// remembers runs.
pub(super) async fn find(
    journal: &dyn Journal,
    which: &NodeArgs,
    session: &Session,
    settings: &Settings,
) -> Result<Inside, DriverError> {
    let all = nodes::all(journal, session, &which.which()).await?;
    let known = match nodes::named(&all, &which.node) {
        Ok(known) => known.clone(),
        Err(error) => {
            let mut here = on_machine(settings, |node| {
                let manifest = which.manifest.as_ref();
                node.name == which.node && manifest.is_none_or(|name| *name == node.manifest)
            })?;
            return match (here.pop(), here.is_empty()) {
                (Some(node), true) => Ok(Inside::Here(Box::new(node))),
                _ => Err(error),
            };
        }
    };
    let name = known.name().to_owned();
    if known.traits.is_simulated {
        return Err(DriverError::refused(format!(
            "`{name}` is simulated: there is nothing inside."
        ))
        .hint("homestak sim status shows the simulator"));
    }
    if !known.traits.has_direct_shell {
        return Ok(Inside::Elsewhere(Box::new(known)));
    }
    match &known.record.location {
        NodeLocation::Host(_) => {
            let uuid = &known.record.guest.uuid;
            let mut here = on_machine(settings, |node| node.guest() == uuid)?;
            let found = here.pop().ok_or_else(|| {
                DriverError::failed(format!("`{name}` is not on this machine any more."))
                    .hint("homestak local show lists the nodes that are")
            })?;
            Ok(Inside::Here(Box::new(found)))
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
                    "Nothing is remembered of `{parent}`, which `{name}` runs on."
                ))
            })?;
            Ok(Inside::In(Box::new(parent), name))
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

/// Says which command of Proxmox VE opens a guest's console.
pub(super) fn of_host(known: &RecordedNode) -> String {
    let guest = &known.record.guest;
    let command = match guest.kind {
        GuestKind::Vm => "qm terminal",
        GuestKind::Ct => "pct enter",
    };
    let id = guest
        .vmid
        .map_or_else(|| "ID".to_owned(), |vmid| vmid.to_string());
    format!("on {}, as root: {command} {id}", guest.host)
}
