//! Drift of a node that corrects itself: what differs, what was corrected, and which fields wait
//! before they are tried again.
//!
//! Limits use the machine's uptime, which cannot be set; wall-clock times are only displayed. A
//! field that controls access is never held because it changes often.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Change, ChangeCause, Danger, Handling};
use crate::doc::node_spec::NodeSpec;

/// Corrections of one field within [`FLAP_WINDOW`] after which it counts as flapping: something
/// else keeps changing it.
const FLAP_LIMIT: usize = 5;
/// The time in which corrections are counted, in milliseconds.
const FLAP_WINDOW: u64 = 10 * 60_000;
/// How long a flapping field is held the first time, in milliseconds; doubled each further time.
const FIRST_FLAP_HOLD: u64 = 10 * 60_000;
/// The delay before the first retry after a failure, in milliseconds; doubled each further time.
const FIRST_RETRY: u64 = 2_000;
/// The longest hold, in milliseconds.
const LONGEST_HOLD: u64 = 60 * 60_000;
/// The longest delay after a failure for a field that controls access, in milliseconds: causing
/// failures must not keep it uncorrected for long.
const LONGEST_PROTECTED_HOLD: u64 = 60_000;
/// The default interval between checks, in seconds.
const DEFAULT_INTERVAL: u64 = 300;
/// How many corrections are remembered for display.
const MAX_RECENT: usize = 50;
/// How many characters of a value are kept.
const MAX_VALUE: usize = 200;

/// A point in time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Wall-clock time, for display.
    pub time: Timestamp,
    /// How long the machine has been up, in milliseconds.
    pub uptime: u64,
}

/// The drift of a node, stored on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriftState {
    /// Time of the last check.
    #[serde(rename = "looked")]
    pub last_check: Option<Timestamp>,
    /// Number of checks.
    #[serde(rename = "looks")]
    pub n_checks: u64,
    /// Why drift is not corrected at all, or not completely.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields that are refused now, with the reason, by id.
    pub refused: BTreeMap<String, String>,
    /// The boot that uptimes belong to.
    #[serde(rename = "boot")]
    pub boot_id: String,
    /// Fields that differ now, by id.
    pub open: BTreeMap<String, OpenDrift>,
    /// Recent corrections, newest last.
    pub recent: Vec<CorrectedDrift>,
    /// Fields with recent corrections or failures, by id.
    #[serde(rename = "again")]
    pub backoff: BTreeMap<String, FieldBackoff>,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenDrift {
    /// When it was first seen.
    #[serde(rename = "seen")]
    pub first_seen: Timestamp,
    /// What caused the difference.
    #[serde(rename = "since")]
    pub cause: ChangeCause,
    /// The value of the spec.
    pub expected: String,
    /// The value on the node.
    pub found: String,
    /// Whether it is corrected.
    pub handling: Handling,
    /// Whether a mistake here could lock the operator out of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// Why the last correction failed.
    #[serde(rename = "why", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A corrected difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CorrectedDrift {
    /// Resource and field.
    pub id: String,
    /// When it was first seen.
    #[serde(rename = "seen")]
    pub first_seen: Timestamp,
    /// When it was corrected.
    #[serde(rename = "mended")]
    pub corrected: Timestamp,
    /// The value now.
    pub expected: String,
    /// The value it had been changed to.
    pub found: String,
}

/// Recent corrections and failures of a field, and how long it is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FieldBackoff {
    /// Corrections within `FLAP_WINDOW`, by uptime in milliseconds.
    #[serde(rename = "mended_at")]
    pub corrected_at: Vec<u64>,
    /// Failures in a row.
    #[serde(rename = "failed")]
    pub n_failures: u32,
    /// How many times in a row it was flapping.
    #[serde(rename = "fights")]
    pub n_flaps: u32,
    /// Until when it is only reported, by uptime in milliseconds.
    pub held_until: Option<u64>,
}

