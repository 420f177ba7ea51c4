//! Only what a run created is undone, and a step that panics is a step that failed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use homestak_core::plan::{OnError, Options, Verb};
use homestak_engine::journal::{Ending, Happened};
use homestak_engine::ports::Class;

use crate::flaky::{Fault, Flaky, When};
use crate::lab::Lab;

const TWO: &str = "nodes:\n  - {name: a, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8001}\n  - {name: b, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8002}\n";

/// Lets the n-th change fail, or panic.
fn break_change(lab: &mut Lab, nth: usize, when: When, panics: bool) {
    lab.places = Arc::new(Flaky {
        whole: lab.places.clone(),
        fault: Arc::new(Fault {
            nth,
            when,
            class: Class::Refused,
            times: 1,
            panics,
            seen: AtomicUsize::new(0),
        }),
    });
}

fn rollback() -> Options {
    Options {
        on_error: Some(OnError::Rollback),
        ..Options::new(Verb::Apply)
    }
}

/// A World with a guest of ours that is stopped, and a driver that lost its journal.
async fn stopped_and_forgotten(lock: Option<&str>) -> Lab {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.world.switch_off(8001);
    if let Some(lock) = lock {
        let guests = lab.world.guests();
        let guest = guests.iter().find(|guest| guest.vmid == 8001).unwrap();
        let mut config = guest.config.clone();
        config.insert("lock".to_owned(), lock.to_owned());
        let config = config.into_iter().collect();
        lab.world.put_guest("pve1", guest.kind, 8001, config);
    }
    lab.rest().await;
    lab.driver_of(lab.site.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_stopped_guest_that_was_there_before_whatever_is_recorded() {
    for nth in 1..8 {
        for when in [When::Before, When::After] {
            let mut lab = stopped_and_forgotten(None).await;
            let plan = lab.plan_with(TWO, &rollback()).await;
            assert_eq!(plan.refusals, []);
            break_change(&mut lab, nth, when, false);
            let ending = lab.carry_out(&plan).await;
            lab.rest().await;
            let names: Vec<String> = lab.guests().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a", "b"], "change {nth} {when:?}: {ending:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_guest_that_a_backup_held() {
    let lab = stopped_and_forgotten(Some("backup")).await;
    let plan = lab.plan_with(TWO, &rollback()).await;
    // Nobody releases the lock, so that the step fails and is undone.
    let ending = lab.carry_out(&plan).await;
    assert_ne!(ending, Ending::Done);
    lab.rest().await;
    assert_eq!(lab.guests().len(), 2, "{ending:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_step_that_panics_created_is_removed_or_the_run_is_stuck() {
    let mut n_undone = 0;
    for nth in 1..10 {
        for when in [When::Before, When::After] {
            let mut lab = Lab::new();
            let plan = lab.plan_with(TWO, &rollback()).await;
            break_change(&mut lab, nth, when, true);
            let ending = lab.carry_out(&plan).await;
            lab.rest().await;
            let run = lab.last_run();
            let failed = run
                .entries
                .iter()
                .any(|entry| matches!(entry.happened, Happened::Failed(_)));
            match ending {
                // There are fewer changes than that.
                Ending::Done => assert_eq!((lab.guests().len(), failed), (2, false)),
                Ending::RolledBack => {
                    assert_eq!(lab.guests(), [], "change {nth} {when:?}");
                    assert!(failed, "what panicked is recorded as a failure");
                    n_undone += 1;
                }
                other => assert_eq!(other, Ending::Stuck),
            }
        }
    }
    assert!(n_undone > 4, "{n_undone}");
}
