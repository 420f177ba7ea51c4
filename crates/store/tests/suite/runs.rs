//! Runs: start, append, read back.

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::NodeStatus;
use homestak_engine::journal::{Entry, JournalError, RunFilter, RunId, RunOutcome, StepEvent};

use super::sample::{at, done, entry, entry_with_record, plan, record, site, step_error};
use super::{JournalFixture, run};

pub(crate) fn a_run_is_read_back_as_it_was_written(fixture: &impl JournalFixture) {
    run(async {
        let plan = plan("edge", 3);
        let entries = [
            entry_with_record(0, StepEvent::Intent, record("node-0", NodeStatus::Creating)),
            entry_with_record(0, done(), record("node-0", NodeStatus::Created)),
            entry(1, StepEvent::Intent),
            entry_with_record(1, done(), record("node-0", NodeStatus::Created)),
            entry(1, StepEvent::Settled),
        ];
        let journal = fixture.open();
        let id = journal.begin("apply", &plan, "run", at(0)).await.unwrap();
        for entry in &entries {
            journal.append(id, entry).await.unwrap();
        }
        for journal in [journal, fixture.open()] {
            let run = journal.run(id).await.unwrap().unwrap();
            assert_eq!(run.plan, plan);
            assert_eq!(run.entries, entries);
            assert_eq!(run.head.id, id);
            assert_eq!(run.head.manifest, "edge");
            assert_eq!(run.head.hosts, ["father"]);
            assert_eq!(run.head.verb, "apply");
            assert_eq!(run.head.started, at(0));
            assert_eq!(run.head.ended, None);
        }
    });
}

pub(crate) fn a_run_of_ten_thousand_nodes_is_read_back(fixture: &impl JournalFixture) {
    run(async {
        let plan = plan("large", 10_000);
        let journal = fixture.open();
        let id = journal.begin("apply", &plan, "run", at(0)).await.unwrap();
        journal
            .append(id, &entry(39_999, StepEvent::Intent))
            .await
            .unwrap();
        let run = fixture.open().run(id).await.unwrap().unwrap();
        assert!(run.plan == plan);
        assert_eq!(run.entries.len(), 1);
    });
}

pub(crate) fn runs_are_listed_newest_first(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let mut ids = Vec::new();
        for (journal, manifest, verb) in [
            (&one, "a", "apply"),
            (&other, "b", "apply"),
            (&one, "a", "destroy"),
        ] {
            // The same time for all: they are ordered by insertion.
            let id = journal.begin(verb, &plan(manifest, 1), "run", at(0)).await;
            ids.push(id.unwrap());
        }
        assert!(ids.is_sorted() && ids[0] < ids[1] && ids[1] < ids[2]);
        let listed = |heads: Vec<homestak_engine::journal::RunSummary>| {
            heads.into_iter().map(|head| head.id).collect::<Vec<_>>()
        };
        let all = listed(one.runs(None).await.unwrap());
        assert_eq!(all, [ids[2], ids[1], ids[0]]);
        let of_a = listed(other.runs(Some("a")).await.unwrap());
        assert_eq!(of_a, [ids[2], ids[0]]);
        assert_eq!(listed(one.runs(Some("c")).await.unwrap()), []);
    });
}

pub(crate) fn an_unknown_run_cannot_be_read_or_appended_to(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let nobody = RunId(4711);
        assert!(journal.run(nobody).await.unwrap().is_none());
        let appended = journal.append(nobody, &entry(0, StepEvent::Intent)).await;
        let ended = journal.end(nobody, RunOutcome::Done, at(0)).await;
        for result in [appended, ended] {
            let Err(JournalError::Broken { detail, .. }) = result else {
                panic!("it was taken");
            };
            assert_eq!(detail, "there is no run 4711");
        }
        assert_eq!(journal.runs(None).await.unwrap(), []);
    });
}

