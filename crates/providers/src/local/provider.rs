//! Implements the provider port; each call runs on a blocking thread.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::interruptible;
use homestak_engine::context::{self, fence};
use homestak_engine::ports::{
    AddressLease, Capabilities, ErrorClass, Gib, GuestAddress, GuestKind, GuestRef, GuestUuid,
    ImageRequest, Inventory, Mib, NewGuest, NewIdentity, ObservedGuest, PortError, Provider,
    ProviderEvent, StopMode,
};

use super::{Local, VmEngine, image_name, kvm};
use crate::image::Images;

/// How long a call is still waited for after an interrupt.
const ROOM: Duration = Duration::from_millis(500);

impl Local {
    /// Returns whether guests of this kind may become virtual machines here, which need a disk.
    fn wants_disk(&self, kind: GuestKind) -> bool {
        let possible = match self.settings.vm_engine {
            VmEngine::Container => false,
            VmEngine::Qemu => true,
            VmEngine::Auto => kvm::is_plausible(),
        };
        kind == GuestKind::Vm && possible
    }

    /// Runs a call on a blocking thread. Dropping the future does not stop it, as
    /// it would not stop a hypervisor.
    async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, PortError> + Send + 'static,
    ) -> Result<T, PortError> {
        let own = self.clone();
        context::run_blocking("query the local host", move || call(&own)).await
    }

    /// The same for a call that changes something, unless another has taken the lease of the run.
    async fn run_blocking_change<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, PortError> + Send + 'static,
    ) -> Result<T, PortError> {
        self.run_blocking(move |local| {
            if let Some(fence) = fence() {
                local.instance.admit(&fence)?;
            }
            call(local)
        })
        .await
    }
}

#[async_trait]
impl Provider for Local {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        Ok(Capabilities {
            product: "this machine".to_owned(),
            writable: true,
        })
    }

    async fn observe(&self) -> Result<Inventory, PortError> {
        self.run_blocking(Self::observe_all).await
    }

    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let guest = guest.clone();
        self.run_blocking(move |local| local.inspect_node(&guest))
            .await
    }

    async fn lease(
        &self,
        uuid: &GuestUuid,
        asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        let uuid = uuid.clone();
        self.run_blocking_change(move |local| local.lease_address(&uuid, asked))
            .await
    }

    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| local.create_node(&guest))
            .await
    }

    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| local.start_node(&guest))
            .await
    }

    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError> {
        let guest = guest.clone();
        let found = self
            .run_blocking(move |local| local.find_address(&guest))
            .await;
        found.map(GuestAddress::from)
    }

    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| local.discard_first_boot_data(&guest))
            .await
    }

    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| local.grow_node_disk(&guest, size))
            .await
    }

    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| {
            local.change(&guest, |node| {
                node.cores = cores;
                node.memory = memory;
            })
        })
        .await
    }

    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        let guest = guest.clone();
        // A guest shuts down whether or not the caller waits for it.
        interruptible(
            ROOM,
            self.run_blocking_change(move |local| local.stop_node(&guest, halt)),
        )
        .await
    }

    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        let guest = guest.clone();
        self.run_blocking_change(move |local| local.destroy_node(&guest))
            .await
    }

    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        let (guest, to) = (guest.clone(), to.clone());
        self.run_blocking_change(move |local| local.reidentify_node(&guest, &to))
            .await
    }

    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        let name = image_name(&image.file);
        if !Images::is_known(name) {
            return Err(unknown(name));
        }
        let (name, kind) = (name.to_owned(), image.kind);
        self.run_blocking(move |local| {
            let disk = !local.wants_disk(kind) || local.images.current_disk(&name).is_some();
            Ok(disk && local.images.current_tree(&name).is_some())
        })
        .await
    }

    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        let name = image_name(&image.file);
        let report = |text: &str| {
            if let Some(listener) = &self.listener {
                let (name, what) = (name.to_owned(), text.to_owned());
                listener.report(None, ProviderEvent::Image { name, what });
            }
        };
        self.run_blocking_change(|local| local.instance.claim())
            .await?;
        let failed = |error: crate::image::ImageError| {
            error.into_port_error(&format!("build the image `{name}`"))
        };
        let made = async {
            self.images.ensure_tree(name, &report).await?;
            if self.wants_disk(image.kind) {
                self.images.ensure_disk(name, &report).await?;
            }
            Ok(())
        };
        // Cancel safety: a build that is dropped ends at once and leaves nothing.
        interruptible(ROOM, made).await.map_err(failed)
    }
}

fn unknown(name: &str) -> PortError {
    PortError {
        class: ErrorClass::Missing,
        ..PortError::refused(
            &format!("find the image `{name}`"),
            format!(
                "the local host has no image of this name; available: {}",
                Images::names().join(", ")
            ),
            "use one of them in the manifest",
        )
    }
}
