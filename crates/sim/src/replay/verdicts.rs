//! Compares all answers of a replay with the recorded ones.

use std::collections::BTreeSet;

use super::compare::{differences, exit_class, normalize};
use super::report::{Report, Verdict};
use super::runner::Runner;
use super::transcript::Row;
use crate::calls::Answer;

impl Runner {
    pub(crate) fn compare_all(&self, file: &str, report: &mut Report) {
        for members in &self.groups {
            self.compare_group(members, report);
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
                Some(answer) => self.compare_row(index, row, &answer),
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

    fn compare_row(&self, index: usize, row: &Row, answer: &Answer) -> Vec<String> {
        if let Some(group) = self.group_of.get(&index) {
            // Any call may win the race: the answer must match one of those recorded for the group.
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

    fn compare_group(&self, members: &[usize], report: &mut Report) {
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
                let exit = answer.data().as_str().and_then(|upid| self.task_exit(upid));
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
        None => format!("{status} {}", normalize(reason)),
    }
}
