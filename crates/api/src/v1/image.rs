//! Images for nodes on this machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every image on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageList {
    /// The images.
    pub images: Vec<Image>,
}

/// Images that were built or removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageChange {
    /// Always `true`.
    pub success: bool,
    /// The images.
    pub images: Vec<Image>,
}

/// Whether images are as they were built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageVerification {
    /// Whether all are.
    pub success: bool,
    /// The images.
    pub images: Vec<VerifiedImage>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// The name of its recipe.
    pub name: String,
    /// The key of its recipe.
    pub key: String,
    /// Where it is.
    pub path: String,
    /// When it was built.
    pub made: jiff::Timestamp,
    /// Where its packages come from.
    pub mirror: String,
    /// Its size on disk, in bytes.
    pub bytes: u64,
    /// How many files and directories it has.
    pub files: u64,
    /// Its checksum when it was built, as `sha256:...`.
    pub checksum: String,
    /// Whether its recipe is still the same.
    pub current: bool,
    /// Whether a node uses it.
    pub in_use: bool,
}

/// An image with its checksum computed again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedImage {
    /// The image.
    #[serde(flatten)]
    pub image: Image,
    /// Whether it is as it was built.
    pub sound: bool,
    /// Its checksum now.
    pub found: String,
}
