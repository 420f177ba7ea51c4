//! Arguments of `homestak sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Commands of the simulator.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Serve a simulated Proxmox VE on loopback over TLS, until interrupted
    Serve(SimServeArgs),
    /// Start the persistent simulator, unless it runs, and show its address
    Start {
        /// Its state directory.
        #[command(flatten)]
        state: SimStateArgs,
        /// Speed of simulated time, as a multiple of real time
        #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
        speed: f64,
    },
    /// Show the state of the persistent simulator
    Status {
        /// Its state directory.
        #[command(flatten)]
        state: SimStateArgs,
    },
    /// Stop the persistent simulator; its state is kept
    Stop {
        /// Its state directory.
        #[command(flatten)]
        state: SimStateArgs,
    },
    /// Stop the persistent simulator and delete its state
    Reset {
        /// Its state directory.
        #[command(flatten)]
        state: SimStateArgs,
    },
    /// Replay recordings of a real Proxmox VE against the simulator, and report differences
    Replay {
        /// Recordings: one request and its response per line, as JSON
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Replay only entries with this `flow`; repeat for more
        #[arg(long = "flow", value_name = "NAME")]
        flows: Vec<String>,
    },
}

/// State directory of a simulator.
#[derive(Debug, Clone, Default, Args)]
pub struct SimStateArgs {
    /// Directory of its state; `sim` in the state directory when omitted
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// How a simulator is served.
#[derive(Debug, Clone, Args)]
pub struct SimServeArgs {
    /// Address to listen on; port 0 is any free port. Default: 127.0.0.1:8006, or a free port with
    /// `--state`
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// Keep the state in this directory, and continue from it
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Exit after this many seconds without a request or a task
    #[arg(long, value_name = "SECONDS", requires = "state")]
    pub idle: Option<u64>,
    /// Number of hosts in the cluster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub hosts: u32,
    /// Number of stopped guests to start with
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub guests: u32,
    /// Seed of the random number generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Speed of simulated time, as a multiple of real time
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
    /// How simulated time advances
    #[arg(long, value_enum, default_value_t = PaceArg::Real, conflicts_with = "speed")]
    pub pace: PaceArg,
    /// File with faults and events, a list in YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
}

/// How time advances in the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaceArg {
    /// With real time, times `--speed`
    Real,
    /// Only on `POST /sim/step`
    Stepped,
}
