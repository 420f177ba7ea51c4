//! Follows tasks until they end.
//!
//! A task times out only when it makes no progress; a slow disk is not a failure.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_engine::ports::{ErrorClass, Sent};
use jiff::Timestamp;
use serde_json::Value;

use super::client::Pve;
use super::error::{PveError, Reason, classify_text};
use super::quirks;
use super::requests::{ApiCall, TASK_LOG, TASK_STATUS, TASKS};
use super::upid::Upid;

/// The pause before the first poll; most tasks take less than a second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The same for unpacking and starting containers; two to three seconds were seen.
const FIRST_PAUSE_LONG: Duration = Duration::from_millis(1500);
/// The longest pause before the first poll.
const LONGEST_FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest polling interval.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A pause is this part of the time since the task started, or since its end was expected: an end
/// is seen that much later.
const LATE: u32 = 2;
/// A pause is at least this part of the expected time once that has passed.
const NEAR: u32 = 20;
/// How long a task may be unknown after it was started; its index is written later.
const UNKNOWN: Duration = Duration::from_secs(10);
/// How many polls may find it unknown.
const UNKNOWN_POLLS: u32 = 5;
/// How often the log is measured to see progress.
const MEASURE: Duration = Duration::from_secs(10);
/// Lines of the log that go with an error.
const TAIL: u64 = 30;
/// Lines of the log that are searched for warnings; making a guest writes a few hundred.
const WHOLE: u64 = 2000;

/// The status of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It runs.
    Running,
    /// It succeeded.
    Succeeded,
    /// It succeeded with warnings.
    SucceededWithWarnings,
    /// It failed with this message.
    Failed(String),
}

/// Reads the status of a task.
pub fn task_state(data: &Value) -> Option<TaskState> {
    match quirks::text_of(data, "status").as_str() {
        "running" => Some(TaskState::Running),
        "stopped" => Some(exit_state(&quirks::text_of(data, "exitstatus"))),
        _ => None,
    }
}

fn exit_state(words: &str) -> TaskState {
    match words.trim() {
        "OK" => TaskState::Succeeded,
        warned if warned.starts_with("WARNINGS") => TaskState::SucceededWithWarnings,
        // As the host reports when a task's log has no last line.
        "" => TaskState::Failed("unexpected status".to_owned()),
        failed => TaskState::Failed(failed.to_owned()),
    }
}

/// A running task as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningTask {
    /// Its id.
    pub upid: Upid,
}

/// How long tasks of each kind run on each host, so that few requests ask for their state and an
/// end is seen soon.
#[derive(Default)]
pub(super) struct TaskDurations(Mutex<BTreeMap<(String, String), TaskDuration>>);

#[derive(Clone, Copy)]
struct TaskDuration {
    /// The longest time after which all of them still ran.
    least: Duration,
    /// How long the last one ran.
    last: Duration,
}

impl TaskDurations {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(String, String), TaskDuration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, task: &Upid) -> Option<TaskDuration> {
        let key = (task.node.clone(), task.kind.clone());
        self.known().get(&key).copied()
    }

    /// Returns when a first status request for a task is worthwhile.
    fn first(&self, task: &Upid) -> Duration {
        let usual = match task.kind.as_str() {
            "vzcreate" | "vzclone" | "vzstart" | "vzreboot" => FIRST_PAUSE_LONG,
            _ => FIRST_PAUSE,
        };
        let known = self.of(task).map(|duration| duration.least);
        known
            .unwrap_or(usual)
            .clamp(FIRST_PAUSE, LONGEST_FIRST_PAUSE)
    }

    /// Returns the pause after a request that found a task running: long while its end is not
    /// expected, short when it is, because waiters for the task's storage wait for it too.
    fn pause(&self, task: &Upid, ran: Duration) -> Duration {
        let pause = match self.of(task).map(|duration| duration.last) {
            None => ran / LATE,
            Some(expected) if ran < expected => ran.min(expected - ran),
            Some(expected) => ((ran - expected) / LATE).max(expected / NEAR),
        };
        pause.clamp(FIRST_PAUSE, LONGEST_PAUSE)
    }

    /// Records that a task still ran after a time, and had ended after another.
    fn record(&self, task: &Upid, ran: Duration, ended: Duration) {
        let mut known = self.known();
        let key = (task.node.clone(), task.kind.clone());
        let least = known
            .get(&key)
            .map_or(ran, |duration| duration.least.min(ran));
        let last = (ran + ended) / 2;
        known.insert(key, TaskDuration { least, last });
    }
}

impl Pve {
    /// Waits until a task has ended.
    pub(super) async fn follow(&self, upid: &Upid) -> Result<(), PveError> {
        self.follow_with(upid, self.settings.limits.task_stall)
            .await
    }

