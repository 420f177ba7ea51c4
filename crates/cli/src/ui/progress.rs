//! Progress of a run: a live tree on a terminal, lines elsewhere, JSON with `--events`.
//!
//! The tree never has more lines than the terminal, and is drawn at most ten times a second.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anstream::ColorChoice;
use homestak_api::log::LIVE_LINES;
use homestak_core::foreign::ForeignText;
use homestak_core::plan::{Plan, StepKind};
use homestak_driver::events::{Event, EventKind, Observer, Subject};
use homestak_driver::runs::{ReportRow, RowStatus, RunReport};
use homestak_driver::wire;
use jiff::{SignedDuration, Timestamp};
use owo_colors::OwoColorize as _;

use super::plan::duration;
use super::{OutputOptions, Printer};

/// Minimum time between two drawings of the tree.
const BETWEEN: SignedDuration = SignedDuration::from_millis(100);

/// How long a wait lasts until a line reports it.
const LONG: SignedDuration = SignedDuration::from_secs(2);

/// Time between two lines about an image.
const BETWEEN_LINES: SignedDuration = SignedDuration::from_secs(5);

/// Shows the progress of a run.
pub(crate) struct Screen {
    printer: Printer,
    live: bool,
    events: bool,
    /// Whether signals go to the run that is shown.
    driven: AtomicBool,
    /// Whether the command waits for confirmation.
    asking: AtomicBool,
    state: Mutex<ProgressState>,
}

#[derive(Default)]
struct ProgressState {
    report: RunReport,
    begun: Option<Timestamp>,
    last: Option<Timestamp>,
    /// When the progress of an image was last printed.
    image_printed: Option<Timestamp>,
    waits: PendingWaits,
}

/// What each node waits for, since when, and whether that was printed.
#[derive(Default)]
struct PendingWaits(BTreeMap<Subject, (String, Timestamp, bool)>);

impl PendingWaits {
    fn update(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Waiting { subject, what } => {
                let same = self.0.get(subject).is_some_and(|(known, ..)| known == what);
                if !same && !matches!(subject, Subject::Image { .. }) {
                    let wait = (what.clone(), event.at, false);
                    self.0.insert(subject.clone(), wait);
                }
            }
            EventKind::StepStarted { subject, .. }
            | EventKind::StepDone { subject, .. }
            | EventKind::StepFailed { subject, .. }
            | EventKind::Doing { subject, .. } => _ = self.0.remove(subject),
            EventKind::RunEnded { .. } => self.0.clear(),
            EventKind::RunStarted { .. }
            | EventKind::Warning { .. }
            | EventKind::RollbackStarted => {}
        }
    }

    /// Returns a line about each wait that has become long, once.
    fn long(&mut self, at: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        for (subject, (what, since, printed)) in &mut self.0 {
            if !*printed && at.duration_since(*since) >= LONG {
                *printed = true;
                lines.push(format!("{subject}: waiting for {what}"));
            }
        }
        lines
    }
}

