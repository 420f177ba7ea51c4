//! Runs.

use homestak_api::v1::{
    self, ImageResult, NodeResult, NotReverted, ProgressStatus, RollbackEffect, RollbackItem,
    RollbackPreview, RunEnding, RunPhase, RunResult, RunVerb,
};
use homestak_engine::journal::{Run, RunOutcome, RunSummary};
use homestak_engine::operate::{UndoEffect, UndoItem};
use homestak_engine::report::{ConfigState, ReportRow, RowStatus, RunReport};

use crate::runs::is_resumable;

/// Converts the result of a run.
pub fn result(verb: RunVerb, report: &RunReport, success: bool) -> RunResult {
    let (ended, seconds) = report.ended.unzip();
    RunResult {
        verb,
        success,
        duration_seconds: milliseconds(seconds.unwrap_or_default()),
        nodes: nodes(report),
        images: images(report),
        run: report.run.map(|run| run.0),
        ending: ended.map(ending),
        phases: None,
        reports: None,
        not_undone: None,
    }
}

/// Converts what could not be reverted: what is known to remain, and what is stuck.
pub fn not_reverted(left: &[&UndoItem], report: &RunReport) -> Vec<NotReverted> {
    let left = left.iter().map(|item| (&item.subject, &item.text));
    let stuck = report.errors();
    let stuck = stuck.filter(|(row, _)| row.status == RowStatus::Stuck);
    let stuck = stuck.map(|(row, error)| (&row.name, &error.message));
    let all = left.chain(stuck).map(|(name, text)| NotReverted {
        name: name.clone(),
        text: text.clone(),
    });
    all.collect()
}

/// Converts the nodes of a run.
pub fn nodes(report: &RunReport) -> Vec<NodeResult> {
    let node = |row: &ReportRow| NodeResult {
        name: row.name.clone(),
        status: progress(row.status),
        vm_id: row.guest_id,
        ip: row.address,
        config: row.config.map(config),
        duration: (!row.phases.is_empty()).then(|| milliseconds(row.seconds())),
        error: row.error.as_ref().map(|error| error.message.clone()),
    };
    report.nodes.iter().map(node).collect()
}

/// Converts the outcome of the configuration of a node.
pub(super) fn config(state: ConfigState) -> v1::ConfigState {
    match state {
        ConfigState::Configured => v1::ConfigState::Configured,
        ConfigState::Simulated => v1::ConfigState::Simulated,
    }
}

/// Converts the images that a run downloaded, or could not.
pub(super) fn images(report: &RunReport) -> Vec<ImageResult> {
    let images = report.images.iter();
    let images = images.filter(|row| row.changed || row.error.is_some());
    let image = |row: &ReportRow| ImageResult {
        name: row.name.clone(),
        status: progress(row.status),
        error: row.error.as_ref().map(|error| error.message.clone()),
    };
    images.map(image).collect()
}

/// Converts a run on record.
pub fn summary(run: &RunSummary) -> v1::RunSummary {
    let (finished, ended) = run.ended.unzip();
    v1::RunSummary {
        run: run.id.0,
        site: run.site.as_ref().map(ToString::to_string),
        manifest: run.manifest.clone(),
        hosts: run.hosts.clone(),
        verb: run.verb.clone(),
        started_at: run.started,
        finished_at: finished,
        duration: finished.map(|at| at.duration_since(run.started).as_secs_f64()),
        ending: ended.map(ending),
        resumable: is_resumable(run),
    }
}

/// Converts what happened in a run.
pub fn report(run: &Run, report: &RunReport) -> v1::RunReport {
    let rows = report.images.iter().chain(&report.nodes);
    let phases = rows.flat_map(|row| {
        row.phases.iter().map(|(kind, seconds)| RunPhase {
            subject: row.name.clone(),
            phase: *kind,
            duration: milliseconds(*seconds),
        })
    });
    v1::RunReport {
        run: summary(&run.head),
        nodes: nodes(report),
        images: images(report),
        phases: phases.collect(),
    }
}

/// Converts what rolling a run back would do.
pub fn rollback(run: &Run, items: &[UndoItem]) -> RollbackPreview {
    let item = |item: &UndoItem| RollbackItem {
        name: item.subject.clone(),
        effect: match item.effect {
            UndoEffect::Undone => RollbackEffect::Undone,
            UndoEffect::Stays => RollbackEffect::Stays,
            UndoEffect::Lost => RollbackEffect::Lost,
        },
        text: item.text.clone(),
    };
    RollbackPreview {
        verb: RunVerb::Rollback,
        run: run.head.id.0,
        manifest: run.head.manifest.clone(),
        hosts: run.head.hosts.clone(),
        undo: items.iter().map(item).collect(),
        success: None,
    }
}

/// Rounds seconds to milliseconds.
pub fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

pub(super) fn ending(ending: RunOutcome) -> RunEnding {
    match ending {
        RunOutcome::Done => RunEnding::Done,
        RunOutcome::Failed => RunEnding::Failed,
        RunOutcome::Stopped => RunEnding::Stopped,
        RunOutcome::RolledBack => RunEnding::RolledBack,
        RunOutcome::Stuck => RunEnding::Stuck,
        RunOutcome::Superseded => RunEnding::Superseded,
    }
}

pub(super) fn progress(status: RowStatus) -> ProgressStatus {
    match status {
        RowStatus::Pending => ProgressStatus::Pending,
        RowStatus::Running => ProgressStatus::Running,
        RowStatus::Interrupted => ProgressStatus::Interrupted,
        RowStatus::Completed => ProgressStatus::Completed,
        RowStatus::Failed => ProgressStatus::Failed,
        RowStatus::Destroyed => ProgressStatus::Destroyed,
        RowStatus::Absent => ProgressStatus::Absent,
        RowStatus::Kept => ProgressStatus::Kept,
        RowStatus::Settled => ProgressStatus::Settled,
        RowStatus::Stuck => ProgressStatus::Stuck,
    }
}
