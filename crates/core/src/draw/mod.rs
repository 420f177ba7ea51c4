//! Draws the diagram of a manifest: as a terminal tree, SVG, DOT or Mermaid. An inconsistent diagram
//! (invalid index, parent cycle) is drawn as far as possible.

mod block;
mod card_kind;
mod describe;
mod dot;
mod forest;
mod geometry;
mod layout;
mod mermaid;
mod panel;
mod path;
mod ring;
mod style;
mod svg;
mod text;
mod tree;

pub use dot::dot;
pub use mermaid::mermaid;
pub use svg::svg;
pub use tree::{Glyphs, tree};

/// The diagram of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagram {
    /// The name of the manifest.
    pub name: String,
    /// The pattern: `flat`, `tiered`, `mesh`, `hub-spoke`, `federated`.
    pub pattern: String,
    /// The default host of roots; may be empty.
    pub host: String,
    /// The nodes, in the order of the manifest.
    pub nodes: Vec<DiagramNode>,
    /// Undirected pairs of peers, as indices into `nodes`.
    pub peers: Vec<(usize, usize)>,
    /// The hub. Every other root is its spoke.
    pub hub: Option<usize>,
    /// The regions of a federation.
    pub regions: Vec<DiagramRegion>,
    /// Undirected pairs of linked regions, as indices into `regions`.
    pub links: Vec<(usize, usize)>,
}

/// A node of a diagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiagramNode {
    /// Its host name.
    pub name: String,
    /// Its type: `vm`, `ct`, `pve`, `k3s`. Other types are drawn in grey.
    pub kind: String,
    /// Short details in a fixed order, so that they are aligned: image, preset, id, mode.
    pub details: Vec<String>,
    /// Its parent, as an index into [`Diagram::nodes`].
    pub parent: Option<usize>,
    /// Its region, as an index into [`Diagram::regions`]; without one, that of its parent.
    pub region: Option<usize>,
    /// Its host, if that differs from [`Diagram::host`].
    pub host: Option<String>,
}

/// A region of a federation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiagramRegion {
    /// Its name.
    pub name: String,
    /// The host of its roots, if that differs from [`Diagram::host`].
    pub host: Option<String>,
}
