//! Follows nodes that configure themselves, by what they report to the server. Never by SSH.

use std::sync::Arc;
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::publication::{PublishDirectory, PublishedSpec, sha256};
use homestak_api::v1::report::{ReceivedReport, ReportState};
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::timeouts::Limit;
use homestak_core::observed::GuestUuid;
use homestak_core::plan::SpecComparison;
use homestak_engine::ports::{ConfigTarget, NextAction, PortError, ProviderEvent};
use homestak_store::registry::Registry;

use super::{ServerClient, ServerClientError, ServerFiles, ServerLease, client};
use crate::blocking::run_blocking;
use crate::error::DriverError;

/// The server's registry in its state directory.
const REGISTRY: &str = "server.db";
/// How long a request waits for the next report.
const POLL: Duration = Duration::from_secs(20);
/// The shortest wait, so that a limit is not awaited with one request after another.
const SHORTEST_POLL: Duration = Duration::from_secs(1);
/// The pause between two requests that are answered at once: of a node that has not enrolled, and of
/// a server that does not answer.
const PAUSE: Duration = Duration::from_millis(300);
/// How often a node fetches its spec if that sets no interval.
pub(super) const INTERVAL: Duration = Duration::from_secs(300);

/// Receives the progress of a node.
pub(crate) type Progress = Arc<dyn Fn(ProviderEvent) + Send + Sync>;

/// What a report means for a run that waits until a generation of a spec is applied.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// It is about something else.
    Nothing,
    /// The node works on it.
    Progress(Vec<ProviderEvent>),
    /// The node matches the spec now.
    Converged {
        changed: bool,
        warnings: Vec<ProviderEvent>,
    },
    /// The node applied a later generation.
    Superseded,
    /// The node could not.
    Failed(String),
}

/// Which reports count.
#[derive(Clone, Copy)]
struct Wanted {
    /// The generation that is waited for.
    generation: u64,
    /// What arrived before is of an earlier run.
    since: i64,
    /// The number of the last report with a result, when the wait began.
    last_end: Option<i64>,
}

/// Reads a report. One of an earlier run counts only if it is the last result: the node may have
/// applied the generation before anyone waited, and may have failed since it did.
fn meaning(report: &ReceivedReport, wanted: Wanted) -> Meaning {
    let is_recent = report.received >= wanted.since;
    let is_last = wanted.last_end.is_none_or(|last| report.id >= last);
    let report = &report.report;
    let is_expected = report.generation == Some(wanted.generation) && is_last;
    let error = || {
        report
            .error
            .clone()
            .unwrap_or_else(|| "no reason given".to_owned())
    };
    match report.state {
        ReportState::Converged if is_expected => Meaning::Converged {
            changed: report.changed.unwrap_or(true),
            warnings: report.drift.iter().map(|one| not_changed(one)).collect(),
        },
        ReportState::Converged
            if is_recent && report.generation.is_some_and(|of| of > wanted.generation) =>
        {
            Meaning::Superseded
        }
        ReportState::Failed if is_expected || report.permanent && is_recent => {
            Meaning::Failed(error())
        }
        ReportState::Failed if is_recent => {
            let text = format!("another try ({})", error());
            Meaning::Progress(vec![ProviderEvent::Waiting(text)])
        }
        ReportState::Converging if is_expected && is_recent => {
            let step = report.step.clone().map(ProviderEvent::Doing);
            Meaning::Progress(step.into_iter().collect())
        }
        ReportState::Fetching if is_recent => {
            let text = "fetch its spec".to_owned();
            Meaning::Progress(vec![ProviderEvent::Doing(text)])
        }
        ReportState::Fetching
        | ReportState::Converging
        | ReportState::Converged
        | ReportState::Failed => Meaning::Nothing,
    }
}

fn not_changed(drift: &str) -> ProviderEvent {
    let line = drift.lines().next().unwrap_or_default();
    ProviderEvent::Warning(format!("{line}, and is not changed"))
}

