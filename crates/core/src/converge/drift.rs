//! What a node that looks after itself has seen and done, and where it holds back.
//!
//! In: changes, what was mended, what failed, and when. Out: [`Drift`], which is kept on the node.
//! Limits go by the machine's uptime, which nobody sets; times of day are for people. A field that
//! decides who gets in is never held back because it is changed often.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::change::{Change, Danger, Handling, Since};
use crate::doc::node_spec::NodeSpec;

/// So often may a field be mended within [`WINDOW`]: more is a fight, which nobody wins.
const ENOUGH: usize = 5;
/// The time in which mends are counted, in milliseconds.
const WINDOW: u64 = 10 * 60_000;
/// How long the first hold after a fight lasts, in milliseconds; each further one lasts twice as
/// long.
const FIRST_HOLD: u64 = 10 * 60_000;
/// How long the first hold after a failure lasts, in milliseconds; each further one lasts twice as
/// long.
const FIRST_RETRY: u64 = 2_000;
/// No hold is longer, in milliseconds: by then whoever fought may have been found.
const LONGEST_HOLD: u64 = 60 * 60_000;
/// The same after a failure for a field that decides who gets in: whoever makes it fail gains
/// little.
const LONGEST_PROTECTED: u64 = 60_000;
/// How often a node is looked at when its spec does not say, in seconds.
const SWEEP: u64 = 300;
/// So many mends are remembered for people.
const RECENT: usize = 50;
/// So much of a value is kept.
const SHOWN: usize = 200;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time of day, for people.
    pub time: Timestamp,
    /// How long the machine has been up, in milliseconds.
    pub uptime: u64,
}

/// What was seen and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drift {
    /// When the node was last looked at.
    pub looked: Option<Timestamp>,
    /// How often it was looked at.
    pub looks: u64,
    /// Why nothing is done, when nothing can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What is refused now: why, by id.
    pub refused: BTreeMap<String, String>,
    /// The boot that uptimes are of.
    pub boot: String,
    /// What differs now, by id.
    pub open: BTreeMap<String, Open>,
    /// What was mended, newest last.
    pub recent: Vec<Mended>,
    /// Fields that were mended or could not be, by id.
    pub again: BTreeMap<String, Again>,
}

/// A difference that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// When it was first seen.
    pub seen: Timestamp,
    /// What has changed since the node last converged.
    pub since: Since,
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
    /// What is done about it.
    pub handling: Handling,
    /// Whether a mistake here could cut the node off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// Why it was not mended, when it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A difference that was mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// Resource and field.
    pub id: String,
    /// When it was first seen.
    pub seen: Timestamp,
    /// When it was mended.
    pub mended: Timestamp,
    /// What it is again.
    pub expected: String,
    /// What it had been changed to.
    pub found: String,
}

/// A field that was mended or could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Again {
    /// When it was mended, within the time that counts, by uptime in milliseconds.
    pub mended_at: Vec<u64>,
    /// How often in a row it could not be mended.
    pub failed: u32,
    /// How often in a row it was a fight.
    pub fights: u32,
    /// Until when it is only named, by uptime in milliseconds.
    pub held_until: Option<u64>,
}

impl Drift {
    /// Says which boot it is: what was counted in another one counts no more.
    pub fn begin(&mut self, boot: &str) {
        if self.boot != boot {
            boot.clone_into(&mut self.boot);
            self.again.clear();
        }
    }

    /// Returns the fields that are only named for now.
    pub fn held(&self, now: Now) -> BTreeSet<String> {
        let held = |again: &Again| again.held_until.is_some_and(|until| until > now.uptime);
        let fields = self.again.iter().filter(|(_, again)| held(again));
        fields.map(|(id, _)| id.clone()).collect()
    }

    /// Returns after how many milliseconds a field that differs is tried again.
    pub fn next(&self, now: Now) -> Option<u64> {
        let open = self.open.keys();
        let open = open.filter_map(|id| self.again.get(id)?.held_until);
        open.filter_map(|until| until.checked_sub(now.uptime))
            .filter(|wait| *wait > 0)
            .min()
    }

    /// Returns until when a field is held, for people.
    pub fn until(&self, id: &str, now: Now) -> Timestamp {
        let until = self.again.get(id).and_then(|again| again.held_until);
        let wait = until.map_or(0, |until| until.saturating_sub(now.uptime));
        let wait = SignedDuration::from_millis(i64::try_from(wait).unwrap_or_default());
        now.time.checked_add(wait).unwrap_or(now.time)
    }

