//! One node on its way to what its spec says: followed, confirmed, and found again.
//!
//! In: a way to the node before and after, a spec. Out: events as they happen, and the end.
//! Never: work begun twice; the node does it by itself, and only its report comes over the line.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_core::converge::{Event, NumberedEvent};

use super::fault::PushError;
use super::{Limits, Pusher, agent};
use crate::ssh::{Output, Ssh, SshError, Stream};

/// How often a node is tried while another job works on it: for ten minutes and more.
const OTHERS: u32 = 600;
/// The pause between tries to reach it again.
const PAUSE: Duration = Duration::from_secs(1);
/// The code of `ssh` when it says nothing else about a lost line.
const LOST: i32 = 255;

/// What is known of the work so far.
struct Known {
    /// Number of the last event.
    last: u64,
    /// Whether anything differed.
    differed: bool,
    reverted: bool,
    ended: Option<(bool, serde_json::Value)>,
    /// Whether someone confirms it, or did.
    confirms: bool,
    /// Whether nobody follows it any more.
    left: bool,
    /// Whether the node sends heartbeats.
    beats: bool,
    n_lines: usize,
    n_bytes: usize,
    begun: Duration,
    /// When it said something.
    heard: Duration,
}

impl Known {
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
            heard: monotonic(),
        }
    }

    /// Returns why there is no use in following a node any longer.
    fn is_useless(&self, limits: &Limits) -> Option<PushError> {
        let now = monotonic();
        let silent = if self.beats {
            limits.silent
        } else {
            limits.silent_without_beats
        };
        if now.saturating_sub(self.heard) >= silent {
            let seconds = silent.as_secs();
            return Some(PushError::Silent { seconds });
        }
        let what = if self.n_lines > limits.lines {
            format!("it printed more than {} lines", limits.lines)
        } else if self.n_bytes > limits.bytes {
            format!("it printed more than {} MiB", limits.bytes >> 20)
        } else if now.saturating_sub(self.begun) >= limits.longest {
            format!("it takes more than {} s", limits.longest.as_secs())
        } else {
            return None;
        };
        Some(PushError::Endless { what })
    }
}

/// A job that is followed.
struct Job<'a> {
    id: &'a str,
    known: &'a Mutex<Known>,
    /// Begins to confirm it within so many seconds.
    confirm: &'a (dyn Fn(u64) + Sync),
    hear: &'a (dyn Fn(&Event) + Sync),
    /// Tells whether nobody wants to know any more.
    stop: &'a (dyn Fn() -> bool + Sync),
    limits: Limits,
}

impl Pusher {
    /// Makes a node what a spec says. `after` is the way to it afterwards, when that is another.
    /// Returns whether anything was changed. It is followed until `stop` says that nobody wants to
    /// know any more; the node goes on by itself.
    pub fn converge(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        spec: &str,
        hear: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        self.work(ssh, after, (&["run"], spec), hear, stop)
    }

    /// Makes a node again what its spec before said, which the node has kept. `from` and `to` are
    /// the digests of both. Returns whether anything was changed.
    pub fn revert(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        (from, to): (&str, &str),
        hear: &(dyn Fn(&Event) + Sync),
    ) -> Result<bool, PushError> {
        let undo = ["undo", "--from", from, "--to", to];
        self.work(ssh, after, (&undo, ""), hear, &|| false)
    }

    fn work(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        what: (&[&str], &str),
        hear: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        let waiting = || {
            let words = "wait: an earlier job still converges this node".into();
            hear(&Event::Step { description: words });
        };
        let once = || self.once(ssh, after, what, hear, stop);
        match after_others(PAUSE, waiting, stop, once) {
            // A driver that is gone left it so.
            Err(PushError::Agent { word, .. }) if word == "unconfirmed" => {
                self.confirm_last(after)?;
                self.once(ssh, after, what, hear, stop)
            }
            done => done,
        }
    }

