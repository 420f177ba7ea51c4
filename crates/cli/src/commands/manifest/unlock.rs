//! `homestak manifest unlock`: releases a lock whose holder has ended.

use std::process::ExitCode;

use homestak_api::v1::{ManifestUnlock, kind};
use homestak_driver::runs::{HEARTBEAT_TIMEOUT, HolderState, LeaseHolder, Scope};
use homestak_driver::{DriverError, journal};
use jiff::Timestamp;

use super::history::format_time;
use crate::commands::{Outcome, agree};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Unlocks a manifest on a host.
pub(super) fn run(
    manifest: String,
    host: String,
    yes: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let session = settings.session()?;
    let journal = journal(&settings.driver)?;
    let scope = Scope::new(Some(session.id()?), &manifest, &host);
    let now = settings.driver.time.now();
    block_on(async {
        let held = journal.holder(&scope).await?;
        if let Some(held) = &held {
            permit((held, now), &scope, yes, printer).await?;
            journal.unlock(&scope, held.number).await?;
        }
        let (manifest, host) = (&scope.manifest, &scope.host);
        if printer.output.json {
            let unlock = ManifestUnlock {
                success: true,
                manifest: manifest.clone(),
                host: host.clone(),
                held_by: held.as_ref().map(|held| held.holder.clone()),
                since: held.as_ref().map(|held| held.since),
                heartbeat: held.as_ref().map(|held| held.heartbeat),
            };
            printer.json(&kind::MANIFEST_UNLOCK, &unlock);
        } else {
            printer.message(&match &held {
                None => format!("`{manifest}` on `{host}` is not locked."),
                Some(_) => format!("Unlocked: `{manifest}` on `{host}`."),
            });
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Refuses while the holder runs, and asks for confirmation when that is unknown.
async fn permit(
    (held, now): (&LeaseHolder, Timestamp),
    scope: &Scope,
    yes: bool,
    printer: &Printer,
) -> Result<(), DriverError> {
    let (since, heartbeat) = (format_time(held.since), format_time(held.heartbeat));
    let holds = format!(
        "`{}` on `{}` is locked by {} since {since}",
        scope.manifest, scope.host, held.holder
    );
    match held.life {
        HolderState::Dead => {
            printer.message(&format!("{holds}, which no longer runs."));
            Ok(())
        }
        HolderState::Alive => Err(
            DriverError::refused(format!("{holds}, which runs on this machine.")).hint(
                "wait until it ends, or stop it; the lock is released then",
            ),
        ),
        HolderState::Unknown if held.is_unlockable(now) => {
            printer.message(&format!(
                "{holds}, on another machine or in another container. Its last heartbeat was at {heartbeat}."
            ));
            agree(
                yes,
                "Unlock it? If it still runs, it starts no more steps; a step in progress may still \
                 complete on Proxmox VE.",
                printer,
            )
            .await
        }
        HolderState::Unknown => Err(DriverError::refused(format!(
            "{holds}, on another machine or in another container, and its last heartbeat was at {heartbeat}."
        ))
        .hint(format!(
            "it can be unlocked after {} seconds without heartbeat",
            HEARTBEAT_TIMEOUT.as_secs()
        ))),
    }
}
