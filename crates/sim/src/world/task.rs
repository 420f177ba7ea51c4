//! Tasks: what runs after the answer was given, with a UPID, a log and an exit status.
//!
//! In: a kind, an id, who asked. Out: the UPID at once, and later the end.
//! Never: what a task does; that is given to it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// How many ended tasks a host remembers. PVE keeps about a thousand in its index.
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
    /// The identity, token included.
    pub(crate) identity: String,
    pub(crate) log: Vec<String>,
    pub(crate) ended: Option<i64>,
    pub(crate) exit: Option<String>,
    #[serde(skip)]
    pub(crate) cancel: CancellationToken,
    /// Warnings it will end with if all goes well.
    pub(crate) warnings: u32,
    /// Whether it dies when its work is done.
    #[serde(default)]
    pub(crate) doomed: bool,
}

impl Task {
    fn cut(&mut self, now: i64) {
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

/// What makes a UPID.
pub(crate) struct Birth<'a> {
    pub(crate) node: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) identity: &'a str,
    pub(crate) now: i64,
    pub(crate) ticks: u64,
    pub(crate) warned: bool,
}

/// Every task the World remembers.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Tasks {
    pub(crate) by_upid: BTreeMap<String, Task>,
    /// In the order they were started, newest last.
    pub(crate) order: VecDeque<String>,
    last_pid: u64,
}

impl Tasks {
    /// Returns a fresh process id.
    pub(crate) fn next_pid(&mut self) -> u64 {
        self.last_pid += 1;
        1000 + self.last_pid
    }

    /// Registers a task and returns its UPID.
    pub(crate) fn start(&mut self, birth: &Birth<'_>) -> String {
        let pid = self.next_pid();
        let upid = format!(
            "UPID:{}:{:08X}:{:08X}:{:08X}:{}:{}:{}:",
            birth.node, pid, birth.ticks, birth.now, birth.kind, birth.id, birth.identity
        );
        let task = Task {
            upid: upid.clone(),
            node: birth.node.to_owned(),
            pid,
            pstart: birth.ticks,
            started: birth.now,
            kind: birth.kind.to_owned(),
            id: birth.id.to_owned(),
            identity: birth.identity.to_owned(),
            log: Vec::new(),
            ended: None,
            exit: None,
            cancel: CancellationToken::new(),
            warnings: u32::from(birth.warned),
            doomed: false,
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

    /// Ends what still runs, as the loss of power does: nothing is left to say how it went.
    pub(crate) fn cut(&mut self, now: i64) {
        for task in self.by_upid.values_mut() {
            task.cut(now);
        }
    }

    /// Has a task die when its work is done.
    pub(crate) fn doom(&mut self, upid: &str) {
        if let Some(task) = self.by_upid.get_mut(upid) {
            task.doomed = true;
        }
    }

    /// Ends one task in the same way.
    pub(crate) fn kill(&mut self, upid: &str, now: i64) {
        if let Some(task) = self.by_upid.get_mut(upid) {
            task.cut(now);
        }
    }

    pub(crate) fn finish(&mut self, upid: &str, now: i64, outcome: Result<(), String>) {
        let Some(task) = self.by_upid.get_mut(upid) else {
            return;
        };
        // What was cut stays as it was cut.
        if task.ended.is_some() {
            return;
        }
        if task.doomed {
            task.cut(now);
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

/// Whether a text is a UPID.
pub(crate) fn is_upid(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 9
        && parts[0] == "UPID"
        && parts[8].is_empty()
        && parts[2..5]
            .iter()
            .all(|part| part.len() >= 8 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}
