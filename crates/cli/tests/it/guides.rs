//! Every command of the README and the guides works as written, with the simulator where a host is
//! needed. `crates/test-support/src/guides.rs` lists those that are run elsewhere, and why.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::guide_commands::{self, EXCEPTIONS, RunBy};
use crate::test_pve::TestPve;

/// Changes commands that ask for confirmation or do not end, so that they run without a terminal.
fn noninteractive(text: &str) -> String {
    let asks = [
        "manifest destroy",
        "host trust",
        "manifest forget",
        "manifest rollback",
    ];
    let mut line = text
        .trim_start_matches("sudo ")
        .replace("./run.sh", "homestak");
    if asks.iter().any(|words| line.contains(words)) {
        line += " --yes";
    }
    // It serves until it is interrupted.
    if line.contains("sim serve") && !line.ends_with('&') {
        line = format!("timeout --signal INT 3 {line}; [ $? -ne 2 ]");
    }
    line
}

/// Commands that a page presupposes: page, start of its own command, command to run before it.
const BEFORE: &[(&str, &str, &str)] = &[
    (
        "hosts",
        "homestak secrets edit",
        "homestak secrets keygen && homestak secrets encrypt && rm site/secrets.yaml",
    ),
    (
        "operate",
        "homestak manifest forget",
        "homestak manifest apply -M n2-tiered -H sim",
    ),
    (
        "secrets",
        "homestak secrets keygen",
        "printf 'auth:\\n  signing_key: \"%064d\"\\n' 0 >> site/secrets.yaml && mkdir lab && touch lab/secrets.yaml",
    ),
    ("secrets", "homestak secrets get", "rm site/secrets.yaml"),
    (
        "state",
        "tar -czf",
        "homestak manifest apply -M n1-push -H sim && homestak sim stop",
    ),
    (
        "state",
        "homestak state rebuild --dry-run",
        "rm ~/.local/state/homestak/journal.db*",
    ),
];

/// Commands whose exit code is not 0.
const CODES: &[(&str, &str, i32)] = &[("README", "homestak manifest validate --manifest-json", 1)];

fn run(page: &Path) {
    let host = TestPve::quick();
    let (commands, files) = guide_commands::read(page);
    let name = page.file_stem().unwrap().to_string_lossy().into_owned();
    let simulated: Vec<_> = commands
        .iter()
        .filter(|command| command.run_by() == RunBy::Simulator)
        .collect();
    if simulated.is_empty() {
        return;
    }
    let work = host.env.work();
    // A page with `site init` creates its own site.
    let starts = simulated
        .iter()
        .any(|command| command.text.contains("site init lab"));
    let site = if starts { "lab" } else { "site" };
    let mut lines = Vec::new();
    for command in &simulated {
        for (page, start, before) in BEFORE {
            if *page == name && command.text.starts_with(start) {
                lines.push((0, (*before).to_owned()));
            }
        }
        lines.push((command.line, noninteractive(&command.text)));
        if command.text.contains("site init lab") {
            for (path, body) in &files {
                let file = format!("lab/{path}");
                lines.push((0, format!("cat > {file} <<'END'\n{body}END")));
            }
        }
    }
    for (path, body) in files.iter().filter(|_| !starts) {
        let file = match path.contains('/') {
            // The test host has its own port.
            true if path == "nodes/father.yaml" => continue,
            true => work.join("site").join(path),
            false => work.join(path),
        };
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, body).unwrap();
    }
    let program = std::path::PathBuf::from(host.env.command(&[]).get_program());
    let codes_file = work.join("codes");
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            &format!(
                "exec 3>{}\n{}",
                codes_file.display(),
                guide_commands::script(&lines)
            ),
        ])
        .current_dir(&work)
        .env_clear()
        .env("HOME", host.env.home())
        .env(
            "PATH",
            format!(
                "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
                program.parent().unwrap().display()
            ),
        )
        .env("USER", "ops")
        .env("EDITOR", "true")
        .env("HOMESTAK_SIM_SPEED", "200")
        .stdin(Stdio::null());
    if !starts {
        shell.env("HOMESTAK_SITE_CONFIG", work.join(site));
    }
    let output = shell.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let codes = guide_commands::codes(&std::fs::read_to_string(&codes_file).unwrap());
    assert_eq!(codes.len(), lines.len(), "{name}: {stderr}");
    for ((line, code), (_, text)) in codes.into_iter().zip(&lines) {
        let expected = CODES
            .iter()
            .find(|(page, start, _)| *page == name && text.starts_with(start));
        let expected = expected.map_or(0, |known| known.2);
        assert_eq!(code, expected, "{name}.md:{line}: {text}\n{stderr}");
    }
    _ = host.run(&["sim", "stop"]);
}

#[test]
fn every_command_of_the_readme_and_the_guides_works_as_written() {
    for page in guide_commands::pages() {
        run(&page);
    }
}

#[test]
fn commands_that_are_run_elsewhere_are_still_in_their_pages() {
    let all: Vec<_> = guide_commands::pages()
        .iter()
        .flat_map(|page| guide_commands::read(page).0)
        .collect();
    for (page, start, ..) in EXCEPTIONS {
        let is_there = all
            .iter()
            .any(|command| command.page == *page && command.text.starts_with(start));
        assert!(is_there, "{page}.md has no command `{start}` any more");
    }
    assert!(all.len() > 60, "only {} commands were found", all.len());
}
