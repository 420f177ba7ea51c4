//! Sends recorded calls to a World at their recorded times. Time is stepped, so a replay does not
//! depend on the wall clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use homestak_api::runtime::Spawner;
use jiff::Timestamp;

use super::compare::exit_class;
use super::groups;
use super::initial_state::{self, ObservedGuest};
use super::report::{Command, Report};
use super::transcript::{Row, upid_parts};
use super::unrecorded::{self, UnrecordedCall};
use crate::calls::{Answer, Credentials, Request};
use crate::world::{SteppedClock, World};

/// How much longer than recorded a task or an answer may take, in simulated seconds.
const MAX_DELAY: f64 = 900.0;

/// Precision of recorded times, in seconds.
const CLOCK_PRECISION: f64 = 0.005;

type Answers = Arc<Mutex<BTreeMap<usize, Answer>>>;

/// A replay in progress.
pub(crate) struct Runner {
    pub(crate) world: World,
    pub(crate) clock: SteppedClock,
    pub(crate) rows: Vec<Row>,
    pub(crate) unrecorded: Vec<UnrecordedCall>,
    pub(crate) answers: Answers,
    pub(crate) spawner: Spawner,
    /// How far the replay is behind the recording, in seconds.
    pub(crate) delay: f64,
    /// UPIDs of the replay by recorded UPID.
    pub(crate) tasks: HashMap<String, String>,
    /// UPIDs of the replay that stand for a recorded one of a group.
    pub(crate) assigned: BTreeSet<String>,
    /// Rows whose answers were processed.
    pub(crate) processed: BTreeSet<usize>,
    pub(crate) digests: HashMap<String, String>,
    pub(crate) exits: BTreeMap<String, String>,
    pub(crate) group_of: HashMap<usize, usize>,
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) created: Vec<(u32, f64)>,
    pub(crate) ticket: Option<(String, String)>,
    pub(crate) tokens: HashMap<String, String>,
    pub(crate) commands: Vec<Command>,
}

/// Replays rows and adds the results to the report.
pub(crate) async fn replay(file: &str, rows: Vec<Row>, report: &mut Report) {
    let start = rows
        .iter()
        .filter_map(|row| row.t0)
        .fold(f64::MAX, f64::min)
        - 30.0;
    if rows.is_empty() {
        return;
    }
    let world = initial_state::build(&rows, start);
    let Some(clock) = world.stepped().cloned() else {
        return;
    };
    let unrecorded = unrecorded::find(&rows);
    let mut created = unrecorded::created_by_recorded_calls(&rows);
    created.extend(
        unrecorded
            .iter()
            .filter_map(|call| Some((call.creates?, call.at))),
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
        exits: initial_state::exits(&rows),
        unrecorded,
        answers: Answers::default(),
        spawner: Spawner::default(),
        delay: 0.0,
        tasks: HashMap::new(),
        assigned: BTreeSet::new(),
        processed: BTreeSet::new(),
        digests: HashMap::new(),
        group_of,
        groups,
        created,
        ticket: None,
        tokens: HashMap::new(),
        commands: Vec::new(),
        rows,
    };
    runner.run().await;
    runner.compare_all(file, report);
    report.commands.append(&mut runner.commands);
}

/// A call to send.
#[derive(Clone, Copy)]
enum Event {
    Row(usize),
    Unrecorded(usize),
}

/// Index of the first unrecorded call; lower ones are rows.
const UNRECORDED: usize = 1_000_000;

impl Runner {
    async fn run(&mut self) {
        let mut events: Vec<(f64, Event)> = self
            .rows
            .iter()
            .enumerate()
            .map(|(at, row)| (row.t0.unwrap_or(0.0), Event::Row(at)))
            .chain(
                self.unrecorded
                    .iter()
                    .enumerate()
                    .map(|(at, call)| (call.at, Event::Unrecorded(at))),
            )
            .collect();
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.order_by_tasks(&mut events);
        for (at, event) in events {
            self.advance_to(at + self.delay).await;
            match event {
                Event::Row(index) => self.row(index, at).await,
                Event::Unrecorded(index) => self.unrecorded_call(index).await,
            }
        }
        self.clock
            .advance(std::time::Duration::from_secs(600))
            .await;
    }

