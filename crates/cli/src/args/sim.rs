//! The arguments of the simulator.
//!
//! In: arguments. Out: typed values.
//! Never: defaults that depend on the environment.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What can be done with the simulator.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Serve a simulated Proxmox VE on loopback over TLS, until interrupted
    Serve(SimServeArgs),
    /// Start the simulator that is kept, unless it runs, and show where it is
    Start {
        /// Where it is kept.
        #[command(flatten)]
        place: SimPlaceArgs,
        /// How many times faster than the wall clock time goes
        #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
        speed: f64,
    },
    /// Show whether the simulator that is kept runs, and what is in it
    Status {
        /// Where it is kept.
        #[command(flatten)]
        place: SimPlaceArgs,
    },
    /// Stop the simulator that is kept; what is in it stays
    Stop {
        /// Where it is kept.
        #[command(flatten)]
        place: SimPlaceArgs,
    },
    /// Stop the simulator that is kept and forget everything in it
    Reset {
        /// Where it is kept.
        #[command(flatten)]
        place: SimPlaceArgs,
    },
    /// Replay recordings of a real Proxmox VE against the simulator, and report the agreement
    Replay {
        /// Files with one exchange per line, as JSON
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Replay this flow only; repeat for more
        #[arg(long = "flow", value_name = "NAME")]
        flows: Vec<String>,
    },
}

/// Where a simulator is kept.
#[derive(Debug, Clone, Default, Args)]
pub struct SimPlaceArgs {
    /// Directory it is kept in; `sim` in the state directory when left out
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// How a simulator is served.
#[derive(Debug, Clone, Args)]
pub struct SimServeArgs {
    /// Address to listen on; port 0 takes a free one. 127.0.0.1:8006 when left out, and a free
    /// one with `--state`
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// Keep it in this directory: found again by the next server
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// End after so many seconds without a call and without a task
    #[arg(long, value_name = "SECONDS", requires = "state")]
    pub idle: Option<u64>,
    /// How many hosts the cluster has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub hosts: u32,
    /// How many guests it starts with, stopped
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub guests: u32,
    /// What all randomness comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many times faster than the wall clock time goes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
    /// How time goes
    #[arg(long, value_enum, default_value_t = PaceArg::Real, conflicts_with = "speed")]
    pub pace: PaceArg,
    /// File with faults and events, a list in YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
}

/// How time goes in the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaceArg {
    /// By itself
    Real,
    /// Only when it is told to, with `POST /sim/step`
    Stepped,
}
