//! `homestak manifest forget`: deletes the record of a node; no host is queried or changed.

use std::process::ExitCode;

use homestak_api::v1::{ManifestForget, kind};
use homestak_driver::{journal, nodes};

use crate::args::RunArgs;
use crate::commands::{Outcome, agree};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Deletes the record of a node.
pub(super) fn run(
    node: &str,
    which: &RunArgs,
    yes: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (session, journal) = (settings.session()?, journal(&settings.driver)?);
    block_on(async {
        let known = nodes::one(&*journal, &session, node, &which.selector()).await?;
        let (scope, record) = (&known.scope, &known.record);
        let question = format!(
            "Delete the record of `{node}` in `{}`? `{}` is not queried for the {}, and nothing is changed on it.",
            scope.manifest, scope.host, record.guest
        );
        agree(yes, &question, printer).await?;
        let _lease = journal.lock(std::slice::from_ref(scope)).await?;
        let forgotten = journal.forget(scope, node).await?;
        if printer.output.json {
            let forget = ManifestForget {
                success: true,
                node: node.to_owned(),
                forgotten,
            };
            printer.json(&kind::MANIFEST_FORGET, &forget);
        } else {
            printer.message(&format!(
                "Record deleted. `{}` was not queried for the {}, and nothing was changed on it.",
                scope.host, record.guest
            ));
        }
        Ok(ExitCode::SUCCESS)
    })?
}
