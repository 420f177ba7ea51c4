//! Arguments of `homestak site` and `homestak host`.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands on the site.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Show which site is used and why, and its contents
    Show,
    /// Create a site: a copy of the stock site, with new secrets
    Init {
        /// The directory; it must be new or empty
        directory: PathBuf,
    },
    /// Check every document of the site
    Validate,
    /// Change the id of the site; guests with the old id are no longer managed
    #[command(name = "new-id")]
    NewId {
        /// Use this id instead of a random one
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Commands on hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts of the site
    List,
    /// Show the configuration of a host and what its API reports
    Show {
        /// Name of the host
        name: String,
        /// Do not query the host
        #[arg(long)]
        offline: bool,
    },
    /// Show the fingerprint of a host's certificate, and record it after confirmation
    Trust {
        /// Name of the host
        name: String,
        /// Record it without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the commands that create minimal roles, a user and a token
    Role {
        /// Name of a host, to use its storages in the commands
        name: Option<String>,
        /// Version of Proxmox VE
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(8..=9))]
        pve_version: u32,
        /// Owner of the token
        #[arg(long, default_value = "homestak@pve")]
        user: String,
        /// Name of the token
        #[arg(long, default_value = "homestak")]
        token: String,
    },
    /// Check whether a host is ready
    Preflight {
        /// Name of the host
        name: String,
        /// Also check whether this manifest can run on the host
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: Option<String>,
    },
}
