//! A clock that jumps by a day in both directions, as with an empty CMOS battery.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, SharedClock};
use homestak_engine::events::EventHub;
use homestak_engine::journal::RunOutcome;
use homestak_engine::operate::{Interrupt, Operator};
use homestak_sim::Timing;
use jiff::{SignedDuration, Timestamp};

use crate::cases::{CASES, Case, snapshot};
use crate::env::TestEnv;

const DAY: i64 = 86_400;

/// The clock of the test with an offset in seconds. Waits are not affected.
struct SkewedClock {
    right: SharedClock,
    by: AtomicI64,
    /// Whether it is changed during each wait.
    restless: bool,
}

#[async_trait]
impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        self.right.now() + SignedDuration::from_secs(self.by.load(Ordering::SeqCst))
    }

    async fn sleep(&self, duration: Duration) {
        self.right.sleep(duration).await;
        if self.restless {
            // Correct, ahead, behind, correct again.
            let next = match self.by.load(Ordering::SeqCst) {
                0 => DAY,
                by if by > 0 => -DAY,
                _ => 0,
            };
            self.by.store(next, Ordering::SeqCst);
        }
    }
}

fn operator(env: &TestEnv, clock: &Arc<SkewedClock>) -> Operator {
    Operator {
        clock: clock.clone(),
        hub: EventHub::new(env.events.clone(), clock.clone()),
        ..env.operator()
    }
}

fn wrong(env: &TestEnv, restless: bool) -> Arc<SkewedClock> {
    Arc::new(SkewedClock {
        right: env.clock.clone(),
        by: AtomicI64::new(0),
        restless,
    })
}

fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name != "replace and prune")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_before_a_resume_changes_nothing() {
    for case in cases() {
        let (_, after) = case.snapshots().await;
        for by in [DAY, -DAY] {
            let env = case.env().await;
            let clock = wrong(&env, false);
            let plan = case.plan(&env).await;
            let (ask, interrupt) = Interrupt::new();
            let first = operator(&env, &clock);
            let asking = async {
                env.clock.sleep(Duration::from_secs(3)).await;
                ask.request();
            };
            let verb = plan.verb.name();
            let (ended, ()) = tokio::join!(first.execute(verb, &plan, interrupt), asking);
            assert_eq!(ended.unwrap().1, RunOutcome::Stopped, "{}", case.name);
            clock.by.store(by, Ordering::SeqCst);
            let (_ask, interrupt) = Interrupt::new();
            let second = operator(&env, &clock);
            let ending = second.resume(&env.last_run(), &[], interrupt).await;
            assert_eq!(ending.unwrap(), RunOutcome::Done, "{}", case.name);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), after, "{}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_during_a_run_ends_no_wait() {
    let manifest = "nodes:\n  - {name: one, preset: vm-small, image: debian-12}\n";
    // Long enough to wait for, shorter than the timeout.
    let timing = Timing {
        boot: Duration::from_secs(120),
        ..Timing::default()
    };
    let env = TestEnv::with(|builder| builder.host("pve1").timing(timing));
    let plan = env.plan(manifest).await;
    let clock = wrong(&env, true);
    let (_ask, interrupt) = Interrupt::new();
    let operator = operator(&env, &clock);
    let ended = operator.execute("apply", &plan, interrupt).await;
    assert_eq!(
        ended.unwrap().1,
        RunOutcome::Done,
        "{:#?}",
        env.last_run().entries
    );
    assert_eq!(env.guests(), [("one".to_owned(), true)]);
}
