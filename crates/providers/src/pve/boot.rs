//! When the agent of a guest is asked. A question that is not answered costs the host one of its
//! few workers for three seconds, so many guests that boot at once must not all be asked.
//!
//! In: which guest someone waits for. Out: leave to ask it, when it is likely to answer.
//! Never: more than one question on its way per host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_engine::ports::GuestUuid;
use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

/// The pause after a question that was not answered, while nothing is known yet.
const PAUSE: Duration = Duration::from_millis(500);
/// A guest nobody asked about for so long is not waited for any more.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// So long after the first question a guest is asked in any case.
const OVERDUE: Duration = Duration::from_secs(90);

type Lanes = Arc<Mutex<BTreeMap<String, Lane>>>;

/// Who boots on which host.
#[derive(Default)]
pub(super) struct Boots(Lanes);

#[derive(Default)]
struct Lane {
    turn: Arc<tokio::sync::Mutex<()>>,
    not_before: Option<Timestamp>,
    waiting: BTreeMap<GuestUuid, Waiting>,
    /// How long guests of this host take from the first question to an answer.
    usual: Option<Duration>,
    /// Whether the last guest that was asked answered: what began to boot with it may be up too.
    hopeful: bool,
}

#[derive(Clone, Copy)]
struct Waiting {
    since: Timestamp,
    seen: Timestamp,
    asked: bool,
    /// Whether it answered when it was last asked. Asking it again costs the host nothing, and
    /// whoever asks still waits for something else of it.
    answers: bool,
}

/// Leave to ask one guest. The next one is asked when it is dropped.
pub(super) struct Leave {
    lanes: Lanes,
    host: String,
    guest: GuestUuid,
    _turn: OwnedMutexGuard<()>,
}

fn locked(lanes: &Lanes) -> MutexGuard<'_, BTreeMap<String, Lane>> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

impl Lane {
    /// Tells whether a guest is likely to answer, or must be tried because nothing is known.
    fn is_due(&mut self, guest: &GuestUuid, now: Timestamp) -> bool {
        let waiting = self.waiting.entry(guest.clone()).or_insert(Waiting {
            since: now,
            seen: now,
            asked: false,
            answers: false,
        });
        waiting.seen = now;
        let own = *waiting;
        waiting.asked = true;
        self.waiting
            .retain(|_, waiting| between(waiting.seen, now) < FORGOTTEN);
        if own.answers {
            return true;
        }
        let age = between(own.since, now);
        if age >= self.usual.unwrap_or(OVERDUE) {
            return true;
        }
        let booting = || self.waiting.iter().filter(|(_, one)| !one.answers);
        // It may have been up for long before anyone asked.
        if !own.asked && booting().count() == 1 {
            return true;
        }
        // The one that began to boot first answers first; the others follow it.
        let by_age = booting().map(|(uuid, one)| (one.since, uuid));
        let is_oldest = by_age.min().is_some_and(|(_, oldest)| oldest == guest);
        let calm = self.not_before.is_none_or(|from| now >= from);
        calm && (self.hopeful || is_oldest)
    }
}

impl Boots {
    /// Returns leave to ask a guest once it is its turn, or `None` when it is too early.
    pub(super) async fn ask(&self, host: &str, guest: &GuestUuid, now: Timestamp) -> Option<Leave> {
        let turn = {
            let mut lanes = locked(&self.0);
            let lane = lanes.entry(host.to_owned()).or_default();
            if !lane.is_due(guest, now) {
                return None;
            }
            lane.turn.clone()
        };
        Some(Leave {
            lanes: self.0.clone(),
            host: host.to_owned(),
            guest: guest.clone(),
            _turn: turn.lock_owned().await,
        })
    }
}

impl Boots {
    /// Forgets what is known of a guest: it is started, so its agent is not up.
    pub(super) fn started(&self, host: &str, guest: &GuestUuid) {
        if let Some(lane) = locked(&self.0).get_mut(host) {
            lane.waiting.remove(guest);
        }
    }
}

