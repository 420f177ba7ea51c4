//! `images/*.yaml`: disk images and container templates.
//!
//! In: a tree. Out: [`Image`], everything optional as written.
//! Never: fetching or building; that is the provider's work.

use super::declare::{choice, document};
use super::decode::Spanned;
use super::scalar::{Checksum, Name, Package, Url, Version};

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
        /// What the download must add up to.
        checksum: Checksum,
        /// How it is built here instead.
        recipe: Recipe,
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
