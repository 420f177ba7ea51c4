//! `homestak manifest forget`: what is remembered of a node goes; no host is asked or changed.

use std::process::ExitCode;

use homestak_driver::runs::{Scope, hints, listed};
use homestak_driver::{DriverError, hold, journal, scopes_of};
use serde_json::json;

use crate::args::RunArgs;
use crate::commands::{Outcome, agree};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Forgets a node.
pub(super) fn run(
    node: &str,
    which: &RunArgs,
    yes: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (which, session) = (&which.which(), settings.session()?);
    let (site, journal) = (session.id()?, journal(&settings.driver)?);
    block_on(async {
        let mut scopes: Vec<Scope> = Vec::new();
        for head in listed(which, &journal, site).await? {
            scopes.extend(scopes_of(&head));
        }
        scopes.retain(|scope| which.host.as_ref().is_none_or(|host| *host == scope.host));
        scopes.sort();
        scopes.dedup();
        let mut found = Vec::new();
        for scope in scopes {
            let records = journal.records(&scope).await?;
            let record = records.into_iter().find(|record| record.name == node);
            found.extend(record.map(|record| (scope, record)));
        }
        let (scope, record) = match found.as_slice() {
            [] => {
                let failed =
                    DriverError::failed(format!("Nothing is remembered of a node `{node}`."))
                        .hint("homestak manifest status -M NAME lists what is");
                let hints = hints(which, &journal, site).await?;
                return Err(hints.into_iter().fold(failed, DriverError::hint));
            }
            [one] => one,
            several => {
                let error = DriverError::usage(format!("Which `{node}`? There are several."));
                return Err(several.iter().fold(error, |error, (scope, _)| {
                    error.hint(format!("-M {} -H {}", scope.manifest, scope.host))
                }));
            }
        };
        let question = format!(
            "Remove the record of `{node}` in `{}`? `{}` is not asked whether the {} is there, and nothing is changed on it.",
            scope.manifest, scope.host, record.guest
        );
        agree(yes, &question, printer).await?;
        let _lease = hold(&journal, std::slice::from_ref(scope)).await?;
        let forgotten = journal.forget(scope, node).await?;
        if printer.shape.json {
            printer.json(
                "manifest.forget",
                json!({ "success": true, "node": node, "forgotten": forgotten }),
            );
        } else {
            printer.say(&format!(
                "Removed. `{}` was not asked whether the {} is there, and nothing was changed on it.",
                scope.host, record.guest
            ));
        }
        Ok(ExitCode::SUCCESS)
    })?
}
