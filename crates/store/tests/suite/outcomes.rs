//! Outcomes of runs.

use homestak_engine::journal::{Journal, RunId, RunOutcome, StepEvent};
use jiff::Timestamp;

use super::sample::{at, entry, plan};
use super::{JournalFixture, run};

async fn ended(journal: &dyn Journal, id: RunId) -> Option<(Timestamp, RunOutcome)> {
    let listed = journal.runs(None).await.unwrap();
    let head = listed.into_iter().find(|head| head.id == id).unwrap();
    assert_eq!(journal.run(id).await.unwrap().unwrap().head, head);
    head.ended
}

pub(crate) fn a_run_that_did_not_end_has_no_outcome(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let intent = entry(0, StepEvent::Intent);
        journal.append(id, &intent).await.unwrap();
        drop(journal);
        assert_eq!(ended(&*fixture.open(), id).await, None);
    });
}

pub(crate) fn every_outcome_is_read_back_and_the_last_counts(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let other = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        for (second, ending) in [
            (1, RunOutcome::Done),
            (2, RunOutcome::Failed),
            (3, RunOutcome::Stopped),
            (4, RunOutcome::RolledBack),
            (5, RunOutcome::Stuck),
            (6, RunOutcome::Superseded),
        ] {
            journal.end(id, ending, at(second)).await.unwrap();
            let found = ended(&*fixture.open(), id).await;
            assert_eq!(found, Some((at(second), ending)));
        }
        assert_eq!(ended(&*journal, other).await, None);
    });
}

pub(crate) fn an_entry_after_the_end_reopens_the_run(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let intent = entry(0, StepEvent::Intent);
        journal.append(id, &intent).await.unwrap();
        journal.end(id, RunOutcome::Failed, at(1)).await.unwrap();
        let resumed = fixture.open();
        resumed.append(id, &intent).await.unwrap();
        assert_eq!(ended(&*journal, id).await, None);
        resumed.end(id, RunOutcome::Done, at(2)).await.unwrap();
        assert_eq!(ended(&*journal, id).await, Some((at(2), RunOutcome::Done)));
        assert_eq!(journal.run(id).await.unwrap().unwrap().entries.len(), 2);
    });
}