/// Returns the last report with the result of an attempt.
pub(super) fn last_end(reports: &[ReceivedReport]) -> Option<&ReceivedReport> {
    let ends = |one: &&ReceivedReport| {
        matches!(
            one.report.state,
            ReportState::Converged | ReportState::Failed
        )
    };
    reports.iter().rev().find(ends)
}

impl ServerLease {
    /// Returns where specs are published; `None` for a site that can have no id.
    pub(super) fn published(&self) -> Result<Option<PublishDirectory>, DriverError> {
        Ok(self
            .files()?
            .map(|files| PublishDirectory::new(files.published)))
    }

    /// Returns whether a spec is published for a guest.
    pub(crate) async fn is_published(&self, guest: &GuestUuid) -> Result<bool, DriverError> {
        let (directory, guest) = (self.published()?, guest.clone());
        // Cancel safety: only reads.
        let found = run_blocking(move || Ok(directory.is_some_and(|all| all.has_spec(&guest))));
        found.await
    }

    fn files(&self) -> Result<Option<ServerFiles>, DriverError> {
        let site = match self.session.id() {
            Ok(site) => site,
            Err(_) if !self.session.has_id => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(ServerFiles::new(&self.settings, site, super::PORT)))
    }

    /// Compares a node with its spec by what it reported last. Nothing is started.
    pub(crate) async fn check(
        &self,
        node: &ConfigTarget,
        text: &str,
    ) -> Result<SpecComparison, DriverError> {
        // In another mode it fetches nothing by itself, whatever it reported.
        let published = self.published_spec(&node.guest).await?;
        let is_revoked = published.as_ref().is_some_and(|one| one.revoked.is_some());
        let mode = published.and_then(|published| published.mode);
        // One that was revoked receives nothing; configuring it reports that.
        let is_own = !is_revoked && mode.is_none_or(|mode| mode == Mode::Pull);
        let generation = self.generation_of(&node.guest, text).await?;
        let Some(generation) = generation.filter(|_| is_own) else {
            return Ok(SpecComparison::default());
        };
        let reports = self.reports(node.guest.as_str()).await?;
        let settled = last_end(&reports).is_some_and(|last| {
            last.report.state == ReportState::Converged
                && last.report.generation == Some(generation)
        });
        Ok(SpecComparison {
            settled,
            ..SpecComparison::default()
        })
    }

    /// Returns what is published for a guest. What is damaged is published again by the next run.
    pub(crate) async fn published_spec(
        &self,
        guest: &GuestUuid,
    ) -> Result<Option<PublishedSpec>, DriverError> {
        let Some(directory) = self.published()? else {
            return Ok(None);
        };
        let guest = guest.clone();
        // Cancel safety: only reads.
        run_blocking(move || {
            let found = directory.spec_to_replace(&guest);
            found.map_err(|error| DriverError::file("read", directory.path(), &error))
        })
        .await
    }

    /// Returns the generation of the published spec, if it is this text.
    async fn generation_of(
        &self,
        guest: &GuestUuid,
        text: &str,
    ) -> Result<Option<u64>, DriverError> {
        let Some(found) = self.published_spec(guest).await? else {
            return Ok(None);
        };
        let keys = self.site().await?.publisher.keys.public_keys();
        let statement = found.verify(&keys).ok();
        let statement = statement.filter(|one| one.sha256 == sha256(text.as_bytes()));
        Ok(statement.map(|statement| statement.generation))
    }

