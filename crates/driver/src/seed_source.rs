//! First-boot data of nodes, with the SSH keys of the site and of this driver. Keys are looked up
//! when they are used, and not stored.

use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::firstboot::FirstBootConfig;
use homestak_core::plan::DesiredGuest;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{GuestUuid, PortError, Seed, SeedSource};
use homestak_providers::ssh::Keyring;

use crate::session::Session;
use crate::settings::DriverSettings;

/// Makes first-boot data from a site.
pub(crate) struct SiteSeedSource {
    session: Arc<Session>,
    keyring: Keyring,
}

/// Returns the SSH keys of this driver.
pub(crate) fn keyring(settings: &DriverSettings) -> Keyring {
    Keyring::new(settings.state.join("ssh")).with_timeouts(settings.timeouts)
}

impl SiteSeedSource {
    /// Uses the keys of a site and of the driver.
    pub(crate) fn new(session: Arc<Session>, keyring: Keyring) -> Self {
        Self { session, keyring }
    }

    /// Accesses the keys on a blocking thread: programs create them, and other drivers may lock
    /// them.
    async fn with_keys<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Keyring) -> Result<T, PortError> + Send + 'static,
    ) -> Result<T, PortError> {
        let keyring = self.keyring.clone();
        run_blocking("use the SSH keys", move || work(&keyring)).await
    }

    /// Returns the public keys of the users of the site.
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
impl SeedSource for SiteSeedSource {
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
