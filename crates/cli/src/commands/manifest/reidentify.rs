//! `homestak manifest reidentify`: guests that were created before sites had an id get an identity
//! of this site.

use homestak_core::plan::{Options, Verb};

use super::job::Job;
use crate::args::{CarryArgs, ManifestArgs};
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Gives guests of a manifest their new identity.
pub(super) fn run(
    manifest: &ManifestArgs,
    carry: &CarryArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let job = Job::open("reidentify", manifest.choice(), carry, settings, printer)?;
    block_on(job.run(
        &Options::new(Verb::Reidentify),
        "Give these guests their new identity?",
    ))?
}
