//! Lets a node enrol again, over SSH: its server lost its registry, the site lost its keys, or the
//! certificate of the node expired or was revoked.
//!
//! Flow: a new token is published, the server forgets the certificate that the node had, and the
//! node gets token, keys and certificates of servers over SSH.
//! Guarantees: the server accepts nothing but a token that this driver minted.

use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::publication::{self, PublishedRevocation};
use homestak_api::v1::node_status::{NodeStatus, TokenStatus};
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::timeouts::Limit;
use homestak_core::observed::GuestUuid;
use homestak_providers::push::PullService;

use super::nodes::PublishedSpec;
use super::{ServerClient, ServerLease};
use crate::blocking::run_blocking;
use crate::driver::Driver;
use crate::error::DriverError;
use crate::nodes::{RecordedNode, connection};
use crate::publish::{Generation, NodeSpec, TokenIssue};

/// How often the server is asked whether the node has enrolled.
const PAUSE: Duration = Duration::from_millis(300);

/// Has a node enrol again, and waits until it has. Its guest is not changed. A node that fetches its
/// spec itself has the service for that afterwards.
pub async fn enrol_again(driver: &Driver, node: &RecordedNode) -> Result<NodeStatus, DriverError> {
    let lease = &driver.configurer.server;
    let (name, recorded) = (node.name(), node.record.configured.as_ref());
    let recorded = recorded.and_then(|recorded| recorded.mode);
    if recorded == Some(Mode::Push) {
        let message = format!("`{name}` is configured in the mode `push`, and fetches no spec.");
        let hint = format!("homestak manifest apply {} --mode pull", node.options());
        return Err(DriverError::refused(message).hint(format!("{hint} changes its mode")));
    }
    // First, so that nothing is changed when the node cannot be reached.
    let (of, session, settings) = (node.clone(), lease.session.clone(), lease.settings.clone());
    // Cancel safety: it does nothing on the node.
    let ssh = run_blocking(move || {
        let ssh = connection(&of, &session, &settings)?;
        ssh.with_retries(|ssh| ssh.run("true", b""))?;
        Ok(ssh)
    })
    .await?;
    let client = lease.client().await?;
    let published = lease.issue_token(node).await?;
    lease.reload().await?;
    let service = match recorded.or(published.mode) {
        Some(Mode::Pull) => PullService::Install(published.enrolment().service_files().into()),
        Some(Mode::Push | Mode::Hybrid) | None => PullService::Keep,
    };
    let enrolment = zeroize::Zeroizing::new(published.enrolment().json());
    let doing = format!("have `{}` enrol", node.name());
    let (configurer, at) = (driver.configurer.clone(), doing.clone());
    // Cancel safety: the node continues on its own.
    run_blocking(move || {
        let failed = |error| DriverError::of_host("the node", &error);
        let pusher = configurer.pusher(&at).map_err(failed)?;
        let started = pusher.start_pull(&ssh.ssh, &enrolment, &service);
        started.map_err(|error| failed(error.to_port_error(&at)))
    })
    .await?;
    lease.wait_until_enrolled(&client, node).await
}

impl ServerLease {
    /// Issues a new token for a node whose spec is published.
    async fn issue_token(&self, node: &RecordedNode) -> Result<PublishedSpec, DriverError> {
        let (site, now) = (self.site().await?, self.settings.time.now());
        let (guest, name) = (node.record.guest.uuid.clone(), node.name().to_owned());
        // Cancel safety: the file is replaced whole.
        run_blocking(move || {
            let publisher = &site.publisher;
            let before = publisher.directory.spec(&guest);
            let before = before.ok().flatten();
            let keys = publisher.keys.public_keys();
            let statement = before.as_ref().and_then(|spec| spec.verify(&keys).ok());
            let (Some(before), Some(statement)) = (before, statement) else {
                let message = format!("No spec of `{name}` is published.");
                return Err(DriverError::refused(message)
                    .hint("homestak server publish publishes the specs of nodes that fetch them"));
            };
            let spec = NodeSpec {
                manifest: statement.manifest,
                host: statement.host,
                node: statement.node,
                uuid: statement.uuid,
                spec: before.spec,
                body: before.body,
                first_contact: before.first_contact,
                token_sha256: before.token_sha256,
                single_use: before.single_use,
                had_token: before.had_token,
                servers: statement.servers,
                mode: before.mode,
                trigger: before.trigger,
            };
            // Signed with the token: the node accepts it whatever generation it knows.
            let how = (TokenIssue::New, Generation::Next);
            let published = publisher.publish_spec(&spec, how, now);
            let (statement, token) = published.map_err(|error| super::site::failed(&error))?;
            Ok(PublishedSpec {
                statement,
                changed: true,
                mode: spec.mode,
                token,
                site,
            })
        })
        .await
    }

