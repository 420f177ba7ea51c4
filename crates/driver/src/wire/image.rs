//! Images for nodes on this machine.

use homestak_api::v1::{Image, VerifiedImage};
use homestak_providers::image::{ImageInfo, ImageVerification};

/// Converts an image.
pub fn image(image: &ImageInfo) -> Image {
    Image {
        name: image.name.clone(),
        key: image.key.clone(),
        path: image.path.display().to_string(),
        made: image.made,
        mirror: image.mirror.clone(),
        bytes: image.bytes,
        files: image.files,
        checksum: format!("sha256:{}", image.checksum),
        current: image.current,
        in_use: image.in_use,
    }
}

/// Converts images.
pub fn images<'i>(images: impl IntoIterator<Item = &'i ImageInfo>) -> Vec<Image> {
    images.into_iter().map(image).collect()
}

/// Converts an image with its checksum computed again.
pub fn verified(verification: &ImageVerification) -> VerifiedImage {
    VerifiedImage {
        image: image(&verification.info),
        sound: verification.is_intact(),
        found: verification.found.clone(),
    }
}
