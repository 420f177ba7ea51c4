//! Arguments of `homestak image`.
//!
//! In: nothing. Out: typed arguments.
//! Never: defaults that depend on the environment; those are in `settings`.

use clap::Subcommand;

/// What can be done with images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build root file systems that are missing or outdated; needs root
    Build {
        /// Names of images, such as `debian-12`
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Make the disks of virtual machines too
        #[arg(long)]
        disk: bool,
    },
    /// List the images that are built
    List,
    /// Compare every byte of images with what was built
    Verify {
        /// Name of an image, or its name with its key; all images when left out
        name: Option<String>,
    },
    /// Remove images that no node uses; needs root
    Remove {
        /// Names of images, or names with a key
        #[arg(value_name = "NAME", required_unless_present = "outdated")]
        names: Vec<String>,
        /// Remove every image whose recipe has changed since
        #[arg(long, conflicts_with = "names")]
        outdated: bool,
    },
}
