//! Leases of scopes.

use std::time::Duration;

use homestak_engine::journal::{
    HolderState, Journal, JournalError, Lease, RunOutcome, Scope, StepEvent,
};

use super::sample::{at, done, entry, plan, scope};
use super::{JournalFixture, run};

/// Returns the lease, or its current holder.
pub(crate) async fn hold(journal: &dyn Journal, scopes: &[Scope]) -> Result<Box<dyn Lease>, Scope> {
    match journal.lock(scopes).await {
        Ok(lease) => Ok(lease),
        Err(JournalError::Held { scope, holder, .. }) => {
            assert!(holder.starts_with("process "), "{holder}");
            Err(scope)
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn a_scope_is_locked_until_its_lease_is_dropped(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let web = [scope("web", "father")];
        let lease = hold(&*one, &web).await.unwrap();
        for journal in [&one, &other] {
            assert_eq!(hold(&**journal, &web).await.err(), Some(web[0].clone()));
        }
        drop(lease);
        let lease = hold(&*one, &web).await.unwrap();
        drop(lease);
        // Released and closed, which is visible to all.
        drop(one);
        assert!(hold(&*other, &web).await.is_ok());
    });
}

pub(crate) fn all_scopes_are_taken_or_none(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let (a, b, c) = (
            scope("web", "father"),
            scope("web", "mother"),
            scope("web", "shed"),
        );
        let middle = hold(&*journal, std::slice::from_ref(&b)).await.unwrap();
        let all = [a.clone(), b.clone(), c.clone()];
        assert_eq!(hold(&*journal, &all).await.err(), Some(b));
        // The two that were free still are.
        let rest = hold(&*journal, &[a, c]).await.unwrap();
        drop((middle, rest));
        assert!(hold(&*journal, &all).await.is_ok());
        // A lock on nothing would keep nobody away.
        assert!(matches!(
            journal.lock(&[]).await.err(),
            Some(JournalError::Broken { .. })
        ));
    });
}

pub(crate) fn holders_of_different_scopes_do_not_wait(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let web = hold(&*one, &[scope("web", "father")]).await.unwrap();
        let mail = hold(&*other, &[scope("mail", "father")]).await.unwrap();
        let both = hold(&*one, &[scope("web", "mother")]).await.unwrap();
        // The process has three leases; releasing one does not affect the others.
        drop(both);
        for held in [scope("web", "father"), scope("mail", "father")] {
            assert_eq!(
                hold(&*one, std::slice::from_ref(&held)).await.err(),
                Some(held)
            );
        }
        drop((web, mail));
    });
}

pub(crate) fn a_scope_named_twice_is_taken_once(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let web = scope("web", "father");
        let lease = hold(&*journal, &[web.clone(), web.clone()]).await.unwrap();
        assert!(hold(&*journal, std::slice::from_ref(&web)).await.is_err());
        drop(lease);
        assert!(hold(&*journal, &[web]).await.is_ok());
    });
}

pub(crate) fn a_lease_outlives_the_journal_it_was_taken_from(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let web = [scope("web", "father")];
        let lease = hold(&*one, &web).await.unwrap();
        drop(one);
        assert!(hold(&*other, &web).await.is_err());
        drop(lease);
        assert!(hold(&*other, &web).await.is_ok());
    });
}

pub(crate) fn a_dropped_call_holds_no_lease(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let web = [scope("web", "father")];
        for _ in 0..20 {
            tokio::select! {
                biased;
                lease = journal.lock(&web) => drop(lease),
                () = std::future::ready(()) => {}
            }
        }
        // A dropped lease is released soon after, not immediately.
        for _ in 0..1000 {
            if hold(&*journal, &web).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it is still held");
    });
}