    /// Returns the reports of a node: from the server, or from its file while none runs.
    pub(super) async fn reports(&self, uuid: &str) -> Result<Vec<ReceivedReport>, DriverError> {
        if let Some(client) = self.running().await? {
            return Ok(reports_of(&client, uuid).await?);
        }
        let Some(files) = self.files()? else {
            return Ok(Vec::new());
        };
        let uuid = uuid.to_owned();
        // Cancel safety: only reads.
        run_blocking(move || {
            let failed = |error| {
                let text = homestak_core::error::chain(&error);
                DriverError::failed(format!("Cannot read the server's reports: {text}."))
            };
            let path = files.state.join(REGISTRY);
            let Some(registry) = Registry::open_to_read(&path).map_err(failed)? else {
                return Ok(Vec::new());
            };
            let nodes = registry.nodes().map_err(failed)?;
            let enrolled = nodes.iter().find(|node| node.uuid == uuid);
            let enrolled = enrolled.and_then(|node| node.enrolled);
            let mut entries = registry.reports(&uuid, 0).map_err(failed)?;
            entries.retain(|entry| enrolled.is_some_and(|at| entry.received >= at));
            let read = |entry: homestak_store::registry::ReportEntry| {
                Some(ReceivedReport {
                    id: entry.id,
                    received: entry.received,
                    report: client::escaped(serde_json::from_str(&entry.body).ok()?)?,
                })
            };
            Ok(entries.into_iter().filter_map(read).collect())
        })
        .await
    }

    /// Returns whether a node failed with the published spec before this process started, so that
    /// only a new generation distinguishes that failure from the next.
    pub(crate) async fn failed_before(
        &self,
        client: &ServerClient,
        node: &ConfigTarget,
        text: &str,
    ) -> Result<bool, DriverError> {
        let Some(generation) = self.generation_of(&node.guest, text).await? else {
            return Ok(false);
        };
        let reports = reports_of(client, node.guest.as_str()).await?;
        Ok(last_end(&reports).is_some_and(|last| {
            // A refused spec has no generation: after the state directory was restored from a backup,
            // the node knows a later one.
            let is_of_this = last.report.generation == Some(generation)
                || last.report.permanent && last.report.generation.is_none();
            last.report.state == ReportState::Failed
                && is_of_this
                && last.received < self.opened().as_second()
        }))
    }

    /// Follows a node until it has applied a generation of its spec. Returns whether anything was
    /// changed.
    pub(crate) async fn follow(
        &self,
        node: &ConfigTarget,
        expected: u64,
        progress: &Progress,
    ) -> Result<bool, PortError> {
        let changed = self.follow_reports(node, expected, progress).await?;
        let forgotten = self.forget_token(&node.guest).await;
        forgotten.map_err(|error| error.at_port(&format!("configure `{}`", node.node)))?;
        Ok(changed)
    }

    async fn follow_reports(
        &self,
        node: &ConfigTarget,
        expected: u64,
        progress: &Progress,
    ) -> Result<bool, PortError> {
        let doing = format!("configure `{}`", node.node);
        let at_port = |error: DriverError| error.at_port(&doing);
        let limits = self.session.timeouts();
        let since = self.opened().as_second();
        let begun = monotonic();
        let (mut client, mut last) = (self.client().await.map_err(at_port)?, 0);
        let (mut contacted, mut lost): (bool, Option<Duration>) = (false, None);
        let mut wait = Duration::ZERO;
        let mut wanted: Option<Wanted> = None;
        progress(ProviderEvent::Waiting(self.fetch_wait(node)));
        loop {
            // Cancel safety: the node continues on its own, and reports are kept.
            match reports_after(&client, node.guest.as_str(), last, wait).await {
                Ok(reports) => {
                    (lost, wait) = (None, POLL);
                    let wanted = *wanted.get_or_insert_with(|| Wanted {
                        generation: expected,
                        since,
                        last_end: last_end(&reports).map(|one| one.id),
                    });
                    for report in reports {
                        last = report.id;
                        let meaning = meaning(&report, wanted);
                        if !contacted && meaning != Meaning::Nothing {
                            contacted = true;
                            progress(ProviderEvent::Began);
                        }
                        if let Some(end) = end_of(meaning, &doing, progress) {
                            return end;
                        }
                    }
                }
                Err(error) if error.is_missing() => tokio::time::sleep(PAUSE).await,
                Err(error) if error.is_transient() => {
                    let away = *lost.get_or_insert_with(monotonic);
                    progress(ProviderEvent::Waiting("the server to answer".to_owned()));
                    tokio::time::sleep(PAUSE).await;
                    match self.client().await {
                        Ok(found) => client = found,
                        Err(error) if is_over(away, limits.of(Limit::Api)) => {
                            return Err(at_port(error));
                        }
                        Err(_) => {}
                    }
                }
                Err(error) => return Err(at_port(error.into())),
            }
            let waited = monotonic().saturating_sub(begun);
            let contact = limits.of(Limit::Boot) + self.interval(node);
            if !contacted && waited >= contact {
                return Err(not_contacted(&doing, node, &client, contact));
            }
            let end = limits.of(Limit::Config);
            if waited >= end {
                return Err(PortError::refused(
                    &doing,
                    format!("it has not reported a result for {} s", waited.as_secs()),
                    "the node continues on its own; `homestak manifest resume` fetches the result",
                ));
            }
            let left = if contacted { end } else { end.min(contact) } - waited;
            wait = wait.min(left.max(SHORTEST_POLL));
        }
    }

