//! Publishes the specs of all nodes of a site that fetch them.

use homestak_api::v1::PublishedNode;
use homestak_core::doc::manifest::Mode;
use homestak_core::plan::{NodePlan, PlanOptions, Verb};
use homestak_core::resolve::{ResolveOptions, manifest};
use homestak_engine::context::run_blocking;

use super::NodeToPublish;
use crate::driver::Driver;
use crate::error::DriverError;
use crate::publish::{Generation, TokenIssue};
use crate::runs::{RunSelector, RunSummary};

/// Publishes the specs of all recorded nodes that fetch them, and has a server that runs read them.
/// Manifests that cannot be planned now are reported and fail the call, after the others were published.
pub async fn publish_all(driver: &Driver) -> Result<Vec<PublishedNode>, DriverError> {
    let server = &driver.configurer.server;
    server.publish_site().await?;
    let which = RunSelector::default();
    let (mut published, mut failed) = (Vec::new(), Vec::new());
    for run in driver.runs(&which)?.current().await? {
        match of_run(driver, &run).await {
            Ok(nodes) => published.extend(nodes),
            Err(error) => {
                driver.session.notices.notice(&format!(
                    "warning: the specs of `{}` were not published: {}",
                    run.manifest, error.message
                ));
                failed.push(format!("`{}`", run.manifest));
            }
        }
    }
    server.copy_to_server().await?;
    if let Some(client) = server.running().await? {
        client.reload().await?;
    }
    if failed.is_empty() {
        return Ok(published);
    }
    let message = format!(
        "The specs of {} were not published; all others were.",
        failed.join(", ")
    );
    Err(DriverError::failed(message).hint("correct what the warnings name, and repeat the command"))
}

async fn of_run(driver: &Driver, run: &RunSummary) -> Result<Vec<PublishedNode>, DriverError> {
    let request = ResolveOptions {
        host: run.hosts.first().cloned(),
        ..ResolveOptions::default()
    };
    let catalog = &driver.session.catalog;
    let (resolved, faults) = manifest(catalog, &run.manifest, &request);
    let resolved = resolved.filter(|_| faults.errors() == 0);
    let resolved = resolved.ok_or_else(|| {
        DriverError::failed(format!(
            "the manifest has errors; `homestak manifest validate -M {}` lists them",
            run.manifest
        ))
    })?;
    let fetches = |mode| matches!(mode, Mode::Pull | Mode::Hybrid);
    // Hosts are observed only where it matters.
    if !resolved.nodes.iter().any(|node| fetches(node.mode.value)) {
        return Ok(Vec::new());
    }
    let options = PlanOptions::new(Verb::Apply);
    let plan = driver.plan(&resolved, &request, &options).await?;
    let mut published = Vec::new();
    for node in &plan.nodes {
        let config = node.config.as_ref();
        // One that is in the mode `push` until the next apply does not fetch its spec.
        let is_other = node.mode_before() == Some(Mode::Push);
        if config.is_some_and(|config| fetches(config.mode) && !is_other)
            && let Some(one) = of_node(driver, &plan.manifest, node).await?
        {
            published.push(one);
        }
    }
    Ok(published)
}

/// Publishes the spec of a node; `None` when it has no guest that stays.
async fn of_node(
    driver: &Driver,
    manifest: &str,
    node: &NodePlan,
) -> Result<Option<PublishedNode>, DriverError> {
    let (Some(config), Some(wanted), Some(found)) = (&node.config, &node.wanted, &node.found)
    else {
        return Ok(None);
    };
    if wanted.uuid != found.guest.uuid {
        return Ok(None);
    }
    let doing = format!("publish the spec of `{}`", node.name);
    let (own, at) = (driver.configurer.clone(), doing.clone());
    let (name, guest, spec) = (node.name.clone(), wanted.clone(), config.clone());
    // Cancel safety: only reads.
    let text = run_blocking(&doing, move || {
        own.planned_text(&at, (&name, &guest), &spec)
    });
    let text = text.await;
    let text = text.map_err(|error| DriverError::of_host("the driver", &error))?;
    let configurer = &driver.configurer;
    let what = NodeToPublish {
        manifest,
        host: &node.host,
        node: &node.name,
        guest: &wanted.uuid,
        spec: &config.spec,
        text: &text,
        route: configurer.route(&node.host, found.address, wanted.nic.gateway),
        // The mode that it is in until the next apply.
        mode: node.mode_before().unwrap_or(config.mode),
        fetched_before: node.mode_before().is_some_and(|mode| mode != Mode::Push),
    };
    let how = (TokenIssue::Keep, Generation::Same);
    let published = configurer.server.write(&what, how).await?;
    Ok(Some(PublishedNode {
        node: node.name.clone(),
        manifest: manifest.to_owned(),
        host: node.host.clone(),
        generation: published.statement.generation,
        changed: published.changed,
    }))
}
