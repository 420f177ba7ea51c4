//! `homestak sim serve`: a simulated Proxmox VE over TLS, in memory or with persistent state.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use homestak_api::v1::{SimServe, kind};
use homestak_core::error::chain;
use homestak_driver::DriverError;
use homestak_sim::persistent::{
    PersistenceError, PersistenceSettings, PersistentServer, StopReason, stock,
};
use homestak_sim::{Builder, Pace, Script, Timing, World, serve};

use super::{Outcome, script};
use crate::args::{PaceArg, SimServeArgs};
use crate::runtime::shutdown_signal;
use crate::ui::Printer;

/// The token with all privileges in a world in memory, which holds no secrets.
const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";
/// The password of `root@pam` in a world in memory.
const PASSWORD: &str = "simulated";
/// The address of a world in memory: the port of Proxmox VE.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8006);

/// Serves until interrupted.
pub(super) fn run(args: &SimServeArgs, printer: &Printer) -> Outcome {
    check_speed(args.speed)?;
    if args.listen.is_some_and(|listen| !listen.ip().is_loopback()) {
        return Err(DriverError::refused(
            "The simulator listens on loopback only: it has no real access control.",
        )
        .hint("use --listen 127.0.0.1:PORT"));
    }
    let script = match &args.faults {
        Some(file) => Some(script::read(file, printer)?),
        None => None,
    };
    let mut runtime = match args.pace {
        // Stepped time is reproducible only without concurrency.
        PaceArg::Stepped => tokio::runtime::Builder::new_current_thread(),
        PaceArg::Real => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime =
        runtime.map_err(|error| DriverError::failed(format!("Cannot start: {error}.")))?;
    match &args.state {
        Some(directory) => runtime.block_on(keep(args, script, directory, printer)),
        None => runtime.block_on(serve_until_interrupted(args, script, printer)),
    }
}

/// Rejects an invalid speed.
pub(super) fn check_speed(speed: f64) -> Result<(), DriverError> {
    if speed.is_finite() && speed > 0.0 {
        Ok(())
    } else {
        Err(DriverError::usage("`--speed` must be a number above 0."))
    }
}

fn pace(args: &SimServeArgs) -> Pace {
    if args.pace == PaceArg::Stepped {
        Pace::Stepped
    } else if (args.speed - 1.0).abs() < f64::EPSILON {
        Pace::Real
    } else {
        Pace::Accelerated(args.speed)
    }
}

fn builder(args: &SimServeArgs, token: &str) -> Builder {
    let mut timing = Timing::default();
    if args.pace == PaceArg::Stepped {
        // A client that waits for an answer cannot step; only background work takes time.
        timing.read = Duration::ZERO;
        timing.write = Duration::ZERO;
        timing.refusal = Duration::ZERO;
    }
    let mut builder = World::builder()
        .seed(args.seed)
        .pace(pace(args))
        .timing(timing)
        .storage("local")
        .token(token);
    if args.hosts > 1 {
        builder = builder.cluster("sim");
    }
    for number in 1..=args.hosts {
        builder = builder.host(&format!("pve{number}"));
    }
    builder
}

async fn serve_until_interrupted(
    args: &SimServeArgs,
    script: Option<Script>,
    printer: &Printer,
) -> Outcome {
    let world = builder(args, TOKEN).user("root@pam", PASSWORD).build();
    world.fill(args.guests);
    world.set_script(script.unwrap_or_default());
    let listen = args.listen.unwrap_or(LISTEN);
    let handle = serve(world, listen).await.map_err(|error| {
        DriverError::failed(format!("Cannot {}.", chain(&error)))
            .hint("if the port is in use, use --listen 127.0.0.1:0 for a free one")
    })?;
    if printer.output.json {
        let serve = SimServe {
            url: handle.url(),
            fingerprint: handle.fingerprint.clone(),
            directory: None,
            token: Some(TOKEN.to_owned()),
            user: Some("root@pam".to_owned()),
            password: Some(PASSWORD.to_owned()),
        };
        printer.json(&kind::SIM_SERVE, &serve);
    } else {
        printer.data(&format!(
            "url:          {}\nfingerprint:  {}\ntoken:        {TOKEN}\nuser:         root@pam, password {PASSWORD}\n",
            handle.url(),
            handle.fingerprint,
        ));
        printer.message("Interrupt to stop.");
    }
    // Cancel safety: there is nothing to lose; the world lives in this process only.
    _ = tokio::signal::ctrl_c().await;
    handle.stop();
    Ok(ExitCode::from(130))
}

async fn keep(
    args: &SimServeArgs,
    script: Option<Script>,
    directory: &Path,
    printer: &Printer,
) -> Outcome {
    let settings = PersistenceSettings {
        directory: directory.to_owned(),
        idle: args.idle.map(Duration::from_secs),
        listen: args.listen,
        pace: pace(args),
    };
    let build = |token: &str| {
        let world = stock(builder(args, token)).build();
        world.fill(args.guests);
        world
    };
    let server = PersistentServer::open(settings, build)
        .await
        .map_err(|error| serve_failed(&error, directory))?;
    // A world without a new script continues with the rest of the previous one.
    if let Some(script) = script {
        server.world().set_script(script);
    }
    let endpoint = server.endpoint();
    if printer.output.json {
        let serve = SimServe {
            url: endpoint.url.clone(),
            fingerprint: endpoint.fingerprint.clone(),
            directory: Some(directory.display().to_string()),
            token: None,
            user: None,
            password: None,
        };
        printer.json(&kind::SIM_SERVE, &serve);
    } else {
        printer.data(&format!(
            "url:          {}\nfingerprint:  {}\ntoken:        in {}\n",
            endpoint.url,
            endpoint.fingerprint,
            directory.join("endpoint.json").display(),
        ));
    }
    let ended = server
        .run(shutdown_signal())
        .await
        .map_err(|error| serve_failed(&error, directory))?;
    printer.message(match ended {
        StopReason::Requested => "Stopped.",
        StopReason::Idle => "Stopped: idle.",
        StopReason::DirectoryDeleted => "Stopped: the directory was deleted.",
    });
    Ok(ExitCode::SUCCESS)
}

fn serve_failed(error: &PersistenceError, directory: &Path) -> DriverError {
    let message = format!("Cannot {}.", chain(error));
    match error {
        PersistenceError::Locked { .. } => {
            DriverError::refused(format!("Another simulator uses `{}`.", directory.display()))
                .hint("homestak sim status shows it, homestak sim stop stops it")
        }
        PersistenceError::Restore { .. } => DriverError::failed(format!(
            "The state in `{}` cannot be used: {}.",
            directory.display(),
            chain(error)
        ))
        .hint("homestak sim reset deletes it"),
        PersistenceError::File { .. } | PersistenceError::Serve(_) => DriverError::failed(message),
    }
}
