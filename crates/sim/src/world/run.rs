//! Runs tasks: gives them a UPID, a log and a way to be stopped.
//!
//! In: a kind, an id and what to do. Out: the UPID at once; log and exit status later.
//! Never: a task without an end.

use std::time::Duration;

use super::World;
use super::lock::{Hold, Mode};
use super::state::Kind;
use super::task::Birth;

/// Who asked, for which host, in which worker of it.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) node: String,
    pub(crate) identity: String,
    pub(crate) worker: Option<usize>,
}

/// Stands for the UPID of a job that waits for nothing, not even for a lock.
const AT_ONCE: &str = "at once";

/// What a task sees of the World.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) world: World,
    pub(crate) node: String,
    pub(crate) upid: String,
}

impl World {
    /// Starts a task and returns its UPID.
    pub(crate) fn start_task<Work, Run>(
        &self,
        origin: &Origin,
        kind: &str,
        id: &str,
        work: Work,
    ) -> String
    where
        Work: FnOnce(Job) -> Run,
        Run: Future<Output = Result<(), String>> + Send + 'static,
    {
        let now = self.epoch();
        let ticks = self.ticks();
        let upid = {
            let mut state = self.state();
            let warned = origin.worker.is_some_and(|index| {
                state
                    .hosts
                    .get(&origin.node)
                    .is_some_and(|host| host.workers.has_warned(index))
            });
            state.tasks.start(&Birth {
                node: &origin.node,
                kind,
                id,
                identity: &origin.identity,
                now,
                ticks,
                warned,
            })
        };
        let job = Job {
            world: self.clone(),
            node: origin.node.clone(),
            upid: upid.clone(),
        };
        let running = work(job.clone());
        // Cancel safety: only the end of the program drops it; the World ends with it.
        self.spawner().spawn("simulated task", async move {
            let fork = job.world.state().timing.fork;
            job.world.sleep(fork).await;
            // Stopped or not, it runs: it stops at its first wait and clears up behind itself.
            // Only when its host lost power is nothing cleared up.
            let token = job.token().unwrap_or_default();
            let mut running = std::pin::pin!(running);
            let outcome = tokio::select! {
                biased;
                // Cancel safety: the token stays cancelled.
                () = token.cancelled() => {
                    if job.has_ended() {
                        return;
                    }
                    running.await
                }
                // Cancel safety: dropped only above, where that is the point.
                outcome = &mut running => outcome,
            };
            let now = job.world.epoch();
            job.world.state().tasks.finish(&job.upid, now, outcome);
        });
        upid
    }

    /// Does what a task does without its waits, and records it as one that has ended.
    pub(crate) fn end_task<Work, Run>(
        &self,
        origin: &Origin,
        kind: &str,
        id: &str,
        work: Work,
    ) -> Result<String, String>
    where
        Work: FnOnce(Job) -> Run,
        Run: Future<Output = Result<(), String>> + Send + 'static,
    {
        // A job that is no task waits for nothing.
        let outcome = at_once(work(Job {
            world: self.clone(),
            node: origin.node.clone(),
            upid: AT_ONCE.to_owned(),
        }));
        let outcome = outcome.unwrap_or_else(|| Err("got timeout".to_owned()));
        let (now, ticks) = (self.epoch(), self.ticks());
        let mut state = self.state();
        let upid = state.tasks.start(&Birth {
            node: &origin.node,
            kind,
            id,
            identity: &origin.identity,
            now,
            ticks,
            warned: false,
        });
        state.tasks.finish(&upid, now, outcome.clone());
        outcome.map(|()| upid)
    }

    /// Returns hundredths of a second since boot, as the kernel counts process starts.
    fn ticks(&self) -> u64 {
        (self.uptime() * 100.0).max(0.0) as u64
    }

    /// Takes a guest's config lock for a call that waits in its worker.
    pub(crate) async fn lock_config(
        &self,
        kind: Kind,
        vmid: u32,
        patience: Option<Duration>,
    ) -> Result<Hold, String> {
        let file = kind.lock_file(vmid);
        let patience = patience.unwrap_or_else(|| self.state().timing.config_lock);
        self.locks()
            .take(&file, Mode::Exclusive, patience, self.clock())
            .await
            .ok_or_else(|| timeout(&file))
    }
}

/// Runs what waits for nothing. `None` when it would have to wait.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(outcome) => Some(outcome),
        std::task::Poll::Pending => None,
    }
}

/// Returns PVE's words for a lock that was not had in time.
pub(crate) fn timeout(file: &str) -> String {
    format!("can't lock file '{file}' - got timeout")
}

impl Job {
    pub(crate) fn log(&self, line: impl Into<String>) {
        self.world.state().tasks.log(&self.upid, line);
    }

    pub(crate) fn warn(&self, line: impl Into<String>) {
        let mut state = self.world.state();
        state.tasks.log(&self.upid, line);
        if let Some(task) = state.tasks.by_upid.get_mut(&self.upid) {
            task.warnings += 1;
        }
    }

