//! Decides whether a job that a server offers is accepted.
//!
//! An attacker who controls the server can withhold a job, but needs the key of the site to invent,
//! change or repeat one. Without a signature, a server can only have this machine apply its own signed
//! spec again, if that spec has a trigger, and once a minute.

use std::time::Duration;

use homestak_api::job_statement::{JobStatement, MAX_LIFETIME, MAX_TIME_LIMIT, is_job_id};
use homestak_api::signature::{Purpose, SignatureError, verify};
use homestak_api::v1::node_job::{JobKind, JobOffer, JobOptions};

use super::super::registration::Registration;
use crate::node_job::{NodeJob, TimePoint};
use crate::spec::RunSettings;

/// Longer statements are refused without being parsed.
const MAX_STATEMENT: usize = 16 << 10;
/// The shortest time between two jobs of triggers.
pub(super) const TRIGGER_INTERVAL: Duration = Duration::from_secs(60);
/// How many seconds a job of a trigger may take.
const TRIGGER_TIME_LIMIT: u64 = 3_600;

/// A job that is accepted.
#[derive(Debug)]
pub(super) struct AcceptedJob {
    pub(super) job: NodeJob,
    /// Who asked for it.
    pub(super) origin: String,
    /// Until when its statement is valid; `None` without one.
    pub(super) expires: Option<i64>,
}

/// Why a job is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OfferError {
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("its id is not 32 hexadecimal digits")]
    MalformedId,
    #[error("it is signed under another id")]
    Id,
    #[error("it is signed for another site")]
    Site,
    #[error("it is signed for another node")]
    Node,
    #[error("it is signed for another guest")]
    Guest,
    #[error("it is signed for a longer time than a job can wait")]
    Lifetime,
    #[error("it is signed for a longer time than a job can take")]
    TimeLimit,
    #[error("it has expired by the clock of this machine")]
    Expired,
    #[error("it was signed before the enrolment of this machine")]
    BeforeEnrolment,
    #[error("it is not signed, and the spec of this machine has no trigger")]
    Unsigned,
    #[error("a trigger started a job less than a minute ago")]
    TooOften,
}

/// What a job is compared with.
pub(super) struct Expected<'a> {
    pub(super) registration: &'a Registration,
    /// The settings of the applied spec.
    pub(super) run: &'a RunSettings,
    /// When a trigger last started a job.
    pub(super) last_trigger: Option<TimePoint>,
    pub(super) now: TimePoint,
}

/// Verifies a job.
pub(super) fn accept(offer: &JobOffer, expected: &Expected<'_>) -> Result<AcceptedJob, OfferError> {
    if !is_job_id(&offer.id) {
        return Err(OfferError::MalformedId);
    }
    match &offer.statement {
        Some(statement) => signed(offer, statement, expected),
        None => triggered(offer, expected),
    }
}

fn signed(
    offer: &JobOffer,
    statement: &str,
    expected: &Expected<'_>,
) -> Result<AcceptedJob, OfferError> {
    if statement.len() > MAX_STATEMENT {
        return Err(SignatureError::Malformed.into());
    }
    let registration = expected.registration;
    let job: JobStatement = verify(Purpose::Job, statement, &registration.site_keys)?;
    if job.id != offer.id {
        return Err(OfferError::Id);
    }
    if job.site != registration.site {
        return Err(OfferError::Site);
    }
    if job.node != registration.identity {
        return Err(OfferError::Node);
    }
    if job.uuid != registration.uuid {
        return Err(OfferError::Guest);
    }
    let lifetime = job.expires.checked_sub(job.issued);
    if !lifetime.is_some_and(|lifetime| (0..=MAX_LIFETIME).contains(&lifetime)) {
        return Err(OfferError::Lifetime);
    }
    if !(1..=MAX_TIME_LIMIT).contains(&job.time_limit) {
        return Err(OfferError::TimeLimit);
    }
    if job.expires <= expected.now.time {
        return Err(OfferError::Expired);
    }
    // A former guest with the same UUID may have executed it.
    let enrolment = registration.renumbering.as_ref();
    if enrolment.is_some_and(|enrolment| job.issued < enrolment.issued) {
        return Err(OfferError::BeforeEnrolment);
    }
    Ok(AcceptedJob {
        origin: job.operator,
        expires: Some(job.expires),
        job: NodeJob {
            id: job.id,
            kind: job.kind,
            options: job.options,
            time_limit: job.time_limit,
        },
    })
}

fn triggered(offer: &JobOffer, expected: &Expected<'_>) -> Result<AcceptedJob, OfferError> {
    if !expected.run.has_trigger() {
        return Err(OfferError::Unsigned);
    }
    let is_early = |last: TimePoint| !last.is_past(TRIGGER_INTERVAL, expected.now);
    if expected.last_trigger.is_some_and(is_early) {
        return Err(OfferError::TooOften);
    }
    Ok(AcceptedJob {
        origin: offer.trigger.clone().unwrap_or_default(),
        expires: None,
        job: NodeJob {
            id: offer.id.clone(),
            kind: JobKind::Converge,
            options: JobOptions::default(),
            time_limit: TRIGGER_TIME_LIMIT,
        },
    })
}
