//! The crates use each other as the table of arrows says.

#[test]
fn crates_use_only_what_the_table_of_arrows_allows() {
    let faults = xtask::arrows::check().expect("cargo metadata works");
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}