    fn token(&self) -> Option<tokio_util::sync::CancellationToken> {
        self.world
            .state()
            .tasks
            .by_upid
            .get(&self.upid)
            .map(|task| task.cancel.clone())
    }

    fn has_ended(&self) -> bool {
        let state = self.world.state();
        let task = state.tasks.by_upid.get(&self.upid);
        task.is_none_or(|task| task.ended.is_some())
    }

    /// Says that the task is stopped. When its host lost power it says nothing ever again: it is
    /// dropped where it stands, also when the power went while it was being polled.
    async fn interrupted(&self) -> String {
        if self.has_ended() {
            std::future::pending::<()>().await;
        }
        "received interrupt".to_owned()
    }

    /// Waits, unless the task is stopped meanwhile.
    pub(crate) async fn sleep(&self, duration: Duration) -> Result<(), String> {
        let Some(token) = self.token() else {
            return Ok(());
        };
        tokio::select! {
            biased;
            // Cancel safety: the token stays cancelled.
            () = token.cancelled() => return Err(self.interrupted().await),
            // Cancel safety: a dropped sleep has no effect.
            () = self.world.sleep(duration) => {}
        }
        if token.is_cancelled() {
            return Err(self.interrupted().await);
        }
        self.world.catch_up();
        Ok(())
    }

    /// Takes a lock as a task does: it says so when it has to wait.
    pub(crate) async fn lock(
        &self,
        file: &str,
        mode: Mode,
        patience: Duration,
    ) -> Result<Hold, String> {
        if let Some(hold) = self.world.locks().try_take(file, mode) {
            return Ok(hold);
        }
        if self.upid == AT_ONCE {
            return Err(timeout(file));
        }
        self.log("trying to acquire lock...");
        let clock = self.world.clock().clone();
        let token = self.token().unwrap_or_default();
        let hold = tokio::select! {
            biased;
            // Cancel safety: the token stays cancelled.
            () = token.cancelled() => return Err(self.interrupted().await),
            // Cancel safety: a wait for a lock leaves the queue when dropped.
            hold = self.world.locks().take(file, mode, patience, &clock) => hold,
        };
        match hold {
            Some(hold) => {
                self.log(" OK");
                Ok(hold)
            }
            None => Err(timeout(file)),
        }
    }

    pub(crate) async fn lock_guest(&self, kind: Kind, vmid: u32) -> Result<Hold, String> {
        let patience = self.world.state().timing.config_lock;
        self.lock(&kind.lock_file(vmid), Mode::Exclusive, patience)
            .await
    }

    /// Takes the lock of a storage, which allocating and freeing need.
    pub(crate) async fn lock_storage(&self, storage: &str) -> Result<Hold, String> {
        let patience = self.world.state().timing.config_lock;
        let shared = self
            .world
            .state()
            .storages
            .get(storage)
            .is_some_and(|s| s.shared);
        let file = if shared {
            format!("cfs-lock 'storage-{storage}'")
        } else {
            format!("/var/lock/pve-manager/pve-storage-{storage}@{}", self.node)
        };
        let hold = self.lock(&file, Mode::Exclusive, patience).await;
        hold.map_err(|fault| match fault.as_str() {
            "received interrupt" => fault,
            _ if shared => format!("cfs-lock 'storage-{storage}' error: got lock request timeout"),
            _ => timeout(&format!("/var/lock/pve-manager/pve-storage-{storage}")),
        })
    }

    /// Works for a while, and for as long as a replay says such work takes.
    pub(crate) async fn work(&self, duration: Duration) -> Result<(), String> {
        let now = self.world.now();
        let until = {
            let state = self.world.state();
            let task = state.tasks.by_upid.get(&self.upid);
            task.and_then(|task| state.busy.get(&task.id).copied())
        };
        let rest = until.map_or(0.0, |until| (until - now).max(0.0));
        self.sleep(duration.max(Duration::from_secs_f64(rest)))
            .await
    }

    /// Copies for as long as it takes, sharing the storage's speed with other copies.
    pub(crate) async fn copy(
        &self,
        storage: &str,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<(), String> {
        // Each host has disks of its own; only a shared storage is shared.
        let lane = {
            let state = self.world.state();
            let place = state.storages.get(storage).map(|one| one.place(&self.node));
            format!("{storage}@{}", place.unwrap_or_default())
        };
        let duration = {
            let mut state = self.world.state();
            let running = state.copies.entry(lane.clone()).or_default();
            *running += 1;
            let sharing = *running;
            state.timing.copy(bytes, limit, sharing)
        };
        let outcome = self.work(duration).await;
        if let Some(running) = self.world.state().copies.get_mut(&lane) {
            *running = running.saturating_sub(1);
        }
        outcome
    }
}