    async fn wait_until_enrolled(
        &self,
        client: &ServerClient,
        node: &RecordedNode,
    ) -> Result<NodeStatus, DriverError> {
        let (begun, limit) = (monotonic(), self.session.timeouts().of(Limit::Boot));
        loop {
            match client.node(node.record.guest.uuid.as_str()).await {
                Ok(status) if status.enrolled.is_some() => return Ok(status),
                Err(error) if !error.is_missing() => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
            if monotonic().saturating_sub(begun) >= limit {
                let (name, seconds) = (node.name(), limit.as_secs());
                let message = format!("`{name}` has not enrolled for {seconds} s.");
                return Err(DriverError::failed(message).hint(format!(
                    "homestak ssh {name} -- sudo journalctl -u 'homestak-pull*' shows why"
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Revokes a node: first at the server, whatever becomes of the rest. It is published too, so that a
    /// server that loses its registry still refuses the node.
    pub async fn revoke(
        &self,
        client: &ServerClient,
        uuid: &str,
        reason: &str,
    ) -> Result<NodeStatus, DriverError> {
        let revoked = client.revoke_node(uuid, reason).await?;
        let published = self.publish_revocation(uuid, reason).await;
        published.map_err(|error| {
            let message = format!(
                "The server refuses `{}` from now on, but the revocation is not published, and is \
                 lost with `server.db`: {}",
                revoked.name, error.message
            );
            DriverError { message, ..error }
        })?;
        Ok(revoked)
    }

    /// Publishes that a token, which the server has revoked, counts no more: a server that loses its
    /// registry must not accept it again.
    pub async fn publish_token_revocation(&self, token: &TokenStatus) -> Result<(), DriverError> {
        let published = self.withdraw_token(token).await;
        published.map_err(|error| {
            let message = format!(
                "The server refuses the token of `{}` from now on, but the revocation is not \
                 published, and is lost with `server.db`: {}",
                token.node, error.message
            );
            DriverError { message, ..error }
        })
    }

    async fn withdraw_token(&self, token: &TokenStatus) -> Result<(), DriverError> {
        let Some(guest) = GuestUuid::new(&token.uuid) else {
            return Ok(());
        };
        let (site, id) = (self.site().await?, token.id.clone());
        // Cancel safety: the file is replaced whole.
        let changed = run_blocking(move || {
            let changed = site.publisher.change_spec(&guest, |spec| {
                // A later one stays.
                if spec.token.as_ref().is_some_and(|token| token.id == id) {
                    forget(spec);
                }
            });
            changed.map_err(|error| super::site::failed(&error))
        });
        match changed.await? {
            true => self.reload().await,
            false => Ok(()),
        }
    }

    async fn publish_revocation(&self, uuid: &str, reason: &str) -> Result<(), DriverError> {
        if let Some(guest) = GuestUuid::new(uuid) {
            let (site, reason) = (self.site().await?, reason.to_owned());
            let at = self.settings.time.now().as_second();
            // Cancel safety: the file is replaced whole.
            run_blocking(move || {
                let changed = site.publisher.change_spec(&guest, |spec| {
                    let revocation = PublishedRevocation { at, reason };
                    spec.revoked.get_or_insert(revocation);
                    forget(spec);
                });
                changed.map_err(|error| super::site::failed(&error))
            })
            .await?;
        }
        self.reload().await
    }

    /// No longer publishes the token of a node that has enrolled: a server that loses its registry
    /// must accept neither it nor the network again.
    pub(super) async fn forget_token(&self, guest: &GuestUuid) -> Result<(), DriverError> {
        let (site, guest) = (self.site().await?, guest.clone());
        // Cancel safety: the file is replaced whole.
        let changed = run_blocking(move || {
            let changed = site.publisher.change_spec(&guest, forget);
            changed.map_err(|error| super::site::failed(&error))
        });
        match changed.await? {
            true => self.copy_to_server().await,
            false => Ok(()),
        }
    }
}

/// Removes the token of a node: it has enrolled, or the node or the token was revoked.
fn forget(spec: &mut publication::PublishedSpec) {
    spec.token = None;
    spec.had_token = true;
}