pub(crate) fn every_step_event_is_read_back(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        let all = [
            StepEvent::Intent,
            StepEvent::Done { changed: false },
            StepEvent::Done { changed: true },
            StepEvent::Failed(step_error()),
            StepEvent::UndoIntent,
            StepEvent::Undone { changed: false },
            StepEvent::Undone { changed: true },
            StepEvent::UndoFailed(step_error()),
            StepEvent::Settled,
        ];
        let entries: Vec<Entry> = all.into_iter().map(|one| entry(3, one)).collect();
        for entry in &entries {
            journal.append(id, entry).await.unwrap();
        }
        assert_eq!(journal.run(id).await.unwrap().unwrap().entries, entries);
    });
}

pub(crate) fn runs_are_listed_in_pages(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let mut ids = Vec::new();
        for number in 0..7 {
            let mut plan = plan(["a", "b"][number % 2], 1);
            plan.hosts = vec!["father".into(), format!("host-{}", number % 3)];
            // Of another site, and of none.
            plan.site = [Some(site()), None, SiteId::new("aaaaaaaaaaaaaaaa")][number / 3].clone();
            ids.push(journal.begin("apply", &plan, "run", at(0)).await.unwrap());
        }
        let page = async |filter: RunFilter| {
            let runs = journal.list_runs(&filter).await.unwrap();
            let number = |id: RunId| ids.iter().position(|known| *known == id).unwrap();
            runs.iter().map(|run| number(run.id)).collect::<Vec<_>>()
        };
        let all = RunFilter::default();
        assert_eq!(page(all.clone()).await, [6, 5, 4, 3, 2, 1, 0]);
        let two = |before: Option<usize>| RunFilter {
            before: before.map(|at| ids[at]),
            limit: Some(2),
            ..RunFilter::default()
        };
        assert_eq!(page(two(None)).await, [6, 5]);
        assert_eq!(page(two(Some(5))).await, [4, 3]);
        assert_eq!(page(two(Some(1))).await, [0]);
        assert_eq!(page(two(Some(0))).await, [0; 0]);
        let of_b = RunFilter {
            manifest: Some("b".into()),
            ..two(Some(5))
        };
        assert_eq!(page(of_b).await, [3, 1]);
        let host = RunFilter {
            host: Some("host-0".into()),
            ..all.clone()
        };
        assert_eq!(page(host).await, [6, 3, 0]);
        // Runs without a site match every site.
        let of_site = RunFilter {
            site: Some(site()),
            ..all
        };
        assert_eq!(page(of_site).await, [5, 4, 3, 2, 1, 0]);
    });
}

pub(crate) fn a_run_is_followed_from_a_position(fixture: &impl JournalFixture) {
    run(async {
        let (driver, follower) = (fixture.open(), fixture.open());
        let plan = plan("m", 2);
        let id = driver.begin("apply", &plan, "run", at(0)).await.unwrap();
        let other = driver.begin("apply", &plan, "run", at(0)).await.unwrap();
        assert_eq!(follower.entries_after(id, 0).await.unwrap(), []);
        let statuses = [NodeStatus::Creating, NodeStatus::Created, NodeStatus::Ready];
        let (mut position, mut seen, mut written) = (0, Vec::new(), Vec::new());
        for step in 0..6 {
            for name in ["web", "mail"] {
                // Each record is written as what differs from one that was read earlier.
                let entry = entry_with_record(step, done(), record(name, statuses[step % 3]));
                driver.append(id, &entry).await.unwrap();
                driver.append(other, &entry).await.unwrap();
                written.push(entry);
            }
            let new = follower.entries_after(id, position).await.unwrap();
            assert_eq!(new.len(), 2);
            for (at, entry) in new {
                assert!(at > position);
                position = at;
                seen.push(entry);
            }
        }
        assert_eq!(seen, written);
        assert_eq!(follower.entries_after(id, position).await.unwrap(), []);
        let nobody = follower.entries_after(RunId(77), 0).await.unwrap();
        assert_eq!(nobody, []);
    });
}
