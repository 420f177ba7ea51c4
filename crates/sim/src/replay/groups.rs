//! Calls of one kind that were on their way at the same time.
//!
//! In: rows. Out: groups, whose outcomes are compared as sets: who wins a race is not told.
//! Never: calls of different kinds in one group.

use std::collections::BTreeMap;

use super::transcript::Row;

/// Rows that belong together, by index.
pub(crate) fn find(rows: &[Row]) -> Vec<Vec<usize>> {
    let mut kinds: BTreeMap<(String, String, String, String), Vec<usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if row.method == "GET" || row.is_command() || row.is_artifact() {
            continue;
        }
        let key = (
            row.flow().to_owned(),
            row.method.clone(),
            template(row.api_path()),
            stem(row.note()),
        );
        kinds.entry(key).or_default().push(at);
    }
    let mut groups = Vec::new();
    for mut members in kinds.into_values() {
        let start = |at: &usize| rows[*at].t0.unwrap_or(0.0);
        members.sort_by(|a, b| start(a).total_cmp(&start(b)));
        let mut current: Vec<usize> = Vec::new();
        let mut until = f64::MIN;
        for at in members {
            if start(&at) >= until && !current.is_empty() {
                groups.push(std::mem::take(&mut current));
            }
            until = until.max(start(&at) + rows[at].seconds);
            current.push(at);
        }
        groups.push(current);
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Returns the note without the number at its end.
fn stem(note: &str) -> String {
    note.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ')
        .to_owned()
}

/// Returns the path with numbers taken out.
fn template(path: &str) -> String {
    path.split('/')
        .map(|part| {
            if part.parse::<u64>().is_ok() {
                "*"
            } else {
                part
            }
        })
        .collect::<Vec<_>>()
        .join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_overlap_are_one_group_and_later_ones_are_not() {
        let row = |t0: f64, note: &str| -> Row {
            serde_json::from_value(serde_json::json!({
                "method": "POST", "path": "/api2/json/nodes/a/qemu", "status": 200,
                "t0": t0, "seconds": 0.5, "note": note,
            }))
            .unwrap()
        };
        let rows = [
            row(1.0, "create 0"),
            row(1.2, "create 1"),
            row(9.0, "create 2"),
            row(1.1, "else"),
        ];
        assert_eq!(find(&rows), vec![vec![0, 1]]);
    }
}
