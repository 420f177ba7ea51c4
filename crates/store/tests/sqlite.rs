//! Runs the journal test suite on SQLite.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests start real processes, and a panic is how they fail"
)]

mod suite;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use homestak_engine::journal::{Journal, Scope};
use homestak_store::Sqlite;
use suite::JournalFixture;

/// Passes a started process its role and directory.
const ROLE: &str = "HOMESTAK_TEST_ROLE";
const PLACE: &str = "HOMESTAK_TEST_PLACE";

struct Directory {
    path: PathBuf,
    _own: Option<tempfile::TempDir>,
}

impl JournalFixture for Directory {
    fn open(&self) -> Arc<dyn Journal> {
        Arc::new(Sqlite::open(&self.path).unwrap())
    }

    fn move_away(&self, scope: &Scope) {
        let file = rusqlite::Connection::open(self.path.join("journal.db")).unwrap();
        let changed = file.execute(
            "UPDATE leases SET heartbeat = heartbeat - 3600000000000, holder =
                 json_set(holder, '$.machine', 'another', '$.boot', 'another', '$.name', 'shed')
             WHERE manifest = ?1 AND host = ?2 AND holder IS NOT NULL",
            [&scope.manifest, &scope.host],
        );
        assert_eq!(changed, Ok(1));
    }

    fn start(&self, role: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_started_process_plays_its_role", "--nocapture"])
            .env(ROLE, role)
            .env(PLACE, &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn fixture() -> Directory {
    let own = tempfile::tempdir().unwrap();
    Directory {
        path: own.path().join("state"),
        _own: Some(own),
    }
}

suite::suite!(crate::fixture);

/// The entry point of processes that [`JournalFixture::start`] starts.
#[test]
fn a_started_process_plays_its_role() {
    if let (Ok(role), Some(path)) = (std::env::var(ROLE), std::env::var_os(PLACE)) {
        let fixture = Directory {
            path: path.into(),
            _own: None,
        };
        return suite::processes::run_role(&fixture, &role);
    }
    let fixture = fixture();
    let id = suite::run(async {
        let plan = suite::sample::plan("m", 1);
        let journal = fixture.open();
        journal
            .begin("apply", &plan, "run", suite::sample::at(0))
            .await
    })
    .unwrap();
    let status = fixture.start(&format!("append {id} 3")).wait().unwrap();
    assert!(status.success());
    let run = suite::run(async { fixture.open().run(id).await });
    assert_eq!(run.unwrap().unwrap().entries.len(), 3);
}
