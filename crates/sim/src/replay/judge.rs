//! Judges the answers of a replay.
//!
//! In: rows, and what the World answered. Out: verdicts, and outcomes of groups as sets.
//! Never: sending anything.

use std::collections::BTreeSet;

use super::compare::{differences, exit_class, normal};
use super::report::{Report, Verdict};
use super::runner::Runner;
use super::transcript::Row;
use crate::calls::Answer;

impl Runner {
    pub(crate) fn judge(&self, file: &str, report: &mut Report) {
        for members in &self.groups {
            self.judge_group(members, report);
        }
        for (index, row) in self.rows.iter().enumerate() {
            if row.is_command() {
                continue;
            }
            if row.is_artifact() {
                report.artifacts += 1;
                continue;
            }
            let differences = match self.answer(index) {
                None => vec!["no answer".to_owned()],
                Some(answer) => self.judge_row(index, row, &answer),
            };
            report.verdicts.push(Verdict {
                file: file.to_owned(),
                line: row.line,
                flow: row.flow().to_owned(),
                what: format!("{} {} ({})", row.method, row.path, row.note()),
                differences,
            });
        }
    }

    fn judge_row(&self, index: usize, row: &Row, answer: &Answer) -> Vec<String> {
        if let Some(group) = self.group_of.get(&index) {
            // Who wins is open: an outcome agrees when it is one of those recorded.
            let found = self.groups[*group]
                .iter()
                .map(|member| differences(&self.rows[*member], answer))
                .min_by_key(Vec::len);
            return found.unwrap_or_default();
        }
        let mut found = differences(row, answer);
        let exit = |value: &serde_json::Value| {
            value
                .get("exitstatus")
                .and_then(|e| e.as_str())
                .map(exit_class)
        };
        let (old, new) = (exit(row.data()), exit(answer.data()));
        if found.is_empty() && old != new && row.upid().is_some() {
            found.push(format!(
                "task ended `{}` instead of `{}`",
                new.unwrap_or_default(),
                old.unwrap_or_default()
            ));
        }
        found
    }

    fn judge_group(&self, members: &[usize], report: &mut Report) {
        let mut old = BTreeSet::new();
        let mut new = BTreeSet::new();
        for member in members {
            let row = &self.rows[*member];
            let exit = row
                .started()
                .and_then(|upid| self.exits.get(upid))
                .map(|exit| exit_class(exit));
            old.insert(outcome(row.status, &row.reason, exit));
            if let Some(answer) = self.answer(*member) {
                let exit = answer.data().as_str().and_then(|upid| self.exit_here(upid));
                new.insert(outcome(
                    answer.status,
                    &answer.reason,
                    exit.map(|exit| exit_class(&exit)),
                ));
            }
        }
        let row = &self.rows[members[0]];
        let what = format!(
            "{} x {} {} ({})",
            members.len(),
            row.method,
            row.path,
            row.note()
        );
        let details = format!("{new:?} instead of {old:?}");
        report
            .groups
            .push((row.flow().to_owned(), what, old == new, details));
    }
}

fn outcome(status: u16, reason: &str, exit: Option<String>) -> String {
    match exit {
        Some(exit) => format!("{status}, task {exit}"),
        None => format!("{status} {}", normal(reason)),
    }
}
