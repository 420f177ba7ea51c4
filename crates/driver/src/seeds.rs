//! First-boot data of nodes, with the keys of the site and of this driver.
//!
//! In: what a node should be, the site's secrets. Out: [`Seed`].
//! Never: a key of the site kept anywhere; they are looked up when they are used.

use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::firstboot::FirstBootConfig;
use homestak_core::plan::DesiredGuest;
use homestak_engine::context::off;
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
    Keyring::new(settings.state.join("ssh")).with_timeouts(settings.timeouts)
}

impl SiteSeeds {
    /// Takes keys from a site, and adds those of the driver.
    pub(crate) fn new(session: Arc<Session>, keyring: Keyring) -> Self {
        Self { session, keyring }
    }

    /// Uses the keys on a thread that may wait: programs make them, and another driver may lock them.
    async fn with_keys<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Keyring) -> Result<T, PortError> + Send + 'static,
    ) -> Result<T, PortError> {
        let keyring = self.keyring.clone();
        off("use the SSH keys", move || work(&keyring)).await
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

#[async_trait]
impl Seeds for SiteSeeds {
    async fn seed(&self, node: &str, wanted: &DesiredGuest) -> Result<Seed, PortError> {
        let mut keys = self.of_people();
        let uuid = wanted.uuid.clone();
        let (own, host_key) = self
            .with_keys(move |keyring| Ok((keyring.driver_key()?, keyring.host_key(&uuid)?)))
            .await?;
        keys.push(own);
        Ok(FirstBootConfig::new(node, wanted, keys, Some(host_key)).into())
    }

    async fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError> {
        let (from, to) = (from.clone(), to.clone());
        self.with_keys(move |keyring| keyring.rename(&from, &to))
            .await
    }

    async fn forget(&self, guest: &GuestUuid) -> Result<(), PortError> {
        let guest = guest.clone();
        self.with_keys(move |keyring| keyring.forget(&guest)).await
    }
}