impl DriftState {
    /// Sets the current boot, and drops counters of an earlier one.
    pub fn set_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            boot_id.clone_into(&mut self.boot_id);
            self.backoff.clear();
        }
    }

    /// Returns the fields that are only reported for now.
    pub fn held_fields(&self, now: ClockReading) -> BTreeSet<String> {
        let held = |field: &FieldBackoff| field.held_until.is_some_and(|until| until > now.uptime);
        let fields = self.backoff.iter().filter(|(_, field)| held(field));
        fields.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the milliseconds until the next held field that differs is tried again.
    pub fn next_retry(&self, now: ClockReading) -> Option<u64> {
        let open = self.open.keys();
        let open = open.filter_map(|id| self.backoff.get(id)?.held_until);
        open.filter_map(|until| until.checked_sub(now.uptime))
            .filter(|wait| *wait > 0)
            .min()
    }

    /// Returns the wall-clock time until which a field is held, for display.
    pub fn held_until(&self, id: &str, now: ClockReading) -> Timestamp {
        let until = self.backoff.get(id).and_then(|field| field.held_until);
        let wait = until.map_or(0, |until| until.saturating_sub(now.uptime));
        let wait = SignedDuration::from_millis(i64::try_from(wait).unwrap_or_default());
        now.time.checked_add(wait).unwrap_or(now.time)
    }

    /// Records the result of a check, and returns the ids of new differences.
    pub fn record_check(&mut self, changes: &[Change], now: ClockReading) -> Vec<String> {
        self.last_check = Some(now.time);
        self.n_checks += 1;
        let mut new = Vec::new();
        let mut before = std::mem::take(&mut self.open);
        for change in changes {
            let known = before.remove(&change.id);
            if known.is_none() {
                new.push(change.id.clone());
            }
            let open = OpenDrift {
                first_seen: known.as_ref().map_or(now.time, |known| known.first_seen),
                cause: change.cause,
                expected: shorten(&change.expected),
                found: shorten(&change.found),
                handling: change.handling,
                danger: change.danger,
                error: known.and_then(|known| known.error),
            };
            self.open.insert(change.id.clone(), open);
        }
        // Users choose the ids of fields such as keys, so counters of a protected field are
        // dropped with the difference: they would grow without limit.
        for (id, open) in before {
            if open.danger.is_some_and(Danger::is_protected) {
                self.backoff.remove(&id);
            }
        }
        let is_quiet = |field: &FieldBackoff| {
            let last = field.corrected_at.last().max(field.held_until.as_ref());
            last.is_none_or(|last| last.saturating_add(LONGEST_HOLD) < now.uptime)
        };
        let open = &self.open;
        self.backoff
            .retain(|id, field| open.contains_key(id) || !is_quiet(field));
        new
    }

    /// Records corrected fields, and returns those that are flapping and are held from now on.
    pub fn record_corrected(&mut self, ids: &[String], now: ClockReading) -> Vec<String> {
        let mut flapping = Vec::new();
        for id in ids {
            let Some(open) = self.open.remove(id) else {
                continue;
            };
            self.recent.push(CorrectedDrift {
                id: id.clone(),
                first_seen: open.first_seen,
                corrected: now.time,
                expected: open.expected,
                found: open.found,
            });
            if open.danger.is_some_and(Danger::is_protected) {
                self.backoff.remove(id);
                continue;
            }
            let field = self.backoff.entry(id.clone()).or_default();
            field.n_failures = 0;
            field.held_until = None;
            field
                .corrected_at
                .retain(|at| at.saturating_add(FLAP_WINDOW) > now.uptime);
            field.corrected_at.push(now.uptime);
            if field.corrected_at.len() >= FLAP_LIMIT {
                field.n_flaps += 1;
                field.held_until = Some(now.uptime + doubled(FIRST_FLAP_HOLD, field.n_flaps));
                field.corrected_at = vec![now.uptime];
                flapping.push(id.clone());
            }
        }
        drop_oldest(&mut self.recent);
        flapping
    }

    /// Records fields that could not be corrected.
    pub fn record_failed(&mut self, ids: &[String], error: &str, now: ClockReading) {
        for id in ids {
            let field = self.backoff.entry(id.clone()).or_default();
            field.n_failures += 1;
            let danger = self.open.get(id).and_then(|open| open.danger);
            let longest = match danger.is_some_and(Danger::is_protected) {
                true => LONGEST_PROTECTED_HOLD,
                false => LONGEST_HOLD,
            };
            let wait = doubled(FIRST_RETRY, field.n_failures).min(longest);
            field.held_until = Some(now.uptime + wait);
            if let Some(open) = self.open.get_mut(id) {
                open.error = Some(shorten(error));
            }
        }
    }
}

