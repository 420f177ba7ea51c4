//! `images/*.yaml`: disk images and container templates.

use super::declare::{choice, document};
use super::decode::{Context, Spanned};
use super::scalar::{Checksum, Name, Package, Url, Version};
use super::{Code, Diagnostic};

choice! {
    /// Type of an image.
    ImageKind {
        /// The disk of a virtual machine.
        Disk = "disk",
        /// The template of a container.
        Template = "template",
    }
}

document! {
    /// A disk image or container template.
    #[derive(Debug, PartialEq)]
    Image as "the image" {
        /// Always 1.
        schema_version: Version<1>,
        /// Name of the image; must match the file name without `.yaml`.
        name: Name,
        /// One-line description.
        description: String,
        /// Type of image.
        kind ["type"] default "disk": ImageKind,
        /// Aliases.
        aliases: Vec<Spanned<Name>>,
        /// Download URL.
        source: Url,
        /// Checksum of the download; required over plain HTTP.
        checksum: Checksum,
        /// How to build it locally instead.
        recipe: Recipe,
    }
}

impl Image {
    /// Checks that the download is protected by HTTPS or a checksum.
    pub fn check(&self, cx: &mut Context<'_>) {
        if let (Some(source), None) = (&self.source, &self.checksum)
            && source.as_str().starts_with("http://")
        {
            cx.error(
                Code::UncheckedSource,
                source.span,
                "the image is downloaded over plain HTTP without a checksum",
                "add `checksum: sha256:...`, or use an `https://` URL",
            );
        }
    }

    /// Returns a notice if the download can change.
    pub fn unpinned(&self) -> Option<Diagnostic> {
        let source = self.source.as_ref()?;
        let why = unpinned(source.as_str(), self.checksum.is_some())?;
        let notice = Diagnostic::notice(Code::UnpinnedImage, source.span, why);
        Some(notice.hint("use the URL of a dated release, and add its `checksum: sha512:...`"))
    }
}

/// Returns why the download at a URL can change, if it can.
pub fn unpinned(source: &str, checksum: bool) -> Option<&'static str> {
    let latest = source.split('/').any(|part| part == "latest");
    match (checksum, latest) {
        (true, false) => None,
        (true, true) => {
            Some("the URL is that of the latest image, so the checksum will not match for long")
        }
        (false, true) => {
            Some("the URL is that of the latest image, and without a checksum it is not verified")
        }
        (false, false) => Some("the image has no checksum: it is not verified"),
    }
}

document! {
    /// How an image is built locally.
    #[derive(Debug, PartialEq)]
    Recipe as "recipe" {
        /// Debian suite, such as `bookworm`.
        suite = required: Name,
        /// Packages to install.
        packages: Vec<Spanned<Package>>,
    }
}
