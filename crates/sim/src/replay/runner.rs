//! Sends recorded calls to a World at their times, and judges the answers.
//!
//! In: rows with times. Out: verdicts and outcomes of groups.
//! Never: waiting on the wall clock; time is stepped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use homestak_api::runtime::Spawner;
use jiff::Timestamp;

use super::before::{self, Sighting};
use super::compare::exit_class;
use super::groups;
use super::hidden::{self, Hidden};
use super::report::{Command, Report};
use super::transcript::{Row, upid_parts};
use crate::calls::{Answer, Credentials, Request};
use crate::world::{SteppedClock, World};

/// How long a task may take longer than it did, in seconds of the World.
const PATIENCE: f64 = 900.0;

/// How exact recorded times are, in seconds.
const CLOCK: f64 = 0.005;

type Answers = Arc<Mutex<BTreeMap<usize, Answer>>>;

/// A replay on its way.
pub(crate) struct Runner {
    pub(crate) world: World,
    pub(crate) clock: SteppedClock,
    pub(crate) rows: Vec<Row>,
    pub(crate) hidden: Vec<Hidden>,
    pub(crate) answers: Answers,
    pub(crate) spawner: Spawner,
    /// How much later things happen here than they did.
    pub(crate) drift: f64,
    pub(crate) tasks: HashMap<String, String>,
    pub(crate) taken: BTreeSet<String>,
    pub(crate) learned: BTreeSet<usize>,
    pub(crate) digests: HashMap<String, String>,
    pub(crate) exits: BTreeMap<String, String>,
    pub(crate) group_of: HashMap<usize, usize>,
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) made: Vec<(u32, f64)>,
    pub(crate) ticket: Option<(String, String)>,
    pub(crate) tokens: HashMap<String, String>,
    pub(crate) commands: Vec<Command>,
}

/// Replays rows and adds what was found.
pub(crate) async fn replay(file: &str, rows: Vec<Row>, report: &mut Report) {
    let start = rows
        .iter()
        .filter_map(|row| row.t0)
        .fold(f64::MAX, f64::min)
        - 30.0;
    if rows.is_empty() {
        return;
    }
    let world = before::build(&rows, start);
    let Some(clock) = world.stepped().cloned() else {
        return;
    };
    let hidden = hidden::find(&rows);
    let mut made = hidden::made(&rows);
    made.extend(
        hidden
            .iter()
            .filter_map(|call| Some((call.makes?, call.at))),
    );
    let groups = groups::find(&rows);
    let group_of = groups
        .iter()
        .enumerate()
        .flat_map(|(group, members)| members.iter().map(move |at| (*at, group)))
        .collect();
    let mut runner = Runner {
        world,
        clock,
        exits: before::exits(&rows),
        hidden,
        answers: Answers::default(),
        spawner: Spawner::default(),
        drift: 0.0,
        tasks: HashMap::new(),
        taken: BTreeSet::new(),
        learned: BTreeSet::new(),
        digests: HashMap::new(),
        group_of,
        groups,
        made,
        ticket: None,
        tokens: HashMap::new(),
        commands: Vec::new(),
        rows,
    };
    runner.play().await;
    runner.judge(file, report);
    report.commands.append(&mut runner.commands);
}

/// What happens next.
#[derive(Clone, Copy)]
enum Event {
    Row(usize),
    Hidden(usize),
}

/// Hidden calls are numbered behind the rows.
const HIDDEN: usize = 1_000_000;

impl Runner {
    async fn play(&mut self) {
        let mut events: Vec<(f64, Event)> = self
            .rows
            .iter()
            .enumerate()
            .map(|(at, row)| (row.t0.unwrap_or(0.0), Event::Row(at)))
            .chain(
                self.hidden
                    .iter()
                    .enumerate()
                    .map(|(at, call)| (call.at, Event::Hidden(at))),
            )
            .collect();
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.order_by_tasks(&mut events);
        for (at, event) in events {
            self.go_to(at + self.drift).await;
            match event {
                Event::Row(index) => self.row(index, at).await,
                Event::Hidden(index) => self.hidden_call(index).await,
            }
        }
        self.clock
            .advance(std::time::Duration::from_secs(600))
            .await;
    }

