//! Runs tasks. The UPID is returned when a task starts; log and exit status follow.

use std::time::Duration;

use super::World;
use super::lock::{LockGuard, Mode};
use super::state::Kind;
use super::task::NewTask;

/// The host, identity and worker of the call that starts a task.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) node: String,
    pub(crate) identity: String,
    pub(crate) worker: Option<usize>,
}

/// Replaces the UPID in a job that never waits, not even for a lock.
const IMMEDIATE: &str = "immediate";

/// The context of a running task.
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
            state.tasks.start(&NewTask {
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
        // Cancel safety: it is dropped only when the program ends.
        self.spawner().spawn("simulated task", async move {
            let fork = job.world.state().timing.fork;
            job.world.sleep(fork).await;
            // A cancelled task still runs: it stops at its next wait and cleans up. Only a task
            // that was aborted ends without cleanup.
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
                // Cancel safety: dropped only above, where that is intended.
                outcome = &mut running => outcome,
            };
            let now = job.world.epoch();
            job.world.state().tasks.finish(&job.upid, now, outcome);
        });
        upid
    }

    /// Runs a task without its waits and records it as ended.
    pub(crate) fn run_task_immediately<Work, Run>(
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
        let outcome = poll_once(work(Job {
            world: self.clone(),
            node: origin.node.clone(),
            upid: IMMEDIATE.to_owned(),
        }));
        let outcome = outcome.unwrap_or_else(|| Err("got timeout".to_owned()));
        let (now, ticks) = (self.epoch(), self.ticks());
        let mut state = self.state();
        let upid = state.tasks.start(&NewTask {
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

    /// Returns the uptime in hundredths of a second, the unit of process start times.
    fn ticks(&self) -> u64 {
        (self.uptime() * 100.0).max(0.0) as u64
    }

    /// Takes the configuration lock of a guest, for a call without a task.
    pub(crate) async fn lock_config(
        &self,
        kind: Kind,
        vmid: u32,
        timeout: Option<Duration>,
    ) -> Result<LockGuard, String> {
        let file = kind.lock_file(vmid);
        let timeout = timeout.unwrap_or_else(|| self.state().timing.config_lock);
        self.locks()
            .take(&file, Mode::Exclusive, timeout, self.clock())
            .await
            .ok_or_else(|| lock_timeout(&file))
    }
}

/// Polls a future once. Returns `None` if it would have to wait.
pub(crate) fn poll_once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(outcome) => Some(outcome),
        std::task::Poll::Pending => None,
    }
}

/// Returns PVE's message for a lock timeout.
pub(crate) fn lock_timeout(file: &str) -> String {
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

    /// Returns the error of a cancelled task. Never returns if the task was aborted, so that it is
    /// dropped without cleanup, even if that happened while it was being polled.
    async fn interrupted(&self) -> String {
        if self.has_ended() {
            std::future::pending::<()>().await;
        }
        "received interrupt".to_owned()
    }

    /// Waits, or fails if the task is cancelled meanwhile.
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
        self.world.apply_due_events();
        Ok(())
    }

    /// Takes a lock, and logs when it has to wait.
    pub(crate) async fn lock(
        &self,
        file: &str,
        mode: Mode,
        timeout: Duration,
    ) -> Result<LockGuard, String> {
        if let Some(hold) = self.world.locks().try_take(file, mode) {
            return Ok(hold);
        }
        if self.upid == IMMEDIATE {
            return Err(lock_timeout(file));
        }
        self.log("trying to acquire lock...");
        let clock = self.world.clock().clone();
        let token = self.token().unwrap_or_default();
        let hold = tokio::select! {
            biased;
            // Cancel safety: the token stays cancelled.
            () = token.cancelled() => return Err(self.interrupted().await),
            // Cancel safety: a wait for a lock leaves the queue when dropped.
            hold = self.world.locks().take(file, mode, timeout, &clock) => hold,
        };
        match hold {
            Some(hold) => {
                self.log(" OK");
                Ok(hold)
            }
            None => Err(lock_timeout(file)),
        }
    }

    pub(crate) async fn lock_guest(&self, kind: Kind, vmid: u32) -> Result<LockGuard, String> {
        let timeout = self.world.state().timing.config_lock;
        self.lock(&kind.lock_file(vmid), Mode::Exclusive, timeout)
            .await
    }

    /// Takes the lock of a storage, as required to allocate and free volumes.
    pub(crate) async fn lock_storage(&self, storage: &str) -> Result<LockGuard, String> {
        let timeout = self.world.state().timing.config_lock;
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
        let hold = self.lock(&file, Mode::Exclusive, timeout).await;
        hold.map_err(|fault| match fault.as_str() {
            "received interrupt" => fault,
            _ if shared => format!("cfs-lock 'storage-{storage}' error: got lock request timeout"),
            _ => lock_timeout(&format!("/var/lock/pve-manager/pve-storage-{storage}")),
        })
    }

    /// Waits for the duration of some work, or longer if a replay requires it.
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

    /// Waits for the duration of a copy, which shares the speed of the storage with other copies.
    pub(crate) async fn copy(
        &self,
        storage: &str,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<(), String> {
        // Each host has its own disks, except for shared storages.
        let key = {
            let state = self.world.state();
            let known = state.storages.get(storage);
            let host = known.map(|known| known.volume_host(&self.node));
            format!("{storage}@{}", host.unwrap_or_default())
        };
        let duration = {
            let mut state = self.world.state();
            let running = state.copies.entry(key.clone()).or_default();
            *running += 1;
            let sharing = *running;
            state.timing.copy(bytes, limit, sharing)
        };
        let outcome = self.work(duration).await;
        if let Some(running) = self.world.state().copies.get_mut(&key) {
            *running = running.saturating_sub(1);
        }
        outcome
    }
}
