//! Measures how fast steps are recorded, and how large they are.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_core::plan::NodeStatus;
use homestak_engine::journal::{Entry, Journal, RunId, StepEvent};
use homestak_store::Sqlite;
use homestak_test_support::sample;
use rusqlite::Connection;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: appends DIRECTORY [NODES]")?;
    let nodes: usize = arguments.next().map_or(Ok(2000), |text| text.parse())?;
    let dir = Path::new(&dir);
    if dir.join("journal.db").exists() {
        return Err("there is a journal already".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    for writers in [1, 64] {
        runtime.block_on(measure(dir, writers, nodes))?;
    }
    sizes(&Connection::open(dir.join("journal.db"))?)?;
    Ok(())
}

/// The entries of a node that is created: before and after, each with its record.
fn create(node: usize) -> [Entry; 2] {
    let name = format!("node-{node}");
    [
        sample::entry_with_record(
            node * 4,
            StepEvent::Intent,
            sample::record(&name, NodeStatus::Creating),
        ),
        sample::entry_with_record(
            node * 4,
            sample::done(),
            sample::record(&name, NodeStatus::Created),
        ),
    ]
}

async fn measure(dir: &Path, writers: usize, nodes: usize) -> Result<(), Box<dyn Error>> {
    let journal: Arc<dyn Journal> = Arc::new(Sqlite::open(dir)?);
    let begun = WallClock.now();
    let plan = sample::plan("n1-basic", nodes);
    let run: RunId = journal.begin("apply", &plan, "run", sample::at(0)).await?;
    let planned = WallClock.now().duration_since(begun);
    let before = WallClock.now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let journal = Arc::clone(&journal);
        tasks.spawn(async move {
            for node in (writer..nodes).step_by(writers) {
                for entry in create(node) {
                    journal.append(run, &entry).await?;
                }
            }
            Ok::<(), homestak_engine::journal::JournalError>(())
        });
    }
    for result in tasks.join_all().await {
        result?;
    }
    let seconds = WallClock.now().duration_since(before).as_secs_f64();
    let begun = WallClock.now();
    let read = journal.run(run).await?.map_or(0, |run| run.entries.len());
    let reading = WallClock.now().duration_since(begun);
    print(&format!(
        "{writers} writers: {} entries in {seconds:.2} s, {:.0} a second; the plan of {nodes} nodes \
         written in {:.3} s, {read} entries read in {:.3} s",
        nodes * 2,
        (nodes * 2) as f64 / seconds,
        planned.as_secs_f64(),
        reading.as_secs_f64(),
    ));
    Ok(())
}

fn sizes(connection: &Connection) -> Result<(), Box<dyn Error>> {
    let entries: i64 =
        connection.query_row("SELECT count(*) FROM entries", (), |row| row.get(0))?;
    let mut tables = connection.prepare(
        "SELECT name, sum(pgsize), sum(payload) FROM dbstat GROUP BY name ORDER BY 2 DESC",
    )?;
    let mut rows = tables.query(())?;
    while let Some(row) = rows.next()? {
        let (name, disk, payload): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        print(&format!(
            "{name}: {disk} bytes, {:.1} an entry, {:.1} of them content",
            disk as f64 / entries as f64,
            payload as f64 / entries as f64,
        ));
    }
    let mut kinds = connection.prepare(
        "SELECT what, count(*), avg(length(record)) FROM entries GROUP BY what ORDER BY what",
    )?;
    let mut rows = kinds.query(())?;
    while let Some(row) = rows.next()? {
        let (what, count, length): (i64, i64, f64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        print(&format!(
            "what = {what}: {count} entries, {length:.1} bytes of record"
        ));
    }
    Ok(())
}

fn print(line: &str) {
    // Standard output may be closed; that is no error.
    drop(writeln!(std::io::stdout(), "{line}"));
}
