//! The table of tasks: UPID, log and exit status of each.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// Number of ended tasks to keep. PVE keeps about a thousand in its index.
const REMEMBERED: usize = 5_000;

/// One task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) upid: String,
    pub(crate) node: String,
    pub(crate) pid: u64,
    pub(crate) pstart: u64,
    pub(crate) started: i64,
    pub(crate) kind: String,
    pub(crate) id: String,
    /// The identity, including the token.
    pub(crate) identity: String,
    pub(crate) log: Vec<String>,
    pub(crate) ended: Option<i64>,
    pub(crate) exit: Option<String>,
    #[serde(skip)]
    pub(crate) cancel: CancellationToken,
    /// Number of warnings so far.
    pub(crate) warnings: u32,
    /// Whether it is killed when its work is done.
    #[serde(default, rename = "doomed")]
    pub(crate) killed_at_end: bool,
}

impl Task {
    /// Ends a running task with an unknown status, as a power failure does.
    pub(crate) fn abort(&mut self, now: i64) {
        if self.ended.is_none() {
            self.ended = Some(now);
            self.exit = Some("unexpected status".to_owned());
            self.cancel.cancel();
        }
    }

    pub(crate) fn user(&self) -> &str {
        self.identity
            .split_once('!')
            .map_or(&self.identity, |(user, _)| user)
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.identity.split_once('!').map(|(_, token)| token)
    }
}

/// The parameters of a new task.
pub(crate) struct NewTask<'a> {
    pub(crate) node: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) identity: &'a str,
    pub(crate) now: i64,
    pub(crate) ticks: u64,
    pub(crate) warned: bool,
}

/// The tasks of a World.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Tasks {
    pub(crate) by_upid: BTreeMap<String, Task>,
    /// In the order they were started, newest last.
    pub(crate) order: VecDeque<String>,
    last_pid: u64,
}

impl Tasks {
    /// Returns an unused process id.
    pub(crate) fn next_pid(&mut self) -> u64 {
        self.last_pid += 1;
        1000 + self.last_pid
    }

    /// Registers a task and returns its UPID.
    pub(crate) fn start(&mut self, new: &NewTask<'_>) -> String {
        let pid = self.next_pid();
        let upid = format!(
            "UPID:{}:{:08X}:{:08X}:{:08X}:{}:{}:{}:",
            new.node, pid, new.ticks, new.now, new.kind, new.id, new.identity
        );
        let task = Task {
            upid: upid.clone(),
            node: new.node.to_owned(),
            pid,
            pstart: new.ticks,
            started: new.now,
            kind: new.kind.to_owned(),
            id: new.id.to_owned(),
            identity: new.identity.to_owned(),
            log: Vec::new(),
            ended: None,
            exit: None,
            cancel: CancellationToken::new(),
            warnings: u32::from(new.warned),
            killed_at_end: false,
        };
        self.by_upid.insert(upid.clone(), task);
        self.order.push_back(upid.clone());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.front()
            && self
                .by_upid
                .get(oldest)
                .is_some_and(|task| task.ended.is_some())
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_upid.remove(&oldest);
        }
        upid
    }

    pub(crate) fn log(&mut self, upid: &str, line: impl Into<String>) {
        if let Some(task) = self.by_upid.get_mut(upid) {
            task.log.push(line.into());
        }
    }

    /// Aborts all running tasks.
    pub(crate) fn abort_all(&mut self, now: i64) {
        for task in self.by_upid.values_mut() {
            task.abort(now);
        }
    }

    /// Makes a task die when its work is done.
    pub(crate) fn kill_at_end(&mut self, upid: &str) {
        if let Some(task) = self.by_upid.get_mut(upid) {
            task.killed_at_end = true;
        }
    }

    /// Aborts one task.
    pub(crate) fn kill(&mut self, upid: &str, now: i64) {
        if let Some(task) = self.by_upid.get_mut(upid) {
            task.abort(now);
        }
    }

    pub(crate) fn finish(&mut self, upid: &str, now: i64, outcome: Result<(), String>) {
        let Some(task) = self.by_upid.get_mut(upid) else {
            return;
        };
        // An aborted task keeps its status.
        if task.ended.is_some() {
            return;
        }
        if task.killed_at_end {
            task.abort(now);
            return;
        }
        let (exit, line) = match outcome {
            Ok(()) if task.warnings > 0 => {
                let exit = format!("WARNINGS: {}", task.warnings);
                let line = format!("TASK {exit}");
                (exit, line)
            }
            Ok(()) => ("OK".to_owned(), "TASK OK".to_owned()),
            Err(fault) => {
                let line = format!("TASK ERROR: {fault}");
                (fault, line)
            }
        };
        task.log.push(line);
        task.exit = Some(exit);
        task.ended = Some(now);
    }
}

/// Whether a string is a UPID.
pub(crate) fn is_upid(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 9
        && parts[0] == "UPID"
        && parts[8].is_empty()
        && parts[2..5]
            .iter()
            .all(|part| part.len() >= 8 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}