impl Leave {
    /// Says whether the guest answered.
    pub(super) fn came(&self, answered: bool, now: Timestamp) {
        let mut lanes = locked(&self.lanes);
        let Some(lane) = lanes.get_mut(&self.host) else {
            return;
        };
        lane.hopeful = answered;
        let Some(waiting) = lane.waiting.get_mut(&self.guest) else {
            return;
        };
        let age = between(waiting.since, now);
        let answered_before = std::mem::replace(&mut waiting.answers, answered);
        if answered {
            // What was up already says nothing about booting.
            if age > PAUSE && !answered_before {
                let quickest = lane.usual.map_or(age, |usual| usual.min(age));
                lane.usual = Some(quickest);
            }
            return;
        }
        lane.not_before = now.checked_add(PAUSE).ok();
        // Asked too early: the next ones are given a little more.
        if let Some(usual) = lane.usual.filter(|usual| age >= *usual) {
            lane.usual = Some(usual.mul_f64(1.05));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(n: u32) -> GuestUuid {
        GuestUuid::new(&format!("00000000-0000-4000-8000-{n:012}")).expect("a UUID")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    #[tokio::test]
    async fn while_nothing_is_known_only_the_oldest_is_asked() {
        let boots = Boots::default();
        let leave = boots
            .ask("pve1", &guest(1), at(0))
            .await
            .expect("the first");
        assert!(boots.ask("pve1", &guest(2), at(0)).await.is_none());
        assert!(
            boots.ask("pve2", &guest(3), at(0)).await.is_some(),
            "another host"
        );
        leave.came(false, at(3));
        drop(leave);
        assert!(
            boots.ask("pve1", &guest(1), at(3)).await.is_none(),
            "a pause"
        );
        assert!(
            boots.ask("pve1", &guest(2), at(4)).await.is_none(),
            "not the oldest"
        );
        assert!(boots.ask("pve1", &guest(1), at(4)).await.is_some());
    }

    #[tokio::test]
    async fn one_that_answered_is_asked_again_at_once_while_others_boot() {
        let boots = Boots::default();
        for n in 1..4 {
            if let Some(leave) = boots.ask("pve1", &guest(n), at(0)).await {
                leave.came(false, at(3));
            }
        }
        let leave = boots.ask("pve1", &guest(1), at(107)).await.expect("due");
        leave.came(true, at(107));
        drop(leave);
        for second in [108, 110, 112] {
            let leave = boots.ask("pve1", &guest(1), at(second)).await;
            leave.expect("still asked").came(true, at(second));
        }
    }

    #[tokio::test]
    async fn one_that_is_started_again_is_waited_for_like_any_other() {
        let boots = Boots::default();
        let leave = boots.ask("pve1", &guest(1), at(0)).await.expect("alone");
        leave.came(true, at(0));
        drop(leave);
        boots.started("pve1", &guest(1));
        let leave = boots.ask("pve1", &guest(1), at(10)).await.expect("alone");
        leave.came(false, at(13));
        drop(leave);
        assert!(
            boots.ask("pve1", &guest(1), at(13)).await.is_none(),
            "a pause"
        );
        assert!(boots.ask("pve1", &guest(1), at(14)).await.is_some());
    }

    #[tokio::test]
    async fn guests_that_boot_at_once_are_all_asked_as_soon_as_the_first_answers() {
        let boots = Boots::default();
        for n in 1..21 {
            if let Some(leave) = boots.ask("pve1", &guest(n), at(0)).await {
                leave.came(false, at(3));
            }
        }
        for n in 1..21 {
            let leave = boots.ask("pve1", &guest(n), at(40)).await;
            leave.expect("due").came(true, at(40));
        }
    }

    #[tokio::test]
    async fn once_one_answered_the_others_are_asked_after_the_same_time() {
        let boots = Boots::default();
        let first = boots
            .ask("pve1", &guest(1), at(0))
            .await
            .expect("the first");
        first.came(false, at(3));
        drop(first);
        for n in 2..5 {
            assert!(boots.ask("pve1", &guest(n), at(20)).await.is_none());
        }
        let first = boots
            .ask("pve1", &guest(1), at(40))
            .await
            .expect("the oldest");
        first.came(true, at(40));
        drop(first);
        // They may be up as well; one that is not says enough about the others.
        let second = boots.ask("pve1", &guest(2), at(45)).await.expect("asked");
        second.came(false, at(48));
        drop(second);
        for n in 3..5 {
            assert!(
                boots.ask("pve1", &guest(n), at(49)).await.is_none(),
                "too early"
            );
        }
        for n in 2..5 {
            let leave = boots.ask("pve1", &guest(n), at(60)).await.expect("due");
            leave.came(true, at(60));
        }
    }

    #[tokio::test]
    async fn a_guest_that_never_boots_does_not_hold_up_the_others_for_ever() {
        let boots = Boots::default();
        for second in 0..200 {
            if let Some(leave) = boots.ask("pve1", &guest(1), at(second)).await {
                leave.came(false, at(second));
            }
            if let Some(leave) = boots.ask("pve1", &guest(2), at(second)).await {
                leave.came(true, at(second));
                return;
            }
        }
        panic!("the second was never asked");
    }
}
