//! First-boot data of nodes, with the keys of the site.
//!
//! In: what a node should be, the site's secrets. Out: [`Seed`].
//! Never: keys kept anywhere; they are looked up when they are used.

use std::sync::Arc;

use homestak_core::firstboot::first_boot;
use homestak_core::plan::Wanted;
use homestak_engine::ports::{PortError, Seed, Seeds};

use crate::session::Session;

/// First-boot data from a site.
pub(crate) struct SiteSeeds {
    session: Arc<Session>,
}

impl SiteSeeds {
    /// Takes the keys from a site.
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

impl Seeds for SiteSeeds {
    fn seed(&self, node: &str, wanted: &Wanted) -> Result<Seed, PortError> {
        let made = first_boot(node, wanted, &self.keys());
        Ok(Seed {
            user_data: made.user_data,
            meta_data: made.meta_data,
            network_config: made.network_config,
        })
    }

    fn keys(&self) -> Vec<String> {
        let secrets = self.session.catalog.secrets.as_ref();
        let keys = secrets.and_then(|secrets| secrets.value.as_ref()?.ssh_keys.as_ref());
        let keys = keys.iter().flat_map(|keys| keys.value.values());
        keys.map(|key| key.expose().trim().to_owned())
            .filter(|key| !key.is_empty())
            .collect()
    }
}
