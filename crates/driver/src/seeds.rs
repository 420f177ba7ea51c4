//! First-boot data of nodes, with the keys of the site and of this driver.
//!
//! In: what a node should be, the site's secrets. Out: [`Seed`].
//! Never: a key of the site kept anywhere; they are looked up when they are used.

use std::sync::Arc;

use homestak_core::firstboot::Identity;
use homestak_core::plan::Wanted;
use homestak_engine::ports::{GuestUuid, PortError, Seed, Seeds};
use homestak_providers::ssh::Keyring;

use crate::session::Session;
use crate::settings::DriverSettings;

/// First-boot data from a site.
pub(crate) struct SiteSeeds {
    session: Arc<Session>,
    keyring: Keyring,
}

/// Returns the keys of this driver.
pub(crate) fn keyring(settings: &DriverSettings) -> Keyring {
    Keyring::new(settings.state.join("ssh"))
}

impl SiteSeeds {
    /// Takes keys from a site, and adds those of the driver.
    pub(crate) fn new(session: Arc<Session>, keyring: Keyring) -> Self {
        Self { session, keyring }
    }

    /// Returns the public keys of people, as the site has them.
    fn of_people(&self) -> Vec<String> {
        let secrets = self.session.catalog.secrets.as_ref();
        let keys = secrets.and_then(|secrets| secrets.value.as_ref()?.ssh_keys.as_ref());
        let keys = keys.iter().flat_map(|keys| keys.value.values());
        keys.map(|key| key.expose().trim().to_owned())
            .filter(|key| !key.is_empty())
            .collect()
    }
}

impl Seeds for SiteSeeds {
    fn seed(&self, node: &str, wanted: &Wanted) -> Result<Seed, PortError> {
        let mut keys = self.of_people();
        keys.push(self.keyring.own()?);
        let host_key = self.keyring.host_key(&wanted.uuid)?;
        Ok(Identity::new(node, wanted, keys, Some(host_key)).into())
    }

    fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError> {
        self.keyring.rename(from, to)
    }

    fn forget(&self, guest: &GuestUuid) -> Result<(), PortError> {
        self.keyring.forget(guest)
    }
}
