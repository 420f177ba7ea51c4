//! The client: transport, clock, concurrency limits, and the calls that operations are built from.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use homestak_api::runtime::{InterruptibleClock, SharedClock};
use homestak_engine::ports::{ErrorClass, GuestId, GuestKind, PortError, ProgressListener};
use serde_json::Value;

use super::boot::BootSchedule;
use super::concurrency::ConcurrencyLimiter;
use super::error::{PveError, Reason};
use super::http::{ApiResponse, Transport};
use super::notifier::Notifier;
use super::requests::{self, ApiCall};
use super::settings::PveSettings;
use super::task::TaskDurations;
use super::upid::Upid;
use super::upload::Upload;

/// Seconds for which changes fail at once after the cluster reported no quorum.
const QUORUM_PAUSE: i64 = 10;

/// A Proxmox VE, or a cluster of them.
pub struct Pve {
    pub(super) transport: Transport,
    pub(super) clock: SharedClock,
    pub(super) settings: PveSettings,
    pub(super) limiter: ConcurrencyLimiter,
    pub(super) boots: BootSchedule,
    pub(super) notifier: Notifier,
    pub(super) task_durations: TaskDurations,
    pub(super) version: tokio::sync::OnceCell<Version>,
    pub(super) vmids: tokio::sync::OnceCell<RangeInclusive<u32>>,
    no_quorum_until: AtomicI64,
}

/// A version, such as 9.1.7.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// As it was answered.
    pub(super) text: String,
    /// The first two numbers.
    pub(super) number: (u32, u32),
}

impl Version {
    /// Reads a version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '~']);
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Some(Self {
            text: text.to_owned(),
            number: (major, minor),
        })
    }
}

impl Pve {
    /// Prepares a client; nothing is sent.
    pub fn new(settings: PveSettings, clock: SharedClock) -> Result<Self, PortError> {
        let clock = InterruptibleClock::shared(clock);
        let transport = Transport::new(&settings, clock.clone())
            .map_err(|error| error.into_port_error(format!("set up {}", settings.endpoint.url)))?;
        Ok(Self {
            transport,
            clock,
            limiter: ConcurrencyLimiter::new(settings.limits.per_storage),
            boots: BootSchedule::default(),
            notifier: Notifier::default(),
            task_durations: TaskDurations::default(),
            settings,
            version: tokio::sync::OnceCell::new(),
            vmids: tokio::sync::OnceCell::new(),
            no_quorum_until: AtomicI64::new(0),
        })
    }

    /// Reports waits and warnings to a listener.
    #[must_use]
    pub fn listening(mut self, listener: Arc<dyn ProgressListener>) -> Self {
        self.notifier = Notifier::to(listener);
        self.limiter.notifier = self.notifier.clone();
        self.transport.notifier = self.notifier.clone();
        self
    }

    /// Returns how many requests were sent so far.
    pub fn requests(&self) -> u64 {
        self.transport.requests()
    }

    /// Sends a query and returns its data.
    pub(super) async fn ask(&self, call: &ApiCall) -> Result<Value, PveError> {
        Ok(self.transport.send(call).await?.data)
    }

    /// Sends a query and returns the response with its total.
    pub(super) async fn ask_part(&self, call: &ApiCall) -> Result<ApiResponse, PveError> {
        self.transport.send(call).await
    }

    /// Sends a query without retries, for polling.
    pub(super) async fn ask_once(&self, call: &ApiCall) -> Result<Value, PveError> {
        Ok(self.transport.send_once(call).await?.data)
    }

    /// Sends a change that is complete when the response arrives.
    pub(super) async fn change(&self, call: &ApiCall) -> Result<Value, PveError> {
        let now = self.clock.now().as_second();
        if now < self.no_quorum_until.load(Ordering::Relaxed) {
            return Err(PveError::new(
                ErrorClass::Busy,
                Reason::NoQuorum,
                "the cluster has no quorum",
            ));
        }
        let result = self.transport.send(call).await;
        if let Err(error) = &result
            && error.reason == Reason::NoQuorum
        {
            self.no_quorum_until
                .store(now + QUORUM_PAUSE, Ordering::Relaxed);
        }
        Ok(result?.data)
    }

    /// Sends a change and waits for its task.
    pub(super) async fn run(&self, call: &ApiCall) -> Result<(), PveError> {
        let data = self.change(call).await?;
        self.follow(&upid(&data)?).await
    }

    /// Sends a file, and waits for the task that puts it in place.
    pub(super) async fn send_file(&self, call: &ApiCall, upload: Upload) -> Result<(), PveError> {
        let answer = self.transport.upload(call, upload).await?;
        self.follow(&upid(&answer.data)?).await
    }

    /// Returns the version, requested once.
    pub(super) async fn version(&self) -> Result<&Version, PveError> {
        self.version
            .get_or_try_init(|| async {
                let data = self.ask(&ApiCall::to(&requests::VERSION)).await?;
                let text = super::quirks::text_of(&data, "version");
                Version::parse(&text)
                    .ok_or_else(|| PveError::invalid_response(format!("`{text}` is not a version")))
            })
            .await
    }

    /// Locks a guest for changes by this client; one without an id needs no lock.
    pub(super) async fn lock_guest(
        &self,
        guest: &homestak_engine::ports::GuestRef,
    ) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        match guest.vmid {
            Some(id) => Some(self.limiter.guest(id).await),
            None => None,
        }
    }

    /// Returns the range of ids to choose from, requested once.
    pub(super) async fn vmid_range(&self) -> Result<&RangeInclusive<u32>, PveError> {
        self.vmids
            .get_or_try_init(|| async {
                let cluster = match self.ask(&ApiCall::to(&requests::CLUSTER_OPTIONS)).await {
                    Ok(options) => super::vmid::cluster_range(&options),
                    // Without the privilege to read the options, the create call decides.
                    Err(error) if error.reason == Reason::Permission => None,
                    Err(error) => return Err(error),
                };
                Ok(super::vmid::usable(&self.settings.vmids, cluster))
            })
            .await
    }
}

/// Reads the id of the task that a change was answered with.
pub(super) fn upid(data: &Value) -> Result<Upid, PveError> {
    let text = data.as_str().unwrap_or_default();
    Upid::parse(text).ok_or_else(|| PveError::invalid_response("the change did not return a task"))
}

/// Returns the name of a storage or bridge, which plans for Proxmox VE always have.
pub(super) fn named(name: Option<&str>) -> Result<&str, PveError> {
    name.ok_or_else(|| PveError::bug("the plan names no storage or bridge"))
}

/// Picks the request for a VM or for a container.
pub(super) fn by_kind(
    kind: GuestKind,
    vm: &'static requests::Route,
    ct: &'static requests::Route,
) -> ApiCall {
    match kind {
        GuestKind::Vm => ApiCall::to(vm),
        GuestKind::Ct => ApiCall::to(ct),
    }
}

/// Names a guest in messages.
pub(super) fn name_of(kind: GuestKind, id: impl Into<GuestId>, node: &str) -> String {
    let id = id.into();
    let kind = match kind {
        GuestKind::Vm => "VM",
        GuestKind::Ct => "container",
    };
    format!("{kind} {id} on {node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_numbers() {
        assert_eq!(
            Version::parse("9.1.7").map(|version| version.number),
            Some((9, 1))
        );
        assert_eq!(
            Version::parse("8.2-4").map(|version| version.number),
            Some((8, 2))
        );
        assert_eq!(
            Version::parse("10").map(|version| version.number),
            Some((10, 0))
        );
        assert_eq!(Version::parse("beta"), None);
    }
}
