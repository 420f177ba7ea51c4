//! `homestak sim`: a simulated Proxmox VE, and how well it agrees with recordings of a real one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use homestak_core::error::chain;
use homestak_sim::{Pace, World, replay, serve};
use serde_json::json;

use super::Outcome;
use crate::args::SimCommand;
use crate::error::CommandError;
use crate::ui::Printer;

/// The token that may do everything in a served world; it guards nothing but a simulation.
const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";
/// The password of `root@pam` in a served world.
const PASSWORD: &str = "simulated";

/// Runs a sim command.
pub(super) fn run(command: SimCommand, printer: &Printer) -> Outcome {
    match command {
        SimCommand::Serve {
            listen,
            hosts,
            seed,
            speed,
        } => {
            let world = world(hosts, seed, speed)?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build();
            let runtime =
                runtime.map_err(|error| CommandError::failed(format!("Cannot start: {error}.")))?;
            runtime.block_on(serve_until_interrupted(world, listen, printer))
        }
        SimCommand::Replay { files } => report(&files, printer),
    }
}

fn world(hosts: u32, seed: u64, speed: f64) -> Result<World, CommandError> {
    if !(speed.is_finite() && speed > 0.0) {
        return Err(CommandError::usage("`--speed` takes a number above 0."));
    }
    let pace = if (speed - 1.0).abs() < f64::EPSILON {
        Pace::Real
    } else {
        Pace::Accelerated(speed)
    };
    let mut builder = World::builder().seed(seed).pace(pace).storage("local");
    if hosts > 1 {
        builder = builder.cluster("sim");
    }
    for number in 1..=hosts {
        builder = builder.host(&format!("pve{number}"));
    }
    Ok(builder.user("root@pam", PASSWORD).token(TOKEN).build())
}

async fn serve_until_interrupted(world: World, listen: SocketAddr, printer: &Printer) -> Outcome {
    if !listen.ip().is_loopback() {
        return Err(CommandError::refused(
            "The simulator listens on loopback only: its token is known to everyone.",
        )
        .hint("use --listen 127.0.0.1:PORT"));
    }
    let handle = serve(world, listen).await.map_err(|error| {
        CommandError::failed(format!("Cannot {}.", chain(&error)))
            .hint("is the port in use? --listen 127.0.0.1:0 takes a free one")
    })?;
    if printer.shape.json {
        printer.json(
            "sim.serve",
            json!({ "url": handle.url(), "fingerprint": handle.fingerprint, "token": TOKEN, "user": "root@pam", "password": PASSWORD }),
        );
    } else {
        printer.data(&format!(
            "url:          {}\nfingerprint:  {}\ntoken:        {TOKEN}\nuser:         root@pam, password {PASSWORD}\n",
            handle.url(),
            handle.fingerprint,
        ));
        printer.say("Interrupt to stop.");
    }
    // Cancel safety: there is nothing to lose; the world lives in this process only.
    _ = tokio::signal::ctrl_c().await;
    handle.stop();
    Ok(ExitCode::from(130))
}

fn report(files: &[PathBuf], printer: &Printer) -> Outcome {
    let report = replay::run(files).map_err(|error| {
        CommandError::failed(format!("Cannot replay: {error}."))
            .hint("each line is one exchange as JSON")
    })?;
    if printer.shape.json {
        printer.json("sim.replay", json!({ "report": report.to_string() }));
    } else {
        printer.data(&format!("{report}\n"));
    }
    Ok(ExitCode::SUCCESS)
}
