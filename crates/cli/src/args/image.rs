//! Arguments of `homestak image`.

use clap::Subcommand;

/// Commands on images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build root file systems that are missing or outdated; needs root
    Build {
        /// Names of images, such as `debian-12`
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Also create the disks of virtual machines
        #[arg(long)]
        disk: bool,
    },
    /// List built images
    List,
    /// Verify the checksums of images
    Verify {
        /// Name of an image, or its name with its key; all images when omitted
        name: Option<String>,
    },
    /// Remove images that no node uses; needs root
    Remove {
        /// Names of images, or names with a key
        #[arg(value_name = "NAME", required_unless_present = "outdated")]
        names: Vec<String>,
        /// Remove every image whose recipe has changed since it was built
        #[arg(long, conflicts_with = "names")]
        outdated: bool,
    },
}
