//! Publishes the specs of nodes that fetch them, and creates the enrolments of such nodes.

use std::sync::Arc;

use homestak_api::publication::{IssuedToken, PublishedRevocation, SpecStatement};
use homestak_core::doc::manifest::Mode;
use homestak_core::firstboot::Enrolment;
use homestak_core::observed::GuestUuid;
use homestak_core::resolve::trigger::server_trigger;
use homestak_providers::local::OPEN_PORTS;
use zeroize::Zeroizing;

use super::{NodeRoute, ServerClient, ServerLease, SiteServer, contact};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::publish::{Generation, NodeSpec, Publisher, TokenIssue};

/// A node whose spec is published.
#[derive(Clone, Copy)]
pub(crate) struct NodeToPublish<'a> {
    /// Its manifest.
    pub(crate) manifest: &'a str,
    /// The host of the site it is on.
    pub(crate) host: &'a str,
    /// Its name.
    pub(crate) node: &'a str,
    /// Its guest.
    pub(crate) guest: &'a GuestUuid,
    /// The name of its spec.
    pub(crate) spec: &'a str,
    /// The spec, resolved for it.
    pub(crate) text: &'a str,
    /// The way to it.
    pub(crate) route: NodeRoute,
    /// Who starts its configuration.
    pub(crate) mode: Mode,
    /// Whether its record shows that it fetched a spec before, and so had a token.
    pub(crate) fetched_before: bool,
}

/// A spec that was published. There is no `Debug`: it may have a token.
pub(crate) struct PublishedSpec {
    /// What the site signed.
    pub(crate) statement: SpecStatement,
    /// Whether it is not what was published before.
    pub(crate) changed: bool,
    /// Who starts the configuration of the node, if that is known.
    pub(super) mode: Option<Mode>,
    pub(super) token: Option<Zeroizing<String>>,
    pub(super) site: Arc<SiteServer>,
}

impl PublishedSpec {
    /// Returns what the node needs to enrol. Without a token it can only continue as enrolled.
    pub(crate) fn enrolment(&self) -> Enrolment {
        let publisher = &self.site.publisher;
        let token = self.token.as_ref().map_or("", |token| token.as_str());
        let keys = publisher.keys.public_keys();
        Enrolment {
            identity: self.statement.node.clone(),
            uuid: self.statement.uuid.clone(),
            servers: self.statement.servers.clone(),
            authorities: publisher.authorities(),
            site: self.statement.site.clone(),
            site_keys: keys.iter().map(ToString::to_string).collect(),
            token: token.to_owned(),
            issued: self.statement.issued,
            // The wire has 0 for none.
            agent_generation: lowest_agent(publisher).unwrap_or(0),
        }
    }
}

/// Returns the lowest generation of the agents that are published.
pub(crate) fn lowest_agent(publisher: &Publisher) -> Option<u64> {
    let keys = publisher.keys.public_keys();
    let agents = publisher.directory.agents().unwrap_or_default();
    let agents = agents
        .iter()
        .filter_map(|(architecture, _)| publisher.directory.agent(architecture, &keys));
    agents.map(|statement| statement.generation).min()
}

impl ServerLease {
    /// Publishes the spec of a node, and has the server read it.
    pub(crate) async fn publish(
        &self,
        node: &NodeToPublish<'_>,
        how: (TokenIssue, Generation),
    ) -> Result<PublishedSpec, DriverError> {
        let published = self.write(node, how).await?;
        self.reload().await?;
        Ok(published)
    }

    /// Publishes the spec of a node; no server is reloaded.
    pub(crate) async fn write(
        &self,
        node: &NodeToPublish<'_>,
        how: (TokenIssue, Generation),
    ) -> Result<PublishedSpec, DriverError> {
        let site = self.site().await?;
        let server = site.endpoint.url_for(&node.route).ok_or_else(|| {
            DriverError::failed(format!(
                "This machine has no address towards `{}`.",
                node.node
            ))
            .hint("set HOMESTAK_SERVER, or `server_url` in site.yaml, to https://ADDRESS:PORT")
        })?;
        if let Some(port) = site.endpoint.port()
            && node.route.is_local
            && !OPEN_PORTS.contains(&port)
        {
            let open = OPEN_PORTS.map(|port| port.to_string()).join(", ");
            return Err(DriverError::refused(format!(
                "Nodes of this machine cannot reach the server on port {port}: they reach only the \
                 ports {open}."
            ))
            .hint("stop it, and start it on one of these ports"));
        }
        let rule = contact::rule(&self.session.catalog, node.node, node.spec);
        let spec = NodeSpec {
            manifest: node.manifest.to_owned(),
            host: node.host.to_owned(),
            node: node.node.to_owned(),
            uuid: node.guest.clone(),
            spec: node.spec.to_owned(),
            body: node.text.to_owned(),
            first_contact: rule.method,
            token_sha256: rule.token_sha256,
            single_use: rule.single_use,
            had_token: node.fetched_before,
            servers: vec![server],
            mode: Some(node.mode),
            // Other nodes do not ask the server, so that nothing would take its jobs.
            trigger: match node.mode {
                Mode::Pull => server_trigger(&self.session.catalog, node.spec),
                Mode::Push | Mode::Hybrid => None,
            },
        };
        let now = self.settings.time.now();
        // Cancel safety: the file is replaced whole.
        run_blocking(move || {
            let directory = &site.publisher.directory;
            let before = directory.spec(&spec.uuid).ok().flatten();
            let published = site.publisher.publish_spec(&spec, how, now);
            let (statement, token) = published.map_err(|error| super::site::failed(&error))?;
            let after = directory.spec(&spec.uuid).ok().flatten();
            Ok(PublishedSpec {
                statement,
                changed: before != after,
                mode: spec.mode,
                token,
                site,
            })
        })
        .await
    }

