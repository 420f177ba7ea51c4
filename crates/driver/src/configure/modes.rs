//! How each mode applies a spec, and how a node changes from one mode to another.
//!
//! A node changes its mode in several steps; until the last one, its published spec shows that the
//! change is not complete. The record of the node is written last, so that an interrupted change is
//! detected and repeated.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use homestak_core::converge::Event;
use homestak_core::doc::manifest::Mode;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{ConfigTarget, PortError};
use homestak_providers::push::{
    NodeCertificate, PullProgress, PullRun, PullService, PushError, Pusher,
};
use homestak_providers::ssh::Ssh;

use super::{DropFlag, SiteConfigurer, report_event};
use crate::error::DriverError;
use crate::publish::{Generation, TokenIssue};
use crate::server::{NodeRoute, NodeToPublish, Progress, PublishedSpec, ServerClient};

/// The first pause between two checks whether the agent of a node has failed.
const FIRST_PULL_CHECK: Duration = Duration::from_secs(1);
/// The longest pause between two checks whether the agent of a node has failed.
const MAX_PULL_CHECK: Duration = Duration::from_secs(10);
/// How long to wait for the report of a failed run. Short, because the node sends it before the run ends.
const REPORT_DELAY: Duration = Duration::from_secs(2);

impl SiteConfigurer {
    /// Returns the text of a node's spec.
    pub(super) async fn text_of(
        &self,
        doing: &str,
        node: &ConfigTarget,
    ) -> Result<String, PortError> {
        let (own, node, at) = (self.clone(), node.clone(), doing.to_owned());
        // Cancel safety: only reads.
        run_blocking(doing, move || {
            own.planned_text(&at, (&node.node, &node.wanted), &node.config)
        })
        .await
    }

    /// Returns whether the published spec of a node that the driver logs in to matches its mode. In the
    /// mode `push`, no spec may be published.
    pub(super) async fn is_in_mode(
        &self,
        doing: &str,
        node: &ConfigTarget,
    ) -> Result<bool, PortError> {
        let published = self.server.published_spec(&node.guest).await;
        let published = published.map_err(|error| error.at_port(doing))?;
        Ok(match (node.config.mode, published) {
            (Mode::Push, published) => published.is_none(),
            (_, None) => false,
            (wanted, Some(published)) => published.mode.is_none_or(|mode| mode == wanted),
        })
    }

    /// Sends the spec over SSH, and follows the job on the node. If the node fetched its spec before, it
    /// stops doing so.
    pub(super) async fn push(
        &self,
        doing: &str,
        node: &ConfigTarget,
        report: Progress,
    ) -> Result<bool, PortError> {
        let leaves_server = node.mode_before.is_some_and(|before| before != Mode::Push)
            || !self.is_in_mode(doing, node).await?;
        if leaves_server {
            let remove =
                |pusher: &Pusher, ssh: &Ssh| pusher.remove_service(ssh, NodeCertificate::Delete);
            self.on_node(doing, node, remove).await?;
        }
        let (own, to, at) = (self.clone(), node.clone(), doing.to_owned());
        // Cancel safety: the node continues on its own; the flag ends the thread that follows it.
        let dropped = DropFlag::default();
        let is_dropped = dropped.0.clone();
        let changed = run_blocking(doing, move || {
            let guest = (to.node.as_str(), &to.wanted);
            let (pusher, text) = (own.pusher(&at)?, own.planned_text(&at, guest, &to.config)?);
            let after = own.ssh(&to).with_port(to.config.port);
            let report = |event: &Event| report_event(event, report.as_ref());
            let stop = || is_dropped.load(Ordering::Relaxed);
            own.at_first(&at, &to, &to.ports, |ssh| {
                pusher.converge(ssh, &after, &text, &report, &stop)
            })
        })
        .await?;
        if leaves_server {
            let why = "it is configured in the mode `push`";
            let withdrawn = self.server.withdraw(&node.guest, why).await;
            withdrawn.map_err(|error| error.at_port(doing))?;
        }
        Ok(changed)
    }

