//! `homestak sim serve`: a simulated Proxmox VE over TLS, for as long as the process lives, or kept.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use homestak_api::v1::{SimServe, kind};
use homestak_core::error::chain;
use homestak_driver::DriverError;
use homestak_sim::kept::{Ended, KeepError, KeepSettings, Keeper, stock};
use homestak_sim::{Builder, Pace, Script, Timing, World, serve};

use super::{Outcome, script};
use crate::args::{PaceArg, SimServeArgs};
use crate::runtime::shutdown_signal;
use crate::ui::Printer;

/// The token that may do everything in a world that is not kept; it guards nothing but that.
const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";
/// The password of `root@pam` in a world that is not kept.
const PASSWORD: &str = "simulated";
/// Where a world that is not kept is served: the port of Proxmox VE.
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
        // Stepped time is the same each run only where one thing happens after the other.
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

/// Refuses a speed that time cannot go at.
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
        // A client that waits for an answer cannot step; only what goes on behind it takes time.
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
    world.play(script.unwrap_or_default());
    let listen = args.listen.unwrap_or(LISTEN);
    let handle = serve(world, listen).await.map_err(|error| {
        DriverError::failed(format!("Cannot {}.", chain(&error)))
            .hint("if the port is in use, use --listen 127.0.0.1:0 for a free one")
    })?;
    if printer.shape.json {
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
        printer.say("Interrupt to stop.");
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
    let settings = KeepSettings {
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
    let keeper = Keeper::open(settings, build)
        .await
        .map_err(|error| not_kept(&error, directory))?;
    // A World without a new script goes on with what is left of the one before.
    if let Some(script) = script {
        keeper.world().play(script);
    }
    let endpoint = keeper.endpoint();
    if printer.shape.json {
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
    let ended = keeper
        .run(shutdown_signal())
        .await
        .map_err(|error| not_kept(&error, directory))?;
    printer.say(match ended {
        Ended::Asked => "Stopped.",
        Ended::Idle => "Stopped: idle.",
        Ended::Vanished => "Stopped: the directory was deleted.",
    });
    Ok(ExitCode::SUCCESS)
}

fn not_kept(error: &KeepError, directory: &Path) -> DriverError {
    let message = format!("Cannot {}.", chain(error));
    match error {
        KeepError::Held { .. } => {
            DriverError::refused(format!("Another simulator uses `{}`.", directory.display()))
                .hint("homestak sim status shows it, homestak sim stop stops it")
        }
        KeepError::Restore { .. } => DriverError::failed(format!(
            "The state in `{}` cannot be used: {}.",
            directory.display(),
            chain(error)
        ))
        .hint("homestak sim reset deletes it"),
        KeepError::File { .. } | KeepError::Serve(_) => DriverError::failed(message),
    }
}
