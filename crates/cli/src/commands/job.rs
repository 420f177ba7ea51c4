//! `homestak job`: jobs that the server knows.

use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::v1::kind;
use homestak_api::v1::node_job::{JobDetail, Jobs};
use homestak_api::v1::node_update::{CancelledJob, ShownJob};
use homestak_driver::DriverError;
use homestak_driver::node_job::{parse_id, whole_job};
use homestak_driver::server::{ServerClient, ServerClientError, ServerLease};

use super::Outcome;
use super::node::registered::{find, time};
use crate::args::{JobCommand, NodeArgs};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, job};

/// Runs a command on jobs.
pub(super) fn run(command: &JobCommand, settings: &Settings, printer: &Printer) -> Outcome {
    // First, so that no server is started for what is no id.
    let id = match command {
        JobCommand::List { .. } => None,
        JobCommand::Show { id } | JobCommand::Cancel { id } => Some(parse_id(id)?),
    };
    let id = id.unwrap_or_default();
    let lease = ServerLease::for_records(Arc::new(settings.session()?), &settings.driver);
    block_on(async {
        let client = lease.client().await?;
        match command {
            JobCommand::List {
                node,
                manifest,
                host,
            } => {
                let node = node.as_ref().map(|node| NodeArgs {
                    node: node.clone(),
                    manifest: manifest.clone(),
                    host: host.clone(),
                });
                list(&client, node.as_ref(), settings, printer).await
            }
            JobCommand::Show { .. } => show(&client, &id, printer).await,
            JobCommand::Cancel { .. } => cancel(&client, &id, printer).await,
        }
    })?
}

async fn list(
    client: &ServerClient,
    node: Option<&NodeArgs>,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let jobs = match node {
        Some(node) => {
            client
                .node_jobs(&find(client, node, settings).await?.uuid)
                .await?
        }
        None => client.jobs().await?,
    };
    if printer.output.json {
        printer.json(&kind::JOB_LIST, &Jobs { jobs });
        return Ok(ExitCode::SUCCESS);
    }
    if jobs.is_empty() {
        printer.message("The server has no jobs. Jobs that ran over SSH are not listed.");
        return Ok(ExitCode::SUCCESS);
    }
    printer.data(&job::list(&jobs, time));
    Ok(ExitCode::SUCCESS)
}

async fn show(client: &ServerClient, id: &str, printer: &Printer) -> Outcome {
    let shown = whole_job(client, id).await;
    let shown = shown.map_err(|error| unknown(error, id))?;
    if printer.output.json {
        let JobDetail {
            job,
            output,
            truncated,
            ..
        } = shown;
        let shown = ShownJob {
            job,
            output,
            truncated,
        };
        printer.json(&kind::JOB_SHOW, &shown);
        return Ok(ExitCode::SUCCESS);
    }
    let of = &shown.job;
    printer.data(&format!(
        "job:         {}\nnode:        {}\nuuid:        {}\nkind:        {}\nstarted by:  {}\n\
         state:       {}\nissued:      {}\nexpires:     {}\ntime limit:  {} s\ntaken:       {}\n\
         ended:       {}\n",
        job::line(&of.id),
        job::line(&of.node),
        job::line(&of.uuid),
        of.kind.name(),
        job::line(&of.origin),
        job::state(of.state),
        time(Some(of.issued)),
        time(Some(of.expires)),
        of.time_limit,
        time(of.taken),
        time(of.ended),
    ));
    if let Some(outcome) = &of.outcome {
        printer.data(&job::outcome_text(of.kind, outcome));
    }
    if !shown.output.is_empty() {
        printer.data("output:\n");
        for line in shown.output.lines() {
            printer.job_stdout("  ", line);
        }
    }
    if shown.truncated {
        printer.data("Later output was dropped because there was too much.\n");
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(client: &ServerClient, id: &str, printer: &Printer) -> Outcome {
    let cancelled = match client.cancel_job(id).await {
        Ok(cancelled) => cancelled,
        Err(ServerClientError::Refused {
            status: 409,
            detail,
            ..
        }) => {
            let detail = detail.trim_end_matches('.').to_owned();
            let message = format!("The job was not cancelled: {detail}.");
            return Err(DriverError::refused(message)
                .hint(format!("homestak job show {id} shows its outcome")));
        }
        Err(error) => return Err(unknown(error, id)),
    };
    if printer.output.json {
        printer.json(&kind::JOB_CANCEL, &CancelledJob { job: cancelled });
    } else {
        printer.data(&job::ended(&cancelled));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the error for a job that the server does not know.
fn unknown(error: ServerClientError, id: &str) -> DriverError {
    if !error.is_missing() {
        return error.into();
    }
    DriverError::failed(format!("The server has no job `{id}`."))
        .hint("homestak job list shows the jobs that it keeps")
        .hint("jobs that ran over SSH: homestak node job NODE KIND --ssh --id ID")
}
