//! `homestak server status` and `stop`.

use std::process::ExitCode;

use homestak_api::v1::node_status::NodeStatus;
use homestak_api::v1::{ServerStatus, ServerStop, kind};
use homestak_driver::DriverError;
use homestak_driver::error::count;
use homestak_driver::server::{self, ServerClientError, ServerState, SiteServer};

use super::{Outcome, inspect};
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Exit code of `server status`: a server runs, and does not answer or does not serve this site.
const UNHEALTHY: u8 = 2;

/// What is known of a server.
struct Found {
    status: ServerStatus,
    /// Whether its certificate is not one that this site knows.
    is_foreign: bool,
}

/// Returns what is known of the server. One in the foreground, under systemd, of another user or on
/// another machine has no file of the process id here.
async fn query(server: &SiteServer) -> Result<Found, DriverError> {
    let (has_process, pid) = match server::state(&server.files)? {
        ServerState::Running { pid, .. } if server.endpoint.port().is_some() => (true, pid),
        ServerState::Running { .. } | ServerState::Stopped => (false, None),
    };
    let client = server.client()?;
    server.is_healthy(&client).await?;
    let asked = client.nodes().await;
    let error = asked.as_ref().err();
    let problem = error.and_then(|error| error.problem());
    let is_foreign = error.is_some_and(ServerClientError::is_foreign);
    // Nodes that were destroyed stay in the registry.
    let is_published = |node: &&NodeStatus| node.generation.is_some();
    let nodes = asked
        .ok()
        .map(|nodes| nodes.iter().filter(is_published).count());
    let status = ServerStatus {
        running: has_process || nodes.is_some() || problem.is_some(),
        pid,
        healthy: nodes.is_some(),
        port: server.endpoint.effective_port(),
        url: client.url().to_owned(),
        nodes,
        problem,
    };
    Ok(Found { status, is_foreign })
}

pub(super) fn show(port: Option<u16>, settings: &Settings, printer: &Printer) -> Outcome {
    let server = inspect(port, settings)?;
    let status = block_on(query(&server))??.status;
    if let Some(problem) = server.key_problem() {
        printer.message(&format!("warning: {problem}"));
    }
    if printer.output.json {
        printer.json(&kind::SERVER_STATUS, &status);
    } else {
        let url = &status.url;
        let text = match (status.running, status.nodes, &status.problem) {
            (false, _, _) => "not running\n".to_owned(),
            (true, Some(nodes), _) => format!("running at {url}, {}\n", count(nodes, "node")),
            (true, None, Some(problem)) => format!("a server answers at {url}, but {problem}\n"),
            (true, None, None) => "running, but it does not answer\n".to_owned(),
        };
        printer.data(&text);
    }
    Ok(match (status.running, status.healthy) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(UNHEALTHY),
        (true, true) => ExitCode::SUCCESS,
    })
}

pub(super) fn stop(port: Option<u16>, settings: &Settings, printer: &Printer) -> Outcome {
    let server = inspect(port, settings)?;
    // A process id of this machine is not that of a server on another one.
    let stopped = server.endpoint.port().is_some() && server::stop(&server.files)?;
    if !stopped {
        let found = block_on(query(&server))??;
        if found.status.running {
            return Err(not_stopped(&found, &server));
        }
    }
    if printer.output.json {
        printer.json(&kind::SERVER_STOP, &ServerStop { stopped });
    } else if stopped {
        printer.message("The server was stopped.");
    } else {
        printer.message("The server is not running.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the error for a server that answers, and whose process is not known.
fn not_stopped(found: &Found, server: &SiteServer) -> DriverError {
    let url = &found.status.url;
    if found.is_foreign {
        let refused = DriverError::refused(format!(
            "The server at {url} is not that of this site and state directory: its certificate is \
             not one that this site knows."
        ))
        .hint(
            "`homestak server stop` with that site and state directory stops it; if its state \
             directory was lost, end its process",
        );
        return match server.endpoint.port() {
            None => refused,
            Some(port) => refused.hint(format!(
                "`ss -ltnp sport = :{port}` shows the process, and `kill PID` ends it"
            )),
        };
    }
    let refused = DriverError::refused(format!(
        "The process of the server at {url} is not known: it was not started by `homestak server \
         start` of this state directory, or its PID file was deleted."
    ))
    .hint("stop it as it was started: systemctl stop homestak-server");
    match server.endpoint.port() {
        // Another machine's process cannot be found here.
        None => refused,
        Some(port) => refused.hint(format!(
            "if `{}` was deleted: `ss -ltnp sport = :{port}` shows the process, and `kill PID` \
             stops it",
            server.files.pid.display()
        )),
    }
}
