//! First-boot data of nodes, with the SSH keys of the site and of this driver, and what nodes that
//! configure themselves need to enrol. Keys and tokens are created when they are used, and not
//! stored.

use std::sync::Arc;

use async_trait::async_trait;
use homestak_api::publication::DESTROYED;
use homestak_core::firstboot::{Enrolment, FirstBootConfig};
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{GuestUuid, PortError, Seed, SeedRequest, SeedSource};
use homestak_providers::ssh::Keyring;

use crate::configure::SiteConfigurer;
use crate::error::DriverError;
use crate::publish::Generation;
use crate::server::NodeToPublish;
use crate::session::Session;
use crate::settings::DriverSettings;

/// Makes first-boot data from a site.
pub(crate) struct SiteSeedSource {
    session: Arc<Session>,
    keyring: Keyring,
    configurer: SiteConfigurer,
}

/// Returns the SSH keys of this driver.
pub(crate) fn keyring(settings: &DriverSettings) -> Keyring {
    Keyring::new(settings.state.join("ssh")).with_timeouts(settings.timeouts)
}

impl SiteSeedSource {
    /// Uses the keys of a site and of the driver, and the specs of the site.
    pub(crate) fn new(session: Arc<Session>, keyring: Keyring, configurer: SiteConfigurer) -> Self {
        Self {
            session,
            keyring,
            configurer,
        }
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

    /// Publishes the spec of a node that fetches it, and returns what it needs for that.
    async fn enrolment(&self, request: &SeedRequest<'_>) -> Result<Option<Enrolment>, PortError> {
        let node = request.node;
        let (Some(config), Some(planned)) = (&node.config, &node.wanted) else {
            return Ok(None);
        };
        if !node.pulls() {
            return Ok(None);
        }
        let doing = format!("publish the spec of `{}`", node.name);
        let (own, at) = (self.configurer.clone(), doing.clone());
        let (name, guest, spec) = (node.name.clone(), planned.clone(), config.clone());
        // Addresses that the host assigned are not part of the spec.
        let text = run_blocking(&doing, move || {
            own.planned_text(&at, (&name, &guest), &spec)
        });
        let text = text.await?;
        let nic = &request.wanted.nic;
        let address = nic.address.map(|(address, _)| address);
        let what = NodeToPublish {
            manifest: request.manifest,
            host: &node.host,
            node: &node.name,
            guest: &request.wanted.uuid,
            spec: &config.spec,
            text: &text,
            route: self.configurer.route(&node.host, address, nic.gateway),
            mode: config.mode,
            fetched_before: false,
        };
        let server = &self.configurer.server;
        let published = async {
            let client = server.client().await?;
            let token = server.token_issue(&client, what.guest).await?;
            server.publish(&what, (token, Generation::Same)).await
        };
        let published = published.await;
        let published = published.map_err(|error: DriverError| error.at_port(&doing))?;
        Ok(Some(published.enrolment()))
    }
}

#[async_trait]
impl SeedSource for SiteSeedSource {
    async fn seed(&self, request: &SeedRequest<'_>) -> Result<Seed, PortError> {
        let mut keys = self.of_people();
        let uuid = request.wanted.uuid.clone();
        let (own, host_key) = self
            .with_keys(move |keyring| Ok((keyring.driver_key()?, keyring.host_key(&uuid)?)))
            .await?;
        keys.push(own);
        let (name, wanted) = (&request.node.name, request.wanted);
        let mut config = FirstBootConfig::new(name, wanted, keys, Some(host_key));
        config.enrolment = self.enrolment(request).await?;
        Ok(config.into())
    }

    async fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError> {
        let (from, to) = (from.clone(), to.clone());
        self.with_keys(move |keyring| keyring.rename(&from, &to))
            .await
    }

    async fn forget(&self, guest: &GuestUuid) -> Result<(), PortError> {
        let withdrawn = self.configurer.server.withdraw(guest, DESTROYED).await;
        withdrawn.map_err(|error| error.at_port("withdraw the spec of a node"))?;
        let guest = guest.clone();
        self.with_keys(move |keyring| keyring.forget(&guest)).await
    }
}
