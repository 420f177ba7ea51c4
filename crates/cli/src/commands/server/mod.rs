//! `homestak server`: runs the server that nodes fetch their specs from.

mod keys;
mod log_size;
mod repos;
mod serve;
mod start;
mod status;

use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::v1::{PublishedNode, ServerCheck, ServerPublish, ServerReload, kind};
use homestak_driver::error::count;
use homestak_driver::server::{self, PublishTarget, ServerEndpoint, ServerLease, SiteServer};
use homestak_driver::{DriverError, Session};
use homestak_server::settings::{RepoSettings, ServerSettings};
use homestak_server::trigger_problems;

use super::Outcome;
use crate::args::{RepoArgs, ServerCommand};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Runs a server command.
pub(super) fn run(command: ServerCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        ServerCommand::Start(args) => start::run(&args, settings, printer),
        ServerCommand::Stop { which } => status::stop(which.port, settings, printer),
        // `--json` is merged into the output options with `--json-output`.
        ServerCommand::Status { which, json: _ } => status::show(which.port, settings, printer),
        ServerCommand::Reload { which } => reload(which.port, settings, printer),
        ServerCommand::Check { settings: file } => check(file.as_deref(), settings, printer),
        ServerCommand::Publish {
            without_specs: true,
            ..
        } => publish_site(settings, printer),
        ServerCommand::Publish {
            repos, no_repos, ..
        } => publish((&repos, no_repos), settings, printer),
        ServerCommand::RotateKey { key, retire, yes } => {
            keys::rotate(key, (retire, yes), settings, printer)
        }
        ServerCommand::Trust { file, remove, yes } => match (file, remove) {
            (Some(file), _) => keys::trust(&file, settings, printer),
            (None, Some(fingerprint)) => keys::distrust(&fingerprint, yes, settings, printer),
            (None, None) => keys::trusted(settings, printer),
        },
    }
}

/// Opens the server of the site, or one on a port of this machine.
fn open(port: Option<u16>, settings: &Settings) -> Result<SiteServer, DriverError> {
    let (session, endpoint) = find(port, settings)?;
    SiteServer::open(&session, &settings.driver, endpoint)
}

/// Opens it without changing anything: for commands that only show.
fn inspect(port: Option<u16>, settings: &Settings) -> Result<SiteServer, DriverError> {
    let (session, endpoint) = find(port, settings)?;
    SiteServer::inspect(&session, &settings.driver, endpoint)
}

fn find(port: Option<u16>, settings: &Settings) -> Result<(Session, ServerEndpoint), DriverError> {
    let session = settings.session()?;
    let endpoint = match port {
        Some(port) => ServerEndpoint::here(port),
        None => ServerEndpoint::of_site(&session, &settings.driver)?,
    };
    Ok((session, endpoint))
}

fn lease(settings: &Settings) -> Result<ServerLease, DriverError> {
    Ok(ServerLease::new(
        Arc::new(settings.session()?),
        &settings.driver,
    ))
}

