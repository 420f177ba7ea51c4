//! The rules that neither the compiler nor clippy knows, checked over the whole tree.
//!
//! In: [`Tree`]. Out: every [`Fault`], in order of path and line.
//! Never: stopping at the first fault; changing a file.
//!
//! A line that is right although a rule says otherwise carries its reason: `tidy: ` and a few
//! words, in a comment on that line or on the line before it.

mod bell;
mod circle;
mod deny;
mod fault;
mod licence;
mod line;
mod link;
mod manifest;
mod module_doc;
mod path;
mod size;
mod whitespace;
mod word;

use anyhow::Result;

pub use fault::Fault;

use crate::process;
use crate::tree::Tree;

/// Files that every release has.
const NEEDED: &[(&str, &str)] = &[
    ("CHANGELOG.md", "write what changes for users, newest first"),
    ("deny.toml", "list the licences and crates that may be used"),
];

/// Returns every fault of the tree.
pub fn check(tree: &Tree) -> Result<Vec<Fault>> {
    let mut faults = check_files(tree);
    if let Some(deny) = tree.file("deny.toml") {
        let policy = deny::Policy::parse(&deny.text);
        licence::check(&policy, &process::all_packages(&tree.root)?, &mut faults);
    }
    faults.sort();
    faults.dedup();
    Ok(faults)
}

/// Returns every fault that the files themselves show.
fn check_files(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.files {
        module_doc::check(file, &mut faults);
        size::check(file, &mut faults);
        word::check(file, &mut faults);
        bell::check(file, &mut faults);
        path::check(file, &mut faults);
        whitespace::check(file, &mut faults);
        manifest::check(file, &mut faults);
    }
    link::check(tree, &mut faults);
    circle::check(tree, &mut faults);
    for (path, todo) in NEEDED {
        if tree.file(path).is_none() {
            faults.push(Fault::new(path, 1, format!("missing: {todo}")));
        }
    }
    faults
}

/// Runs one check over one file; for tests.
#[cfg(test)]
fn faults_of(
    check: impl Fn(&crate::tree::File, &mut Vec<Fault>),
    path: &str,
    text: &str,
) -> Vec<String> {
    let mut faults = Vec::new();
    check(&crate::tree::File::new(path, text), &mut faults);
    faults.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_faults() {
        let faults = check_files(&Tree::of(&[("CHANGELOG.md", "")]));
        assert_eq!(faults.len(), 1);
        assert!(faults[0].to_string().starts_with("deny.toml:1: missing:"));
    }
}
