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
    /// Host for nodes that name none: a name from `nodes/`, `local` or `sim`
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Who configures nodes; overrides the mode of every node
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
            mode: self.mode.map(ModeArg::mode),
        }
    }
}

/// Who configures nodes.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ModeArg {
    /// The driver, over SSH
    Push,
    /// The node itself
    Pull,
    /// The node itself, when the driver requests it
    Hybrid,
}

impl ModeArg {
    /// Returns the mode.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Push => Mode::Push,
            Self::Pull => Mode::Pull,
            Self::Hybrid => Mode::Hybrid,
        }
    }
}