fn reload(port: Option<u16>, settings: &Settings, printer: &Printer) -> Outcome {
    let server = open(port, settings)?;
    repos::refresh(&server, settings, printer)?;
    server.publish_site(settings.driver.time.now())?;
    server.copy_to_server(&settings.driver)?;
    let changes = block_on(async {
        let client = server.client()?;
        // Reloads a server that has only the previous certificate of this driver.
        server.is_healthy(&client).await?;
        client.reload().await.map_err(|error| {
            let message = match error.problem().filter(|_| error.is_foreign()) {
                Some(problem) => format!("a server answers at {}, but {problem}", client.url()),
                None => homestak_core::error::chain(&error),
            };
            let failed = DriverError::failed(format!("The server was not reloaded: {message}."));
            let is_started_here = server.target.is_none() && server.endpoint.port().is_some();
            match (error.is_foreign(), error.problem()) {
                (true, _) => failed.hint("it is the server of another site or state directory"),
                (false, None) if is_started_here => failed.hint("homestak server start starts it"),
                (false, _) => failed.hint("homestak server status shows whether it runs"),
            }
        })
    })??;
    if printer.output.json {
        printer.json(&kind::SERVER_RELOAD, &ServerReload { changes });
    } else if changes.is_empty() {
        printer.message("Reloaded; nothing changed.");
    } else {
        for change in changes {
            printer.data(&format!("{change}\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: Option<&std::path::Path>, settings: &Settings, printer: &Printer) -> Outcome {
    let mut own = None;
    if let Some(file) = file {
        let read = ServerSettings::read(file);
        let read = read.map_err(|error| DriverError::failed(sentence(&error)))?;
        own = read.cert;
    }
    let server = inspect(None, settings)?;
    let directory = &server.publisher.directory;
    let path = directory.path().display().to_string();
    let (nodes, mut problems) = match directory.exists() {
        false => (Vec::new(), Vec::new()),
        true => {
            let published = directory
                .read()
                .map_err(|error| DriverError::file("read", directory.path(), &error))?;
            let nodes = published.specs.values().map(|(one, _)| one.node.clone());
            let problems = published.unusable.iter();
            let problems = problems.map(|(path, why)| format!("{}: {why}", path.display()));
            let is_local = !matches!(server.target, Some(PublishTarget::Remote { .. }));
            let problems = problems.chain(trigger_problems(&published, is_local));
            (nodes.collect(), problems.collect::<Vec<_>>())
        }
    };
    if let Some(own) = own
        && !server.recognises(&start::read_certificate(&own)?)?
    {
        let own = own.display();
        problems.push(format!(
            "{own}: nodes do not know this certificate (homestak server trust {own})"
        ));
    }
    problems.extend(server.key_problem());
    problems.extend(server.repo_problems());
    let check = ServerCheck {
        valid: problems.is_empty(),
        published: path,
        nodes,
        problems,
    };
    if printer.output.json {
        printer.json(&kind::SERVER_CHECK, &check);
    } else {
        for problem in &check.problems {
            printer.data(&format!("problem: {problem}\n"));
        }
        if check.valid {
            printer.message(&format!(
                "Valid. {} with a published spec.",
                count(check.nodes.len(), "node")
            ));
        }
    }
    Ok(ExitCode::from(u8::from(!check.valid)))
}

/// Publishes what a server that reloads needs of the site besides specs.
fn publish_site(settings: &Settings, printer: &Printer) -> Outcome {
    let server = open(None, settings)?;
    repos::refresh(&server, settings, printer)?;
    server.publish_site(settings.driver.time.now())?;
    Ok(ExitCode::SUCCESS)
}

fn publish((args, no_repos): (&RepoArgs, bool), settings: &Settings, printer: &Printer) -> Outcome {
    let options = repos::options(args, &RepoSettings::default(), printer)?;
    if options.is_some() || no_repos {
        let mut server = open(None, settings)?;
        if options.is_some()
            && let Some(report) = server.prepare_repos(options.as_ref(), &settings.driver)?
        {
            // Its warnings are repeated by what follows; its changes are not.
            repos::require_any(&report, printer)?;
            let changes = report.changes();
            changes.iter().for_each(|line| printer.message(line));
        }
        server.serve_repos(options.as_ref())?;
    }
    let (driver, _) = super::driver(settings.session()?, settings, false, printer)?;
    let specs = block_on(server::publish_all(&driver))??;
    if printer.output.json {
        printer.json(&kind::SERVER_PUBLISH, &ServerPublish { specs });
        return Ok(ExitCode::SUCCESS);
    }
    let row = |spec: &PublishedNode| {
        let state = if spec.changed {
            "published"
        } else {
            "unchanged"
        };
        vec![
            spec.node.clone(),
            spec.manifest.clone(),
            spec.host.clone(),
            spec.generation.to_string(),
            state.to_owned(),
        ]
    };
    let headings = ["node", "manifest", "host", "generation", "spec"];
    printer.data(&table::render(&headings, specs.iter().map(row).collect()));
    Ok(ExitCode::SUCCESS)
}

fn sentence(error: &(dyn std::error::Error + 'static)) -> String {
    let text = homestak_core::error::chain(error);
    format!("{}.", homestak_driver::error::capitalized(&text))
}
