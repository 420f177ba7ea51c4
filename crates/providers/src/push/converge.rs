//! Follows the job of a node to its end: reconnects after a lost connection and confirms changes.
//!
//! A job is started once; the node runs it on its own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_core::converge::{Event, NumberedEvent};

use super::error::PushError;
use super::{PushLimits, Pusher, agent};
use crate::ssh::{Output, Ssh, SshError, Stream};

/// How often a node is tried while another job works on it: for ten minutes and more.
const OTHERS: u32 = 600;
/// The pause between tries to reach it again.
const PAUSE: Duration = Duration::from_secs(1);
/// The exit code of `ssh` for a lost connection.
const LOST: i32 = 255;

/// The progress of a job.
struct JobProgress {
    /// Number of the last event.
    last: u64,
    /// Whether anything differed.
    differed: bool,
    reverted: bool,
    ended: Option<(bool, serde_json::Value)>,
    /// Whether confirmation was started.
    confirms: bool,
    /// Whether it is no longer followed.
    left: bool,
    /// Whether the node sends heartbeats.
    beats: bool,
    n_lines: usize,
    n_bytes: usize,
    begun: Duration,
    /// When it last printed something.
    last_output: Duration,
}

impl JobProgress {
    fn new() -> Self {
        Self {
            last: 0,
            differed: false,
            reverted: false,
            ended: None,
            confirms: false,
            left: false,
            beats: false,
            n_lines: 0,
            n_bytes: 0,
            begun: monotonic(),
            last_output: monotonic(),
        }
    }

    /// Returns why a job should no longer be followed.
    fn abort_reason(&self, limits: &PushLimits) -> Option<PushError> {
        let now = monotonic();
        let silent = if self.beats {
            limits.silent
        } else {
            limits.silent_without_beats
        };
        if now.saturating_sub(self.last_output) >= silent {
            let seconds = silent.as_secs();
            return Some(PushError::Silent { seconds });
        }
        let what = if self.n_lines > limits.lines {
            format!("it printed more than {} lines", limits.lines)
        } else if self.n_bytes > limits.bytes {
            format!("it printed more than {} MiB", limits.bytes >> 20)
        } else if now.saturating_sub(self.begun) >= limits.longest {
            format!("it took more than {} s", limits.longest.as_secs())
        } else {
            return None;
        };
        Some(PushError::LimitExceeded { what })
    }
}

/// A job that is followed.
struct FollowedJob<'a> {
    id: &'a str,
    progress: &'a Mutex<JobProgress>,
    /// Starts confirmation within so many seconds.
    confirm: &'a (dyn Fn(u64) + Sync),
    observe: &'a (dyn Fn(&Event) + Sync),
    /// Returns whether following should stop.
    stop: &'a (dyn Fn() -> bool + Sync),
    limits: PushLimits,
}

impl Pusher {
    /// Converges a node to a spec. `after` is the connection to it afterwards, if that differs. Returns
    /// whether anything was changed. Following ends when `stop` returns true; the node continues on its
    /// own.
    pub fn converge(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        spec: &str,
        observe: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        self.work(ssh, after, (&["run"], spec), observe, stop)
    }

    /// Reverts a node to its previous spec, which the node has stored. `from` and `to` are the digests of
    /// both. Returns whether anything was changed.
    pub fn revert(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        (from, to): (&str, &str),
        observe: &(dyn Fn(&Event) + Sync),
    ) -> Result<bool, PushError> {
        let undo = ["undo", "--from", from, "--to", to];
        self.work(ssh, after, (&undo, ""), observe, &|| false)
    }

    fn work(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        what: (&[&str], &str),
        observe: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        let waiting = || {
            let words = "waiting for an earlier run, which is still configuring this node".into();
            observe(&Event::Step { description: words });
        };
        let once = || self.once(ssh, after, what, observe, stop);
        match retry_while_busy(PAUSE, waiting, stop, once) {
            // Left by a driver that was killed.
            Err(PushError::Agent { word, .. }) if word == "unconfirmed" => {
                self.confirm_last(after)?;
                self.once(ssh, after, what, observe, stop)
            }
            done => done,
        }
    }