    /// Of two calls sent at nearly the same time, the one whose task began first was served first.
    fn order_by_tasks(&self, events: &mut [(f64, Event)]) {
        /// Closer than this, times of sending say little.
        const CLOSE: f64 = 0.02;
        let ticks = |event: &Event| match event {
            Event::Row(at) => upid_parts(self.rows[*at].started()?).map(|parts| parts.ticks),
            Event::Hidden(_) => None,
        };
        let starters: Vec<(usize, f64)> = events
            .iter()
            .enumerate()
            .filter_map(|(at, (_, event))| Some((at, ticks(event)?)))
            .collect();
        let mut order = starters;
        for _ in 0..8 {
            for at in 1..order.len() {
                let ((first, early), (second, late)) = (order[at - 1], order[at]);
                if early > late && events[second].0 - events[first].0 < CLOSE {
                    let (before, after) = (events[first].1, events[second].1);
                    events[first].1 = after;
                    events[second].1 = before;
                    order[at - 1] = (first, late);
                    order[at] = (second, early);
                }
            }
        }
    }

    pub(crate) fn now(&self) -> f64 {
        self.world.now()
    }

    async fn go_to(&self, at: f64) {
        if let Ok(at) = Timestamp::from_microsecond((at * 1e6) as i64) {
            self.clock.advance_to(at).await;
        }
    }

