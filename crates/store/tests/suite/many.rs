//! Many concurrent readers and writers.

use std::sync::Arc;

use homestak_core::plan::{NodeStatus, StepId};
use homestak_engine::journal::{Journal, RunId, RunOutcome, StepEvent};

use super::sample::{at, done, entry, entry_with_record, plan, record, step};
use super::{JournalFixture, run};

/// Waits for all futures, polled concurrently, so that their writes are batched.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, slot) in waiting.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *slot = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

async fn steps(journal: &dyn Journal, id: RunId) -> Vec<Option<StepId>> {
    let run = journal.run(id).await.unwrap().unwrap();
    run.entries.into_iter().map(|entry| entry.step).collect()
}

pub(crate) fn entries_of_many_tasks_are_complete_and_in_order(fixture: &impl JournalFixture) {
    const TASKS: usize = 64;
    const EACH: usize = 25;
    run(async {
        let journals = [fixture.open(), fixture.open()];
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let journal = Arc::clone(&journals[task % 2]);
            tasks.spawn(async move {
                let id = journal
                    .begin("apply", &plan("m", 1), "run", at(0))
                    .await
                    .unwrap();
                for step in 0..EACH {
                    journal.append(id, &entry(step, done())).await.unwrap();
                }
                journal.end(id, RunOutcome::Done, at(1)).await.unwrap();
                id
            });
        }
        let mut ids = tasks.join_all().await;
        for id in &ids {
            let expected: Vec<_> = (0..EACH).map(step).collect();
            assert_eq!(steps(&*journals[0], *id).await, expected);
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), TASKS);
    });
}

pub(crate) fn a_reader_sees_a_prefix_of_the_written_entries(fixture: &impl JournalFixture) {
    run(async {
        let (writer, reader) = (fixture.open(), fixture.open());
        let id = writer
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let writing = tokio::spawn(async move {
            for step in 0..200 {
                writer.append(id, &entry(step, done())).await.unwrap();
            }
        });
        let mut seen = 0;
        while seen < 200 {
            let over = writing.is_finished();
            let found = steps(&*reader, id).await;
            assert!(found.len() >= seen, "what was seen is gone");
            assert_eq!(found, (0..found.len()).map(step).collect::<Vec<_>>());
            seen = found.len();
            assert!(!over || seen == 200, "{seen} of 200 after all was written");
        }
        writing.await.unwrap();
    });
}

pub(crate) fn a_refused_request_does_not_affect_the_others(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let nobody = RunId(id.0 + 1);
        let web =
            |step| entry_with_record(step, StepEvent::Intent, record("web", NodeStatus::Created));
        let entries: Vec<_> = (0..40).map(web).collect();
        let orders = entries.iter().enumerate().map(|(at, entry)| {
            let run = if at % 10 == 7 { nobody } else { id };
            journal.append(run, entry)
        });
        let results = all(orders).await;
        let refused: Vec<usize> = (0..40).filter(|at| results[*at].is_err()).collect();
        assert_eq!(refused, [7, 17, 27, 37]);
        let expected = (0..40).filter(|at| at % 10 != 7).map(step);
        let expected: Vec<_> = expected.collect();
        assert_eq!(steps(&*journal, id).await, expected);
    });
}
