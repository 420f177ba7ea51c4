//! `homestak console`: a shell in a node without SSH.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::{ExitCode, Stdio};

use homestak_driver::hosts::local::{Engine, Local, Node};
use homestak_driver::{DriverError, journal};

use super::entry_point::{EntryPoint, find, of_host, require_root};
use super::{serial, through};
use crate::args::NodeArgs;
use crate::commands::Outcome;
use crate::process;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Opens a console.
pub(in crate::commands) fn run(
    which: &NodeArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    match block_on(find(&*journal, which, &session, settings))?? {
        EntryPoint::Local(found) => {
            let (local, node) = *found;
            match node.engine {
                Engine::Container => shell(&local, &node, settings, printer),
                Engine::Machine => serial::connect(&local.serial(&node), &node.name, printer),
            }
        }
        EntryPoint::InNode(parent, node) => through(&parent, &["console", &node], settings),
        EntryPoint::OnHost(known) => {
            let refused = DriverError::refused(format!(
                "The console of `{}` is available on its host only.",
                known.name()
            ));
            Err(of_host(&known).into_iter().fold(refused, DriverError::hint))
        }
    }
}

/// Replaces this process by a login shell of root in a container.
fn shell(local: &Local, node: &Node, settings: &Settings, printer: &Printer) -> Outcome {
    require_root("A console")?;
    let environment = [format!("TERM={}", settings.terminal)];
    let typed = std::io::stdin().is_terminal();
    let command = if typed {
        // `script` opens a terminal of the node: those of this machine have no name in it.
        let words = ["script", "--quiet", "--return", "--command"];
        let words = [&words[..], &["bash --login", "/dev/null"]].concat();
        local.enter_at_terminal(node, &environment, &words)
    } else {
        local.enter(node, &environment, &["bash", "--login"])
    };
    let command = command.ok_or_else(|| {
        DriverError::failed(format!("`{}` is not running.", node.name))
            .hint(format!("homestak logs {} shows its last output", node.name))
            .hint(format!(
                "homestak manifest apply -M {} -H local starts it",
                node.manifest
            ))
    })?;
    let mut arguments: Vec<OsString> = command.into_iter().map(OsString::from).collect();
    let program = arguments.remove(0);
    let program = program.to_string_lossy();
    let failed = |error: std::io::Error| {
        DriverError::failed(format!("Cannot start {program}: {error}."))
            .hint("homestak local check finds what is missing")
    };
    if !typed && (std::io::stdout().is_terminal() || std::io::stderr().is_terminal()) {
        // Output is passed through the printer, which escapes it.
        let ended = process::follow(
            &program,
            &arguments,
            Stdio::inherit(),
            &|on_stdout, line| match on_stdout {
                true => printer.node_stdout("", line),
                false => printer.node_stderr("", line),
            },
        );
        let code = ended.map_err(failed)?.code();
        let code = code.and_then(|code| u8::try_from(code).ok());
        return Ok(ExitCode::from(code.unwrap_or(1)));
    }
    Err(failed(process::become_program(&program, &arguments)))
}