    /// Starts a job and follows it. Confirmation ends with it.
    fn once(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        what: (&[&str], &str),
        observe: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        let (id, progress) = (new_id(), Mutex::new(JobProgress::new()));
        std::thread::scope(|scope| {
            let confirm = |within: u64| {
                let (progress, id) = (&progress, &id);
                scope.spawn(move || self.confirm(after, id, within, progress));
            };
            let job = FollowedJob {
                id: &id,
                progress: &progress,
                confirm: &confirm,
                observe,
                stop,
                limits: self.limits,
            };
            let done = self.follow_job(ssh, after, what, &job);
            locked(&progress).left = true;
            done
        })
    }

    fn follow_job(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        (command, spec): (&[&str], &str),
        job: &FollowedJob<'_>,
    ) -> Result<bool, PushError> {
        let (id, progress) = (job.id, job.progress);
        let confirm = self.confirm_within.to_string();
        let terms = ["--id", id, "--confirm", &confirm];
        let begin = self.line(&[&["job"], command, &terms].concat());
        let limits = &self.limits;
        let (mut tried, mut tried_in_all, mut is_installed) = (0, 0, false);
        let mut way = ssh;
        loop {
            let last = locked(progress).last;
            let line = match last {
                0 => begin.clone(),
                last => {
                    let last = last.to_string();
                    self.line(&["job", "follow", "--id", id, "--after", &last])
                }
            };
            // The same work is not begun twice, so the spec may be sent again.
            let stdin = if last == 0 { spec } else { "" };
            let followed = job.follow(way, &line, stdin);
            let progress = locked(progress);
            if let Some((success, result)) = &progress.ended {
                return ending(*success, result, &progress);
            }
            if progress.last > last {
                tried = 0;
            }
            drop(progress);
            match followed {
                Ok(output) if output.status == agent::MISSING && !is_installed => {
                    self.agent.install(way)?;
                    is_installed = true;
                    continue;
                }
                Ok(output) if output.status != LOST => return Err(PushError::from_output(&output)),
                Err(PushError::Ssh(error)) if !may_reconnect(&error, last) => {
                    return Err(error.into());
                }
                Err(
                    error @ (PushError::NoAgent { .. }
                    | PushError::Corrupted
                    | PushError::Abandoned
                    | PushError::LimitExceeded { .. }
                    | PushError::Silent { .. }),
                ) => return Err(error),
                _ => {}
            }
            tried += 1;
            tried_in_all += 1;
            if tried > limits.tries || tried_in_all > limits.tries_in_all {
                return Err(PushError::Lost {
                    tries: tried_in_all - 1,
                });
            }
            // It may listen on another port by now, or have reverted.
            way = if std::ptr::eq(way, ssh) { after } else { ssh };
            std::thread::sleep(PAUSE);
        }
    }

