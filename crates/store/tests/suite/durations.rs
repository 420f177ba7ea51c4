//! Recent durations of steps.

use homestak_core::plan::StepKind;
use homestak_engine::journal::{Entry, Journal, RunId, StepEvent};

use super::sample::{at, done, plan, step, step_error};
use super::{JournalFixture, run};

const CREATE: usize = 0;
const START: usize = 1;

async fn happen(journal: &dyn Journal, id: RunId, number: usize, second: i64, happened: StepEvent) {
    let entry = Entry {
        step: step(number),
        happened,
        at: at(second),
        record: None,
    };
    journal.append(id, &entry).await.unwrap();
}

async fn take(journal: &dyn Journal, id: RunId, step: usize, seconds: i64) {
    happen(journal, id, step, 1000, StepEvent::Intent).await;
    happen(journal, id, step, 1000 + seconds, done()).await;
}

pub(crate) fn the_median_of_each_kind_is_returned(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        assert_eq!(journal.durations().await.unwrap(), []);
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        // Interleaved, like the steps of a run.
        happen(&*journal, id, START, 0, StepEvent::Intent).await;
        for seconds in [40, 10, 20] {
            take(&*journal, id, CREATE, seconds).await;
        }
        happen(&*journal, id, START, 3, done()).await;
        let expected = [(StepKind::Create, 20.0), (StepKind::Start, 3.0)];
        assert_eq!(fixture.open().durations().await.unwrap(), expected);
        take(&*journal, id, CREATE, 30).await;
        let found = journal.durations().await.unwrap();
        assert_eq!(found[0], (StepKind::Create, 25.0));
    });
}

pub(crate) fn only_steps_that_changed_something_count(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        for end in [
            StepEvent::Done { changed: false },
            StepEvent::Failed(step_error()),
            StepEvent::Settled,
        ] {
            happen(&*journal, id, CREATE, 0, StepEvent::Intent).await;
            happen(&*journal, id, CREATE, 9, end).await;
        }
        // An undo does not count, a repetition counts once, and negative durations are ignored.
        happen(&*journal, id, CREATE, 0, StepEvent::UndoIntent).await;
        happen(
            &*journal,
            id,
            CREATE,
            9,
            StepEvent::Undone { changed: true },
        )
        .await;
        happen(&*journal, id, CREATE, 9, done()).await;
        take(&*journal, id, CREATE, -5).await;
        assert_eq!(journal.durations().await.unwrap(), []);
        // After a failure, a retry counts from its own start.
        happen(&*journal, id, CREATE, 0, StepEvent::Intent).await;
        happen(&*journal, id, CREATE, 100, StepEvent::Failed(step_error())).await;
        happen(&*journal, id, CREATE, 200, StepEvent::Intent).await;
        happen(&*journal, id, CREATE, 207, done()).await;
        let found = journal.durations().await.unwrap();
        assert_eq!(found, [(StepKind::Create, 7.0)]);
    });
}

pub(crate) fn old_durations_do_not_count(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let nodes = 700;
        let plan = plan("m", nodes);
        for (count, seconds) in [(nodes, 100), (500, 1)] {
            let id = journal.begin("apply", &plan, "run", at(0)).await.unwrap();
            let creates: Vec<usize> = (0..count).map(|node| node * 4).collect();
            // Concurrently, so that they share commits.
            let intents = creates
                .iter()
                .map(|step| happen(&*journal, id, *step, 0, StepEvent::Intent));
            super::many::all(intents).await;
            let dones = creates
                .iter()
                .map(|step| happen(&*journal, id, *step, seconds, done()));
            super::many::all(dones).await;
        }
        let found = journal.durations().await.unwrap();
        assert_eq!(found, [(StepKind::Create, 1.0)]);
    });
}
