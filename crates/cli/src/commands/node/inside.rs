//! Which way leads into a node without SSH to itself.

use homestak_core::observed::GuestKind;
use homestak_core::plan::Place;
use homestak_engine::journal::Journal;
use homestak_providers::local::{Local, Node};

use crate::args::NodeArgs;
use crate::connect::failed;
use crate::error::CommandError;
use crate::local_host::{LOCAL, LocalPlace};
use crate::nodes::{self, Known};
use crate::places::SIM;
use crate::settings::Settings;

/// Where a node is, as seen from here.
pub(super) enum Inside {
    /// On this machine.
    Here(Box<(Local, Node)>),
    /// In a node of this machine, which knows it; by the names of both.
    In(Box<Known>, String),
    /// On a host that has its own ways.
    Elsewhere(Box<Known>),
}

/// Finds a node. One that no run here has made may still be on this machine: inside a node, nobody
/// remembers runs.
pub(super) async fn find(
    journal: &dyn Journal,
    which: &NodeArgs,
    settings: &Settings,
) -> Result<Inside, CommandError> {
    let (manifest, host) = (which.manifest.as_deref(), which.host.as_deref());
    let all = nodes::all(journal, settings, manifest, host).await?;
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
    if known.scope.host == SIM {
        return Err(CommandError::refused(format!(
            "`{name}` is simulated: there is nothing inside."
        ))
        .hint("homestak sim status shows the simulator"));
    }
    if known.scope.host != LOCAL {
        return Ok(Inside::Elsewhere(Box::new(known)));
    }
    match &known.record.place {
        Place::Host(_) => {
            let uuid = &known.record.guest.uuid;
            let mut here = on_machine(settings, |node| node.guest() == uuid)?;
            let found = here.pop().ok_or_else(|| {
                CommandError::failed(format!("`{name}` is not on this machine any more."))
                    .hint("homestak local show lists the nodes that are")
            })?;
            Ok(Inside::Here(Box::new(found)))
        }
        Place::Inside(parent) => {
            let all =
                nodes::all(journal, settings, Some(&known.scope.manifest), Some(LOCAL)).await?;
            let mut all = all.list.into_iter();
            let parent = all.find(|node| node.name() == parent).ok_or_else(|| {
                CommandError::failed(format!(
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
) -> Result<Vec<(Local, Node)>, CommandError> {
    let local = LocalPlace::new(settings).open();
    let local = local.map_err(|error| failed(LOCAL, &error))?;
    let nodes = local.nodes().map_err(|error| failed(LOCAL, &error))?;
    let nodes = nodes.into_iter().map(|(node, _)| node);
    Ok(nodes
        .filter(is_meant)
        .map(|node| (local.clone(), node))
        .collect())
}

/// Refuses what only root can do.
pub(super) fn require_root(doing: &str) -> Result<(), CommandError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(CommandError::refused(format!("{doing} needs root.")).hint("repeat it with sudo"))
}

/// Says which command of Proxmox VE opens a guest's console.
pub(super) fn of_host(known: &Known) -> String {
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
