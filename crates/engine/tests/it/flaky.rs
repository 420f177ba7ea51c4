//! A provider that fails once: at the n-th change, before or after it is made.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use homestak_engine::ports::{
    AddressLease, Capabilities, ErrorClass, Gib, GuestAddress, GuestId, GuestRef, GuestUuid,
    HostConnector, ImageRequest, Inventory, Mib, NewGuest, NewIdentity, ObservedGuest, PortError,
    Provider, StopMode,
};

/// When a change fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// Which change fails, and how.
pub struct Fault {
    pub nth: usize,
    pub when: When,
    pub class: ErrorClass,
    /// How often, from the n-th on.
    pub times: usize,
    /// Whether it panics rather than fails.
    pub panics: bool,
    pub seen: AtomicUsize,
}

impl Fault {
    fn hits(&self, when: When, seen: usize) -> Result<(), PortError> {
        let hit = self.when == when && (self.nth..self.nth + self.times).contains(&seen);
        if !hit {
            return Ok(());
        }
        assert!(
            !self.panics,
            "it panicked on purpose, {when:?} change {seen}"
        );
        Err(PortError {
            class: self.class,
            ..PortError::refused(
                "do what was asked",
                format!("it failed on purpose, {when:?} change {seen}"),
                "",
            )
        })
    }
}

pub struct Flaky {
    pub whole: Arc<dyn HostConnector>,
    pub fault: Arc<Fault>,
    /// A guest that is neither listed nor may be read.
    pub hidden: Option<GuestId>,
}

struct Door {
    whole: Arc<dyn Provider>,
    fault: Arc<Fault>,
    hidden: Option<GuestId>,
}

#[async_trait]
impl HostConnector for Flaky {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(Arc::new(Door {
            whole: self.whole.host(name).await?,
            fault: self.fault.clone(),
            hidden: self.hidden,
        }))
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        Ok(Arc::new(Door {
            whole: self.whole.inside(host, node, address).await?,
            fault: self.fault.clone(),
            hidden: self.hidden,
        }))
    }

    fn endpoint(&self, name: &str) -> String {
        self.whole.endpoint(name)
    }

    async fn ssh_answers(
        &self,
        host: &str,
        address: IpAddr,
        ports: &[u16],
    ) -> Result<bool, PortError> {
        self.whole.ssh_answers(host, address, ports).await
    }
}

impl Door {
    async fn change<T>(
        &self,
        made: impl Future<Output = Result<T, PortError>>,
    ) -> Result<T, PortError> {
        let nth = self.fault.seen.fetch_add(1, Ordering::SeqCst) + 1;
        self.fault.hits(When::Before, nth)?;
        let made = made.await?;
        self.fault.hits(When::After, nth)?;
        Ok(made)
    }
}

#[async_trait]
impl Provider for Door {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        self.whole.capabilities().await
    }
    async fn observe(&self) -> Result<Inventory, PortError> {
        let mut observed = self.whole.observe().await?;
        observed
            .guests
            .retain(|guest| Some(guest.vmid) != self.hidden);
        Ok(observed)
    }
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        if guest.vmid.is_some() && guest.vmid == self.hidden {
            return Err(PortError::refused(
                "look at a guest",
                "it may not be read",
                "",
            ));
        }
        self.whole.inspect(guest).await
    }
    async fn lease(
        &self,
        guest: &GuestUuid,
        asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        self.whole.lease(guest, asked).await
    }
    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        self.change(self.whole.create(guest)).await
    }
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.whole.start(guest)).await
    }
    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError> {
        self.whole.address(guest).await
    }
    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.whole.discard_seed(guest)).await
    }
    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        self.change(self.whole.grow_disk(guest, size)).await
    }
    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        self.change(self.whole.reshape(guest, cores, memory)).await
    }
    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        self.change(self.whole.stop(guest, halt)).await
    }
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.whole.destroy(guest)).await
    }
    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        self.whole.has_image(image).await
    }
    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        self.change(self.whole.ensure_image(image)).await
    }
    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        self.change(self.whole.reidentify(guest, to)).await
    }
}
