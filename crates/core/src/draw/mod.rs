//! Draws which machines a manifest makes, where they run and how they belong together.
//!
//! In: a [`Topology`]. Out: text: terminal tree, SVG, DOT or Mermaid.
//! Never: I/O, validation. A broken topology (wrong index, parent cycle) draws what makes sense.

mod block;
mod describe;
mod dot;
mod forest;
mod geometry;
mod kind;
mod mermaid;
mod panel;
mod path;
mod ring;
mod scene;
mod style;
mod svg;
mod text;
mod tree;

pub use dot::dot;
pub use mermaid::mermaid;
pub use svg::svg;
pub use tree::{Glyphs, tree};

/// Everything that is drawn about one manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The name of the manifest.
    pub name: String,
    /// The pattern as the manifest names it: `flat`, `tiered`, `mesh`, `hub-spoke`, `federated`.
    pub pattern: String,
    /// Where roots run unless they say otherwise; may be empty.
    pub host: String,
    /// The machines, in the order of the manifest.
    pub nodes: Vec<Node>,
    /// Pairs of machines that know each other as equals, as indices into `nodes`. No direction.
    pub peers: Vec<(usize, usize)>,
    /// The machine in the middle. Every other root is its spoke.
    pub hub: Option<usize>,
    /// The regions of a federation.
    pub regions: Vec<Region>,
    /// Pairs of regions that are connected, as indices into `regions`. No direction.
    pub links: Vec<(usize, usize)>,
}

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its host name.
    pub name: String,
    /// What it is: `vm`, `ct`, `pve`, `k3s`. Anything else is drawn in grey.
    pub kind: String,
    /// Short facts in a fixed order, so that they line up: image, preset, id, mode.
    pub details: Vec<String>,
    /// The machine that makes and hosts it, as an index into [`Topology::nodes`].
    pub parent: Option<usize>,
    /// Its region, as an index into [`Topology::regions`]; without one, that of its parent.
    pub region: Option<usize>,
    /// Where it runs, when that differs from [`Topology::host`].
    pub host: Option<String>,
}

/// One part of a federation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Where its roots run, when that differs from [`Topology::host`].
    pub host: Option<String>,
}
