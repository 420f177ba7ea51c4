//! How runs end.
//!
//! In: a ground. Out: nothing.
//! Never: which runs may go on; the engine decides that.

use homestak_engine::journal::{Ending, Happened, Journal, RunId};
use jiff::Timestamp;

use super::sample::{at, entry, plan};
use super::{Ground, run};

async fn ended(journal: &dyn Journal, id: RunId) -> Option<(Timestamp, Ending)> {
    let listed = journal.runs(None).await.unwrap();
    let head = listed.into_iter().find(|head| head.id == id).unwrap();
    assert_eq!(journal.run(id).await.unwrap().unwrap().head, head);
    head.ended
}

pub(crate) fn a_run_without_an_end_has_none(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let intent = entry(0, Happened::Intent);
        journal.append(id, &intent).await.unwrap();
        drop(journal);
        assert_eq!(ended(&*ground.open(), id).await, None);
    });
}

pub(crate) fn every_ending_is_read_back_and_the_last_counts(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let other = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        for (second, ending) in [
            (1, Ending::Done),
            (2, Ending::Failed),
            (3, Ending::Stopped),
            (4, Ending::RolledBack),
            (5, Ending::Stuck),
            (6, Ending::Superseded),
        ] {
            journal.end(id, ending, at(second)).await.unwrap();
            let found = ended(&*ground.open(), id).await;
            assert_eq!(found, Some((at(second), ending)));
        }
        assert_eq!(ended(&*journal, other).await, None);
    });
}

pub(crate) fn an_entry_after_the_end_makes_the_run_go_on(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let intent = entry(0, Happened::Intent);
        journal.append(id, &intent).await.unwrap();
        journal.end(id, Ending::Failed, at(1)).await.unwrap();
        let resumed = ground.open();
        resumed.append(id, &intent).await.unwrap();
        assert_eq!(ended(&*journal, id).await, None);
        resumed.end(id, Ending::Done, at(2)).await.unwrap();
        assert_eq!(ended(&*journal, id).await, Some((at(2), Ending::Done)));
        assert_eq!(journal.run(id).await.unwrap().unwrap().entries.len(), 2);
    });
}
