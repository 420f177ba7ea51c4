//! Documents that people write: YAML text is parsed into a tree with spans, and the tree is decoded
//! into typed values. Every error is reported with file, line, column and a hint.
//!
//! Pure: no I/O. References between documents are resolved in `resolve`.

pub mod address;
pub mod code;
mod declare;
pub mod decode;
pub mod diagnostic;
pub mod document_kind;
pub mod edit;
pub mod emit;
pub mod git;
pub mod host;
pub mod image;
pub mod manifest;
pub mod migrate;
pub mod node_config;
pub mod node_spec;
mod open_map;
pub mod posture;
pub mod preset;
pub mod pve_node;
pub mod scalar;
pub mod schema;
pub mod secrets;
pub mod site;
mod size;
pub mod source;
pub mod spec;
pub mod timeouts;
pub mod tree;
pub mod window;
pub mod yaml;

pub use code::Code;
pub use decode::{Context, Decode, Spanned};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use document_kind::DocumentKind;
pub use source::{FileId, Location, Source, Sources, Span};
pub use tree::{Data, Entry, Key, Scalar, Style, Value};
