//! The ticket of a login: renewed before it expires, dropped when it is rejected. Has no `Debug`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::error::PveError;
use super::quirks;

/// Tickets live for two hours; a request that starts at the end must still be served.
const RENEW_AFTER: Duration = Duration::from_secs(90 * 60);

/// What would end a cookie's value early.
const IN_COOKIE: &percent_encoding::AsciiSet =
    &percent_encoding::CONTROLS.add(b';').add(b' ').add(b',');

/// A ticket and what goes with it. There is no `Debug`.
#[derive(Clone)]
pub(super) struct Ticket {
    text: String,
    csrf: String,
    issued: Timestamp,
}

impl Ticket {
    pub(super) fn cookie(&self) -> String {
        let text = percent_encoding::utf8_percent_encode(&self.text, IN_COOKIE);
        format!("PVEAuthCookie={text}")
    }

    pub(super) fn csrf(&self) -> &str {
        &self.csrf
    }
}

/// The current ticket, if any.
#[derive(Default)]
pub(super) struct LoginSession(Mutex<Option<Ticket>>);

impl LoginSession {
    /// Returns the ticket while it is fresh.
    pub(super) fn current(&self, now: Timestamp) -> Option<Ticket> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |ticket: &&Ticket| {
            let age = Duration::try_from(now.duration_since(ticket.issued)).unwrap_or_default();
            age < RENEW_AFTER
        };
        slot.as_ref().filter(fresh).cloned()
    }

    /// Keeps the ticket of a login.
    pub(super) fn renew(&self, data: &Value, now: Timestamp) -> Result<Ticket, PveError> {
        let ticket = Ticket {
            text: quirks::text_of(data, "ticket"),
            csrf: quirks::text_of(data, "CSRFPreventionToken"),
            issued: now,
        };
        if ticket.text.is_empty() || ticket.csrf.is_empty() {
            return Err(PveError::invalid_response(
                "the login response has no ticket",
            ));
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket.clone());
        Ok(ticket)
    }

    /// Forgets a ticket that was refused, unless it was renewed meanwhile.
    pub(super) fn drop(&self, refused: &Ticket) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot
            .as_ref()
            .is_some_and(|ticket| ticket.text == refused.text)
        {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ticket_is_renewed_before_it_expires() {
        let session = LoginSession::default();
        let login = json!({"ticket": "PVE:root@pam:6AFA::sig+/=", "CSRFPreventionToken": "6AFA:x"});
        let start = Timestamp::UNIX_EPOCH;
        let Ok(ticket) = session.renew(&login, start) else {
            panic!("no ticket");
        };
        assert_eq!(ticket.cookie(), "PVEAuthCookie=PVE:root@pam:6AFA::sig+/=");
        let later = |minutes: i64| start + jiff::SignedDuration::from_mins(minutes);
        assert!(session.current(later(80)).is_some());
        assert!(session.current(later(91)).is_none());
        session.drop(&ticket);
        assert!(session.current(later(1)).is_none());
        assert!(session.renew(&json!({"username": "x"}), start).is_err());
    }
}
