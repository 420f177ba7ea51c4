//! A local host inside a node, called through a [`RemoteTransport`].
//!
//! Addresses are always assigned by the outermost host, because all nodes share its network.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::foreign::{ForeignText, escape_json};
use homestak_engine::context::fence;
use homestak_engine::ports::{
    AddressLease, Capabilities, ErrorClass, Gib, GuestAddress, GuestRef, GuestUuid, ImageRequest,
    Inventory, Mib, NewGuest, NewIdentity, ObservedGuest, PortError, Provider, Sent, StopMode,
};

use super::protocol::{RemoteCall, RemoteReply, RemoteRequest};

/// Sends messages to a local host inside a node.
#[async_trait]
pub trait RemoteTransport: Send + Sync {
    /// Sends a message to the program inside and returns its output.
    async fn exchange(&self, text: String) -> Result<String, PortError>;
}

/// A local host inside a node.
pub struct RemoteHost {
    transport: Box<dyn RemoteTransport>,
    outermost: Arc<dyn Provider>,
}

impl RemoteHost {
    /// Opens the host behind a transport. Addresses and images come from the outermost host.
    pub fn new(transport: Box<dyn RemoteTransport>, outermost: Arc<dyn Provider>) -> Self {
        Self {
            transport,
            outermost,
        }
    }

    async fn ask(&self, request: RemoteRequest) -> Result<RemoteReply, PortError> {
        let doing = "query the host inside a node";
        let call = RemoteCall {
            fence: fence(),
            request,
        };
        let text = serde_json::to_string(&call).map_err(|error| PortError::bug(doing, &error))?;
        let answer = self.transport.exchange(text).await?;
        match serde_json::from_str(answer.trim()).and_then(|mut answer| {
            // Names and messages in it are a node's own.
            escape_json(&mut answer, ForeignText::line);
            serde_json::from_value(answer)
        }) {
            Ok(RemoteReply::Failed(error)) => Err(error),
            Ok(reply) => Ok(reply),
            Err(error) => Err(PortError {
                class: ErrorClass::Unreachable { sent: Sent::Maybe },
                ..PortError::refused(doing, format!("its response is invalid ({error})"), "")
            }),
        }
    }

    async fn done(&self, request: RemoteRequest) -> Result<(), PortError> {
        self.ask(request).await.map(|_| ())
    }
}

/// Takes the answer that belongs to the call.
macro_rules! expect {
    ($reply:expr, $kind:path) => {
        match $reply {
            $kind(value) => Ok(value),
            _ => Err(PortError::bug(
                "query the host inside a node",
                &"the response belongs to another call",
            )),
        }
    };
}

#[async_trait]
impl Provider for RemoteHost {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        expect!(
            self.ask(RemoteRequest::Capabilities).await?,
            RemoteReply::Capabilities
        )
    }

    async fn observe(&self) -> Result<Inventory, PortError> {
        expect!(
            self.ask(RemoteRequest::Observe).await?,
            RemoteReply::Observed
        )
    }

    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let request = RemoteRequest::Inspect(guest.clone());
        let seen = expect!(self.ask(request).await?, RemoteReply::Inspected);
        seen.map(|seen| seen.map(|guest| *guest))
    }

    async fn lease(
        &self,
        uuid: &GuestUuid,
        asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        self.outermost.lease(uuid, asked).await
    }

    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        let request = RemoteRequest::Create(Box::new(guest.clone()));
        expect!(self.ask(request).await?, RemoteReply::Created)
    }

    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.done(RemoteRequest::Start(guest.clone())).await
    }

    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError> {
        let request = RemoteRequest::Address(guest.clone());
        let found = expect!(self.ask(request).await?, RemoteReply::Address);
        found.map(GuestAddress::from)
    }

    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.done(RemoteRequest::DiscardSeed(guest.clone())).await
    }

    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        self.done(RemoteRequest::GrowDisk(guest.clone(), size))
            .await
    }

    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        self.done(RemoteRequest::Reshape(guest.clone(), cores, memory))
            .await
    }

    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        self.done(RemoteRequest::Stop(guest.clone(), halt)).await
    }

    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.done(RemoteRequest::Destroy(guest.clone())).await?;
        // Releases its address on the outermost host.
        self.outermost.destroy(guest).await
    }

    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        self.done(RemoteRequest::Reidentify(guest.clone(), to.clone()))
            .await?;
        self.outermost.reidentify(guest, to).await
    }

    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        if !self.outermost.has_image(image).await? {
            return Ok(false);
        }
        expect!(
            self.ask(RemoteRequest::HasImage(image.clone())).await?,
            RemoteReply::HasImage
        )
    }

    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        // Every host inside sees the images of the outermost.
        self.outermost.ensure_image(image).await
    }
}