pub(crate) fn the_number_of_a_scope_grows_with_each_lease(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let web = scope("web", "father");
        let mail = scope("mail", "father");
        assert_eq!(one.fence(&web).await.unwrap(), None);
        let mut last = 0;
        let mut keys = Vec::new();
        for journal in [&one, &other, &one, &one] {
            let lease = hold(&**journal, &[web.clone(), mail.clone()])
                .await
                .unwrap();
            let fence = journal.fence(&web).await.unwrap().unwrap();
            assert!(fence.number > last, "{} after {last}", fence.number);
            last = fence.number;
            keys.push(fence.scope.clone());
            let found = journal.holder(&web).await.unwrap().unwrap();
            assert_eq!((found.number, found.life), (last, HolderState::Alive));
            assert_ne!(
                journal.fence(&mail).await.unwrap().unwrap().scope,
                fence.scope
            );
            // A lease of a live process cannot be taken.
            assert!(other.unlock(&web, last).await.is_err());
            drop(lease);
            assert_eq!(journal.fence(&web).await.unwrap(), None);
            assert!(journal.holder(&web).await.unwrap().is_none());
        }
        keys.dedup();
        assert_eq!(keys.len(), 1, "{keys:?}");
    });
}

fn is_lost<T>(result: Result<T, JournalError>, to: Option<&str>) -> bool {
    match result {
        Err(JournalError::Lost {
            scope: lost,
            holder,
        }) => {
            assert_eq!(lost, scope("m", "father"));
            assert_eq!(holder.is_some(), to.is_some());
            holder.is_none_or(|holder| holder.contains(to.unwrap_or_default()))
        }
        Ok(_) => panic!("it was written"),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn a_run_that_lost_its_lease_writes_nothing_more(fixture: &impl JournalFixture) {
    run(async {
        let (one, other) = (fixture.open(), fixture.open());
        let m = scope("m", "father");
        let first = hold(&*one, std::slice::from_ref(&m)).await.unwrap();
        let plan = plan("m", 2);
        let id = one.begin("apply", &plan, "run", at(0)).await.unwrap();
        one.append(id, &entry(0, StepEvent::Intent)).await.unwrap();
        fixture.move_away(&m);
        // Expired, but not taken.
        one.append(id, &entry(0, done())).await.unwrap();
        let found = other.holder(&m).await.unwrap().unwrap();
        assert_eq!(found.life, HolderState::Unknown);
        other.unlock(&m, found.number).await.unwrap();
        let fence = one.fence(&m).await.unwrap().unwrap();
        assert_eq!(fence.number, found.number);
        for taken in [false, true] {
            let second = match taken {
                true => Some(hold(&*other, std::slice::from_ref(&m)).await.unwrap()),
                false => None,
            };
            let to = taken.then_some("process ");
            for happened in [StepEvent::Intent, StepEvent::UndoIntent, done()] {
                assert!(is_lost(one.append(id, &entry(1, happened)).await, to));
            }
            assert!(is_lost(one.begin("apply", &plan, "run", at(1)).await, to));
            assert!(is_lost(one.end(id, RunOutcome::Done, at(1)).await, to));
            if taken {
                let new = other.fence(&m).await.unwrap().unwrap();
                assert!(new.number > fence.number && new.scope == fence.scope);
                let end = RunOutcome::Superseded;
                other.end(id, end, at(2)).await.unwrap();
                let run = other.run(id).await.unwrap().unwrap();
                assert_eq!((run.entries.len(), run.head.ended), (2, Some((at(2), end))));
                // Dropping an old lease does not release that of another holder.
                assert!(one.lock(std::slice::from_ref(&m)).await.is_err());
            }
            drop(second);
        }
        // Queried after the drop, so that the release is visible.
        assert_eq!(other.fence(&m).await.unwrap(), None);
        drop(first);
        // Other manifests are not affected, and with a new lease it may write again.
        let _lease = hold(&*one, std::slice::from_ref(&m)).await.unwrap();
        one.append(id, &entry(1, StepEvent::Intent)).await.unwrap();
    });
}
