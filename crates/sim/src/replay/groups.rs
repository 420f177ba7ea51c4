//! Groups concurrent calls of the same kind. Their outcomes are compared as sets, because a
//! recording does not determine who wins a race.

use std::collections::BTreeMap;

use super::transcript::Row;

/// Returns the indices of the rows in each group.
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

/// Returns the note without its trailing number.
fn stem(note: &str) -> String {
    note.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ')
        .to_owned()
}

/// Returns the path with numbers replaced by `*`.
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
    fn only_overlapping_calls_are_grouped() {
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