/// Drops the oldest corrections of the most frequent kind, so that a user with many removed keys
/// does not displace other corrections.
fn drop_oldest(recent: &mut Vec<CorrectedDrift>) {
    while recent.len() > MAX_RECENT {
        let kind = |drift: &CorrectedDrift| drift.id.split([':', '/']).next().map(str::to_owned);
        let mut counts: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for drift in recent.iter() {
            *counts.entry(kind(drift)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let most = most.map(|(kind, _)| kind).unwrap_or_default();
        let oldest = recent.iter().position(|drift| kind(drift) == most);
        recent.remove(oldest.unwrap_or_default());
    }
}

/// Returns the interval between checks in seconds. Periodic checks find what cannot be watched,
/// such as kernel settings.
pub fn check_interval(spec: &NodeSpec) -> u64 {
    let interval = spec.run.as_ref().and_then(|run| run.interval.as_ref());
    interval.map_or(DEFAULT_INTERVAL, |interval| interval.value.seconds())
}

/// Returns `first`, doubled for each further time in a row.
fn doubled(first: u64, times: u32) -> u64 {
    let factor = 1 << times.saturating_sub(1).min(16);
    first.saturating_mul(factor).min(LONGEST_HOLD)
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_VALUE {
        return text.to_owned();
    }
    text.chars()
        .take(MAX_VALUE - 3)
        .chain("...".chars())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        Change, ChangeCause, ClockReading, Danger, DriftState, Handling, SignedDuration, Timestamp,
    };

    fn at(seconds: u64) -> ClockReading {
        let time = SignedDuration::from_secs(seconds.try_into().unwrap());
        ClockReading {
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
            cause: ChangeCause::Node,
            danger: None,
            handling: Handling::Enforce,
        }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_flapping_field_is_held_and_others_are_not() {
        let mut drift = DriftState::default();
        for n in 0..5 {
            let now = at(n * 10);
            drift.record_check(&[change("a")], now);
            assert!(drift.held_fields(now).is_empty(), "{n}");
            let flapping = drift.record_corrected(&ids(&["a"]), now);
            assert_eq!(flapping.len(), usize::from(n == 4), "{n}");
        }
        drift.record_check(&[change("a"), change("b")], at(50));
        assert_eq!(
            drift.held_fields(at(50)).into_iter().collect::<Vec<_>>(),
            ["a"]
        );
        assert_eq!(drift.next_retry(at(50)), Some(590_000));
        assert_eq!(drift.held_until("a", at(50)), at(640).time);
        assert!(drift.held_fields(at(641)).is_empty());
        // The next hold is longer.
        for n in 0..5 {
            drift.record_check(&[change("a")], at(700 + n));
            drift.record_corrected(&ids(&["a"]), at(700 + n));
        }
        assert_eq!(drift.backoff["a"].held_until, Some(at(704 + 1200).uptime));
    }

    #[test]
    fn rare_corrections_are_not_flapping() {
        let mut drift = DriftState::default();
        for n in 0..100 {
            drift.record_check(&[change("a")], at(n * 200));
            assert!(
                drift.record_corrected(&ids(&["a"]), at(n * 200)).is_empty(),
                "{n}"
            );
        }
        assert_eq!(drift.recent.len(), 50);
    }

    #[test]
    fn the_delay_after_a_failure_doubles_until_it_succeeds() {
        let mut drift = DriftState::default();
        let mut waits = Vec::new();
        for n in 0..14 {
            let now = at(n * 10_000);
            drift.record_check(&[change("a")], now);
            drift.record_failed(&ids(&["a"]), "failed", now);
            waits.push(drift.next_retry(now).unwrap() / 1_000);
        }
        assert_eq!(waits[..4], [2, 4, 8, 16]);
        assert_eq!(waits[13], 3600);
        assert_eq!(drift.open["a"].error.as_deref(), Some("failed"));
        drift.record_corrected(&ids(&["a"]), at(200_000));
        assert!(drift.held_fields(at(200_000)).is_empty());
    }

    #[test]
    fn a_difference_is_new_once_and_keeps_its_first_time() {
        let mut drift = DriftState::default();
        assert_eq!(drift.record_check(&[change("a")], at(1)), ["a"]);
        assert_eq!(
            drift.record_check(&[change("a"), change("b")], at(2)),
            ["b"]
        );
        assert_eq!(drift.open["a"].first_seen, at(1).time);
        drift.record_check(&[], at(3));
        assert!(drift.open.is_empty());
        // Counters of quiet fields are dropped.
        drift.record_failed(&ids(&["a"]), "", at(4));
        drift.record_check(&[], at(10_000));
        assert!(drift.backoff.is_empty());
    }

    #[test]
    fn a_field_that_controls_access_is_corrected_however_often_it_changes() {
        for danger in [Danger::Sudo, Danger::Sshd, Danger::Users] {
            let mut drift = DriftState::default();
            for n in 0..50 {
                let danger = Some(danger);
                let altered = Change {
                    danger,
                    ..change("a")
                };
                drift.record_check(&[altered], at(n));
                assert!(drift.held_fields(at(n)).is_empty(), "{danger:?} {n}");
                assert!(drift.record_corrected(&ids(&["a"]), at(n)).is_empty());
            }
        }
    }

    #[test]
    fn fields_named_by_users_are_dropped_and_do_not_displace_others() {
        let altered = |id: &str| Change {
            danger: Some(Danger::Users),
            ..change(id)
        };
        let mut drift = DriftState::default();
        let rule = change("sudo:alice/rule");
        drift.record_check(std::slice::from_ref(&rule), at(0));
        drift.record_corrected(&ids(&[&rule.id]), at(0));
        for n in 0..100 {
            let keys: Vec<Change> = (0..64)
                .map(|key| altered(&format!("keys:alice/{n} {key}")))
                .collect();
            let names: Vec<String> = keys.iter().map(|key| key.id.clone()).collect();
            drift.record_check(&keys, at(n));
            // Some disappear before they are removed.
            drift.record_failed(&names[..32], "failed", at(n));
            drift.record_corrected(&names[32..], at(n));
        }
        drift.record_check(&[], at(100));
        assert_eq!(
            drift.backoff.keys().collect::<Vec<_>>(),
            ["sudo:alice/rule"]
        );
        assert_eq!(drift.recent.len(), 50);
        assert!(drift.recent.iter().any(|one| one.id == "sudo:alice/rule"));
        assert_eq!(drift.recent[49].id, "keys:alice/99 63");
    }

    #[test]
    fn a_failed_field_that_controls_access_is_retried_every_minute() {
        let mut drift = DriftState::default();
        let danger = Some(Danger::Users);
        for n in 0..14 {
            let now = at(n * 10_000);
            drift.record_check(
                &[Change {
                    danger,
                    ..change("a")
                }],
                now,
            );
            drift.record_failed(&ids(&["a"]), "failed", now);
            assert!(drift.next_retry(now).unwrap() <= 60_000);
        }
    }

    #[test]
    fn setting_the_clock_back_extends_no_hold_and_a_reboot_ends_all() {
        let mut drift = DriftState::default();
        drift.set_boot("one");
        for n in 0..5 {
            drift.record_check(&[change("a")], at(n));
            drift.record_corrected(&ids(&["a"]), at(n));
        }
        drift.record_check(&[change("a")], at(5));
        let day = SignedDuration::from_hours(24);
        let earlier = |seconds: u64| ClockReading {
            time: at(seconds).time - day,
            ..at(seconds)
        };
        assert_eq!(drift.held_fields(earlier(600)).len(), 1);
        assert_eq!(drift.held_fields(earlier(605)).len(), 0);
        drift.set_boot("one");
        assert_eq!(drift.held_fields(at(6)).len(), 1);
        drift.set_boot("two");
        assert_eq!(drift.held_fields(at(6)).len(), 0);
    }

    #[test]
    fn the_stored_names_are_stable() {
        let mut drift = DriftState::default();
        drift.set_boot("one");
        drift.record_check(&[change("a"), change("b")], at(1));
        drift.record_failed(&ids(&["a"]), "failed", at(1));
        drift.record_corrected(&ids(&["b"]), at(2));
        let (seen, value) = ("1970-01-01T00:00:01Z", ("right", "wrong"));
        let stored = serde_json::json!({
            "looked": seen,
            "looks": 1,
            "refused": {},
            "boot": "one",
            "open": { "a": {
                "seen": seen, "since": "node", "expected": value.0, "found": value.1,
                "handling": "enforce", "why": "failed",
            } },
            "recent": [{
                "id": "b", "seen": seen, "mended": "1970-01-01T00:00:02Z",
                "expected": value.0, "found": value.1,
            }],
            "again": {
                "a": { "mended_at": [], "failed": 1, "fights": 0, "held_until": 3000 },
                "b": { "mended_at": [2000], "failed": 0, "fights": 0, "held_until": null },
            },
        });
        assert_eq!(serde_json::to_value(&drift).unwrap(), stored);
        assert_eq!(serde_json::from_value::<DriftState>(stored).unwrap(), drift);
    }
}