    /// Waits until a task has ended, or has not moved for that long.
    pub(super) async fn follow_with(&self, upid: &Upid, stall: Duration) -> Result<(), PveError> {
        let started = self.clock.now();
        let status = ApiCall::to(&TASK_STATUS)
            .at("node", &upid.node)
            .at("upid", upid);
        let mut watch = TaskWatch::new(started);
        let mut reported = false;
        let mut ran = Duration::ZERO;
        self.clock.sleep(self.task_durations.first(upid)).await;
        let mut away = false;
        loop {
            let waited = elapsed(started, self.clock.now());
            watch.polls += 1;
            match self.ask_once(&status).await {
                Ok(data) => {
                    away = false;
                    watch.reached = self.clock.now();
                    let task_state = task_state(&data);
                    match &task_state {
                        Some(TaskState::Running) => ran = waited,
                        _ => self.task_durations.record(upid, ran, waited),
                    }
                    match task_state {
                        Some(TaskState::Running) if reported => {}
                        Some(TaskState::Running) => {
                            self.notifier.waiting(title(upid));
                            reported = true;
                        }
                        Some(TaskState::Succeeded) => return Ok(()),
                        Some(TaskState::SucceededWithWarnings) => {
                            self.report_warnings(upid).await;
                            return Ok(());
                        }
                        Some(TaskState::Failed(words)) => {
                            let mut error = classify_text(&words);
                            if error.reason == Reason::TaskDied {
                                let title = title(upid);
                                error.detail =
                                    format!("{title} ended without reporting a status").into();
                            }
                            return Err(error.with_log(self.log_tail(upid).await));
                        }
                        None => {
                            return Err(PveError::invalid_response("the task's status is invalid"));
                        }
                    }
                }
                Err(error) => {
                    let lost = error.is_transient();
                    self.check_poll_error(error, started, &watch)?;
                    if lost && !away {
                        self.notifier.waiting(format!("{} to answer", upid.node));
                    }
                    (away, reported) = (lost, reported && !lost);
                }
            }
            self.check_log_growth(upid, &mut watch).await;
            let now = self.clock.now();
            if elapsed(watch.moved, now) > stall {
                let detail = format!("task {upid} made no progress for {} s", stall.as_secs());
                // Busy: the time limit has passed, so the step does not wait for it again.
                return Err(PveError::new(ErrorClass::Busy, Reason::Stalled, detail)
                    .with_log(self.log_tail(upid).await)
                    .with_hint("it may still succeed; check it on the host before trying again"));
            }
            let pause = self.task_durations.pause(upid, elapsed(started, now));
            self.clock.sleep(pause).await;
        }
    }

    /// Decides whether polling continues after an error.
    fn check_poll_error(
        &self,
        error: PveError,
        started: Timestamp,
        watch: &TaskWatch,
    ) -> Result<(), PveError> {
        let now = self.clock.now();
        match error.reason {
            Reason::BadParameter
                if elapsed(started, now) < UNKNOWN || watch.polls < UNKNOWN_POLLS =>
            {
                Ok(())
            }
            _ if error.is_transient()
                || error.class == ErrorClass::Broken
                || error.class == ErrorClass::Busy =>
            {
                if elapsed(watch.reached, now) < self.settings.limits.task_unreachable {
                    return Ok(());
                }
                let detail = format!("the task's host is unreachable: {}", error.detail);
                let class = ErrorClass::Unreachable { sent: Sent::Maybe };
                Err(PveError::new(class, error.reason, detail))
            }
            _ => Err(error),
        }
    }

    /// Checks periodically whether the task's log has grown.
    async fn check_log_growth(&self, upid: &Upid, watch: &mut TaskWatch) {
        let now = self.clock.now();
        if elapsed(watch.measured, now) < MEASURE {
            return;
        }
        watch.measured = now;
        let call = log_call(upid, 0, 1);
        if let Ok(answer) = self.transport.send_once(&call).await
            && answer.total != watch.lines
        {
            watch.lines = answer.total;
            watch.moved = now;
        }
    }

    /// Returns the end of a task's log; empty when it cannot be read.
    pub(super) async fn log_tail(&self, upid: &Upid) -> Vec<String> {
        let Ok(first) = self.ask_part(&log_call(upid, 0, TAIL)).await else {
            return Vec::new();
        };
        let data = match first.total {
            Some(total) if total > TAIL => {
                match self.ask(&log_call(upid, total - TAIL, TAIL)).await {
                    Ok(data) => data,
                    Err(_) => first.data,
                }
            }
            _ => first.data,
        };
        log_lines(&data)
    }

