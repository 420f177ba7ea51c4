//! Arguments of `homestak site` and `homestak host`.

use std::path::PathBuf;

use clap::Subcommand;

/// What can be done with the site.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Show which site is used, why, and what is in it
    Show,
    /// Write the stock site into a directory, to start from
    Init {
        /// The directory; it must be new or empty
        directory: PathBuf,
    },
    /// Check every document of the site
    Validate,
    /// Give the site another id: guests that carry the old one are not changed or removed any more
    #[command(name = "new-id")]
    NewId {
        /// Use this id, such as the one that guests carry, instead of a random one
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// What can be done with hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts of the site
    List,
    /// Show what is known of a host, and what it says of itself
    Show {
        /// Name of the host
        name: String,
        /// Do not ask the host
        #[arg(long)]
        offline: bool,
    },
    /// Show the fingerprint of a host's certificate, and record it
    Trust {
        /// Name of the host
        name: String,
        /// Record it without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the commands that make the smallest role and a token
    Role {
        /// Name of the host; its storages are named in the commands
        name: Option<String>,
        /// Version of Proxmox VE, when the host is not asked
        #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(8..=9))]
        pve_version: u32,
        /// User the token belongs to
        #[arg(long, default_value = "homestak@pve")]
        user: String,
        /// Name of the token
        #[arg(long, default_value = "homestak")]
        token: String,
    },
    /// Check that a host is ready for a manifest
    Preflight {
        /// Name of the host
        name: String,
        /// Manifest that shall run there; the host alone is checked when left out
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: Option<String>,
    },
}
