//! The arguments that choose a manifest.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use homestak_core::doc::manifest::Mode;
use homestak_driver::select::ManifestSelector;

/// Which manifest, and what the command line adds to it.
#[derive(Debug, Clone, Default, Args)]
pub struct ManifestArgs {
    /// Name of a manifest of the site
    #[arg(value_name = "NAME", conflicts_with_all = ["manifest", "manifest_file", "manifest_json"])]
    pub name: Option<String>,
    /// Name of a manifest of the site
    #[arg(short = 'M', long, value_name = "NAME", conflicts_with_all = ["manifest_file", "manifest_json"])]
    pub manifest: Option<String>,
    /// File with a manifest
    #[arg(long, value_name = "FILE", conflicts_with = "manifest_json")]
    pub manifest_file: Option<PathBuf>,
    /// Manifest as JSON text
    #[arg(long, value_name = "JSON")]
    pub manifest_json: Option<String>,
    /// Host that nodes run on when they name none
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Who starts configuration, for all nodes
    #[arg(long, value_enum)]
    pub mode: Option<ModeArg>,
}

impl ManifestArgs {
    /// Returns what is chosen.
    pub fn choice(&self) -> ManifestSelector {
        ManifestSelector {
            name: self.manifest.clone().or_else(|| self.name.clone()),
            file: self.manifest_file.clone(),
            json: self.manifest_json.clone(),
            host: self.host.clone(),
            mode: self.mode.map(|mode| match mode {
                ModeArg::Push => Mode::Push,
                ModeArg::Pull => Mode::Pull,
                ModeArg::Hybrid => Mode::Hybrid,
            }),
        }
    }
}

/// Who starts the configuration.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ModeArg {
    /// The driver, over SSH
    Push,
    /// The node itself
    Pull,
    /// The driver triggers it, the node does the rest
    Hybrid,
}
