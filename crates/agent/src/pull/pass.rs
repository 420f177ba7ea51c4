//! One pass: obtain the spec, apply it, report.

use homestak_api::signature::SignatureError;
use homestak_api::v1::report::ReportState;
use homestak_core::error::chain;

use super::client::FetchedSpec;
use super::confirm::ConfirmOptions;
use super::node::{Node, NodeState};
use super::registration::RevertedSpec;
use super::report::{Reporter, ReportingObserver, is_permanent};
use super::session::Session;
use super::store::Store;
use super::update::Programs;
use super::verify;
use crate::error::{AgentError, FetchError, PullError, StatementError};
use crate::node_job::Output;
use crate::{random, ui};

/// The longest entity tag, in bytes. Those of servers have the generation and a part of a digest.
const MAX_ETAG: usize = 128;

/// When a spec is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apply {
    /// Always, because it was requested.
    Always,
    /// If it is new, or was not applied completely. Drift from an applied spec is left to the watch.
    WhenPending,
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PassReport {
    pub(super) spec: String,
    pub(super) generation: u64,
    /// The text of the spec.
    pub(super) text: String,
    /// Whether the server had a newer one.
    pub(super) fetched: bool,
    /// Whether anything was changed.
    pub(super) changed: bool,
    /// Whether a server received the report.
    pub(super) reported: bool,
    /// Whether this program was replaced. The new program applies the spec.
    pub(super) replaced: bool,
}

/// A spec that was accepted.
#[derive(Default)]
struct AcceptedSpec {
    text: String,
    generation: u64,
    is_new: bool,
}

impl PassReport {
    /// Returns a report without results.
    fn new(session: &Session<'_>, spec: &AcceptedSpec) -> Self {
        Self {
            spec: session.registration.identity.clone(),
            generation: spec.generation,
            text: spec.text.clone(),
            fetched: spec.is_new,
            changed: false,
            reported: false,
            replaced: false,
        }
    }
}

/// How a pass is carried out.
pub(super) struct PassOptions<'a> {
    pub(super) apply: Apply,
    /// The installed versions of this program; `None` if it must not be replaced now.
    pub(super) programs: Option<&'a mut Programs>,
    /// Receives a line for each step.
    pub(super) output: Output<'a>,
}

/// Like [`pass_in`], in a new session. Prints the steps with [`Apply::Always`].
pub(super) fn pass(
    store: &Store,
    node: &mut dyn Node,
    apply: Apply,
    programs: Option<&mut Programs>,
) -> Result<PassReport, AgentError> {
    let mut session = Session::open(store)?;
    let mut print = |step: &str| {
        if apply == Apply::Always {
            ui::message(step);
        }
    };
    let mut options = PassOptions {
        apply,
        programs,
        output: &mut print,
    };
    pass_in(&mut session, node, &mut options)
}

/// Obtains the spec, applies it and reports. If another version of this program is published, the
/// program is replaced before the spec is applied, because the spec may require the new version. It is
/// also replaced if the site has signed a statement in a form that this program does not know.
pub(super) fn pass_in(
    session: &mut Session<'_>,
    node: &mut dyn Node,
    options: &mut PassOptions<'_>,
) -> Result<PassReport, AgentError> {
    let run = random::hex_id();
    let span = tracing::error_span!(
        "pass",
        node = session.registration.identity,
        generation = tracing::field::Empty
    );
    let _entered = span.enter();
    let known = known(session, node);
    let is_pending = match &known {
        Some(known) => node.state(&known.text) == NodeState::Pending,
        None => true,
    };
    let n_certificates = session.n_certificates();
    let mut reporter = None;
    if is_pending || options.apply == Apply::Always {
        let started = Reporter::new(&run, session.client().ok());
        started.progress(ReportState::Fetching, None);
        reporter = Some(started);
    }
    let fetched = fetch(session, node, known.is_some());
    let reporter = match reporter {
        Some(reporter) if session.n_certificates() == n_certificates => reporter,
        Some(_) | None => Reporter::new(&run, session.client().ok()),
    };
    let error = match fetched {
        Ok(new) => {
            node.mark(None);
            let spec = new.or(known).ok_or(FetchError::NoSpec(Vec::new()))?;
            span.record("generation", spec.generation);
            let programs = options.programs.as_mut();
            if programs.is_some_and(|programs| programs.update(session)) {
                return Ok(PassReport {
                    replaced: true,
                    ..PassReport::new(session, &spec)
                });
            }
            return finish(session, node, options, spec, reporter);
        }
        Err(error) => error,
    };
    // The program that the site published last may know the form of this statement.
    let programs = options.programs.as_mut();
    if is_unknown_form(&error) && programs.is_some_and(|programs| programs.update(session)) {
        return Ok(PassReport {
            replaced: true,
            ..PassReport::new(session, &known.unwrap_or_default())
        });
    }
    // Not if the spec could not be fetched: a report would not reach a server either.
    if !matches!(error, AgentError::Fetch(_)) {
        reporter.failed(&error.message(), is_permanent(&error));
    }
    // The last accepted spec is applied even if no server was reached or a server refuses this machine,
    // unless it was applied completely before.
    if let Some(known) = known.filter(|_| is_pending) {
        let reporter = Reporter::new(&run, None);
        span.record("generation", known.generation);
        let applied = finish(session, node, options, known, reporter);
        if let (Err(apply), AgentError::Fetch(fetch)) = (applied, &error) {
            let fetch = chain(fetch);
            let apply = Box::new(apply);
            return Err(AgentError::NotFetchedNorApplied { fetch, apply });
        }
    }
    Err(error)
}