    /// Begins a job and follows it. Whatever comes of that, nobody confirms it any more afterwards.
    fn once(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        what: (&[&str], &str),
        hear: &(dyn Fn(&Event) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, PushError> {
        let (id, known) = (new_id(), Mutex::new(Known::new()));
        std::thread::scope(|scope| {
            let confirm = |within: u64| {
                let (known, id) = (&known, &id);
                scope.spawn(move || self.confirm(after, id, within, known));
            };
            let job = Job {
                id: &id,
                known: &known,
                confirm: &confirm,
                hear,
                stop,
                limits: self.limits,
            };
            let done = self.follow_to_the_end(ssh, after, what, &job);
            locked(&known).left = true;
            done
        })
    }

    fn follow_to_the_end(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        (command, spec): (&[&str], &str),
        job: &Job<'_>,
    ) -> Result<bool, PushError> {
        let (id, known) = (job.id, job.known);
        let confirm = self.confirm_within.to_string();
        let terms = ["--id", id, "--confirm", &confirm];
        let begin = self.line(&[&["job"], command, &terms].concat());
        let limits = &self.limits;
        let (mut tried, mut tried_in_all, mut is_installed) = (0, 0, false);
        let mut way = ssh;
        loop {
            let last = locked(known).last;
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
            let known = locked(known);
            if let Some((success, result)) = &known.ended {
                return ending(*success, result, &known);
            }
            if known.last > last {
                tried = 0;
            }
            drop(known);
            match followed {
                Ok(output) if output.status == agent::MISSING && !is_installed => {
                    self.agent.install(way)?;
                    is_installed = true;
                    continue;
                }
                Ok(output) if output.status != LOST => return Err(PushError::of_output(&output)),
                Err(PushError::Ssh(error)) if !may_come_back(&error, last) => {
                    return Err(error.into());
                }
                Err(
                    error @ (PushError::NoAgent { .. }
                    | PushError::Broken
                    | PushError::Left
                    | PushError::Endless { .. }
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
            // It may listen elsewhere by now, or have gone back.
            way = if std::ptr::eq(way, ssh) { after } else { ssh };
            std::thread::sleep(PAUSE);
        }
    }

    /// Reaches the node on a new connection, which is all that is to be shown, and says so. The node
    /// was given a time, so that it cannot ask for a longer one.
    fn confirm(&self, after: &Ssh, id: &str, within: u64, known: &Mutex<Known>) {
        let line = self.line(&["job", "confirm", "--id", id]);
        let until = monotonic() + Duration::from_secs(within.min(self.confirm_within));
        let is_over = || {
            let known = locked(known);
            known.left || known.reverted || known.ended.is_some() || monotonic() >= until
        };
        let after = after.clone().anew().within(super::ANSWER);
        while !is_over() {
            match after.run_until(&line, b"", &is_over) {
                Ok(Some(output)) if output.status != LOST => return,
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Job<'_> {
    /// Follows the work until the line ends, or there is no use in it.
    fn follow(&self, ssh: &Ssh, line: &str, stdin: &str) -> Result<Output, PushError> {
        let words = Mutex::new(Vec::new());
        locked(self.known).heard = monotonic();
        let heard = |stream: Stream, text: &str| {
            let event = match stream {
                Stream::Out => serde_json::from_str::<NumberedEvent>(text).ok(),
                Stream::Err => None,
            };
            let is_new = {
                let mut known = locked(self.known);
                known.heard = monotonic();
                known.n_bytes = known.n_bytes.saturating_add(text.len());
                known.n_lines = known.n_lines.saturating_add(1);
                event.as_ref().is_some_and(|event| note(&mut known, event))
            };
            match event {
                Some(NumberedEvent { event, .. }) if is_new => {
                    if let Event::Confirm { within } = event
                        && !std::mem::replace(&mut locked(self.known).confirms, true)
                    {
                        (self.confirm)(within);
                    }
                    (self.hear)(&event);
                }
                Some(_) => {}
                None => {
                    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only its end matters, and only to a person.
                    if words.len() < crate::ssh::LARGEST {
                        words.extend_from_slice(format!("{text}\n").as_bytes());
                    }
                }
            }
        };
        let is_useless = || (self.stop)() || locked(self.known).is_useless(&self.limits).is_some();
        let status = ssh.follow_until(line, stdin.as_bytes(), &heard, &is_useless)?;
        let Some(status) = status else {
            let why = locked(self.known).is_useless(&self.limits);
            return Err(why.unwrap_or(PushError::Left));
        };
        Ok(Output {
            status,
            stdout: Vec::new(),
            stderr: words.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

/// Does something again for as long as another job is at work on the node, such as one of a driver
/// that was killed. `told` is called once when there is one.
fn after_others<T>(
    pause: Duration,
    told: impl Fn(),
    stop: &(dyn Fn() -> bool + Sync),
    mut work: impl FnMut() -> Result<T, PushError>,
) -> Result<T, PushError> {
    for tried in 0..OTHERS {
        match work() {
            Err(PushError::Agent { word, .. }) if word == "busy" => {}
            done => return done,
        }
        if tried == 0 {
            told();
        }
        if stop() {
            break;
        }
        std::thread::sleep(pause);
    }
    work()
}

fn locked(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an event; returns whether it is new.
fn note(known: &mut Known, NumberedEvent { n, event }: &NumberedEvent) -> bool {
    if *event == Event::Heartbeat {
        known.beats = true;
    }
    if *n <= known.last {
        return false;
    }
    known.last = *n;
    match event {
        Event::Changes { changes } => known.differed |= !changes.is_empty(),
        Event::Reverted { .. } => known.reverted = true,
        Event::End { success, result } => known.ended = Some((*success, result.clone())),
        Event::Heartbeat | Event::Step { .. } | Event::Confirm { .. } => {}
    }
    true
}

fn ending(success: bool, result: &serde_json::Value, known: &Known) -> Result<bool, PushError> {
    if success {
        let steps = result["steps"].as_array().map_or(0, Vec::len);
        return Ok(known.differed && steps > 0);
    }
    let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
    let word = if known.reverted {
        "reverted".to_owned()
    } else {
        text("error")
    };
    Err(PushError::Agent {
        word,
        message: text("message").into(),
    })
}

/// Tells whether a node may be reached again. One that never answered is left to whoever waits
/// until nodes are ready.
fn may_come_back(error: &SshError, last: u64) -> bool {
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
        | SshError::TooMuch { .. }
        | SshError::Late { .. } => false,
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
    fn a_job_of_a_driver_that_was_killed_is_waited_for_and_reported_once() {
        let (told, tried) = (Cell::new(0), Cell::new(0));
        let work = || {
            tried.set(tried.get() + 1);
            if tried.get() < 20 {
                return Err(agent("busy"));
            }
            Ok("done")
        };
        let done = after_others(Duration::ZERO, || told.set(told.get() + 1), &|| false, work);
        assert_eq!(done.unwrap(), "done");
        assert_eq!((told.get(), tried.get()), (1, 20));
        let failed = after_others(
            Duration::ZERO,
            || (),
            &|| false,
            || Err::<(), _>(agent("packages")),
        );
        assert!(matches!(failed, Err(PushError::Agent { word, .. }) if word == "packages"));
    }
}
