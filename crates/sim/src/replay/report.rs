//! What a replay found.
//!
//! In: verdicts on rows. Out: numbers per flow and the differences, printed.
//! Never: deciding what counts as a difference.

use std::collections::BTreeMap;
use std::fmt;

/// The verdict on one exchange.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The file.
    pub file: String,
    /// The line in the file, from one.
    pub line: usize,
    /// The flow it belongs to.
    pub flow: String,
    /// Method, path and note.
    pub what: String,
    /// What differs; nothing when it agrees.
    pub differences: Vec<String>,
}

/// A command that was run on the recorded host as root.
#[derive(Clone, Debug)]
pub struct Command {
    /// The line in the file, from one.
    pub line: usize,
    /// The flow it belongs to.
    pub flow: String,
    /// The command.
    pub what: String,
    /// Why its effect could not be carried out; nothing when it was, or when it only reads.
    pub missing: Option<String>,
}

/// The numbers of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Exchanges that were compared.
    pub compared: usize,
    /// Exchanges that agree.
    pub agreed: usize,
    /// Groups of calls that ran at the same time.
    pub groups: usize,
    /// Groups with the same set of outcomes.
    pub same_outcomes: usize,
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One verdict per compared exchange, in the order of the files.
    pub verdicts: Vec<Verdict>,
    /// Groups of calls at the same time: flow, what, whether the outcomes are the same, details.
    pub groups: Vec<(String, String, bool, String)>,
    /// Exchanges that were not compared, because the recording says they show the test set-up.
    pub artifacts: usize,
    /// Commands on the host.
    pub commands: Vec<Command>,
}

impl Report {
    /// Returns the numbers per flow.
    pub fn tallies(&self) -> BTreeMap<String, Tally> {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for verdict in &self.verdicts {
            let tally = tallies.entry(verdict.flow.clone()).or_default();
            tally.compared += 1;
            tally.agreed += usize::from(verdict.differences.is_empty());
        }
        for (flow, _, same, _) in &self.groups {
            let tally = tallies.entry(flow.clone()).or_default();
            tally.groups += 1;
            tally.same_outcomes += usize::from(*same);
        }
        tallies
    }

    /// Returns how many exchanges agree, and how many were compared.
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
                writeln!(f, "[{flow}] at the same time: {what}\n    {details}")?;
            }
        }
        writeln!(
            f,
            "{:<14} {:>8} {:>8} {:>8} {:>14}",
            "flow", "compared", "agree", "percent", "same outcomes"
        )?;
        for (flow, tally) in self.tallies() {
            let percent = tally.agreed as f64 * 100.0 / tally.compared.max(1) as f64;
            let outcomes = format!("{}/{}", tally.same_outcomes, tally.groups);
            writeln!(
                f,
                "{flow:<14} {:>8} {:>8} {percent:>7.1}% {outcomes:>14}",
                tally.compared, tally.agreed
            )?;
        }
        let (agreed, compared) = self.agreement();
        let percent = agreed as f64 * 100.0 / compared.max(1) as f64;
        writeln!(f, "{:<14} {compared:>8} {agreed:>8} {percent:>7.1}%", "all")?;
        let missing = |command: &&Command| command.missing.is_some();
        for command in self.commands.iter().filter(missing) {
            let why = command.missing.as_deref().unwrap_or("");
            let (flow, line, what) = (&command.flow, command.line, &command.what);
            writeln!(f, "line {line} [{flow}] `{what}` not carried out: {why}")?;
        }
        let left = self.commands.iter().filter(missing).count();
        writeln!(
            f,
            "{} of {} commands on the host carried out",
            self.commands.len() - left,
            self.commands.len()
        )?;
        writeln!(
            f,
            "{} more show the test set-up they were recorded on and were not compared",
            self.artifacts
        )
    }
}
