//! Runs `cargo xtask gen --check` and `cargo xtask tidy` as part of `cargo test`.

use xtask::generate::{self, Goal};
use xtask::tree::{Tree, root};

#[test]
fn generated_files_are_up_to_date() {
    let faults = generate::run(&root(), Goal::Compare).expect("the files can be made");
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_tree_is_tidy() {
    let tree = Tree::read(&root()).expect("the tree can be read");
    let faults = xtask::tidy::check(&tree).expect("the checks can run");
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}
