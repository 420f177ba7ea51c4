//! The report of a test, written as JSON and as Markdown.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use homestak_api::v1::{TestPhase, TestReport, TestStatus};
use homestak_core::plan::Plan;
use homestak_driver::DriverError;
use homestak_driver::runs::RunReport;
use homestak_driver::wire::run::{milliseconds, nodes};
use jiff::Timestamp;

use super::context::CommandContext;
use crate::commands::write_private;
use crate::ui::{result, table};

/// One phase of a test.
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Whether it passed; `None` when it was skipped.
    pub(super) passed: Option<bool>,
    pub(super) message: String,
    pub(super) seconds: f64,
}

impl Phase {
    fn status(&self) -> &'static str {
        match self.passed {
            Some(true) => "passed",
            Some(false) => "failed",
            None => "skipped",
        }
    }
}

/// What happened in a test.
pub(super) struct Report {
    scenario: String,
    hosts: Vec<String>,
    started: Timestamp,
    phases: Vec<Phase>,
}

impl Report {
    /// Begins a report.
    pub(super) fn new(context: &CommandContext<'_>, plan: &Plan) -> Self {
        Self {
            scenario: context.job.resolved.name.clone(),
            hosts: plan.hosts.clone(),
            started: context.job.driver.operator.clock.now(),
            phases: Vec::new(),
        }
    }

    /// Adds a phase that ended.
    pub(super) fn add(&mut self, phase: Phase) {
        self.phases.push(phase);
    }

    /// Adds a skipped phase.
    pub(super) fn skip(&mut self, name: &'static str, description: &'static str) {
        self.add(Phase {
            name,
            description,
            passed: None,
            message: String::new(),
            seconds: 0.0,
        });
    }

    /// Returns whether nothing failed.
    pub(super) fn success(&self) -> bool {
        self.phases.iter().all(|phase| phase.passed != Some(false))
    }

    /// Returns how long all phases took.
    pub(super) fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Returns the first host.
    pub(super) fn host(&self) -> &str {
        self.hosts.first().map_or("", String::as_str)
    }

    /// Converts the phases.
    pub(super) fn wire_phases(&self) -> Vec<TestPhase> {
        let phase = |phase: &Phase| TestPhase {
            name: phase.name.to_owned(),
            description: phase.description.to_owned(),
            status: match phase.passed {
                Some(true) => TestStatus::Passed,
                Some(false) => TestStatus::Failed,
                None => TestStatus::Skipped,
            },
            message: phase.message.clone(),
            duration: milliseconds(phase.seconds),
        };
        self.phases.iter().map(phase).collect()
    }

    /// Renders the phases as a table.
    pub(super) fn table(&self) -> String {
        let rows = self.phases.iter().map(|phase| {
            vec![
                phase.name.to_owned(),
                phase.status().to_owned(),
                format!("{:.1} s", phase.seconds),
            ]
        });
        table::render(&["phase", "status", "duration"], rows.collect())
    }

    /// Writes both files and returns their names.
    pub(super) fn write(
        &self,
        directory: &Path,
        made: &RunReport,
        finished: Timestamp,
    ) -> Result<Vec<PathBuf>, DriverError> {
        homestak_api::durable::create_private(directory)
            .map_err(|error| DriverError::file("create", directory, &error))?;
        let status = if self.success() { "passed" } else { "failed" };
        let stem = self.started.strftime("%Y%m%d-%H%M%S").to_string();
        let report = TestReport {
            scenario: self.scenario.clone(),
            host: self.hosts.join(","),
            hostname: hostname(),
            success: self.success(),
            started_at: self.started,
            finished_at: finished,
            duration: milliseconds(finished.duration_since(self.started).as_secs_f64()),
            phases: self.wire_phases(),
            nodes: nodes(made),
        };
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| DriverError::failed(format!("Cannot write the report: {error}.")))?;
        let mut paths = Vec::new();
        for (end, text) in [("json", json + "\n"), ("md", self.markdown(made, finished))] {
            let path = directory.join(format!("{stem}.{status}.{end}"));
            write_private(&path, &text)?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn markdown(&self, made: &RunReport, finished: Timestamp) -> String {
        let status = if self.success() { "passed" } else { "failed" };
        let took = finished.duration_since(self.started).as_secs_f64();
        let mut text = format!("# Test of `{}`: {status}\n\n", self.scenario);
        _ = writeln!(text, "- Host: {}", self.hosts.join(", "));
        _ = writeln!(text, "- Run from: {}", hostname());
        _ = writeln!(
            text,
            "- Started: {}",
            self.started.strftime("%Y-%m-%dT%H:%M:%SZ")
        );
        _ = writeln!(text, "- Duration: {took:.1} s\n");
        text += "| phase | status | duration | message |\n|---|---|---|---|\n";
        for phase in &self.phases {
            let message = phase.message.replace('|', "\\|").replace('\n', " ");
            let (name, status, seconds) = (phase.name, phase.status(), phase.seconds);
            _ = writeln!(text, "| {name} | {status} | {seconds:.1} s | {message} |");
        }
        text += "\n```text\n";
        text += &result::render(made);
        text += "```\n";
        text
    }
}

fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