impl Screen {
    /// Makes a screen; `events` prints every event on stdout.
    pub(crate) fn new(output: OutputOptions, events: bool) -> Self {
        let live = std::io::stderr().is_terminal() && output.verbose == 0;
        Self {
            printer: Printer::new(output),
            live,
            events,
            driven: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Returns whether signals go to the run that is shown.
    pub(crate) fn is_driven(&self) -> bool {
        self.driven.load(Ordering::Relaxed)
    }

    /// Sets whether signals go to the run that is shown.
    pub(crate) fn set_driven(&self, driven: bool) {
        self.driven.store(driven, Ordering::Relaxed);
    }

    /// Returns whether the command waits for confirmation and has changed nothing yet.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed)
    }

    /// Sets whether the command waits for confirmation.
    pub(crate) fn set_asking(&self, asking: bool) {
        self.asking.store(asking, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with a run_report, of a plan or of a resumed run.
    pub(crate) fn begin(&self, run_report: RunReport) {
        *self.state() = ProgressState {
            report: run_report,
            ..ProgressState::default()
        };
    }

    /// Begins with a plan.
    pub(crate) fn expect(&self, plan: &Plan) {
        self.begin(RunReport::new(plan));
    }

    /// Returns what has happened so far.
    pub(crate) fn report(&self) -> RunReport {
        self.state().report.clone()
    }

    /// Redraws, so that elapsed times advance.
    pub(crate) fn tick(&self, at: Timestamp) {
        let mut state = self.state();
        if self.live {
            self.draw(&mut state, at);
        } else if self.printer.output.verbose == 0 {
            for line in state.waits.long(at) {
                self.line(&state, at, &line);
            }
        }
    }

    /// Prints a line with the elapsed time.
    fn line(&self, state: &ProgressState, at: Timestamp, text: &str) {
        let passed = state
            .begun
            .map_or(0.0, |begun| at.duration_since(begun).as_secs_f64());
        let stamp = format!("[{passed:7.1} s]");
        self.printer.message(&format!("{} {text}", stamp.dimmed()));
    }

    /// Prints a message above the tree.
    pub(crate) fn note(&self, printer: &Printer, text: &str) {
        let _state = self.state();
        erase();
        printer.message(text);
    }

    /// Erases the tree; a table follows.
    pub(crate) fn finish(&self) {
        let _state = self.state();
        erase();
    }

    fn draw(&self, state: &mut ProgressState, at: Timestamp) {
        if state.begun.is_none()
            || state
                .last
                .is_some_and(|last| at.duration_since(last) < BETWEEN)
        {
            return;
        }
        state.last = Some(at);
        let size = terminal_size::terminal_size_of(std::io::stderr());
        let (width, height) = size.map_or((80, 24), |(width, height)| (width.0, height.0));
        let lines = tree_lines(state, at, usize::from(height).saturating_sub(2).max(1));
        let color = self.printer.output.color != ColorChoice::Never;
        let mut text = String::new();
        let mut out = std::io::stderr().lock();
        let drawn = LIVE_LINES.swap(lines.len(), Ordering::Relaxed);
        if drawn > 0 {
            text += &format!("\x1b[{drawn}A");
        }
        for (status, line) in &lines {
            let cut: String = ForeignText::line(line)
                .chars()
                .take(usize::from(width).saturating_sub(1))
                .collect();
            text += "\x1b[2K";
            text += &if color { paint(*status, &cut) } else { cut };
            text.push('\n');
        }
        // Erases what is left of a larger tree.
        text += "\x1b[0J";
        _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// Erases the tree. The caller holds the lock of the screen.
fn erase() {
    let mut out = std::io::stderr().lock();
    let drawn = LIVE_LINES.swap(0, Ordering::Relaxed);
    if drawn > 0 {
        let text = format!("\x1b[{drawn}A\x1b[0J");
        _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Observer for Screen {
    fn on_event(&self, event: &Event) {
        if self.events {
            self.printer.json_line(&wire::event::event(event));
        }
        let mut state = self.state();
        state.begun.get_or_insert(event.at);
        state.report.apply(event);
        state.waits.update(event);
        if self.live {
            if matches!(
                event.kind,
                EventKind::Warning { .. } | EventKind::RunStarted { .. }
            ) {
                erase();
                self.print_line(event, &mut state);
            }
            self.draw(&mut state, event.at);
        } else {
            self.print_line(event, &mut state);
        }
    }
}

impl Screen {
    fn print_line(&self, event: &Event, state: &mut ProgressState) {
        if let EventKind::RunStarted {
            verb,
            manifest,
            resumed: false,
            ..
        } = &event.kind
            && let Some(run) = event.run
        {
            self.printer
                .message(&format!("Run {run}: {verb} `{manifest}`"));
        }
        let mut more = self.printer.output.verbose > 0;
        // Images take minutes; everything else takes seconds or reports what it waits for.
        if let EventKind::Waiting {
            subject: Subject::Image { .. },
            ..
        } = &event.kind
        {
            let last = state.image_printed.replace(event.at);
            let soon = |last| event.at.duration_since(last) < BETWEEN_LINES;
            match last.filter(|last| soon(*last)) {
                Some(last) => state.image_printed = Some(last),
                None => more = true,
            }
        }
        if let Some(text) = event_line(&event.kind, more) {
            self.line(state, event.at, &text);
        }
    }
}

/// Returns the line of an event; none for events that are not printed.
fn event_line(what: &EventKind, more: bool) -> Option<String> {
    Some(match what {
        EventKind::RunStarted { .. } | EventKind::RunEnded { .. } => return None,
        EventKind::StepStarted {
            subject,
            step,
            undo,
        } if *undo && leaves_something(*step) => {
            format!("{subject}: {}", undoing(*step))
        }
        EventKind::StepStarted { undo: true, .. } => return None,
        EventKind::StepStarted { subject, step, .. } => format!("{subject}: {}", step.doing()),
        EventKind::Waiting { .. } if !more => return None,
        EventKind::Waiting {
            subject: subject @ Subject::Image { .. },
            what,
        } => {
            format!("{subject}: {what}")
        }
        EventKind::Waiting { subject, what } => format!("{subject}: waiting for {what}"),
        EventKind::Doing { subject, what } => format!("{subject}: {what}"),
        EventKind::Warning {
            subject: Subject::Run,
            text,
        } => format!("warning: {text}"),
        EventKind::Warning { subject, text } => format!("warning: {subject}: {text}"),
        EventKind::StepDone {
            subject,
            step,
            undo,
            changed,
            kept: _,
            seconds,
            guest_id,
            address,
        } => {
            let what = match (undo, changed) {
                (true, true) => undone(*step),
                (true, false) => return None,
                (false, _) => done(*step),
            };
            let which = match (step, guest_id, address) {
                (StepKind::Create, Some(id), _) => format!(", guest {id}"),
                (StepKind::Ready, _, Some(address)) => format!(" at {address}"),
                _ => String::new(),
            };
            format!("{subject}: {what}{which} ({seconds:.1} s)")
        }
        EventKind::StepFailed { subject, error, .. } => {
            format!("{subject}: failed: {}", error.message)
        }
        EventKind::RollbackStarted => "rolling back".to_owned(),
    })
}

/// Returns whether a step leaves something to revert.
fn leaves_something(step: StepKind) -> bool {
    match step {
        StepKind::Create | StepKind::Start | StepKind::Reshape | StepKind::Stop => true,
        StepKind::Image
        | StepKind::Ready
        | StepKind::Discard
        | StepKind::Configure
        | StepKind::Grow
        | StepKind::Destroy
        | StepKind::Reidentify => false,
    }
}

/// Describes undoing a step.
fn undoing(step: StepKind) -> &'static str {
    match step {
        StepKind::Create => "rolling back: deleting its guest",
        StepKind::Start => "rolling back: stopping",
        StepKind::Configure => "rolling back: restoring its configuration",
        StepKind::Reshape => "rolling back: restoring CPUs and memory",
        StepKind::Stop => "rolling back: starting",
        StepKind::Image
        | StepKind::Ready
        | StepKind::Discard
        | StepKind::Grow
        | StepKind::Destroy
        | StepKind::Reidentify => "rolling back",
    }
}

/// Describes a step that was undone.
fn undone(step: StepKind) -> &'static str {
    match step {
        StepKind::Create => "rolled back: guest deleted",
        StepKind::Start => "rolled back: stopped",
        StepKind::Configure => "rolled back: configuration restored",
        StepKind::Reshape => "rolled back: CPUs and memory restored",
        StepKind::Stop => "rolled back: started",
        StepKind::Image
        | StepKind::Ready
        | StepKind::Discard
        | StepKind::Grow
        | StepKind::Destroy
        | StepKind::Reidentify => "rolled back",
    }
}

fn done(step: StepKind) -> &'static str {
    match step {
        StepKind::Image => "available",
        StepKind::Create => "created",
        StepKind::Start => "started",
        StepKind::Ready => "reachable",
        StepKind::Discard => "first-boot data removed",
        StepKind::Configure => "configured",
        StepKind::Reshape => "CPUs and memory changed",
        StepKind::Grow => "disk grown",
        StepKind::Stop => "stopped",
        StepKind::Destroy => "destroyed",
        StepKind::Reidentify => "assigned to this site",
    }
}

/// Renders the lines of the tree, or only its active nodes when it is too large.
fn tree_lines(state: &ProgressState, at: Timestamp, room: usize) -> Vec<(RowStatus, String)> {
    let run_report = &state.report;
    let images = run_report.images.iter().filter(|row| row.now.is_some());
    let rows: Vec<&ReportRow> = images.chain(&run_report.nodes).collect();
    let mut lines: Vec<(RowStatus, String)> = Vec::new();
    let tree = rows.len() < room;
    let moving = |row: &&&ReportRow| {
        matches!(
            row.status,
            RowStatus::Running | RowStatus::Failed | RowStatus::Stuck
        )
    };
    let shown: Vec<&ReportRow> = if tree {
        rows.clone()
    } else {
        let take = room.saturating_sub(1);
        rows.iter().filter(moving).take(take).copied().collect()
    };
    let names = shown
        .iter()
        .map(|row| row.name.chars().count() + 2 * depth(run_report, row));
    let column = names.max().unwrap_or(0);
    for row in &shown {
        let indent = if tree { 2 * depth(run_report, row) } else { 0 };
        let width = column.saturating_sub(indent);
        let text = format!("{:indent$}{:<width$}  {}", "", row.name, row_state(row, at));
        lines.push((row.status, text));
    }
    let n_done = rows.iter().filter(|row| {
        matches!(
            row.status,
            RowStatus::Completed
                | RowStatus::Destroyed
                | RowStatus::Absent
                | RowStatus::Kept
                | RowStatus::Settled
        )
    });
    let passed = state
        .begun
        .map_or(0.0, |begun| at.duration_since(begun).as_secs_f64());
    let undoing = if run_report.rolling_back {
        ", rolling back"
    } else {
        ""
    };
    lines.push((
        RowStatus::Pending,
        format!(
            "{} of {} done{undoing}, {}",
            n_done.count(),
            rows.len(),
            duration(passed)
        ),
    ));
    lines
}

fn depth(run_report: &RunReport, row: &ReportRow) -> usize {
    let mut depth = 0;
    let mut parent = row.parent.as_ref();
    while let Some(name) = parent {
        depth += 1;
        let above = run_report.nodes.iter().find(|row| row.name == *name);
        parent = above.and_then(|above| above.parent.as_ref());
        if depth > run_report.nodes.len() {
            break;
        }
    }
    depth
}

fn row_state(row: &ReportRow, at: Timestamp) -> String {
    let Some(now) = &row.now else {
        let took = row.seconds();
        let took = if took > 0.0 {
            format!(" ({took:.1} s)")
        } else {
            String::new()
        };
        let address = row.address.map_or_else(String::new, |ip| format!(" {ip}"));
        return format!("{}{address}{took}", row.status.name());
    };
    let passed = duration(at.duration_since(now.since).as_secs_f64());
    let doing = match now.undo {
        true => undoing(now.step),
        false => now.step.doing(),
    };
    match &now.waits_for {
        Some(what) => format!("{doing}, {passed}: {what}"),
        None => format!("{doing}, {passed}"),
    }
}

fn paint(status: RowStatus, text: &str) -> String {
    match status {
        RowStatus::Pending | RowStatus::Absent | RowStatus::Kept | RowStatus::Settled => {
            text.dimmed().to_string()
        }
        RowStatus::Running => text.cyan().to_string(),
        RowStatus::Completed | RowStatus::Destroyed => text.green().to_string(),
        RowStatus::Failed | RowStatus::Stuck | RowStatus::Interrupted => text.red().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use homestak_driver::runs::RunId;

    use super::*;

    fn event(second: i64, kind: EventKind) -> Event {
        Event {
            at: at(second),
            run: Some(RunId(1)),
            kind,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn waiting(what: &str) -> EventKind {
        EventKind::Waiting {
            subject: Subject::Node("web".to_owned()),
            what: what.to_owned(),
        }
    }

    #[test]
    fn a_rollback_is_described_without_the_names_of_steps() {
        let subject = || Subject::Node("web".to_owned());
        let (step, undo) = (StepKind::Reshape, true);
        let started = EventKind::StepStarted {
            subject: subject(),
            step,
            undo,
        };
        let done = EventKind::StepDone {
            subject: subject(),
            step,
            undo,
            changed: true,
            kept: false,
            seconds: 1.0,
            guest_id: None,
            address: None,
        };
        let lines = [started, done].map(|kind| event_line(&kind, false));
        assert_eq!(
            lines.map(Option::unwrap_or_default),
            [
                "web: rolling back: restoring CPUs and memory",
                "web: rolled back: CPUs and memory restored (1.0 s)"
            ]
        );
    }

    #[test]
    fn a_wait_is_printed_once_after_two_seconds_and_not_when_it_is_over() {
        let mut waits = PendingWaits::default();
        waits.update(&event(0, waiting("its SSH")));
        assert!(waits.long(at(1)).is_empty(), "not yet");
        waits.update(&event(1, waiting("its SSH")));
        assert_eq!(waits.long(at(2)), ["web: waiting for its SSH"]);
        assert!(waits.long(at(9)).is_empty(), "once");
        waits.update(&event(10, waiting("its API")));
        let doing = EventKind::Doing {
            subject: Subject::Node("web".to_owned()),
            what: "packages".to_owned(),
        };
        waits.update(&event(11, doing));
        assert!(waits.long(at(20)).is_empty(), "it is over");
    }
}
