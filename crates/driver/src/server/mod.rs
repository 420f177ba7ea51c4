//! The server of a site: where its files are, whether it runs, how it is started and queried, and
//! what it knows of nodes that configure themselves.

mod account;
mod all;
mod client;
mod contact;
mod endpoint;
mod enrol;
mod files;
mod follow;
mod lease;
pub(crate) mod nodes;
mod process;
mod rotate;
mod site;
mod target;
mod trust;

pub use account::NodeAccount;
pub use all::publish_all;
pub use client::{ServerClient, ServerClientError};
pub use endpoint::{NodeRoute, ServerEndpoint};
pub use enrol::enrol_again;
pub use files::ServerFiles;
pub(crate) use follow::Progress;
pub(crate) use lease::open_lock;
pub use lease::{ServerLease, take_turn};
pub(crate) use nodes::{NodeToPublish, PublishedSpec};
pub use process::{
    GRACE, ServerState, TEMPORARY, become_server, publish_again, start, state, stop,
};
pub use rotate::{KeyRotation, rotate_site_key, rotate_token_key};
pub use site::{OTHER_PORT, OTHER_SITE, SiteServer};
pub use target::PublishTarget;
pub use trust::TrustChange;

/// The default port, as in earlier homestak tools.
pub const PORT: u16 = 44443;
