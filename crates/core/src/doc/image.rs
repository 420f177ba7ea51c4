//! `images/*.yaml`: disk images and container templates.
//!
//! In: a tree. Out: [`Image`], everything optional as written.
//! Never: fetching or building; that is the provider's work.

use super::declare::{choice, document};
use super::decode::{Context, Spanned};
use super::scalar::{Checksum, Name, Package, Url, Version};
use super::{Code, Diagnostic};

choice! {
    /// What an image is for.
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
        /// Name of the image; the file's name without `.yaml`.
        name: Name,
        /// One line for people.
        description: String,
        /// What it is for.
        kind ["type"] default "disk": ImageKind,
        /// Other names for it.
        aliases: Vec<Spanned<Name>>,
        /// Where it is downloaded from.
        source: Url,
        /// Checksum of the download; required over plain HTTP.
        checksum: Checksum,
        /// How it is built here instead.
        recipe: Recipe,
    }
}

impl Image {
    /// Checks that nobody on the way can replace what is downloaded.
    pub fn check(&self, cx: &mut Context<'_>) {
        if let (Some(source), None) = (&self.source, &self.checksum)
            && source.as_str().starts_with("http://")
        {
            cx.error(
                Code::UncheckedSource,
                source.span,
                "the image is downloaded over plain HTTP, and nothing says what it must be",
                "add `checksum: sha256:...`, or use an address that begins with `https://`",
            );
        }
    }

    /// Returns a notice when what is downloaded can change without notice.
    pub fn unpinned(&self) -> Option<Diagnostic> {
        let source = self.source.as_ref()?;
        let why = unpinned(source.as_str(), self.checksum.is_some())?;
        let notice = Diagnostic::notice(Code::UnpinnedImage, source.span, why);
        Some(notice.hint("name a dated release, and its `checksum: sha512:...`"))
    }
}

/// Returns why what is at an address can change without notice, if it can.
pub fn unpinned(source: &str, checksum: bool) -> Option<&'static str> {
    let latest = source.split('/').any(|part| part == "latest");
    match (checksum, latest) {
        (true, false) => None,
        (true, true) => {
            Some("the image is the latest one, so its checksum will not match for long")
        }
        (false, true) => {
            Some("the image is the latest one and has no checksum: it is not verified")
        }
        (false, false) => Some("the image has no checksum: it is not verified"),
    }
}

document! {
    /// How an image is built here.
    #[derive(Debug, PartialEq)]
    Recipe as "recipe" {
        /// Debian suite, such as `bookworm`.
        suite = required: Name,
        /// Packages in it.
        packages: Vec<Spanned<Package>>,
    }
}