    /// Publishes the spec, and follows what the node reports.
    pub(super) async fn pull(
        &self,
        doing: &str,
        node: &ConfigTarget,
        report: Progress,
    ) -> Result<bool, PortError> {
        let fetches = self.fetches(node).await;
        if !fetches.map_err(|error| error.at_port(doing))? {
            return self.start(doing, node, report).await;
        }
        let text = self.text_of(doing, node).await?;
        let published = async {
            let client = self.server.client().await?;
            self.require_accepted(&client, node).await?;
            let generation = self.generation(&client, node, &text).await?;
            let spec = self.to_publish(node, &text);
            let how = (TokenIssue::Keep, generation);
            self.server.publish(&spec, how).await
        };
        let published = published.await.map_err(|error| error.at_port(doing))?;
        let generation = published.statement.generation;
        self.server.follow(node, generation, &report).await
    }

    /// Publishes the spec, has the node fetch it now, and follows what it reports. If the node fetched
    /// its spec by itself before, it stops doing so.
    pub(super) async fn hybrid(
        &self,
        doing: &str,
        node: &ConfigTarget,
        report: Progress,
    ) -> Result<bool, PortError> {
        let published = self.server.published_spec(&node.guest).await;
        let published = published.map_err(|error| error.at_port(doing))?;
        let published = published.and_then(|published| published.mode);
        if [node.mode_before, published].contains(&Some(Mode::Pull)) {
            let remove =
                |pusher: &Pusher, ssh: &Ssh| pusher.remove_service(ssh, NodeCertificate::Keep);
            self.on_node(doing, node, remove).await?;
        }
        self.start(doing, node, report).await
    }

    /// Returns whether a node fetches its spec by itself, so that the driver need not log in.
    async fn fetches(&self, node: &ConfigTarget) -> Result<bool, DriverError> {
        match fetches_by_record(node) {
            Some(fetches) => Ok(fetches),
            None => {
                let client = self.server.client().await?;
                // An error for a node that was revoked.
                self.require_accepted(&client, node).await?;
                self.server.may_contact(&client, &node.guest).await
            }
        }
    }

    /// Has a node fetch its spec now, over SSH, and follows what it reports.
    async fn start(
        &self,
        doing: &str,
        node: &ConfigTarget,
        report: Progress,
    ) -> Result<bool, PortError> {
        // Before publishing, so that nothing is published for a node that cannot be reached.
        self.on_node(doing, node, Pusher::reach).await?;
        let text = self.text_of(doing, node).await?;
        let published = self.publish_to_start(node, &text).await;
        let published = published.map_err(|error| error.at_port(doing))?;
        let generation = published.statement.generation;
        let enrolment = published.enrolment();
        let service = match node.config.mode {
            Mode::Pull => PullService::Install(enrolment.service_files().into()),
            Mode::Push | Mode::Hybrid => PullService::Keep,
        };
        let enrolment = zeroize::Zeroizing::new(enrolment.json());
        // Cancel safety: the node continues on its own.
        let start = move |pusher: &Pusher, ssh: &Ssh| pusher.start_pull(ssh, &enrolment, &service);
        let run = self.on_node(doing, node, start).await?;
        let mut follow = std::pin::pin!(self.server.follow(node, generation, &report));
        let error = tokio::select! {
            // Cancel safety: the node continues on its own, and reports are kept.
            done = &mut follow => return done,
            // Cancel safety: only reads.
            error = self.failure_of(doing, node, &run) => error,
        };
        // The report, if there is one, has more details than this error.
        let reported = tokio::time::timeout(REPORT_DELAY, follow).await;
        reported.unwrap_or(Err(error))
    }

    /// Publishes the spec of a node, before the driver has the node fetch it.
    async fn publish_to_start(
        &self,
        node: &ConfigTarget,
        text: &str,
    ) -> Result<PublishedSpec, DriverError> {
        let client = self.server.client().await?;
        // A node that has enrolled keeps its token: with a new token it would have to enrol again.
        let token = match self.require_accepted(&client, node).await? {
            true => TokenIssue::Keep,
            false => self.server.token_issue(&client, &node.guest).await?,
        };
        let generation = self.generation(&client, node, text).await?;
        let spec = self.to_publish(node, text);
        self.server.publish(&spec, (token, generation)).await
    }

    /// Returns which generation a spec is published with: the next one if the node failed to apply the
    /// last one.
    async fn generation(
        &self,
        client: &ServerClient,
        node: &ConfigTarget,
        text: &str,
    ) -> Result<Generation, DriverError> {
        Ok(match self.server.failed_before(client, node, text).await? {
            true => Generation::Next,
            false => Generation::Same,
        })
    }

