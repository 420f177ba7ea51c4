//! One node on its way to what its spec says: followed, confirmed, and found again.
//!
//! In: a way to the node before and after, a spec. Out: events as they happen, and the end.
//! Never: work begun twice; the node does it by itself, and only its report comes over the line.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use homestak_core::converge::{Event, Numbered};

use super::fault::PushError;
use super::{Pusher, agent};
use crate::ssh::{Output, Ssh, SshError, Stream};

/// How often in a row a node may be tried in vain while it works; each try takes up to 10 s.
const TRIES: u32 = 60;
/// The pause between tries to reach it again.
const PAUSE: Duration = Duration::from_secs(1);
/// The code of `ssh` when it says nothing else about a lost line.
const LOST: i32 = 255;

/// What is known of the work so far.
#[derive(Default)]
struct Known {
    /// Number of the last event.
    last: u64,
    /// Whether anything differed.
    differed: bool,
    reverted: bool,
    ended: Option<(bool, serde_json::Value)>,
}

impl Pusher {
    /// Makes a node what a spec says. `after` is the way to it afterwards, when that is another.
    /// Returns whether anything was changed.
    pub fn converge(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        spec: &str,
        hear: &(dyn Fn(&Event) + Sync),
    ) -> Result<bool, PushError> {
        self.work(ssh, after, &["run"], spec, hear)
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
        self.work(ssh, after, &["undo", "--from", from, "--to", to], "", hear)
    }

    fn work(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        job: &[&str],
        spec: &str,
        hear: &(dyn Fn(&Event) + Sync),
    ) -> Result<bool, PushError> {
        match self.once(ssh, after, job, spec, hear) {
            // A driver that is gone left it so.
            Err(PushError::Agent { word, .. }) if word == "unconfirmed" => {
                self.confirm_last(after)?;
                self.once(ssh, after, job, spec, hear)
            }
            done => done,
        }
    }

    fn once(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        job: &[&str],
        spec: &str,
        hear: &(dyn Fn(&Event) + Sync),
    ) -> Result<bool, PushError> {
        let id = new_id();
        let confirm = self.confirm_within.to_string();
        let terms = ["--id", &id, "--confirm", &confirm];
        let begin = self.line(&[&["job"], job, &terms].concat());
        let known = Mutex::new(Known::default());
        let mut tried = 0;
        let mut way = ssh;
        loop {
            let last = locked(&known).last;
            let line = match last {
                0 => begin.clone(),
                last => {
                    let last = last.to_string();
                    self.line(&["job", "follow", "--id", &id, "--after", &last])
                }
            };
            // The same work is not begun twice, so the spec may be sent again.
            let stdin = if last == 0 { spec } else { "" };
            let followed = self.follow(way, after, &line, stdin, (&known, &id), hear);
            let known = locked(&known);
            if let Some((success, result)) = &known.ended {
                return ending(*success, result, &known);
            }
            if known.last > last {
                tried = 0;
            }
            drop(known);
            match followed {
                Ok(output) if output.status == agent::MISSING => self.agent.install(way)?,
                Ok(output) if output.status != LOST => return Err(PushError::of_output(&output)),
                Err(PushError::Ssh(error)) if !may_come_back(&error, last) => {
                    return Err(error.into());
                }
                Err(error @ (PushError::NoAgent { .. } | PushError::Broken)) => return Err(error),
                _ => {
                    tried += 1;
                    if tried > TRIES {
                        return Err(PushError::Lost { tries: TRIES });
                    }
                    // It may listen elsewhere by now, or have gone back.
                    way = if std::ptr::eq(way, ssh) { after } else { ssh };
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Follows the work until the line ends.
    fn follow(
        &self,
        ssh: &Ssh,
        after: &Ssh,
        line: &str,
        stdin: &str,
        (known, id): (&Mutex<Known>, &str),
        hear: &(dyn Fn(&Event) + Sync),
    ) -> Result<Output, PushError> {
        let words = Mutex::new(Vec::new());
        let status = std::thread::scope(|scope| {
            let heard = |stream: Stream, text: &str| {
                let event = match stream {
                    Stream::Out => serde_json::from_str::<Numbered>(text).ok(),
                    Stream::Err => None,
                };
                let Some(Numbered { n, event }) = event else {
                    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only its end matters, and only to a person.
                    if words.len() < crate::ssh::LARGEST {
                        words.extend_from_slice(format!("{text}\n").as_bytes());
                    }
                    return;
                };
                if !note(&mut locked(known), n, &event) {
                    return;
                }
                if let Event::Confirm { within } = event {
                    scope.spawn(move || self.confirm(after, id, within, known));
                }
                hear(&event);
            };
            ssh.follow(line, stdin.as_bytes(), &heard)
        })?;
        Ok(Output {
            status,
            stdout: Vec::new(),
            stderr: words.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Reaches the node on a new connection, which is all that is to be shown, and says so.
    fn confirm(&self, after: &Ssh, id: &str, within: u64, known: &Mutex<Known>) {
        let line = self.line(&["job", "confirm", "--id", id]);
        // The node knows best how long it waits; this only ends some day.
        for _ in 0..within {
            let over = {
                let known = locked(known);
                known.reverted || known.ended.is_some()
            };
            if over {
                return;
            }
            match after.clone().anew().run(&line, b"") {
                Ok(output) if output.status != LOST => return,
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}

fn locked(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an event; returns whether it is new.
fn note(known: &mut Known, n: u64, event: &Event) -> bool {
    if n <= known.last {
        return false;
    }
    known.last = n;
    match event {
        Event::Changes { changes } => known.differed |= !changes.is_empty(),
        Event::Reverted { .. } => known.reverted = true,
        Event::End { success, result } => known.ended = Some((*success, result.clone())),
        Event::Step { .. } | Event::Confirm { .. } => {}
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
        | SshError::TooMuch { .. } => false,
    }
}

/// Returns a name for a piece of work that no other has.
fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
