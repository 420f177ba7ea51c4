//! State of the small Proxmox VE server: guests, files, tasks, and faults to inject.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use homestak_engine::ports::GuestKind;

use super::calls::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends before the request is executed.
    CutBefore,
    /// The connection ends after the request was executed.
    CutAfter,
    /// Not executed; the proxy returns an error.
    StatusBefore(u16),
    /// Executed; the proxy returns an error.
    StatusAfter(u16),
    /// Executed; the response is invalid.
    GarbageAfter,
    /// Executed twice, as by a proxy that retries; the second response is returned.
    Twice,
    /// Executed; no response is sent.
    Silence,
    /// Not executed; this response is returned.
    Answer(u16, &'static str),
}

#[derive(Clone, Debug)]
pub struct Guest {
    pub kind: GuestKind,
    pub node: String,
    pub config: BTreeMap<String, String>,
    pub running: bool,
}

#[derive(Clone, Debug)]
pub enum Effect {
    Configure(u32, BTreeMap<String, String>),
    Power(u32, bool),
    Destroy(u32),
    Resize(u32, String, String),
    AddFile(String),
    RemoveFile(String),
    Fail(&'static str),
}

#[derive(Clone, Debug)]
pub struct Task {
    pub upid: String,
    pub due: usize,
    pub effect: Option<Effect>,
    pub exit: String,
}

#[derive(Default)]
pub struct World {
    pub guests: BTreeMap<u32, Guest>,
    pub files: BTreeSet<String>,
    pub tasks: Vec<Task>,
    /// Faults by the number of the request, counted from 0.
    pub faults: BTreeMap<usize, Fault>,
    /// Faults for the first request that matches `METHOD path-ending`.
    pub faults_on: Vec<(&'static str, Fault)>,
    pub log: Vec<String>,
    pub requests: usize,
    /// Requests a task takes.
    pub task_length: usize,
    pub warnings: bool,
    /// How long each answer takes.
    pub pause: Duration,
    pub in_flight: usize,
    pub most_in_flight: usize,
    pub connections: usize,
    pub next: u32,
    /// Logins so far; each has a ticket of its own.
    pub logins: u32,
}

impl World {
    pub fn new() -> Self {
        let mut world = Self {
            task_length: 2,
            ..Self::default()
        };
        world
            .files
            .insert("local:import/debian-12.qcow2".to_owned());
        world
            .files
            .insert("local:vztmpl/debian-12.tar.zst".to_owned());
        world
    }

    pub fn next_fault(&mut self, call: &Call) -> Option<Fault> {
        let nth = self.requests;
        self.requests += 1;
        self.log.push(format!("{} {}", call.method, call.path));
        self.advance();
        if let Some(fault) = self.faults.remove(&nth) {
            return Some(fault);
        }
        let matches = |pattern: &str| {
            let (method, ending) = pattern.split_once(' ').expect("METHOD ending");
            method == call.method && call.path.ends_with(ending)
        };
        let at = self
            .faults_on
            .iter()
            .position(|(pattern, _)| matches(pattern))?;
        Some(self.faults_on.remove(at).1)
    }

    /// Starts a task.
    pub fn task(&mut self, kind: &str, id: &str, effect: Effect) -> String {
        self.next += 1;
        let upid = format!(
            "UPID:pve1:{:08X}:00000001:6AFA1C02:{kind}:{id}:homestak@pve!driver:",
            self.next
        );
        self.tasks.push(Task {
            upid: upid.clone(),
            due: self.requests + self.task_length,
            effect: Some(effect),
            exit: String::new(),
        });
        upid
    }

    /// Ends the tasks that are due.
    fn advance(&mut self) {
        let now = self.requests;
        let mut due = Vec::new();
        for (at, task) in self.tasks.iter_mut().enumerate() {
            if task.due <= now
                && let Some(effect) = task.effect.take()
            {
                due.push((at, effect));
            }
        }
        for (at, effect) in due {
            let exit = self.apply(effect);
            let exit = if exit == "OK" && self.warnings {
                "WARNINGS: 1".to_owned()
            } else {
                exit
            };
            self.tasks[at].exit = exit;
        }
    }

    fn apply(&mut self, effect: Effect) -> String {
        let missing = |vmid: u32| {
            format!("Configuration file 'nodes/pve1/qemu-server/{vmid}.conf' does not exist")
        };
        match effect {
            Effect::Configure(vmid, config) => {
                let Some(guest) = self.guests.get_mut(&vmid) else {
                    return missing(vmid);
                };
                guest.config.remove("lock");
                guest.config.extend(config);
            }
            Effect::Power(vmid, running) => {
                let Some(guest) = self.guests.get_mut(&vmid) else {
                    return missing(vmid);
                };
                if running && guest.running {
                    return format!("VM {vmid} already running");
                }
                guest.running = running;
            }
            Effect::Destroy(vmid) => {
                if self.guests.remove(&vmid).is_none() {
                    return missing(vmid);
                }
            }
            Effect::Resize(vmid, disk, size) => {
                let Some(guest) = self.guests.get_mut(&vmid) else {
                    return missing(vmid);
                };
                let volume = guest.config.get(&disk).cloned().unwrap_or_default();
                let head = volume.split(',').next().unwrap_or_default().to_owned();
                guest.config.insert(disk, format!("{head},size={size}"));
            }
            Effect::AddFile(volume) => {
                self.files.insert(volume);
            }
            Effect::RemoveFile(volume) => {
                self.files.remove(&volume);
            }
            Effect::Fail(words) => return words.to_owned(),
        }
        "OK".to_owned()
    }

    /// Ends every task, as time would.
    pub fn finish(&mut self) {
        self.requests += 1000;
        self.advance();
    }

    /// Returns the guests that carry an identity in their tags.
    pub fn tagged_with(&self, uuid: &str) -> Vec<u32> {
        let tag = format!("homestak-id-{uuid}");
        let carries = |guest: &Guest| {
            guest
                .config
                .get("tags")
                .is_some_and(|tags| tags.contains(&tag))
        };
        self.guests
            .iter()
            .filter(|(_, guest)| carries(guest))
            .map(|(vmid, _)| *vmid)
            .collect()
    }
}