    /// Runs work on a node over SSH.
    async fn on_node<T: Send + 'static>(
        &self,
        doing: &str,
        node: &ConfigTarget,
        work: impl Fn(&Pusher, &Ssh) -> Result<T, PushError> + Send + 'static,
    ) -> Result<T, PortError> {
        let (own, to, at) = (self.clone(), node.clone(), doing.to_owned());
        // Cancel safety: the thread completes the work, which can be repeated.
        run_blocking(doing, move || {
            let pusher = own.pusher(&at)?;
            own.at_first(&at, &to, &to.ports, |ssh| work(&pusher, ssh))
        })
        .await
    }

    /// Waits until a run on a node has failed, and returns the error: a node that could not enrol cannot
    /// report it. Does not return if the run succeeds.
    async fn failure_of(&self, doing: &str, node: &ConfigTarget, run: &PullRun) -> PortError {
        let mut pause = FIRST_PULL_CHECK;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PULL_CHECK);
            let run = run.clone();
            let ask = move |pusher: &Pusher, ssh: &Ssh| pusher.pull_progress(ssh, &run);
            match self.on_node(doing, node, ask).await {
                Ok(PullProgress::Failed(error)) => return error.to_port_error(doing),
                // The node reports the result to the server.
                Ok(PullProgress::Applied) => std::future::pending().await,
                // The run itself may make the node unreachable for a while.
                Ok(PullProgress::Running) | Err(_) => {}
            }
        }
    }

    /// Returns whether a node has enrolled; refuses one that was revoked.
    async fn require_accepted(
        &self,
        client: &ServerClient,
        node: &ConfigTarget,
    ) -> Result<bool, DriverError> {
        // Without a published spec, an entry of the server belongs to an earlier guest that was
        // destroyed. It has the same UUID, because UUIDs are derived from names.
        if !self.server.is_published(&node.guest).await? {
            return Ok(false);
        }
        let status = match client.node(node.guest.as_str()).await {
            Ok(status) => status,
            Err(error) if error.is_missing() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if status.revoked.is_some() {
            let reason = status.revoke_reason.unwrap_or_default();
            return Err(DriverError::refused(format!(
                "The server does not accept `{}` any more: it was revoked ({reason}).",
                node.node
            ))
            .hint(format!(
                "homestak node enrol {} -M {} -H {} lets it enrol again",
                node.node, node.manifest, node.host
            ))
            .hint("or destroy and create it again"));
        }
        Ok(status.enrolled.is_some())
    }

    /// Returns what is published for a node.
    fn to_publish<'n>(&self, node: &'n ConfigTarget, text: &'n str) -> NodeToPublish<'n> {
        NodeToPublish {
            manifest: &node.manifest,
            host: &node.host,
            node: &node.node,
            guest: &node.guest,
            spec: &node.config.spec,
            text,
            route: self.route(&node.host, Some(node.address), node.wanted.nic.gateway),
            mode: node.config.mode,
            fetched_before: node.mode_before.is_some_and(|mode| mode != Mode::Push),
        }
    }

    /// Returns how a node reaches the server.
    pub(crate) fn route(
        &self,
        host: &str,
        address: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> NodeRoute {
        NodeRoute {
            address,
            gateway,
            is_local: self.session.catalog.traits_of(host).is_this_machine,
        }
    }
}

/// Returns whether a node fetches its spec by itself, if its record and the plan show that.
fn fetches_by_record(node: &ConfigTarget) -> Option<bool> {
    match node.mode_before {
        Some(before) => Some(before == Mode::Pull),
        // The first boot starts the agent. A guest that an interrupted run left may have first-boot data
        // for another mode.
        None => node.is_created.then_some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;

    #[test]
    fn a_guest_that_an_interrupted_run_left_is_not_assumed_to_fetch_its_spec() {
        let mut left = node(true);
        assert_eq!(fetches_by_record(&left), None);
        left.is_created = true;
        assert_eq!(fetches_by_record(&left), Some(true));
        for (mode, fetches) in [
            (Mode::Pull, true),
            (Mode::Push, false),
            (Mode::Hybrid, false),
        ] {
            left.mode_before = Some(mode);
            assert_eq!(fetches_by_record(&left), Some(fetches));
        }
    }
}
