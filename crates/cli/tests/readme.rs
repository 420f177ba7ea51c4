//! What the README shows is what the program prints.

#[test]
fn the_transcripts_of_the_readme_are_true() {
    trycmd::TestCases::new()
        .case("../../README.md")
        .env("HOME", "/nonexistent");
}

#[test]
fn the_pictures_of_the_documentation_are_drawn_by_the_program() {
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