    /// Takes over what a look has found, and returns the ids that are new.
    pub fn see(&mut self, changes: &[Change], now: Now) -> Vec<String> {
        self.looked = Some(now.time);
        self.looks += 1;
        let mut new = Vec::new();
        let mut before = std::mem::take(&mut self.open);
        for change in changes {
            let known = before.remove(&change.id);
            if known.is_none() {
                new.push(change.id.clone());
            }
            let open = Open {
                seen: known.as_ref().map_or(now.time, |known| known.seen),
                since: change.since,
                expected: shorten(&change.expected),
                found: shorten(&change.found),
                handling: change.handling,
                danger: change.danger,
                why: known.and_then(|known| known.why),
            };
            self.open.insert(change.id.clone(), open);
        }
        // Who gets in is never held back for long, and users choose ids of such fields: what is
        // counted of one is forgotten with it.
        for (id, open) in before {
            if open.danger.is_some_and(Danger::is_protected) {
                self.again.remove(&id);
            }
        }
        // What has been quiet for long is no fight any more.
        let quiet = |again: &Again| {
            let last = again.mended_at.last().max(again.held_until.as_ref());
            last.is_none_or(|last| last.saturating_add(LONGEST_HOLD) < now.uptime)
        };
        let open = &self.open;
        self.again
            .retain(|id, again| open.contains_key(id) || !quiet(again));
        new
    }

    /// Notes that fields were mended, and returns those that are held from now on because someone
    /// else changes them again and again.
    pub fn mended(&mut self, ids: &[String], now: Now) -> Vec<String> {
        let mut fights = Vec::new();
        for id in ids {
            let Some(open) = self.open.remove(id) else {
                continue;
            };
            self.recent.push(Mended {
                id: id.clone(),
                seen: open.seen,
                mended: now.time,
                expected: open.expected,
                found: open.found,
            });
            if open.danger.is_some_and(Danger::is_protected) {
                self.again.remove(id);
                continue;
            }
            let again = self.again.entry(id.clone()).or_default();
            again.failed = 0;
            again.held_until = None;
            again
                .mended_at
                .retain(|at| at.saturating_add(WINDOW) > now.uptime);
            again.mended_at.push(now.uptime);
            if again.mended_at.len() >= ENOUGH {
                again.fights += 1;
                again.held_until = Some(now.uptime + doubled(FIRST_HOLD, again.fights));
                again.mended_at = vec![now.uptime];
                fights.push(id.clone());
            }
        }
        forget(&mut self.recent);
        fights
    }

    /// Notes that fields could not be mended.
    pub fn failed(&mut self, ids: &[String], why: &str, now: Now) {
        for id in ids {
            let again = self.again.entry(id.clone()).or_default();
            again.failed += 1;
            let danger = self.open.get(id).and_then(|open| open.danger);
            let longest = match danger.is_some_and(Danger::is_protected) {
                true => LONGEST_PROTECTED,
                false => LONGEST_HOLD,
            };
            let wait = doubled(FIRST_RETRY, again.failed).min(longest);
            again.held_until = Some(now.uptime + wait);
            if let Some(open) = self.open.get_mut(id) {
                open.why = Some(shorten(why));
            }
        }
    }
}

