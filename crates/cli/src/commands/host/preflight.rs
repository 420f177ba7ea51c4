//! `homestak host preflight`: checks whether a host is ready, also for a manifest.

use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::v1::kind;
use homestak_core::plan::{PlanOptions, Verb};
use homestak_driver::error::count;
use homestak_driver::job::Job;
use homestak_driver::preflight::{Finding, FindingSeverity, worst};
use homestak_driver::select::ManifestSelector;
use homestak_driver::{Session, wire};

use crate::commands::{Outcome, driver};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// Checks a host.
pub(super) fn run(
    name: &str,
    manifest: Option<String>,
    session: Session,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    printer.detail(&format!("checking {name}"));
    let findings = match manifest {
        None => {
            let (driver, _) = driver(session, settings, false, printer)?;
            block_on(driver.hosts.of(name)?.check(name, None))??
        }
        Some(manifest) => {
            let choice = ManifestSelector {
                name: Some(manifest),
                host: Some(name.to_owned()),
                ..ManifestSelector::default()
            };
            let screen = Arc::new(Screen::new(printer.output, false));
            let job = Job::open(choice, None, session, &settings.driver, screen)?;
            block_on(async {
                // Without a plan the host itself is checked, which shows why there is none.
                let plan = job.plan(&PlanOptions::new(Verb::Apply)).await.ok();
                let hosts = &job.driver.hosts;
                hosts.of(name)?.check(name, plan.as_ref()).await
            })??
        }
    };
    report(name, &findings, printer)
}

/// Prints the findings. A failure makes the command fail.
pub(in crate::commands) fn report(name: &str, findings: &[Finding], printer: &Printer) -> Outcome {
    let failed = worst(findings) == FindingSeverity::Failure;
    if printer.output.json {
        printer.json(
            &kind::HOST_PREFLIGHT,
            &wire::host::preflight(name, findings),
        );
    } else {
        show(name, findings, printer);
    }
    Ok(ExitCode::from(u8::from(failed)))
}

fn severity_name(severity: FindingSeverity) -> &'static str {
    match severity {
        FindingSeverity::Good => "good",
        FindingSeverity::Unknown => "unknown",
        FindingSeverity::Warning => "warning",
        FindingSeverity::Failure => "failure",
    }
}

fn show(name: &str, findings: &[Finding], printer: &Printer) {
    let mut text = String::new();
    for finding in findings {
        text += &format!(
            "{:<8} {}: {}\n",
            severity_name(finding.severity),
            finding.check,
            finding.detail
        );
        for line in finding.fix.lines() {
            text += &format!("         fix: {line}\n");
        }
    }
    printer.data(&text);
    let failures = findings
        .iter()
        .filter(|finding| finding.severity == FindingSeverity::Failure)
        .count();
    if failures == 0 {
        printer.message(&format!("`{name}` is ready."));
    } else {
        printer.message(&format!(
            "`{name}` is not ready: {}.",
            count(failures, "failure")
        ));
    }
}
