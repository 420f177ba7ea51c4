//! The README and the pictures show what the program prints.

/// The start of the command of the README that ends with exit code 1.
const FAILING: &str = "$ homestak manifest validate --manifest-json";

#[test]
fn readme_transcripts_match_the_program() {
    let readme = fs_err::read_to_string("../../README.md").unwrap();
    // How trycmd spells an exit code, which is not part of the README.
    let lines = readme.lines().map(|line| match line.starts_with(FAILING) {
        true => format!("{line}\n? 1\n"),
        false => format!("{line}\n"),
    });
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("README.md");
    fs_err::write(&copy, lines.collect::<String>()).unwrap();
    trycmd::TestCases::new()
        .case(&copy)
        .env("HOME", "/nonexistent")
        .run();
}

#[test]
fn pictures_in_the_docs_match_manifest_graph() {
    let pictures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    for name in ["cluster", "multi-site", "n3-deep"] {
        let arguments = ["manifest", "graph", name, "--format", "svg"];
        let drawn = snapbox::cmd::Command::new(env!("CARGO_BIN_EXE_homestak"))
            .args(arguments)
            .output()
            .unwrap();
        let drawn = String::from_utf8(drawn.stdout).unwrap();
        let expected = snapbox::Data::read_from(&pictures.join(format!("{name}.svg")), None);
        snapbox::assert_data_eq!(drawn, expected.raw());
    }
}
