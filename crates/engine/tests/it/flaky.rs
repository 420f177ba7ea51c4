//! A provider that fails at the n-th change, before or after it is applied.

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
    /// How many changes fail, from the n-th on.
    pub times: usize,
    /// Whether it panics rather than fails.
    pub panics: bool,
    pub n_changes: AtomicUsize,
}

impl Fault {
    fn check(&self, when: When, nth: usize) -> Result<(), PortError> {
        let hit = self.when == when && (self.nth..self.nth + self.times).contains(&nth);
        if !hit {
            return Ok(());
        }
        assert!(
            !self.panics,
            "it panicked on purpose, {when:?} change {nth}"
        );
        Err(PortError {
            class: self.class,
            ..PortError::refused(
                "change a guest",
                format!("it failed on purpose, {when:?} change {nth}"),
                "",
            )
        })
    }
}

pub struct FlakyConnector {
    pub connector: Arc<dyn HostConnector>,
    pub fault: Arc<Fault>,
    /// A guest that is not listed and cannot be read.
    pub hidden: Option<GuestId>,
}

struct FlakyProvider {
    inner: Arc<dyn Provider>,
    fault: Arc<Fault>,
    hidden: Option<GuestId>,
}

#[async_trait]
impl HostConnector for FlakyConnector {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(Arc::new(FlakyProvider {
            inner: self.connector.host(name).await?,
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
        Ok(Arc::new(FlakyProvider {
            inner: self.connector.inside(host, node, address).await?,
            fault: self.fault.clone(),
            hidden: self.hidden,
        }))
    }

    fn endpoint(&self, name: &str) -> String {
        self.connector.endpoint(name)
    }

    async fn ssh_answers(
        &self,
        host: &str,
        address: IpAddr,
        ports: &[u16],
    ) -> Result<bool, PortError> {
        self.connector.ssh_answers(host, address, ports).await
    }
}

impl FlakyProvider {
    async fn change<T>(
        &self,
        change: impl Future<Output = Result<T, PortError>>,
    ) -> Result<T, PortError> {
        let nth = self.fault.n_changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.fault.check(When::Before, nth)?;
        let result = change.await?;
        self.fault.check(When::After, nth)?;
        Ok(result)
    }
}

#[async_trait]
impl Provider for FlakyProvider {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        self.inner.capabilities().await
    }
    async fn observe(&self) -> Result<Inventory, PortError> {
        let mut observed = self.inner.observe().await?;
        observed
            .guests
            .retain(|guest| Some(guest.vmid) != self.hidden);
        Ok(observed)
    }
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        if guest.vmid.is_some() && guest.vmid == self.hidden {
            return Err(PortError::refused(
                "observe a guest",
                "it cannot be read",
                "",
            ));
        }
        self.inner.inspect(guest).await
    }
    async fn lease(
        &self,
        guest: &GuestUuid,
        requested: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        self.inner.lease(guest, requested).await
    }
    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        self.change(self.inner.create(guest)).await
    }
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.inner.start(guest)).await
    }
    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError> {
        self.inner.address(guest).await
    }
    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.inner.discard_seed(guest)).await
    }
    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        self.change(self.inner.grow_disk(guest, size)).await
    }
    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        self.change(self.inner.reshape(guest, cores, memory)).await
    }
    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        self.change(self.inner.stop(guest, halt)).await
    }
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.change(self.inner.destroy(guest)).await
    }
    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        self.inner.has_image(image).await
    }
    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        self.change(self.inner.ensure_image(image)).await
    }
    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        self.change(self.inner.reidentify(guest, to)).await
    }
}
