//! Values as columns.
//!
//! In: values of the journal. Out: numbers and texts, and back.
//! Never: a number with a second meaning; they are in files of people.

use homestak_core::doc::scalar::SiteId;
use homestak_engine::journal::{Ending, Happened, Scope, Trouble};
use jiff::Timestamp;
use serde_json::{from_str, to_string};

use super::fault::Fault;

/// Returns a time in nanoseconds since 1970.
pub(super) fn from_time(at: Timestamp) -> Result<i64, Fault> {
    i64::try_from(at.as_nanosecond()).map_err(|_| {
        Fault::said(
            format!("the clock says {at}"),
            "set the clock of this machine",
        )
    })
}

pub(super) fn to_time(nanoseconds: i64) -> Result<Timestamp, Fault> {
    Timestamp::from_nanosecond(nanoseconds.into()).map_err(Fault::nonsense)
}

/// Returns the number and the text of what happened.
pub(super) fn from_happened(happened: &Happened) -> Result<(i64, Option<String>), Fault> {
    let text = |trouble: &Trouble| to_string(trouble).map(Some).map_err(Fault::nonsense);
    Ok(match happened {
        Happened::Intent => (0, None),
        Happened::Done { changed: false } => (1, None),
        Happened::Done { changed: true } => (2, None),
        Happened::Failed(trouble) => (3, text(trouble)?),
        Happened::UndoIntent => (4, None),
        Happened::Undone { changed: false } => (5, None),
        Happened::Undone { changed: true } => (6, None),
        Happened::UndoFailed(trouble) => (7, text(trouble)?),
        Happened::Settled => (8, None),
    })
}

pub(super) fn to_happened(number: i64, text: Option<&str>) -> Result<Happened, Fault> {
    let trouble = || from_str(text.unwrap_or_default()).map_err(Fault::nonsense);
    Ok(match number {
        0 => Happened::Intent,
        1 => Happened::Done { changed: false },
        2 => Happened::Done { changed: true },
        3 => Happened::Failed(trouble()?),
        4 => Happened::UndoIntent,
        5 => Happened::Undone { changed: false },
        6 => Happened::Undone { changed: true },
        7 => Happened::UndoFailed(trouble()?),
        8 => Happened::Settled,
        _ => return Err(Fault::nonsense(format!("what happened is {number}"))),
    })
}

/// Returns the site of a scope as a key; empty for the first form.
pub(super) fn site_key(scope: &Scope) -> &str {
    scope.site.as_ref().map_or("", SiteId::as_str)
}

pub(super) fn to_site(text: Option<String>) -> Result<Option<SiteId>, Fault> {
    let site = |text: String| {
        SiteId::new(&text).ok_or_else(|| Fault::nonsense(format!("a site is `{text}`")))
    };
    text.map(site).transpose()
}

pub(super) fn to_ending(word: &str) -> Result<Ending, Fault> {
    const ALL: [Ending; 6] = [
        Ending::Done,
        Ending::Failed,
        Ending::Stopped,
        Ending::RolledBack,
        Ending::Stuck,
        Ending::Superseded,
    ];
    ALL.into_iter()
        .find(|ending| ending.word() == word)
        .ok_or_else(|| Fault::nonsense(format!("a run ended as `{word}`")))
}