/// Returns whether the site has signed a statement in a form that this program does not know.
fn is_unknown_form(error: &AgentError) -> bool {
    let AgentError::Pull(PullError::Statement { why, .. }) = error else {
        return false;
    };
    *why == StatementError::Signature(SignatureError::Payload)
}

/// Obtains the spec and stores it, without applying it. Returns its text.
pub(super) fn obtain(store: &Store, node: &mut dyn Node) -> Result<String, AgentError> {
    let mut session = Session::open(store)?;
    let known = known(&session, node);
    let new = fetch(&mut session, node, known.is_some())?;
    let spec = new.or(known).ok_or(FetchError::NoSpec(Vec::new()))?;
    Ok(spec.text)
}

/// Returns the spec that was accepted last, if it is stored.
fn known(session: &Session<'_>, node: &dyn Node) -> Option<AcceptedSpec> {
    let accepted = session.registration.accepted.as_ref()?;
    Some(AcceptedSpec {
        text: node.stored(&accepted.sha256)?,
        generation: accepted.generation,
        is_new: false,
    })
}

/// Fetches the spec, verifies it and stores it. `None` if the server has no other spec than the one that
/// was accepted last. `is_known`: whether that one is stored.
fn fetch(
    session: &mut Session<'_>,
    node: &mut dyn Node,
    is_known: bool,
) -> Result<Option<AcceptedSpec>, AgentError> {
    let accepted = session.registration.accepted.as_ref();
    let etag = accepted.and_then(|accepted| accepted.etag.clone());
    // Without a tag the server sends the spec, which is needed if the last one is not stored.
    let etag = etag.filter(|tag| is_known && is_entity_tag(tag));
    let fetched = session.fetch(etag.as_deref())?;
    session.remove_token();
    fetched
        .map(|fetched| accept(session, node, fetched))
        .transpose()
}

/// Returns whether a text is exactly one entity tag.
///
/// Tags are not signed. `*`, or a list of guessed tags, would match later specs too: with one of them a
/// compromised server could make this machine never receive another spec, even from an honest server.
fn is_entity_tag(text: &str) -> bool {
    let tag = text.strip_prefix("W/").unwrap_or(text);
    let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    tag.is_some_and(|tag| tag.len() <= MAX_ETAG && !tag.contains(['"', ',']))
}

/// Verifies a spec and stores it.
fn accept(
    session: &mut Session<'_>,
    node: &mut dyn Node,
    fetched: FetchedSpec,
) -> Result<AcceptedSpec, AgentError> {
    let expected = session.registration.expected();
    let is_first = expected.last.is_none();
    let verified = verify::verify(fetched.statement.as_deref(), &fetched.body, &expected);
    let statement = verified.map_err(|why| PullError::Statement { why, is_first })?;
    let text = String::from_utf8(fetched.body)
        .map_err(|_| FetchError::NoSpec(vec!["it is not UTF-8".to_owned()]))?;
    // Stored first, so that a spec that is recorded as accepted is always stored.
    node.store(&text)?;
    session.registration.accept(&statement, fetched.etag);
    session.save()?;
    tracing::info!(generation = statement.generation, "spec accepted");
    Ok(AcceptedSpec {
        text,
        generation: statement.generation,
        is_new: true,
    })
}

/// Applies a spec if necessary, and reports.
fn finish(
    session: &mut Session<'_>,
    node: &mut dyn Node,
    options: &mut PassOptions<'_>,
    spec: AcceptedSpec,
    mut reporter: Reporter,
) -> Result<PassReport, AgentError> {
    let name = session.registration.identity.clone();
    reporter.generation = Some(spec.generation);
    let report = PassReport::new(session, &spec);
    let reverted = session.registration.reverted.clone();
    let reverted = reverted.filter(|reverted| reverted.generation == spec.generation);
    if options.apply == Apply::WhenPending {
        match node.state(&spec.text) {
            NodeState::Applied { drift } => {
                let reported = reporter.converged(false, drift);
                return Ok(PassReport { reported, ..report });
            }
            NodeState::Failed(message) => {
                let reported = reporter.failed(&message, false);
                return Ok(PassReport { reported, ..report });
            }
            NodeState::Pending => {}
        }
        if let Some(reverted) = reverted.as_ref().filter(|reverted| reverted.is_cause) {
            let reported = reporter.failed(&reverted.message, false);
            return Ok(PassReport { reported, ..report });
        }
    }
    let mut observer = ReportingObserver {
        reporter: &reporter,
        output: &mut *options.output,
        is_risky: false,
    };
    let confirm = ConfirmOptions {
        probe: session.probe(reporter.contact()),
        needs_server: reverted.is_some(),
    };
    let done = node.converge(&name, spec.text, &mut observer, &confirm);
    let reporter = match observer.is_risky {
        true => reporter.reconnected(session.client().ok()),
        false => reporter,
    };
    match done {
        Ok(done) => {
            session.set_reverted(None)?;
            let changed = done.n_steps > 0;
            let reported = reporter.converged(changed, Vec::new());
            Ok(PassReport {
                changed,
                reported,
                ..report
            })
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "the spec was not applied");
            let message = error.message();
            let is_received = reporter.failed(&message, is_permanent(&error));
            if error.is_cut_off() {
                session.set_reverted(Some(RevertedSpec {
                    generation: spec.generation,
                    message,
                    is_cause: is_received,
                }))?;
            }
            Err(error)
        }
    }
}
