//! Decides when the guest agent of a virtual machine is queried.
//!
//! A query that an agent does not answer occupies one of the host's few API workers for three seconds.
//! So there is one query per host at a time, and a booting guest is first queried at the age at which
//! most guests of its host have booted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_engine::ports::GuestUuid;
use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::task::elapsed;

/// The pause before a guest that did not answer is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A guest that was not queried for this long is no longer tracked.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// The age at which a guest is asked while no boot time is known.
const UNKNOWN_BOOT_TIME: Duration = Duration::from_secs(90);
/// What the expected boot time is multiplied with when a guest of that age does not answer, and
/// when one does. The expectation settles where one first question in eleven is not answered.
const LATER: f64 = 1.03;
const EARLIER: f64 = 0.997;
/// A guest that is due within this time is waited for at once, so that it is asked in time.
pub(super) const SOON: Duration = Duration::from_secs(2);

type Hosts = Arc<Mutex<BTreeMap<String, BootingHost>>>;

/// The guests that are waited for, by host.
#[derive(Default)]
pub(super) struct BootSchedule(Hosts);

#[derive(Default)]
struct BootingHost {
    /// Held while a question is open.
    question: Arc<tokio::sync::Mutex<()>>,
    guests: BTreeMap<GuestUuid, BootingGuest>,
    /// The age at which a guest is expected to answer; `None` until one has booted.
    boot_time: Option<Duration>,
    /// Whether the guest that was asked last had been running before anyone waited for it, so that
    /// others may run as well.
    already_up: bool,
}

struct BootingGuest {
    /// When it was first waited for.
    since: Timestamp,
    last_wait: Timestamp,
    /// Its age when it was last asked and did not answer.
    unanswered: Option<Duration>,
    /// Not asked again before this time.
    retry_at: Option<Timestamp>,
    /// Whether it answered when it was last asked. Asking it again costs the host nothing.
    answers: bool,
}

/// Permission to ask one guest. The next question to its host is sent when this is dropped.
pub(super) struct ProbePermit {
    hosts: Hosts,
    host: String,
    guest: GuestUuid,
    /// The age of the guest when it was found due.
    age: Duration,
    _permit: OwnedMutexGuard<()>,
}

fn locked(hosts: &Hosts) -> MutexGuard<'_, BTreeMap<String, BootingHost>> {
    hosts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BootingHost {
    /// Returns the age of a guest that is due, or how long it is not.
    fn due(&mut self, guest: &GuestUuid, now: Timestamp) -> Result<Duration, Duration> {
        let is_new = !self.guests.contains_key(guest);
        let own = self.guests.entry(guest.clone()).or_insert(BootingGuest {
            since: now,
            last_wait: now,
            unanswered: None,
            retry_at: None,
            answers: false,
        });
        own.last_wait = now;
        let age = elapsed(own.since, now);
        if own.answers {
            return Ok(age);
        }
        let retry = own.retry_at.map(|at| elapsed(now, at));
        if let Some(pause) = retry.filter(|pause| !pause.is_zero()) {
            return Err(pause);
        }
        let was_asked = own.unanswered.is_some();
        self.guests
            .retain(|_, one| elapsed(one.last_wait, now) < FORGET_AFTER);
        let booting = || self.guests.iter().filter(|(_, one)| !one.answers);
        // It may have been running for long before anyone waited for it.
        let may_be_up = is_new && booting().count() == 1 || self.already_up && !was_asked;
        let rest = |boot_time: Duration| boot_time.saturating_sub(age);
        let left = self.boot_time.map_or(rest(UNKNOWN_BOOT_TIME), rest);
        if may_be_up || left.is_zero() {
            return Ok(age);
        }
        if self.boot_time.is_some() {
            return Err(left);
        }
        // While nothing is known, the guest that began to boot first shows how long it takes.
        let by_age = booting().map(|(uuid, one)| (one.since, uuid));
        let is_oldest = by_age.min().is_some_and(|(_, oldest)| oldest == guest);
        if is_oldest { Ok(age) } else { Err(left) }
    }

    /// Records whether a guest that was asked at an age answered.
    fn record(&mut self, guest: &GuestUuid, asked: Duration, answered: bool, now: Timestamp) {
        let Some(guest) = self.guests.get_mut(guest) else {
            return;
        };
        let age = elapsed(guest.since, now);
        self.already_up = answered && age <= RETRY_PAUSE;
        let answered_before = std::mem::replace(&mut guest.answers, answered);
        let unanswered = guest.unanswered;
        if !answered {
            guest.unanswered = Some(asked);
            guest.retry_at = now.checked_add(RETRY_PAUSE).ok();
        }
        if answered_before {
            return;
        }
        match &mut self.boot_time {
            // A guest that had been running gives no boot time.
            None if !answered || self.already_up => {}
            // It was booting when it did not answer, and has booted since.
            unknown @ None => *unknown = Some((unanswered.unwrap_or(age) + age) / 2),
            // Each guest counts once, and only if it was asked when it was expected to answer.
            Some(expected) if unanswered.is_none() && asked >= *expected => {
                if !answered {
                    *expected = expected.mul_f64(LATER);
                } else if asked <= expected.mul_f64(LATER) {
                    *expected = expected.mul_f64(EARLIER);
                }
            }
            Some(_) => {}
        }
    }
}

impl BootSchedule {
    /// Returns permission to ask a guest once no other question to its host is open, or how long
    /// it is too early for that, as far as is known.
    pub(super) async fn ask(
        &self,
        host: &str,
        guest: &GuestUuid,
        now: Timestamp,
    ) -> Result<ProbePermit, Duration> {
        let (age, turn) = {
            let mut hosts = locked(&self.0);
            let on_host = hosts.entry(host.to_owned()).or_default();
            (on_host.due(guest, now)?, on_host.question.clone())
        };
        Ok(ProbePermit {
            hosts: self.0.clone(),
            host: host.to_owned(),
            guest: guest.clone(),
            age,
            _permit: turn.lock_owned().await,
        })
    }

    /// Forgets what is known of a guest: it is being started, so its agent does not run.
    pub(super) fn started(&self, host: &str, guest: &GuestUuid) {
        if let Some(on_host) = locked(&self.0).get_mut(host) {
            on_host.guests.remove(guest);
        }
    }
}

impl ProbePermit {
    /// Records whether the guest answered.
    pub(super) fn record(&self, answered: bool, now: Timestamp) {
        if let Some(on_host) = locked(&self.hosts).get_mut(&self.host) {
            on_host.record(&self.guest, self.age, answered, now);
        }
    }
}

#[cfg(test)]
mod tests;
