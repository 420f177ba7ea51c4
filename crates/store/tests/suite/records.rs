//! What is known of nodes.
//!
//! In: a ground. Out: nothing.
//! Never: whether it is true; the engine looks.

use homestak_core::plan::{NodeRecord, NodeStatus};
use homestak_engine::journal::{Happened, Journal, RunId};

use super::sample::{at, known, plan, record, scope};
use super::{Ground, run};

async fn tell(journal: &dyn Journal, id: RunId, record: &NodeRecord) {
    let entry = known(0, Happened::Intent, record.clone());
    journal.append(id, &entry).await.unwrap();
}

pub(crate) fn the_newest_record_of_each_node_counts(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
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
            tell(&*journal, id, &record(name, status)).await;
        }
        // Another run, and one that goes back: the last word counts, not the highest.
        let later = journal
            .begin("apply", &plan("m", 2), "run", at(9))
            .await
            .unwrap();
        tell(&*journal, later, &record("web", NodeStatus::Destroying)).await;
        tell(&*journal, id, &record("web", NodeStatus::Created)).await;
        let expected = [
            record("db", NodeStatus::Creating),
            record("web", NodeStatus::Created),
        ];
        for journal in [journal, ground.open()] {
            let found = journal.records(&scope("m", "father")).await.unwrap();
            assert_eq!(found, expected);
        }
    });
}

pub(crate) fn a_node_that_is_destroyed_is_not_listed(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let father = scope("m", "father");
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        tell(&*journal, id, &record("web", NodeStatus::Destroying)).await;
        tell(&*journal, id, &record("web", NodeStatus::Destroyed)).await;
        assert_eq!(journal.records(&father).await.unwrap(), []);
        assert!(!journal.forget(&father, "web").await.unwrap());
        tell(&*journal, id, &record("web", NodeStatus::Creating)).await;
        assert_eq!(journal.records(&father).await.unwrap().len(), 1);
    });
}

pub(crate) fn manifests_and_hosts_are_apart(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
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
        tell(&*journal, one, &web).await;
        tell(&*journal, one, &moved).await;
        tell(&*journal, two, &web).await;
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

pub(crate) fn a_forgotten_node_is_gone_until_it_is_seen_again(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let father = scope("m", "father");
        let id = journal
            .begin("apply", &plan("m", 1), "run", at(0))
            .await
            .unwrap();
        tell(&*journal, id, &record("web", NodeStatus::Ready)).await;
        assert!(journal.forget(&father, "web").await.unwrap());
        assert!(!journal.forget(&father, "web").await.unwrap());
        assert!(!journal.forget(&father, "nobody").await.unwrap());
        assert_eq!(ground.open().records(&father).await.unwrap(), []);
        // What was written down stays.
        assert_eq!(journal.run(id).await.unwrap().unwrap().entries.len(), 1);
        tell(&*journal, id, &record("web", NodeStatus::Created)).await;
        let found = ground.open().records(&father).await.unwrap();
        assert_eq!(found, [record("web", NodeStatus::Created)]);
    });
}