    pub(crate) fn answer(&self, index: usize) -> Option<Answer> {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&index)
            .cloned()
    }

    /// Steps until a call is answered.
    async fn wait_for(&mut self, index: usize) {
        let limit = self.now() + PATIENCE;
        // A call that was only just sent has set no timer yet.
        crate::world::clock::settle().await;
        while self.answer(index).is_none() && self.now() < limit {
            let Some(due) = self.clock.next_due() else {
                break;
            };
            self.clock.advance_to(due).await;
        }
    }

    /// Sends a call. A task that must have no effect is stopped before it begins.
    fn send(&self, index: usize, request: Request, broken: bool) {
        let (world, answers) = (self.world.clone(), self.answers.clone());
        // Cancel safety: dropped only when the replay ends.
        self.spawner.spawn("replayed call", async move {
            let answer = world.call(request).await;
            if broken && let Some(upid) = answer.data().as_str() {
                let state = world.state();
                if let Some(task) = state.tasks.by_upid.get(upid) {
                    task.cancel.cancel();
                }
            }
            answers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(index, answer);
        });
    }

    async fn hidden_call(&mut self, index: usize) {
        let call = self.hidden[index].clone();
        let mut request = call.request.clone();
        request.credentials = Credentials::Token(self.secret(&call.identity));
        // What the test set-up broke had no effect there, so it must have none here.
        let broken = self.is_broken(&call.upid);
        self.stop_first(&call);
        if call.makes.is_some() {
            before::put_sources(&self.world, &host_of(&request.path), &request.parameters);
        } else {
            self.put_target(&request, call.at);
        }
        self.send(HIDDEN + index, request, broken);
        crate::world::clock::settle().await;
    }

    /// Whether the recording says that the end of a task shows the test set-up, and it failed.
    fn is_broken(&self, upid: &str) -> bool {
        self.rows.iter().any(|row| {
            row.upid() == Some(upid)
                && row.is_artifact()
                && row.data()["exitstatus"]
                    .as_str()
                    .is_some_and(|exit| exit_class(exit) != "success")
        })
    }

    /// A guest whose destruction worked was off, even if no row shows who stopped it.
    fn stop_first(&self, call: &Hidden) {
        let worked = self
            .exits
            .get(&call.upid)
            .is_some_and(|exit| exit_class(exit) == "success");
        let parts: Vec<&str> = call.request.path.split('/').skip(1).collect();
        if let ("DELETE", ["nodes", host, "qemu", vmid]) =
            (call.request.method.as_str(), &parts[..])
            && let Ok(vmid) = vmid.parse()
            && worked
            && self.world.is_running(vmid)
        {
            let _ = self.world.set_stopped(host, crate::world::Kind::Qemu, vmid);
        }
    }

    pub(crate) fn secret(&self, token: &str) -> String {
        match self.tokens.get(token) {
            Some(secret) => format!("{token}={secret}"),
            None => before::secret_of(token),
        }
    }

    /// Puts the guest in place that a hidden call is for, when nothing made it.
    fn put_target(&self, request: &Request, at: f64) {
        let parts: Vec<&str> = request.path.split('/').skip(1).collect();
        let (kind, vmid, host) = match parts[..] {
            ["nodes", host, "qemu", vmid, ..] => (crate::world::Kind::Qemu, vmid, host),
            ["nodes", host, "lxc", vmid, ..] => (crate::world::Kind::Lxc, vmid, host),
            _ => return,
        };
        let Ok(vmid) = vmid.parse::<u32>() else {
            return;
        };
        let worked = self
            .hidden
            .iter()
            .find(|call| call.request.path == request.path && (call.at - at).abs() < 1e-6)
            .and_then(|call| self.exits.get(&call.upid))
            .is_some_and(|exit| exit_class(exit) == "success");
        if worked && !self.is_made_before(vmid, at) {
            let seen = Sighting {
                vmid,
                kind,
                host: host.to_owned(),
                entry: serde_json::Value::Null,
            };
            before::put_seen(&self.world, &seen);
        }
    }

    pub(crate) fn is_made_before(&self, vmid: u32, at: f64) -> bool {
        self.made
            .iter()
            .any(|(made, when)| *made == vmid && *when < at)
    }

    async fn row(&mut self, index: usize, at: f64) {
        self.keep_order(index, at).await;
        let row = self.rows[index].clone();
        if row.is_command() {
            self.command(&row).await;
        }
        if row.is_left_out() {
            return;
        }
        self.make_room(&row, at);
        self.put_what_it_shows(&row, at);
        if let Some(upid) = row.upid() {
            let upid = upid.to_owned();
            self.resolve_task(&upid).await;
        }
        let request = self.request(&row);
        self.set_agent(&row);
        self.set_pace(&row);
        self.set_key_order(&row);
        self.set_sweep(&row);
        let polls = row.data().get("exitstatus").is_some() && row.api_path().ends_with("/status");
        if !polls {
            let broken = row.started().is_some_and(|upid| self.is_broken(upid));
            self.send(index, request, broken);
            crate::world::clock::settle().await;
            return;
        }
        // Whoever recorded this asked until the task had ended, and kept the last answer.
        let limit = self.now() + PATIENCE;
        loop {
            self.send(index, request.clone(), false);
            self.wait_for(index).await;
            let ended = self.answer(index).is_none_or(|answer| {
                answer.status != 200 || answer.data().get("exitstatus").is_some()
            });
            if ended || self.now() > limit {
                break;
            }
            let Some(due) = self.clock.next_due() else {
                break;
            };
            self.clock.advance_to(due).await;
            self.answers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&index);
        }
        self.drift = self.drift.max(self.now() - at - row.seconds).max(0.0);
    }

    /// What was answered before this was sent must be answered here, too.
    async fn keep_order(&mut self, index: usize, at: f64) {
        let flow = self.rows[index].flow().to_owned();
        let open: Vec<usize> = self
            .rows
            .iter()
            .enumerate()
            .filter(|(other, row)| {
                *other != index
                    && !row.is_left_out()
                    && row.flow() == flow
                    && row.t0.is_some_and(|t0| {
                        t0 < at && t0 + row.seconds <= at + CLOCK && at - t0 < 120.0
                    })
            })
            .map(|(other, _)| other)
            .filter(|other| {
                let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                !answers.contains_key(other)
            })
            .collect();
        for other in open {
            self.wait_for(other).await;
        }
        self.drift = self.drift.max(self.now() - at).max(0.0);
        let fresh: Vec<usize> = {
            let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers
                .keys()
                .copied()
                .filter(|at| *at < HIDDEN && !self.learned.contains(at))
                .collect()
        };
        for index in fresh {
            self.learned.insert(index);
            self.learn(index);
        }
    }

    /// Remembers what an answer tells: tasks, digests, tickets, secrets.
    fn learn(&mut self, index: usize) {
        let Some(answer) = self.answer(index) else {
            return;
        };
        let row = &self.rows[index];
        self.realign(row, &answer);
        if let (Some(old), Some(new)) = (
            row.data()["digest"].as_str(),
            answer.data()["digest"].as_str(),
        ) {
            self.digests
                .entry(old.to_owned())
                .or_insert_with(|| new.to_owned());
        }
        if row.api_path() == "/access/ticket" && answer.status == 200 {
            let text = |key: &str| answer.data()[key].as_str().unwrap_or("").to_owned();
            self.ticket = Some((text("ticket"), text("CSRFPreventionToken")));
        }
        if let (Some(name), Some(secret)) = (
            answer.data()["full-tokenid"].as_str(),
            answer.data()["value"].as_str(),
        ) {
            self.tokens.insert(name.to_owned(), secret.to_owned());
        }
        if !self.group_of.contains_key(&index)
            && let (Some(old), Some(new)) = (row.started(), answer.data().as_str())
        {
            self.tasks
                .entry(old.to_owned())
                .or_insert_with(|| new.to_owned());
        }
    }

    fn put_what_it_shows(&self, row: &Row, at: f64) {
        for seen in before::sightings(row) {
            if !self.is_made_before(seen.vmid, at + row.seconds) {
                before::put_seen(&self.world, &seen);
            }
        }
        let succeeded = row
            .started()
            .and_then(|upid| self.exits.get(upid))
            .is_some_and(|exit| exit_class(exit) == "success");
        if succeeded && row.method == "POST" {
            before::put_sources(&self.world, &host_of(row.api_path()), &row.parameters());
        }
        if row.status == 200 {
            super::shown::put_figures(&self.world, row);
        }
        if row.status == 200 && row.api_path().ends_with("/content") {
            let host = host_of(row.api_path());
            for entry in row.data().as_array().into_iter().flatten() {
                let volid = entry["volid"].as_str().unwrap_or("");
                let known = self.world.state().volume(&host, volid).is_some();
                if !known && entry["content"] == "backup" {
                    self.name_archive(&host, entry);
                } else if !known && entry.get("vmid").is_none() {
                    before::put_listed(&self.world, &host, entry);
                } else if !known && let Some(vmid) = entry["vmid"].as_u64() {
                    // A disk whose guest nothing made here was left by one before.
                    let vmid = u32::try_from(vmid).unwrap_or(0);
                    if !self.is_made_before(vmid, at) {
                        before::put_left(&self.world, &host, vmid, entry);
                    }
                }
            }
        }
    }

    /// Finds the task here that stands for a recorded one.
    pub(crate) async fn resolve_task(&mut self, upid: &str) {
        if self.tasks.contains_key(upid) {
            return;
        }
        if let Some(index) = self.hidden.iter().position(|call| call.upid == upid) {
            self.wait_for(HIDDEN + index).await;
            let answer = self.answer(HIDDEN + index);
            if let Some(new) = answer.as_ref().and_then(|answer| answer.data().as_str()) {
                self.tasks.insert(upid.to_owned(), new.to_owned());
            }
            return;
        }
        let Some(index) = self.rows.iter().position(|row| row.started() == Some(upid)) else {
            return;
        };
        let Some(group) = self.group_of.get(&index).copied() else {
            self.wait_for(index).await;
            self.learn(index);
            return;
        };
        let members = self.groups[group].clone();
        for member in &members {
            self.wait_for(*member).await;
        }
        let pool: Vec<String> = members
            .iter()
            .filter_map(|member| self.answer(*member)?.data().as_str().map(ToOwned::to_owned))
            .filter(|new| new.starts_with("UPID:"))
            .collect();
        self.wait_for_tasks(&pool).await;
        let wanted = self.exits.get(upid).map(|exit| exit_class(exit));
        let fits = |new: &&String| {
            let exit = self.exit_here(new);
            wanted.is_none() || exit.map(|exit| exit_class(&exit)) == wanted
        };
        let free = |new: &&String| !self.taken.contains(*new);
        let chosen = pool
            .iter()
            .find(|new| fits(new) && free(new))
            .or_else(|| pool.iter().find(fits))
            .or_else(|| pool.iter().find(free))
            .or_else(|| pool.first())
            .cloned();
        if let Some(new) = chosen {
            self.taken.insert(new.clone());
            self.tasks.insert(upid.to_owned(), new);
        }
    }

    pub(crate) async fn wait_for_tasks(&mut self, pool: &[String]) {
        let limit = self.now() + PATIENCE;
        while pool.iter().any(|upid| self.exit_here(upid).is_none()) && self.now() < limit {
            let Some(due) = self.clock.next_due() else {
                break;
            };
            self.clock.advance_to(due).await;
        }
    }

    pub(crate) fn exit_here(&self, upid: &str) -> Option<String> {
        self.world
            .state()
            .tasks
            .by_upid
            .get(upid)
            .and_then(|task| task.exit.clone())
    }
}

fn host_of(path: &str) -> String {
    path.split('/').nth(2).unwrap_or("").to_owned()
}
