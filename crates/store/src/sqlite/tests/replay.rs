//! What is known of nodes follows from what was written.

use std::collections::BTreeMap;

use homestak_core::plan::NodeRecord;
use homestak_engine::journal::Journal as _;
use rusqlite::Connection;

use super::super::read::walk;
use super::*;

type Nodes = BTreeMap<(String, String, String), NodeRecord>;

/// Goes through everything that was written, in order.
fn rebuilt(connection: &Connection) -> Nodes {
    let mut manifests = connection.prepare("SELECT id, manifest FROM runs").unwrap();
    let manifests: BTreeMap<i64, String> = manifests
        .query_map((), |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut forgotten = connection
        .prepare("SELECT after, manifest, host, node FROM forgotten ORDER BY id")
        .unwrap();
    let mut forgotten = forgotten
        .query_map((), |row| {
            Ok((
                row.get::<_, i64>(0)?,
                (row.get(1)?, row.get(2)?, row.get(3)?),
            ))
        })
        .unwrap()
        .map(Result::unwrap)
        .peekable();
    let mut nodes = Nodes::new();
    walk(connection, None, 0, |id, run, entry| {
        while let Some((_, key)) = forgotten.next_if(|(after, _)| *after < id) {
            nodes.remove(&key);
        }
        if let Some(record) = entry.record {
            let key = (
                manifests[&run.0].clone(),
                record.host.clone(),
                record.name.clone(),
            );
            match record.status == NodeStatus::Destroyed {
                true => nodes.remove(&key),
                false => nodes.insert(key, record),
            };
        }
        Ok(())
    })
    .unwrap();
    for (_, key) in forgotten {
        nodes.remove(&key);
    }
    nodes
}

/// Compares the table of nodes with what follows from the entries.
pub(super) fn compare(connection: &Connection) {
    let mut nodes = connection
        .prepare("SELECT manifest, host, name, record FROM nodes")
        .unwrap();
    let kept: Nodes = nodes
        .query_map((), |row| {
            let record: String = row.get(3)?;
            let record = serde_json::from_str(&record).unwrap();
            Ok(((row.get(0)?, row.get(1)?, row.get(2)?), record))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(kept, rebuilt(connection));
}

#[test]
fn records_follow_from_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    let all = [
        NodeStatus::Creating,
        NodeStatus::Created,
        NodeStatus::Ready,
        NodeStatus::Destroying,
        NodeStatus::Destroyed,
    ];
    // Steps that have no factor in common with the lengths: every mixture comes up.
    let mut number = 1_usize;
    let mut next = |below: usize| {
        number = (number * 48271) % 0x7fff_ffff;
        number % below
    };
    let mut journals = [
        Sqlite::open(dir.path()).unwrap(),
        Sqlite::open(dir.path()).unwrap(),
    ];
    wait(async {
        let runs = [begin(&journals[0]).await, begin(&journals[1]).await];
        for step in 0..400 {
            let journal = &journals[next(2)];
            let name = format!("node-{}", next(6));
            let mut record = sample::record(&name, all[next(5)]);
            record.host = ["father", "mother"][next(2)].into();
            let id = u32::try_from(next(3)).ok().filter(|id| *id != 0);
            record.guest.vmid = id.map(Into::into);
            let entry = sample::entry_with_record(step, StepEvent::Intent, record);
            journal.append(runs[next(2)], &entry).await.unwrap();
            match next(12) {
                0 | 1 => drop(
                    journal
                        .forget(&sample::scope("m", "father"), &name)
                        .await
                        .unwrap(),
                ),
                2 => journals[next(2)] = Sqlite::open(dir.path()).unwrap(),
                _ => {}
            }
            if step % 50 == 49 {
                compare(&open_directly(dir.path()));
            }
        }
    });
    let rows = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        open_directly(dir.path())
            .query_row(&sql, (), |row| row.get(0))
            .unwrap()
    };
    assert!(rows("forgotten") > 3 && rows("nodes") > 3);
}

#[test]
fn entries_cannot_be_changed_or_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, id) = filled(dir.path(), 3);
    let connection = open_directly(dir.path());
    for sql in [
        "UPDATE entries SET step = 9",
        "DELETE FROM entries WHERE id = 2",
        "UPDATE plans SET plan = ''",
        "DELETE FROM plans",
        "UPDATE runs SET manifest = 'x'",
        "DELETE FROM runs",
    ] {
        let error = connection.execute_batch(sql).unwrap_err().to_string();
        assert!(
            error.contains("never") || error.contains("only ends"),
            "{sql}: {error}"
        );
    }
    assert_eq!(wait(count(&journal, id)), 3);
}
