//! The JSON messages between a driver and a local host inside a node.

use homestak_engine::context::with_fence;
use homestak_engine::journal::Fence;
use homestak_engine::ports::{
    Capabilities, Gib, GuestRef, ImageRequest, Inventory, Mib, NewGuest, NewIdentity,
    ObservedGuest, PortError, Provider as _, StopMode,
};
use serde::{Deserialize, Serialize};

use super::Local;

/// A call with the fencing token of the driver.
#[derive(Serialize, Deserialize)]
pub struct RemoteCall {
    /// The number.
    pub fence: Option<Fence>,
    /// The call.
    pub request: RemoteRequest,
}

/// What is called.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteRequest {
    /// What it can do.
    Capabilities,
    /// All resources.
    Observe,
    /// One guest.
    Inspect(GuestRef),
    /// Create a guest.
    Create(Box<NewGuest>),
    /// Start it.
    Start(GuestRef),
    /// Its address.
    Address(GuestRef),
    /// Remove its first-boot data.
    DiscardSeed(GuestRef),
    /// Grow its disk.
    GrowDisk(GuestRef, Gib),
    /// Change its CPUs and memory.
    Reshape(GuestRef, u32, Mib),
    /// Stop it.
    Stop(GuestRef, StopMode),
    /// Remove it.
    Destroy(GuestRef),
    /// Give it another identity.
    Reidentify(GuestRef, NewIdentity),
    /// Check whether an image exists.
    HasImage(ImageRequest),
}

/// An answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteReply {
    /// It was done.
    Done,
    /// What it can do.
    Capabilities(Capabilities),
    /// All resources.
    Observed(Inventory),
    /// One guest.
    Inspected(Option<Box<ObservedGuest>>),
    /// Which guest was created.
    Created(GuestRef),
    /// An address.
    Address(Option<std::net::IpAddr>),
    /// Whether an image exists.
    HasImage(bool),
    /// It failed.
    Failed(PortError),
}

impl Local {
    /// Executes a remote call.
    pub async fn handle(&self, call: RemoteCall) -> RemoteReply {
        let done = with_fence(call.fence, self.execute(call.request)).await;
        done.unwrap_or_else(RemoteReply::Failed)
    }

    async fn execute(&self, request: RemoteRequest) -> Result<RemoteReply, PortError> {
        let done = |()| RemoteReply::Done;
        match request {
            RemoteRequest::Capabilities => self.capabilities().await.map(RemoteReply::Capabilities),
            RemoteRequest::Observe => self.observe().await.map(RemoteReply::Observed),
            RemoteRequest::Inspect(guest) => {
                let seen = self.inspect(&guest).await;
                seen.map(|seen| RemoteReply::Inspected(seen.map(Box::new)))
            }
            RemoteRequest::Create(new) => self.create(&new).await.map(RemoteReply::Created),
            RemoteRequest::Start(guest) => self.start(&guest).await.map(done),
            RemoteRequest::Address(guest) => {
                let found = self.address(&guest).await;
                found.map(|found| RemoteReply::Address(found.address()))
            }
            RemoteRequest::DiscardSeed(guest) => self.discard_seed(&guest).await.map(done),
            RemoteRequest::GrowDisk(guest, size) => self.grow_disk(&guest, size).await.map(done),
            RemoteRequest::Reshape(guest, cores, memory) => {
                self.reshape(&guest, cores, memory).await.map(done)
            }
            RemoteRequest::Stop(guest, halt) => self.stop(&guest, halt).await.map(done),
            RemoteRequest::Destroy(guest) => self.destroy(&guest).await.map(done),
            RemoteRequest::Reidentify(guest, to) => self.reidentify(&guest, &to).await.map(done),
            RemoteRequest::HasImage(image) => {
                self.has_image(&image).await.map(RemoteReply::HasImage)
            }
        }
    }
}
