//! Converts values to columns and back. The numbers are in users' files: never reuse one.

use homestak_core::doc::scalar::SiteId;
use homestak_engine::journal::{RunOutcome, Scope, StepError, StepEvent};
use jiff::Timestamp;
use serde_json::{from_str, to_string};

use super::error::StoreError;

/// Converts to nanoseconds since 1970.
pub(super) fn from_time(at: Timestamp) -> Result<i64, StoreError> {
    i64::try_from(at.as_nanosecond()).map_err(|_| {
        StoreError::other(
            format!("the clock shows {at}"),
            "set the clock of this machine",
        )
    })
}

pub(super) fn to_time(nanoseconds: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_nanosecond(nanoseconds.into()).map_err(StoreError::corrupt)
}

/// Returns number and text of a step event.
pub(super) fn from_step_event(happened: &StepEvent) -> Result<(i64, Option<String>), StoreError> {
    let text = |error: &StepError| to_string(error).map(Some).map_err(StoreError::corrupt);
    Ok(match happened {
        StepEvent::Intent => (0, None),
        StepEvent::Done { changed: false } => (1, None),
        StepEvent::Done { changed: true } => (2, None),
        StepEvent::Failed(error) => (3, text(error)?),
        StepEvent::UndoIntent => (4, None),
        StepEvent::Undone { changed: false } => (5, None),
        StepEvent::Undone { changed: true } => (6, None),
        StepEvent::UndoFailed(error) => (7, text(error)?),
        StepEvent::Settled => (8, None),
    })
}

pub(super) fn to_step_event(number: i64, text: Option<&str>) -> Result<StepEvent, StoreError> {
    let error = || from_str(text.unwrap_or_default()).map_err(StoreError::corrupt);
    Ok(match number {
        0 => StepEvent::Intent,
        1 => StepEvent::Done { changed: false },
        2 => StepEvent::Done { changed: true },
        3 => StepEvent::Failed(error()?),
        4 => StepEvent::UndoIntent,
        5 => StepEvent::Undone { changed: false },
        6 => StepEvent::Undone { changed: true },
        7 => StepEvent::UndoFailed(error()?),
        8 => StepEvent::Settled,
        _ => return Err(StoreError::corrupt(format!("what happened is {number}"))),
    })
}

/// Returns the site of a scope as a key; empty for the first format.
pub(super) fn site_key(scope: &Scope) -> &str {
    scope.site.as_ref().map_or("", SiteId::as_str)
}

pub(super) fn to_site(text: Option<String>) -> Result<Option<SiteId>, StoreError> {
    let site = |text: String| {
        SiteId::new(&text).ok_or_else(|| StoreError::corrupt(format!("a site is `{text}`")))
    };
    text.map(site).transpose()
}

pub(super) fn to_ending(name: &str) -> Result<RunOutcome, StoreError> {
    const ALL: [RunOutcome; 6] = [
        RunOutcome::Done,
        RunOutcome::Failed,
        RunOutcome::Stopped,
        RunOutcome::RolledBack,
        RunOutcome::Stuck,
        RunOutcome::Superseded,
    ];
    ALL.into_iter()
        .find(|ending| ending.name() == name)
        .ok_or_else(|| StoreError::corrupt(format!("a run ended as `{name}`")))
}