    async fn report_warnings(&self, upid: &Upid) {
        let lines = match self.ask(&log_call(upid, 0, WHOLE)).await {
            Ok(data) => log_lines(&data),
            Err(_) => Vec::new(),
        };
        let warnings = find_warnings(&lines);
        let title = title(upid);
        self.notifier.warning(if warnings.is_empty() {
            // The status also comes after an earlier request in the same worker warned.
            format!("{title} ended with warnings that its log does not show")
        } else {
            format!("{title}: {}", warnings.join("; "))
        });
    }

    /// Returns the tasks that run on a host, optionally those about one guest.
    pub(super) async fn running_tasks(
        &self,
        node: &str,
        vmid: Option<u32>,
    ) -> Result<Vec<RunningTask>, PveError> {
        let call = ApiCall::to(&TASKS)
            .at("node", node)
            .param("source", "active")
            .param("limit", 500)
            .optional_param("vmid", vmid);
        Ok(running(&self.ask(&call).await?))
    }
}

/// Reads the tasks in a list that have not ended.
pub fn running(data: &Value) -> Vec<RunningTask> {
    let rows = data.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter()
        .filter(|row| {
            let status = quirks::text_of(row, "status");
            row.get("endtime").is_none()
                && (status.is_empty() || status == "running" || status == "RUNNING")
        })
        .filter_map(|row| Upid::parse(&quirks::text_of(row, "upid")))
        .map(|upid| RunningTask { upid })
        .collect()
}

/// Names a task in messages.
fn title(upid: &Upid) -> String {
    format!("task {} on {}", upid.kind, upid.node)
}

/// Returns the lines that warn. The last one only counts them.
fn find_warnings(lines: &[String]) -> Vec<String> {
    let warns = |line: &&String| {
        let line = line.trim_start();
        (line.contains("WARN") || line.to_ascii_lowercase().contains("warning"))
            && !line.starts_with("TASK WARNINGS")
    };
    lines.iter().filter(warns).cloned().collect()
}

struct TaskWatch {
    /// When the task's host last answered.
    reached: Timestamp,
    /// When the log was last measured.
    measured: Timestamp,
    /// When the log last grew.
    moved: Timestamp,
    lines: Option<u64>,
    /// How often it was polled.
    polls: u32,
}

impl TaskWatch {
    fn new(now: Timestamp) -> Self {
        Self {
            reached: now,
            measured: now,
            moved: now,
            lines: None,
            polls: 0,
        }
    }
}

/// Returns how much later a time is; nothing when it is earlier.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn log_call(upid: &Upid, start: u64, limit: u64) -> ApiCall {
    ApiCall::to(&TASK_LOG)
        .at("node", &upid.node)
        .at("upid", upid)
        .param("start", start)
        .param("limit", limit)
}

/// Reads the lines of a log.
pub fn log_lines(data: &Value) -> Vec<String> {
    let rows = data.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter()
        .map(|row| quirks::text_of(row, "t"))
        .filter(|line| line != "no content")
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_status_of_a_task_is_parsed() {
        let ended = |words: &str| task_state(&json!({"status": "stopped", "exitstatus": words}));
        assert_eq!(ended("OK"), Some(TaskState::Succeeded));
        assert_eq!(ended("WARNINGS: 2"), Some(TaskState::SucceededWithWarnings));
        assert_eq!(
            ended("got timeout"),
            Some(TaskState::Failed("got timeout".to_owned()))
        );
        assert!(matches!(ended(""), Some(TaskState::Failed(_))));
        assert_eq!(
            task_state(&json!({"status": "running"})),
            Some(TaskState::Running)
        );
        assert_eq!(task_state(&json!(null)), None);
    }

    #[test]
    fn finished_tasks_are_not_running() {
        let data = json!([
            {"upid": "UPID:pve1:00000E76:000BB300:6AFA2100:qmreboot:155:root@pam!lab:", "status": "OK", "endtime": 5},
            {"upid": "UPID:pve1:00000E77:000BB300:6AFA2100:qmcreate:156:root@pam!lab:", "status": "RUNNING"},
            {"upid": "nonsense"},
        ]);
        let tasks = running(&data);
        assert_eq!(tasks.len(), 1);
        assert_eq!(tasks[0].upid.vmid(), Some(156));
    }

    #[test]
    fn warnings_are_found_in_the_log() {
        let lines =
            ["run: x", "WARN: a", "perl: warning: b", "TASK WARNINGS: 2"].map(str::to_owned);
        assert_eq!(find_warnings(&lines), ["WARN: a", "perl: warning: b"]);
        assert!(find_warnings(&lines[3..]).is_empty());
    }

    #[test]
    fn log_lines_are_parsed() {
        let data = json!([{"n": 1, "t": "a"}, {"n": 2, "t": "TASK ERROR: b"}]);
        assert_eq!(log_lines(&data), ["a", "TASK ERROR: b"]);
        assert!(log_lines(&json!([{"n": 1, "t": "no content"}])).is_empty());
    }
}
