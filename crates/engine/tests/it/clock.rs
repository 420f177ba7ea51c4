//! A clock that is set back and forth by a day, as it happens when a machine's battery is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, SharedClock};
use homestak_engine::events::Hub;
use homestak_engine::journal::Ending;
use homestak_engine::operate::{Interrupt, Operator};
use homestak_sim::Timing;
use jiff::{SignedDuration, Timestamp};

use crate::cases::{CASES, Case, picture};
use crate::lab::Lab;

const DAY: i64 = 86_400;

/// The lab's clock, set wrong by so many seconds. Waiting takes as long as ever.
struct Wrong {
    right: SharedClock,
    by: AtomicI64,
    /// Whether someone sets it during each wait.
    restless: bool,
}

#[async_trait]
impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        self.right.now() + SignedDuration::from_secs(self.by.load(Ordering::SeqCst))
    }

    async fn sleep(&self, duration: Duration) {
        self.right.sleep(duration).await;
        if self.restless {
            // Right, forth, back, right again.
            let next = match self.by.load(Ordering::SeqCst) {
                0 => DAY,
                by if by > 0 => -DAY,
                _ => 0,
            };
            self.by.store(next, Ordering::SeqCst);
        }
    }
}

fn operator(lab: &Lab, clock: &Arc<Wrong>) -> Operator {
    Operator {
        clock: clock.clone(),
        hub: Hub::new(lab.ear.clone(), clock.clone()),
        ..lab.operator()
    }
}

fn wrong(lab: &Lab, restless: bool) -> Arc<Wrong> {
    Arc::new(Wrong {
        right: lab.clock.clone(),
        by: AtomicI64::new(0),
        restless,
    })
}

fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name != "replace and prune")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_between_two_lives_of_a_run_changes_nothing() {
    for case in cases() {
        let (_, after) = case.pictures().await;
        for by in [DAY, -DAY] {
            let lab = case.lab().await;
            let clock = wrong(&lab, false);
            let plan = case.plan(&lab).await;
            let (ask, interrupt) = Interrupt::new();
            let first = operator(&lab, &clock);
            let asking = async {
                lab.clock.sleep(Duration::from_secs(3)).await;
                ask.ask();
            };
            let verb = plan.verb.word();
            let (ended, ()) = tokio::join!(first.carry_out(verb, &plan, interrupt), asking);
            assert_eq!(ended.unwrap().1, Ending::Stopped, "{}", case.name);
            clock.by.store(by, Ordering::SeqCst);
            let (_ask, interrupt) = Interrupt::new();
            let second = operator(&lab, &clock);
            let ending = second.resume(&lab.last_run(), &[], interrupt).await;
            assert_eq!(ending.unwrap(), Ending::Done, "{}", case.name);
            lab.rest().await;
            assert_eq!(picture(&lab.world), after, "{}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_during_a_run_ends_no_wait() {
    let manifest = "nodes:\n  - {name: one, preset: vm-small, image: debian-12}\n";
    // Long enough that it is waited for, shorter than patience.
    let timing = Timing {
        boot: Duration::from_secs(120),
        ..Timing::default()
    };
    let lab = Lab::with(|builder| builder.host("pve1").timing(timing));
    let plan = lab.plan(manifest).await;
    let clock = wrong(&lab, true);
    let (_ask, interrupt) = Interrupt::new();
    let operator = operator(&lab, &clock);
    let ended = operator.carry_out("apply", &plan, interrupt).await;
    assert_eq!(
        ended.unwrap().1,
        Ending::Done,
        "{:#?}",
        lab.last_run().entries
    );
    assert_eq!(lab.guests(), [("one".to_owned(), true)]);
}