    /// Returns what is waited for until a node fetches its spec: one that runs does it at an interval, unless
    /// it is asked to.
    fn fetch_wait(&self, node: &ConfigTarget) -> String {
        let text = "it to fetch its spec";
        let is_asked = node.config.mode != Mode::Pull || node.mode_before != Some(Mode::Pull);
        if node.is_new || is_asked {
            return text.to_owned();
        }
        let (seconds, name) = (self.interval(node).as_secs(), &node.node);
        format!("{text} within {seconds} s; to start it now: homestak node job {name} converge")
    }

    /// Returns how long a node may wait before it fetches its spec: one that boots does at once.
    fn interval(&self, node: &ConfigTarget) -> Duration {
        if node.is_new {
            return Duration::ZERO;
        }
        self.interval_of(&node.config.spec)
    }
}

fn is_over(since: Duration, limit: Duration) -> bool {
    monotonic().saturating_sub(since) >= limit
}

/// Returns all reports of a node; none of one that has not enrolled.
async fn reports_of(
    client: &ServerClient,
    uuid: &str,
) -> Result<Vec<ReceivedReport>, ServerClientError> {
    match reports_after(client, uuid, 0, Duration::ZERO).await {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        found => found,
    }
}

/// Returns the reports of a node after one. Reports from before its enrolment are those of an earlier
/// guest of the same name, and do not count.
async fn reports_after(
    client: &ServerClient,
    uuid: &str,
    after: i64,
    wait: Duration,
) -> Result<Vec<ReceivedReport>, ServerClientError> {
    let mut found = client.reports(uuid, after, wait).await?.reports;
    if after == 0 && !found.is_empty() {
        let enrolled = client.node(uuid).await?.enrolled;
        // Without an enrolment, all are of an earlier guest.
        found.retain(|report| enrolled.is_some_and(|at| report.received >= at));
    }
    Ok(found)
}

/// Shows what a report means, and returns how the wait ends, if it does.
fn end_of(meaning: Meaning, doing: &str, progress: &Progress) -> Option<Result<bool, PortError>> {
    match meaning {
        Meaning::Nothing => None,
        Meaning::Progress(events) => {
            events.into_iter().for_each(|event| progress(event));
            None
        }
        Meaning::Converged { changed, warnings } => {
            warnings.into_iter().for_each(|event| progress(event));
            Some(Ok(changed))
        }
        Meaning::Superseded => Some(Err(PortError {
            next: NextAction::NewPlan,
            ..PortError::refused(doing, "a later spec was published for it", "")
        })),
        Meaning::Failed(error) => Some(Err(PortError {
            next: NextAction::NewPlan,
            ..PortError::refused(
                doing,
                error,
                "correct the spec or the node, then apply again; completed steps are not repeated",
            )
        })),
    }
}

