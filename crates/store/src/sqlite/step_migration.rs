//! Migration from format 2 to 3: plans contain their steps, and entries refer to steps by id.
//!
//! Older programs derived the steps of a plan whenever they read it, and entries referred to steps by
//! position. The migration derives the steps once more, and stores them.

use homestak_core::plan::{Plan, StepId, steps};
use rusqlite::{Connection, params};
use serde_json::{Value, from_str, from_value, json};

use super::error::StoreError;

/// The statements that complete the migration after every plan has its steps.
const FINISH: &str = "
    DROP TABLE entries_by_number;
    DROP TABLE plans_without_steps;
    CREATE INDEX entries_of_run ON entries (run);
    DROP TRIGGER runs_only_end;
    CREATE TRIGGER runs_only_end
    BEFORE UPDATE OF id, site, mark, form, manifest, hosts, verb, started ON runs
    BEGIN
        SELECT RAISE(ABORT, 'a run only ends');
    END;";

/// Adds the steps to every plan, and their ids to every entry.
pub(super) fn name_steps(connection: &Connection) -> Result<(), StoreError> {
    connection.execute_batch(include_str!("../../migrations/0003.sql"))?;
    let mut plans = connection.prepare("SELECT run, plan FROM plans_without_steps")?;
    let mut rows = plans.query(())?;
    while let Some(row) = rows.next()? {
        let (run, text): (i64, String) = (row.get(0)?, row.get(1)?);
        // A plan that cannot be decoded is kept unchanged, so that only its run cannot be shown.
        let (form, text, ids) = with_steps(&text).unwrap_or_else(|| (0, text, Vec::new()));
        connection
            .prepare_cached("INSERT INTO plans (run, plan) VALUES (?1, ?2)")?
            .execute(params![run, text])?;
        connection
            .prepare_cached("UPDATE runs SET form = ?2 WHERE id = ?1")?
            .execute(params![run, form])?;
        let mut entries =
            connection.prepare_cached("SELECT id, step FROM entries_by_number WHERE run = ?1")?;
        let mut rows = entries.query(params![run])?;
        while let Some(row) = rows.next()? {
            let (entry, step): (i64, i64) = (row.get(0)?, row.get(1)?);
            let step_id = usize::try_from(step).ok().and_then(|step| ids.get(step));
            connection
                .prepare_cached(
                    "INSERT INTO entries (id, run, step, what, at, trouble, base, record)
                     SELECT id, run, ?2, what, at, trouble, base, record
                     FROM entries_by_number WHERE id = ?1",
                )?
                .execute(params![entry, step_id.map(StepId::as_str)])?;
        }
    }
    drop(rows);
    drop(plans);
    connection.execute_batch(FINISH)?;
    Ok(())
}

/// Returns the format of a plan, the plan with steps, and the ids of the steps.
fn with_steps(text: &str) -> Option<(u32, String, Vec<StepId>)> {
    let mut json: Value = from_str(text).ok()?;
    let plan: Plan = from_value(json.clone()).ok()?;
    let steps = steps(&plan);
    json["steps"] = json!(steps);
    let ids = steps.iter().map(|step| step.id.clone()).collect();
    Some((plan.format, json.to_string(), ids))
}
