//! The kinds of documents, with directory and schema of each.

use super::decode::Decode;
use super::schema::Definitions;
use super::{host, image, manifest, posture, preset, pve_node, secrets, site, spec};

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// `site.yaml`
    Site,
    /// `secrets.yaml`
    Secrets,
    /// `manifests/*.yaml`
    Manifest,
    /// `specs/*.yaml`
    Spec,
    /// `postures/*.yaml`
    Posture,
    /// `presets/*.yaml`
    Preset,
    /// `images/*.yaml`
    Image,
    /// `hosts/*.yaml`
    Host,
    /// `nodes/*.yaml`
    Node,
}

impl DocumentKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::Site,
        Self::Secrets,
        Self::Manifest,
        Self::Spec,
        Self::Posture,
        Self::Preset,
        Self::Image,
        Self::Host,
        Self::Node,
    ];

    /// Returns the name of the kind, in the singular.
    pub fn name(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Secrets => "secrets",
            Self::Manifest => "manifest",
            Self::Spec => "spec",
            Self::Posture => "posture",
            Self::Preset => "preset",
            Self::Image => "image",
            Self::Host => "host",
            Self::Node => "node",
        }
    }

    /// Returns the directory of the kind; `None` for the two single files.
    pub fn directory(self) -> Option<&'static str> {
        match self {
            Self::Site | Self::Secrets => None,
            Self::Manifest => Some("manifests"),
            Self::Spec => Some("specs"),
            Self::Posture => Some("postures"),
            Self::Preset => Some("presets"),
            Self::Image => Some("images"),
            Self::Host => Some("hosts"),
            Self::Node => Some("nodes"),
        }
    }

    /// Returns the schema version.
    pub fn version(self) -> u8 {
        if self == Self::Manifest { 2 } else { 1 }
    }

    /// Returns the JSON Schema of the kind.
    pub fn schema(self) -> serde_json::Value {
        let mut definitions = Definitions::default();
        let root = match self {
            Self::Site => site::Site::schema(&mut definitions),
            Self::Secrets => secrets::SecretsFile::schema(&mut definitions),
            Self::Manifest => manifest::Manifest::schema(&mut definitions),
            Self::Spec => spec::Spec::schema(&mut definitions),
            Self::Posture => posture::Posture::schema(&mut definitions),
            Self::Preset => preset::Preset::schema(&mut definitions),
            Self::Image => image::Image::schema(&mut definitions),
            Self::Host => host::Host::schema(&mut definitions),
            Self::Node => pve_node::PveNode::schema(&mut definitions),
        };
        let id = format!("{}.v{}", self.name(), self.version());
        definitions.document(
            &id,
            &format!("homestak {}, version {}", self.name(), self.version()),
            root,
        )
    }
}
