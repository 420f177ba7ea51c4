//! `homestak console`: a shell in a node that works when SSH does not.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use homestak_providers::local::{Engine, Local, Node};

use super::inside::{Inside, find, of_host, require_root};
use super::{serial, through};
use crate::args::NodeArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::error::CommandError;
use crate::operator::journal;
use crate::process;
use crate::settings::Settings;
use crate::ui::Printer;

/// Opens a console.
pub(in crate::commands) fn run(
    which: &NodeArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let journal = journal(settings)?;
    match block_on(find(&*journal, which, settings))?? {
        Inside::Here(found) => {
            let (local, node) = *found;
            match node.engine {
                Engine::Container => shell(&local, &node, settings),
                Engine::Machine => serial::talk(&local.serial(&node), &node.name, printer),
            }
        }
        Inside::In(parent, node) => through(&parent, &["console", &node], settings),
        Inside::Elsewhere(known) => Err(CommandError::refused(format!(
            "The console of `{}` is its host's.",
            known.name()
        ))
        .hint(of_host(&known))),
    }
}

/// Becomes a login shell of root in a container.
fn shell(local: &Local, node: &Node, settings: &Settings) -> Outcome {
    require_root("A console")?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let words: &[&str] = if terminal {
        // A terminal of the node's own: ours is unknown in there.
        &[
            "script",
            "--quiet",
            "--return",
            "--command",
            "bash --login",
            "/dev/null",
        ]
    } else {
        &["bash", "--login"]
    };
    let environment = [format!("TERM={}", settings.terminal)];
    let command = local.enter(node, &environment, words).ok_or_else(|| {
        CommandError::failed(format!("`{}` does not run.", node.name))
            .hint(format!(
                "homestak logs {} shows what was last said",
                node.name
            ))
            .hint(format!(
                "homestak manifest apply -M {} -H local starts it",
                node.manifest
            ))
    })?;
    let mut arguments: Vec<OsString> = command.into_iter().map(OsString::from).collect();
    let program = arguments.remove(0);
    let error = process::become_program(&program.to_string_lossy(), &arguments);
    Err(
        CommandError::failed(format!("Cannot start nsenter: {error}."))
            .hint("homestak local check finds what is missing"),
    )
}