fn not_contacted(
    doing: &str,
    node: &ConfigTarget,
    client: &ServerClient,
    waited: Duration,
) -> PortError {
    let detail = format!(
        "it has not contacted the server ({}) for {} s",
        client.url(),
        waited.as_secs()
    );
    let hint = format!(
        "`homestak logs {}` shows why, where its host has a console; `homestak manifest resume` \
         continues from here, and `--timeout boot=SECONDS` waits longer",
        node.node
    );
    PortError::refused(doing, detail, hint)
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::report::Report;

    use super::*;

    fn report(state: ReportState, generation: Option<u64>, received: i64) -> ReceivedReport {
        ReceivedReport {
            id: 1,
            received,
            report: Report {
                run: "r".to_owned(),
                state,
                generation,
                step: None,
                changed: None,
                error: None,
                permanent: false,
                drift: Vec::new(),
                agent: "0.1.0".to_owned(),
            },
        }
    }

    /// Waits for generation 7 from second 50 on.
    const WANTED: Wanted = Wanted {
        generation: 7,
        since: 50,
        last_end: None,
    };

    #[test]
    fn only_the_expected_generation_ends_the_wait() {
        let of = |state, generation| meaning(&report(state, generation, 100), WANTED);
        let changed = |meaning| matches!(meaning, Meaning::Converged { changed: true, .. });
        assert!(changed(of(ReportState::Converged, Some(7))));
        assert_eq!(of(ReportState::Converged, Some(6)), Meaning::Nothing);
        assert_eq!(of(ReportState::Converged, None), Meaning::Nothing);
        assert_eq!(of(ReportState::Converged, Some(8)), Meaning::Superseded);
        let failed = Meaning::Failed("no reason given".to_owned());
        assert_eq!(of(ReportState::Failed, Some(7)), failed);
        assert!(matches!(
            of(ReportState::Failed, None),
            Meaning::Progress(_)
        ));
        assert_eq!(of(ReportState::Converging, Some(6)), Meaning::Nothing);
    }

    #[test]
    fn what_an_earlier_run_saw_neither_fails_nor_counts_as_contact() {
        let mut old = report(ReportState::Failed, None, 10);
        assert_eq!(meaning(&old, WANTED), Meaning::Nothing);
        old.report.permanent = true;
        assert_eq!(meaning(&old, WANTED), Meaning::Nothing);
        old.received = 60;
        assert!(matches!(meaning(&old, WANTED), Meaning::Failed(_)));
        let fetching = report(ReportState::Fetching, Some(7), 10);
        assert_eq!(meaning(&fetching, WANTED), Meaning::Nothing);
        // It may have ended before anyone waited.
        let converged = report(ReportState::Converged, Some(7), 10);
        assert!(matches!(
            meaning(&converged, WANTED),
            Meaning::Converged { .. }
        ));
    }

    #[test]
    fn of_earlier_runs_only_the_last_result_counts() {
        let wanted = Wanted {
            last_end: Some(2),
            ..WANTED
        };
        // It matched the generation, and has refused it since: the state directory was restored.
        let converged = report(ReportState::Converged, Some(7), 10);
        assert_eq!(meaning(&converged, wanted), Meaning::Nothing);
        let last = ReceivedReport { id: 2, ..converged };
        assert!(matches!(meaning(&last, wanted), Meaning::Converged { .. }));
        for (state, generation) in [
            (ReportState::Converging, Some(7)),
            (ReportState::Converged, Some(u64::MAX)),
        ] {
            let old = report(state, generation, 10);
            assert_eq!(meaning(&old, wanted), Meaning::Nothing);
        }
    }

    #[test]
    fn the_last_result_counts_also_while_the_next_attempt_runs() {
        let reports = [
            report(ReportState::Failed, Some(6), 1),
            report(ReportState::Converged, Some(7), 2),
            report(ReportState::Fetching, None, 3),
        ];
        let last = last_end(&reports).expect("one");
        assert_eq!(last.report.generation, Some(7));
        assert_eq!(last_end(&reports[2..]), None);
    }
}
