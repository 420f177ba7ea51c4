//! Renders jobs of nodes. All text that a node sends is escaped.

use std::fmt::Write as _;

use homestak_api::v1::node_job::{
    Collected, JobKind, JobOutcome, JobResult, JobState, JobStatus, PackageUpdate,
};
use homestak_core::foreign::ForeignText;
use homestak_driver::error::count;

use super::table;

/// Renders a table of jobs.
pub(crate) fn list(jobs: &[JobStatus], time: impl Fn(Option<i64>) -> String) -> String {
    let headings = [
        "id",
        "node",
        "kind",
        "state",
        "issued",
        "ended",
        "started by",
    ];
    let row = |job: &JobStatus| {
        vec![
            line(&job.id),
            line(&job.node),
            job.kind.name().to_owned(),
            job.state.name().to_owned(),
            time(Some(job.issued)),
            time(job.ended),
            line(&job.origin),
        ]
    };
    table::render(&headings, jobs.iter().map(row).collect())
}

/// Renders how a job ended: its state, the reason, and what it found or did.
pub(crate) fn ended(job: &JobStatus) -> String {
    let (id, kind, node) = (line(&job.id), job.kind.name(), line(&job.node));
    let mut text = format!("Job {id} ({kind}) of `{node}`: {}.\n", state(job.state));
    if let Some(outcome) = &job.outcome {
        text += &outcome_text(job.kind, outcome);
    }
    text
}

/// Returns a state as text.
pub(crate) fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queued, not taken by the node yet",
        JobState::Taken => "taken by the node, and not ended yet",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Refused => "refused by the node",
        JobState::Cancelled => "cancelled before the node took it",
        JobState::Expired => "expired, the node did not take it in time",
        JobState::Lost => "lost, the node took it and did not report its end in time",
    }
}

/// Renders an outcome.
pub(crate) fn outcome_text(kind: JobKind, outcome: &JobOutcome) -> String {
    let mut text = String::new();
    if let Some(message) = &outcome.message {
        for part in message.lines() {
            _ = writeln!(text, "{}", line(part));
        }
    }
    let has_succeeded = outcome.state == JobState::Succeeded;
    if kind == JobKind::Check && has_succeeded && outcome.result.differences.is_empty() {
        text += "The node matches its spec.\n";
    }
    text + &result(&outcome.result)
}

fn result(result: &JobResult) -> String {
    let mut text = String::new();
    let JobResult {
        changed,
        generation,
        differences,
        packages,
        unfinished,
        reboot_needed,
        rebooted,
        collected,
    } = result;
    let truths = [
        ("changed", changed),
        ("an earlier installation is not complete", unfinished),
        ("restart needed", reboot_needed),
        ("restarted", rebooted),
    ];
    for (name, value) in truths {
        if let Some(value) = value {
            _ = writeln!(text, "{name}: {}", yes(*value));
        }
    }
    if let Some(generation) = generation {
        _ = writeln!(text, "generation: {generation}");
    }
    if !differences.is_empty() {
        _ = writeln!(text, "differences from the spec:");
        text += &items(differences);
    }
    if !packages.is_empty() {
        let verb = match changed {
            Some(false) => "would update",
            Some(true) | None => "updated",
        };
        _ = writeln!(text, "{verb} {}:", count(packages.len(), "package"));
        text += &package_lines(packages);
    }
    if let Some(collected) = collected {
        text += &collected_text(collected);
    }
    text
}

/// Renders packages, one in a line.
pub(crate) fn package_lines(packages: &[PackageUpdate]) -> String {
    let one = |package: &PackageUpdate| {
        let security = if package.security { " (security)" } else { "" };
        let (name, from, to) = (line(&package.name), line(&package.from), line(&package.to));
        format!("  {name} {from} -> {to}{security}\n")
    };
    packages.iter().map(one).collect()
}

fn collected_text(collected: &Collected) -> String {
    let Collected {
        status,
        agent,
        facts,
        drift,
        journal,
        truncated,
    } = collected;
    let mut text = format!("status: {}\nagent: {}\n", line(status), line(agent));
    for (name, value) in facts {
        _ = writeln!(text, "{}: {}", line(name), line(value));
    }
    if !drift.is_empty() {
        _ = writeln!(text, "differences from the spec, as of the last check:");
        text += &items(drift);
    }
    if !journal.is_empty() {
        _ = writeln!(text, "journal:");
        text += &items(journal);
    }
    if *truncated {
        _ = writeln!(text, "Some of it was left out because of its size.");
    }
    text
}

fn items(lines: &[String]) -> String {
    lines
        .iter()
        .map(|one| format!("  {}\n", line(one)))
        .collect()
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Escapes text of a node or a server, as one line.
pub(crate) fn line(text: &str) -> String {
    ForeignText::line(text).into()
}

/// Joins pieces of output into whole lines.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer(String);

/// The longest line that is held back, in bytes: a node need not end its lines.
const MAX_LINE: usize = 16 << 10;

impl LineBuffer {
    /// Adds a piece, and returns the lines that are complete.
    pub(crate) fn add(&mut self, text: &str) -> Vec<String> {
        self.0.push_str(text);
        let mut lines = Vec::new();
        while let Some(end) = self.0.find('\n') {
            let rest = self.0.split_off(end + 1);
            let mut whole = std::mem::replace(&mut self.0, rest);
            whole.truncate(end);
            lines.push(whole);
        }
        if self.0.len() > MAX_LINE {
            lines.push(std::mem::take(&mut self.0));
        }
        lines
    }

    /// Returns what is left, when nothing follows.
    pub(crate) fn rest(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.0)).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_output_become_lines() {
        let mut buffer = LineBuffer::default();
        assert_eq!(buffer.add("one\ntw"), ["one"]);
        assert_eq!(buffer.add("o\n\nthree"), ["two", ""]);
        assert_eq!(buffer.rest().as_deref(), Some("three"));
        assert_eq!(buffer.rest(), None);
        assert_eq!(buffer.add(&"x".repeat(MAX_LINE + 1)).len(), 1);
    }

    #[test]
    fn text_of_a_node_cannot_forge_lines_or_colours() {
        let outcome = JobOutcome {
            state: JobState::Failed,
            message: Some("no\x1b[31mred".to_owned()),
            result: JobResult {
                differences: vec!["a\nJob x: succeeded.".to_owned()],
                ..JobResult::default()
            },
        };
        let text = outcome_text(JobKind::Check, &outcome);
        assert!(!text.contains('\x1b'), "{text}");
        assert!(text.contains("\\x1b[31mred"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("Job")), "{text}");
    }

    #[test]
    fn a_check_without_differences_shows_that_the_node_matches_its_spec() {
        let mut outcome = JobOutcome {
            state: JobState::Succeeded,
            message: None,
            result: JobResult::default(),
        };
        let matches = "matches its spec";
        assert!(outcome_text(JobKind::Check, &outcome).contains(matches));
        assert!(!outcome_text(JobKind::Collect, &outcome).contains(matches));
        outcome.result.differences = vec!["timezone".to_owned()];
        assert!(!outcome_text(JobKind::Check, &outcome).contains(matches));
    }
}
