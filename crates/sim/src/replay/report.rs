//! The report of a replay: counts per flow, and the differences.

use std::collections::BTreeMap;
use std::fmt;

/// The verdict on one exchange.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The file.
    pub file: String,
    /// The line in the file, from 1.
    pub line: usize,
    /// The flow it belongs to.
    pub flow: String,
    /// Method, path and note.
    pub what: String,
    /// The differences; empty if it agrees.
    pub differences: Vec<String>,
}

/// A command that was run on the recorded host as root.
#[derive(Clone, Debug)]
pub struct Command {
    /// The line in the file, from 1.
    pub line: usize,
    /// The flow it belongs to.
    pub flow: String,
    /// The command.
    pub what: String,
    /// Why its effect could not be applied; `None` if it was, or if it has none.
    pub missing: Option<String>,
}

/// The counts of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Exchanges that were compared.
    pub compared: usize,
    /// Exchanges that agree.
    pub agreed: usize,
    /// Groups of concurrent calls.
    pub groups: usize,
    /// Groups with the same set of outcomes.
    pub same_outcomes: usize,
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One verdict per compared exchange, in the order of the files.
    pub verdicts: Vec<Verdict>,
    /// Groups of concurrent calls: flow, description, whether the outcomes agree, details.
    pub groups: Vec<(String, String, bool, String)>,
    /// Exchanges that were not compared, because they are marked as artifacts of the test setup.
    pub artifacts: usize,
    /// Commands run on the recorded host.
    pub commands: Vec<Command>,
}

impl Report {
    /// Returns the counts per flow.
    pub fn counts(&self) -> BTreeMap<String, FlowCounts> {
        let mut counts: BTreeMap<String, FlowCounts> = BTreeMap::new();
        for verdict in &self.verdicts {
            let count = counts.entry(verdict.flow.clone()).or_default();
            count.compared += 1;
            count.agreed += usize::from(verdict.differences.is_empty());
        }
        for (flow, _, same, _) in &self.groups {
            let count = counts.entry(flow.clone()).or_default();
            count.groups += 1;
            count.same_outcomes += usize::from(*same);
        }
        counts
    }

    /// Returns the number of exchanges that agree and the number that were compared.
    pub fn agreement(&self) -> (usize, usize) {
        let agreed = self
            .verdicts
            .iter()
            .filter(|v| v.differences.is_empty())
            .count();
        (agreed, self.verdicts.len())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for verdict in self.verdicts.iter().filter(|v| !v.differences.is_empty()) {
            writeln!(
                f,
                "{}:{} [{}] {}",
                verdict.file, verdict.line, verdict.flow, verdict.what
            )?;
            for difference in &verdict.differences {
                writeln!(f, "    {difference}")?;
            }
        }
        for (flow, what, same, details) in &self.groups {
            if !same {
                writeln!(f, "[{flow}] concurrent: {what}\n    {details}")?;
            }
        }
        writeln!(
            f,
            "{:<14} {:>8} {:>8} {:>8} {:>14}",
            "flow", "compared", "agree", "percent", "same outcomes"
        )?;
        for (flow, count) in self.counts() {
            let percent = count.agreed as f64 * 100.0 / count.compared.max(1) as f64;
            let outcomes = format!("{}/{}", count.same_outcomes, count.groups);
            writeln!(
                f,
                "{flow:<14} {:>8} {:>8} {percent:>7.1}% {outcomes:>14}",
                count.compared, count.agreed
            )?;
        }
        let (agreed, compared) = self.agreement();
        let percent = agreed as f64 * 100.0 / compared.max(1) as f64;
        writeln!(f, "{:<14} {compared:>8} {agreed:>8} {percent:>7.1}%", "all")?;
        let missing = |command: &&Command| command.missing.is_some();
        for command in self.commands.iter().filter(missing) {
            let why = command.missing.as_deref().unwrap_or("");
            let (flow, line, what) = (&command.flow, command.line, &command.what);
            writeln!(f, "line {line} [{flow}] `{what}` not applied: {why}")?;
        }
        let failed = self.commands.iter().filter(missing).count();
        writeln!(
            f,
            "{} of {} commands on the host applied",
            self.commands.len() - failed,
            self.commands.len()
        )?;
        writeln!(
            f,
            "{} exchanges not compared: artifacts of the recorded test setup",
            self.artifacts
        )
    }
}