    /// Confirms a job over a new connection, which proves that the node is still reachable. The time is
    /// limited by the driver, not by the node.
    fn confirm(&self, after: &Ssh, id: &str, within: u64, progress: &Mutex<JobProgress>) {
        let line = self.line(&["job", "confirm", "--id", id]);
        let until = monotonic() + Duration::from_secs(within.min(self.confirm_within));
        let is_over = || {
            let progress = locked(progress);
            progress.left || progress.reverted || progress.ended.is_some() || monotonic() >= until
        };
        let after = after.clone().unshared().with_timeout(super::ANSWER);
        while !is_over() {
            match after.run_until(&line, b"", &is_over) {
                Ok(Some(output)) if output.status != LOST => return,
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl FollowedJob<'_> {
    /// Follows the job until the connection ends or it should no longer be followed.
    fn follow(&self, ssh: &Ssh, line: &str, stdin: &str) -> Result<Output, PushError> {
        let words = Mutex::new(Vec::new());
        locked(self.progress).last_output = monotonic();
        let last_output = |stream: Stream, text: &str| {
            let event = match stream {
                Stream::Out => serde_json::from_str::<NumberedEvent>(text).ok(),
                Stream::Err => None,
            };
            let is_new = {
                let mut progress = locked(self.progress);
                progress.last_output = monotonic();
                progress.n_bytes = progress.n_bytes.saturating_add(text.len());
                progress.n_lines = progress.n_lines.saturating_add(1);
                event
                    .as_ref()
                    .is_some_and(|event| note(&mut progress, event))
            };
            match event {
                Some(NumberedEvent { event, .. }) if is_new => {
                    if let Event::Confirm { within } = event
                        && !std::mem::replace(&mut locked(self.progress).confirms, true)
                    {
                        (self.confirm)(within);
                    }
                    (self.observe)(&event);
                }
                Some(_) => {}
                None => {
                    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only its end matters, and only to a person.
                    if words.len() < crate::ssh::MAX_OUTPUT {
                        words.extend_from_slice(format!("{text}\n").as_bytes());
                    }
                }
            }
        };
        let abort_reason =
            || (self.stop)() || locked(self.progress).abort_reason(&self.limits).is_some();
        let status = ssh.follow_until(line, stdin.as_bytes(), &last_output, &abort_reason)?;
        let Some(status) = status else {
            let why = locked(self.progress).abort_reason(&self.limits);
            return Err(why.unwrap_or(PushError::Abandoned));
        };
        Ok(Output {
            status,
            stdout: Vec::new(),
            stderr: words.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

/// Retries while another job runs on the node, such as one of a killed driver. Calls `on_wait` once.
fn retry_while_busy<T>(
    pause: Duration,
    on_wait: impl Fn(),
    stop: &(dyn Fn() -> bool + Sync),
    mut work: impl FnMut() -> Result<T, PushError>,
) -> Result<T, PushError> {
    for tried in 0..OTHERS {
        match work() {
            Err(PushError::Agent { word, .. }) if word == "busy" => {}
            done => return done,
        }
        if tried == 0 {
            on_wait();
        }
        if stop() {
            break;
        }
        std::thread::sleep(pause);
    }
    work()
}

fn locked(progress: &Mutex<JobProgress>) -> std::sync::MutexGuard<'_, JobProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records an event; returns whether it is new.
fn note(progress: &mut JobProgress, NumberedEvent { n, event }: &NumberedEvent) -> bool {
    if *event == Event::Heartbeat {
        progress.beats = true;
    }
    if *n <= progress.last {
        return false;
    }
    progress.last = *n;
    match event {
        Event::Changes { changes } => progress.differed |= !changes.is_empty(),
        Event::Reverted { .. } => progress.reverted = true,
        Event::End { success, result } => progress.ended = Some((*success, result.clone())),
        Event::Heartbeat | Event::Step { .. } | Event::Confirm { .. } => {}
    }
    true
}

fn ending(
    success: bool,
    result: &serde_json::Value,
    progress: &JobProgress,
) -> Result<bool, PushError> {
    if success {
        let steps = result["steps"].as_array().map_or(0, Vec::len);
        return Ok(progress.differed && steps > 0);
    }
    let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
    let word = if progress.reverted {
        "reverted".to_owned()
    } else {
        text("error")
    };
    Err(PushError::Agent {
        word,
        message: text("message").into(),
    })
}

/// Returns whether to reconnect. A node that never answered is not retried here.
fn may_reconnect(error: &SshError, last: u64) -> bool {
    match error {
        SshError::Unreachable { sent, .. } => {
            last > 0 || *sent == homestak_engine::ports::Sent::Maybe
        }
        // Its users may just be changing.
        SshError::Denied { .. } => last > 0,
        SshError::Failed { .. } => true,
        SshError::NotInstalled
        | SshError::HostKeyDiffers
        | SshError::HostKeyUnknown
        | SshError::OutputTooLarge { .. }
        | SshError::TimedOut { .. } => false,
    }
}

/// Returns a name for a piece of work that no other has.
fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn agent(word: &str) -> PushError {
        PushError::Agent {
            word: word.to_owned(),
            message: "another run converges this machine".into(),
        }
    }

    #[test]
    fn a_job_of_a_killed_driver_is_waited_for_and_reported_once() {
        let (waits, tried) = (Cell::new(0), Cell::new(0));
        let work = || {
            tried.set(tried.get() + 1);
            if tried.get() < 20 {
                return Err(agent("busy"));
            }
            Ok("done")
        };
        let done = retry_while_busy(
            Duration::ZERO,
            || waits.set(waits.get() + 1),
            &|| false,
            work,
        );
        assert_eq!(done.unwrap(), "done");
        assert_eq!((waits.get(), tried.get()), (1, 20));
        let failed = retry_while_busy(
            Duration::ZERO,
            || (),
            &|| false,
            || Err::<(), _>(agent("packages")),
        );
        assert!(matches!(failed, Err(PushError::Agent { word, .. }) if word == "packages"));
    }
}
