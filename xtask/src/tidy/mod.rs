//! Rules that neither the compiler nor clippy checks. All faults are reported, no file is changed.
//!
//! A line that breaks a rule for a reason states it: `tidy: ` and a few words, in a comment on that
//! line or on the line before it.

mod cycle;
mod deny;
mod dependency;
mod fault;
mod forbidden;
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

/// Files that must exist.
const REQUIRED: &[(&str, &str)] = &[
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

/// Returns every fault that can be found without `cargo`.
fn check_files(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.files {
        module_doc::check(file, &mut faults);
        size::check(file, &mut faults);
        word::check(file, &mut faults);
        forbidden::check(file, &mut faults);
        path::check(file, &mut faults);
        whitespace::check(file, &mut faults);
        manifest::check(file, &mut faults);
    }
    link::check(tree, &mut faults);
    cycle::check(tree, &mut faults);
    dependency::check(tree, &mut faults);
    for (path, todo) in REQUIRED {
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