/// Forgets the oldest of the kind of which most are remembered: a user whose many keys are removed
/// does not make anyone forget what else was corrected.
fn forget(recent: &mut Vec<Mended>) {
    while recent.len() > RECENT {
        let kind = |mended: &Mended| mended.id.split([':', '/']).next().map(str::to_owned);
        let mut counts: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for mended in recent.iter() {
            *counts.entry(kind(mended)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let most = most.map(|(kind, _)| kind).unwrap_or_default();
        let oldest = recent.iter().position(|mended| kind(mended) == most);
        recent.remove(oldest.unwrap_or_default());
    }
}

/// Returns how often a node is looked at when nothing happens, in seconds: what cannot be watched,
/// such as settings of the kernel, is seen then.
pub fn sweep(spec: &NodeSpec) -> u64 {
    let interval = spec.run.as_ref().and_then(|run| run.interval.as_ref());
    interval.map_or(SWEEP, |interval| interval.value.seconds())
}

/// Doubles a hold with every time in a row but the first.
fn doubled(first: u64, times: u32) -> u64 {
    let factor = 1 << times.saturating_sub(1).min(16);
    first.saturating_mul(factor).min(LONGEST_HOLD)
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Change, Danger, Drift, Handling, Now, SignedDuration, Since, Timestamp};

    fn at(seconds: u64) -> Now {
        let time = SignedDuration::from_secs(seconds.try_into().unwrap());
        Now {
            time: Timestamp::UNIX_EPOCH + time,
            uptime: seconds * 1_000,
        }
    }

    fn change(id: &str) -> Change {
        Change {
            id: id.to_owned(),
            resource: id.to_owned(),
            field: String::new(),
            expected: "right".into(),
            found: "wrong".into(),
            since: Since::Node,
            danger: None,
            handling: Handling::Enforce,
        }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_field_that_is_changed_again_and_again_is_held_and_others_are_not() {
        let mut drift = Drift::default();
        for n in 0..5 {
            let now = at(n * 10);
            drift.see(&[change("a")], now);
            assert!(drift.held(now).is_empty(), "{n}");
            let fights = drift.mended(&ids(&["a"]), now);
            assert_eq!(fights.len(), usize::from(n == 4), "{n}");
        }
        drift.see(&[change("a"), change("b")], at(50));
        assert_eq!(drift.held(at(50)).into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(drift.next(at(50)), Some(590_000));
        assert_eq!(drift.until("a", at(50)), at(640).time);
        assert!(drift.held(at(641)).is_empty());
        // The next hold is longer.
        for n in 0..5 {
            drift.see(&[change("a")], at(700 + n));
            drift.mended(&ids(&["a"]), at(700 + n));
        }
        assert_eq!(drift.again["a"].held_until, Some(at(704 + 1200).uptime));
    }

    #[test]
    fn slow_changes_are_no_fight() {
        let mut drift = Drift::default();
        for n in 0..100 {
            drift.see(&[change("a")], at(n * 200));
            assert!(drift.mended(&ids(&["a"]), at(n * 200)).is_empty(), "{n}");
        }
        assert_eq!(drift.recent.len(), 50);
    }

    #[test]
    fn a_failure_is_tried_again_later_and_later_until_it_works() {
        let mut drift = Drift::default();
        let mut waits = Vec::new();
        for n in 0..14 {
            let now = at(n * 10_000);
            drift.see(&[change("a")], now);
            drift.failed(&ids(&["a"]), "no way", now);
            waits.push(drift.next(now).unwrap() / 1_000);
        }
        assert_eq!(waits[..4], [2, 4, 8, 16]);
        assert_eq!(waits[13], 3600);
        assert_eq!(drift.open["a"].why.as_deref(), Some("no way"));
        drift.mended(&ids(&["a"]), at(200_000));
        assert!(drift.held(at(200_000)).is_empty());
    }

    #[test]
    fn what_was_seen_keeps_its_time_and_is_new_once() {
        let mut drift = Drift::default();
        assert_eq!(drift.see(&[change("a")], at(1)), ["a"]);
        assert_eq!(drift.see(&[change("a"), change("b")], at(2)), ["b"]);
        assert_eq!(drift.open["a"].seen, at(1).time);
        drift.see(&[], at(3));
        assert!(drift.open.is_empty());
        // Quiet fields are forgotten.
        drift.failed(&ids(&["a"]), "", at(4));
        drift.see(&[], at(10_000));
        assert!(drift.again.is_empty());
    }

    #[test]
    fn a_field_that_decides_who_gets_in_is_corrected_however_often_it_is_changed() {
        for danger in [Danger::Sudo, Danger::Sshd, Danger::Users] {
            let mut drift = Drift::default();
            for n in 0..50 {
                let danger = Some(danger);
                let stolen = Change {
                    danger,
                    ..change("a")
                };
                drift.see(&[stolen], at(n));
                assert!(drift.held(at(n)).is_empty(), "{danger:?} {n}");
                assert!(drift.mended(&ids(&["a"]), at(n)).is_empty());
            }
        }
    }

    #[test]
    fn what_users_name_is_not_remembered_for_ever_and_hides_nothing_else() {
        let stolen = |id: &str| Change {
            danger: Some(Danger::Users),
            ..change(id)
        };
        let mut drift = Drift::default();
        let rule = change("sudo:alice/rule");
        drift.see(std::slice::from_ref(&rule), at(0));
        drift.mended(&ids(&[&rule.id]), at(0));
        for n in 0..100 {
            let keys: Vec<Change> = (0..64)
                .map(|key| stolen(&format!("keys:alice/{n} {key}")))
                .collect();
            let names: Vec<String> = keys.iter().map(|key| key.id.clone()).collect();
            drift.see(&keys, at(n));
            // Some go by themselves before they can be removed.
            drift.failed(&names[..32], "no way", at(n));
            drift.mended(&names[32..], at(n));
        }
        drift.see(&[], at(100));
        assert_eq!(drift.again.keys().collect::<Vec<_>>(), ["sudo:alice/rule"]);
        assert_eq!(drift.recent.len(), 50);
        assert!(drift.recent.iter().any(|one| one.id == "sudo:alice/rule"));
        assert_eq!(drift.recent[49].id, "keys:alice/99 63");
    }

    #[test]
    fn a_failure_of_a_field_that_decides_who_gets_in_is_tried_again_every_minute() {
        let mut drift = Drift::default();
        let danger = Some(Danger::Users);
        for n in 0..14 {
            let now = at(n * 10_000);
            drift.see(
                &[Change {
                    danger,
                    ..change("a")
                }],
                now,
            );
            drift.failed(&ids(&["a"]), "no way", now);
            assert!(drift.next(now).unwrap() <= 60_000);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_hold_longer_and_a_boot_ends_all() {
        let mut drift = Drift::default();
        drift.begin("one");
        for n in 0..5 {
            drift.see(&[change("a")], at(n));
            drift.mended(&ids(&["a"]), at(n));
        }
        drift.see(&[change("a")], at(5));
        let day = SignedDuration::from_hours(24);
        let back = |seconds: u64| Now {
            time: at(seconds).time - day,
            ..at(seconds)
        };
        assert_eq!(drift.held(back(600)).len(), 1);
        assert_eq!(drift.held(back(605)).len(), 0);
        drift.begin("one");
        assert_eq!(drift.held(at(6)).len(), 1);
        drift.begin("two");
        assert_eq!(drift.held(at(6)).len(), 0);
    }
}
