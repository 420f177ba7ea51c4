//! Crates depend on each other only as `xtask/src/crate_dependencies.rs` allows.

#[test]
fn crates_depend_only_on_allowed_crates() {
    let faults = xtask::crate_dependencies::check().expect("cargo metadata works");
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}