    /// Reorders calls that were sent nearly simultaneously by the start times of their tasks.
    fn order_by_tasks(&self, events: &mut [(f64, Event)]) {
        /// Below this many seconds, the order of sending is unreliable.
        const CLOSE: f64 = 0.02;
        let ticks = |event: &Event| match event {
            Event::Row(at) => upid_parts(self.rows[*at].started()?).map(|parts| parts.ticks),
            Event::Unrecorded(_) => None,
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

    async fn advance_to(&self, at: f64) {
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

    /// Advances time until a call is answered.
    async fn wait_for(&mut self, index: usize) {
        let limit = self.now() + MAX_DELAY;
        // A call that was just sent has not set its timer yet.
        crate::world::clock::settle().await;
        while self.answer(index).is_none() && self.now() < limit {
            let Some(due) = self.clock.next_due() else {
                break;
            };
            self.clock.advance_to(due).await;
        }
    }

    /// Sends a call. With `cancel`, its task is cancelled before it begins.
    fn send(&self, index: usize, request: Request, cancel: bool) {
        let (world, answers) = (self.world.clone(), self.answers.clone());
        // Cancel safety: dropped only when the replay ends.
        self.spawner.spawn("replayed call", async move {
            let answer = world.call(request).await;
            if cancel && let Some(upid) = answer.data().as_str() {
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

    async fn unrecorded_call(&mut self, index: usize) {
        let call = self.unrecorded[index].clone();
        let mut request = call.request.clone();
        request.credentials = Credentials::Token(self.secret(&call.identity));
        // A task that failed because of the test setup had no effect.
        let cancel = self.failed_in_test_setup(&call.upid);
        self.stop_before_delete(&call);
        if call.creates.is_some() {
            initial_state::add_source_files(
                &self.world,
                &host_of(&request.path),
                &request.parameters,
            );
        } else {
            self.add_target(&request, call.at);
        }
        self.send(UNRECORDED + index, request, cancel);
        crate::world::clock::settle().await;
    }

    /// Whether a task failed and the recording marks this as an artifact of the test setup.
    fn failed_in_test_setup(&self, upid: &str) -> bool {
        self.rows.iter().any(|row| {
            row.upid() == Some(upid)
                && row.is_artifact()
                && row.data()["exitstatus"]
                    .as_str()
                    .is_some_and(|exit| exit_class(exit) != "success")
        })
    }

    /// Stops a guest that is about to be destroyed successfully, even if no row stops it.
    fn stop_before_delete(&self, call: &UnrecordedCall) {
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
            None => initial_state::secret_of(token),
        }
    }

    /// Adds the guest of an unrecorded call, if nothing created it.
    fn add_target(&self, request: &Request, at: f64) {
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
            .unrecorded
            .iter()
            .find(|call| call.request.path == request.path && (call.at - at).abs() < 1e-6)
            .and_then(|call| self.exits.get(&call.upid))
            .is_some_and(|exit| exit_class(exit) == "success");
        if worked && !self.is_created_before(vmid, at) {
            let seen = ObservedGuest {
                vmid,
                kind,
                host: host.to_owned(),
                entry: serde_json::Value::Null,
            };
            initial_state::add_guest(&self.world, &seen);
        }
    }

    pub(crate) fn is_created_before(&self, vmid: u32, at: f64) -> bool {
        self.created
            .iter()
            .any(|(created, when)| *created == vmid && *when < at)
    }

    async fn row(&mut self, index: usize, at: f64) {
        self.wait_for_earlier_calls(index, at).await;
        let row = self.rows[index].clone();
        if row.is_command() {
            self.command(&row).await;
        }
        if row.is_skipped() {
            return;
        }
        self.remove_stale_guest(&row, at);
        self.add_shown_objects(&row, at);
        if let Some(upid) = row.upid() {
            let upid = upid.to_owned();
            self.resolve_task(&upid).await;
        }
        let request = self.request(&row);
        self.set_agent(&row);
        self.set_task_duration(&row);
        self.set_key_order(&row);
        self.set_status_update(&row);
        let polls = row.data().get("exitstatus").is_some() && row.api_path().ends_with("/status");
        if !polls {
            let cancel = row
                .started()
                .is_some_and(|upid| self.failed_in_test_setup(upid));
            self.send(index, request, cancel);
            crate::world::clock::settle().await;
            return;
        }
        // The recorder polled until the task ended and recorded only the last answer.
        let limit = self.now() + MAX_DELAY;
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
        self.delay = self.delay.max(self.now() - at - row.seconds).max(0.0);
    }

    /// Waits for the answers that the client had received before it sent this row.
    async fn wait_for_earlier_calls(&mut self, index: usize, at: f64) {
        let flow = self.rows[index].flow().to_owned();
        let open: Vec<usize> = self
            .rows
            .iter()
            .enumerate()
            .filter(|(other, row)| {
                *other != index
                    && !row.is_skipped()
                    && row.flow() == flow
                    && row.t0.is_some_and(|t0| {
                        t0 < at && t0 + row.seconds <= at + CLOCK_PRECISION && at - t0 < 120.0
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
        self.delay = self.delay.max(self.now() - at).max(0.0);
        let fresh: Vec<usize> = {
            let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers
                .keys()
                .copied()
                .filter(|at| *at < UNRECORDED && !self.processed.contains(at))
                .collect()
        };
        for index in fresh {
            self.processed.insert(index);
            self.process_answer(index);
        }
    }

    /// Stores the task, digest, ticket and token secret of an answer.
    fn process_answer(&mut self, index: usize) {
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

    fn add_shown_objects(&self, row: &Row, at: f64) {
        for seen in initial_state::observed_guests(row) {
            if !self.is_created_before(seen.vmid, at + row.seconds) {
                initial_state::add_guest(&self.world, &seen);
            }
        }
        let succeeded = row
            .started()
            .and_then(|upid| self.exits.get(upid))
            .is_some_and(|exit| exit_class(exit) == "success");
        if succeeded && row.method == "POST" {
            initial_state::add_source_files(
                &self.world,
                &host_of(row.api_path()),
                &row.parameters(),
            );
        }
        if row.status == 200 {
            super::settings::set_usage(&self.world, row);
        }
        if row.status == 200 && row.api_path().ends_with("/content") {
            let host = host_of(row.api_path());
            for entry in row.data().as_array().into_iter().flatten() {
                let volid = entry["volid"].as_str().unwrap_or("");
                let known = self.world.state().volume(&host, volid).is_some();
                if !known && entry["content"] == "backup" {
                    self.rename_archive(&host, entry);
                } else if !known && entry.get("vmid").is_none() {
                    initial_state::add_file(&self.world, &host, entry);
                } else if !known && let Some(vmid) = entry["vmid"].as_u64() {
                    // Nothing created its guest, so the disk is a leftover of an earlier one.
                    let vmid = u32::try_from(vmid).unwrap_or(0);
                    if !self.is_created_before(vmid, at) {
                        initial_state::add_orphaned_disk(&self.world, &host, vmid, entry);
                    }
                }
            }
        }
    }

    /// Finds the task of the replay that corresponds to a recorded one.
    pub(crate) async fn resolve_task(&mut self, upid: &str) {
        if self.tasks.contains_key(upid) {
            return;
        }
        if let Some(index) = self.unrecorded.iter().position(|call| call.upid == upid) {
            self.wait_for(UNRECORDED + index).await;
            let answer = self.answer(UNRECORDED + index);
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
            self.process_answer(index);
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
            let exit = self.task_exit(new);
            wanted.is_none() || exit.map(|exit| exit_class(&exit)) == wanted
        };
        let free = |new: &&String| !self.assigned.contains(*new);
        let chosen = pool
            .iter()
            .find(|new| fits(new) && free(new))
            .or_else(|| pool.iter().find(fits))
            .or_else(|| pool.iter().find(free))
            .or_else(|| pool.first())
            .cloned();
        if let Some(new) = chosen {
            self.assigned.insert(new.clone());
            self.tasks.insert(upid.to_owned(), new);
        }
    }

    pub(crate) async fn wait_for_tasks(&mut self, pool: &[String]) {
        let limit = self.now() + MAX_DELAY;
        while pool.iter().any(|upid| self.task_exit(upid).is_none()) && self.now() < limit {
            let Some(due) = self.clock.next_due() else {
                break;
            };
            self.clock.advance_to(due).await;
        }
    }

    pub(crate) fn task_exit(&self, upid: &str) -> Option<String> {
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
