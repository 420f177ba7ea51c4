//! Who works on what.
//!
//! In: a ground. Out: nothing.
//! Never: processes that die; those are in `processes`.

use std::time::Duration;

use homestak_engine::journal::{Journal, JournalError, Lease, Scope};

use super::sample::scope;
use super::{Ground, run};

/// Returns what is held by someone, or the lease.
pub(crate) async fn hold(journal: &dyn Journal, scopes: &[Scope]) -> Result<Box<dyn Lease>, Scope> {
    match journal.hold(scopes).await {
        Ok(lease) => Ok(lease),
        Err(JournalError::Held { scope, holder, .. }) => {
            assert!(holder.starts_with("process "), "{holder}");
            Err(scope)
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn a_scope_is_held_until_its_lease_is_dropped(ground: &impl Ground) {
    run(async {
        let (one, other) = (ground.open(), ground.open());
        let web = [scope("web", "father")];
        let lease = hold(&*one, &web).await.unwrap();
        for journal in [&one, &other] {
            assert_eq!(hold(&**journal, &web).await.err(), Some(web[0].clone()));
        }
        drop(lease);
        let lease = hold(&*one, &web).await.unwrap();
        drop(lease);
        // Freed and closed: everyone can see it.
        drop(one);
        assert!(hold(&*other, &web).await.is_ok());
    });
}

pub(crate) fn all_scopes_are_taken_or_none(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
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
    });
}

pub(crate) fn holders_of_different_scopes_do_not_wait(ground: &impl Ground) {
    run(async {
        let (one, other) = (ground.open(), ground.open());
        let web = hold(&*one, &[scope("web", "father")]).await.unwrap();
        let mail = hold(&*other, &[scope("mail", "father")]).await.unwrap();
        let both = hold(&*one, &[scope("web", "mother")]).await.unwrap();
        // The process has three leases; freeing one frees no other.
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

pub(crate) fn a_scope_named_twice_is_taken_once(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let web = scope("web", "father");
        let lease = hold(&*journal, &[web.clone(), web.clone()]).await.unwrap();
        assert!(hold(&*journal, std::slice::from_ref(&web)).await.is_err());
        drop(lease);
        assert!(hold(&*journal, &[web]).await.is_ok());
        assert!(hold(&*journal, &[]).await.is_ok());
    });
}

pub(crate) fn a_lease_outlives_the_journal_it_was_taken_from(ground: &impl Ground) {
    run(async {
        let (one, other) = (ground.open(), ground.open());
        let web = [scope("web", "father")];
        let lease = hold(&*one, &web).await.unwrap();
        drop(one);
        assert!(hold(&*other, &web).await.is_err());
        drop(lease);
        assert!(hold(&*other, &web).await.is_ok());
    });
}

pub(crate) fn a_call_that_is_given_up_holds_nothing(ground: &impl Ground) {
    run(async {
        let journal = ground.open();
        let web = [scope("web", "father")];
        for _ in 0..20 {
            tokio::select! {
                biased;
                lease = journal.hold(&web) => drop(lease),
                () = std::future::ready(()) => {}
            }
        }
        // What was given up is freed soon after, not at once.
        for _ in 0..1000 {
            if hold(&*journal, &web).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it is still held");
    });
}