    /// Has the server read what was published; one that is started does so anyway.
    pub(crate) async fn reload(&self) -> Result<(), DriverError> {
        self.copy_to_server().await?;
        let first = self.client().await?.reload().await;
        if first.is_ok() {
            return Ok(());
        }
        // It may have ended in between.
        self.client().await?.reload().await?;
        Ok(())
    }

    /// Returns which token the next first-boot data of a guest has: the same until it was used.
    pub(crate) async fn token_issue(
        &self,
        client: &ServerClient,
        guest: &GuestUuid,
    ) -> Result<TokenIssue, DriverError> {
        let Some(last) = self.issued(guest).await? else {
            return Ok(TokenIssue::Valid);
        };
        let tokens = client.tokens().await?;
        let last = tokens.iter().find(|token| token.id == last.id);
        let is_spent = last.is_some_and(|last| last.used.or(last.revoked).is_some());
        Ok(match is_spent {
            true => TokenIssue::New,
            false => TokenIssue::Valid,
        })
    }

    async fn issued(&self, guest: &GuestUuid) -> Result<Option<IssuedToken>, DriverError> {
        let (site, guest) = (self.site().await?, guest.clone());
        // Cancel safety: only reads.
        run_blocking(move || {
            let directory = &site.publisher.directory;
            let found = directory.spec(&guest);
            let found = found.map_err(|error| DriverError::file("read", directory.path(), &error));
            Ok(found?.and_then(|spec| spec.token))
        })
        .await
    }

    /// Returns whether a guest has enrolled, or can: its token was not used yet.
    pub(crate) async fn may_contact(
        &self,
        client: &ServerClient,
        guest: &GuestUuid,
    ) -> Result<bool, DriverError> {
        match client.node(guest.as_str()).await {
            Ok(status) if status.enrolled.is_some() => return Ok(status.revoked.is_none()),
            Err(error) if !error.is_missing() => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        let Some(issued) = self.issued(guest).await? else {
            return Ok(false);
        };
        let tokens = client.tokens().await?;
        let mut open = tokens.iter().filter(|token| {
            let now = self.settings.time.now().as_second();
            let is_expired = token.expires.is_some_and(|expires| expires <= now);
            token.used.or(token.revoked).is_none() && !is_expired
        });
        Ok(open.any(|token| token.id == issued.id))
    }

    /// Removes the spec of a guest that was deleted, or no longer fetches it: it is served no longer,
    /// and its certificate and token are no longer accepted. While no server runs, that is published for
    /// the next one. A guest without a spec is no error.
    pub(crate) async fn withdraw(&self, guest: &GuestUuid, why: &str) -> Result<(), DriverError> {
        if !self.is_published(guest).await? {
            return Ok(());
        }
        // First: whoever withdraws what an interrupted run left revokes it too.
        let running = self.running().await?;
        if let Some(client) = &running {
            match client.revoke_node(guest.as_str(), why).await {
                Err(error) if !error.is_missing() => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        let (directory, of) = (self.published()?, guest.clone());
        let untold = running.is_none().then(|| PublishedRevocation {
            at: self.settings.time.now().as_second(),
            reason: why.to_owned(),
        });
        let removed = run_blocking(move || {
            let Some(directory) = directory else {
                return Ok(());
            };
            let removed = match &untold {
                Some(why) => directory.withdraw_spec(&of, why),
                None => directory.remove_spec(&of),
            };
            removed
                .map_err(|error| DriverError::file("remove a spec from", directory.path(), &error))
        });
        // Cancel safety: the next who withdraws it removes what is left.
        removed.await?;
        self.copy_to_server().await?;
        if let Some(client) = running {
            client.reload().await?;
        }
        Ok(())
    }
}
