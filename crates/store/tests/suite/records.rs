//! Records of nodes.

use homestak_core::plan::{NodeRecord, NodeStatus};
use homestak_engine::journal::{Journal, RunId, StepEvent};

use super::sample::{at, entry_with_record, plan, record, scope};
use super::{JournalFixture, run};

async fn append_record(journal: &dyn Journal, id: RunId, record: &NodeRecord) {
    let entry = entry_with_record(0, StepEvent::Intent, record.clone());
    journal.append(id, &entry).await.unwrap();
}

pub(crate) fn the_newest_record_of_each_node_counts(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let id = journal
            .begin("apply", &plan("m", 2), "run", at(0))
            .await
            .unwrap();
        for (name, status) in [
            ("web", NodeStatus::Creating),
            ("db", NodeStatus::Creating),
            ("web", NodeStatus::Created),
            ("web", NodeStatus::Ready),
        ] {
            append_record(&*journal, id, &record(name, status)).await;
        }
        // Another run, and a rollback: the last entry counts, not the highest status.
        let later = journal
            .begin("apply", &plan("m", 2), "run", at(9))
            .await
            .unwrap();
        append_record(&*journal, later, &record("web", NodeStatus::Destroying)).await;
        append_record(&*journal, id, &record("web", NodeStatus::Created)).await;
        let expected = [
            record("db", NodeStatus::Creating),
            record("web", NodeStatus::Created),
        ];
        for journal in [journal, fixture.open()] {
            let found = journal.records(&scope("m", "father")).await.unwrap();
            assert_eq!(found, expected);
        }
    });
}

pub(crate) fn a_node_that_is_destroyed_is_not_listed(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let father = scope("m", "father");
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        append_record(&*journal, id, &record("web", NodeStatus::Destroying)).await;
        append_record(&*journal, id, &record("web", NodeStatus::Destroyed)).await;
        assert_eq!(journal.records(&father).await.unwrap(), []);
        assert!(!journal.forget(&father, "web").await.unwrap());
        append_record(&*journal, id, &record("web", NodeStatus::Creating)).await;
        assert_eq!(journal.records(&father).await.unwrap().len(), 1);
    });
}

pub(crate) fn manifests_and_hosts_are_separate(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let web = record("web", NodeStatus::Ready);
        let moved = NodeRecord {
            host: "mother".into(),
            ..web.clone()
        };
        let one = journal
            .begin("apply", &plan("one", 1), "run", at(0))
            .await
            .unwrap();
        let two = journal
            .begin("apply", &plan("two", 1), "run", at(0))
            .await
            .unwrap();
        append_record(&*journal, one, &web).await;
        append_record(&*journal, one, &moved).await;
        append_record(&*journal, two, &web).await;
        assert!(
            journal
                .forget(&scope("two", "father"), "web")
                .await
                .unwrap()
        );
        for (scope, expected) in [
            (scope("one", "father"), vec![web]),
            (scope("one", "mother"), vec![moved]),
            (scope("two", "father"), Vec::new()),
            (scope("two", "mother"), Vec::new()),
        ] {
            assert_eq!(journal.records(&scope).await.unwrap(), expected);
        }
    });
}

pub(crate) fn a_forgotten_node_has_no_record_until_it_is_seen_again(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let father = scope("m", "father");
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        append_record(&*journal, id, &record("web", NodeStatus::Ready)).await;
        assert!(journal.forget(&father, "web").await.unwrap());
        assert!(!journal.forget(&father, "web").await.unwrap());
        assert!(!journal.forget(&father, "nobody").await.unwrap());
        assert_eq!(fixture.open().records(&father).await.unwrap(), []);
        // Earlier records are kept.
        assert_eq!(journal.run(id).await.unwrap().unwrap().entries.len(), 1);
        append_record(&*journal, id, &record("web", NodeStatus::Created)).await;
        let found = fixture.open().records(&father).await.unwrap();
        assert_eq!(found, [record("web", NodeStatus::Created)]);
    });
}
