//! Every command of the README and the guides works as it is written, with the simulator where a host
//! is needed. `crates/test-support/src/guides.rs` lists those that are run elsewhere, and why.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::father::Father;
use crate::guides_of::{self, ELSEWHERE, Where};

/// Commands that ask, and wait for what they start: typed differently where nobody is there to answer.
fn typed(text: &str) -> String {
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

/// Commands that a page takes for granted, before one of its own.
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

/// Commands that say with their code what they found.
const CODES: &[(&str, &str, i32)] = &[("README", "homestak manifest validate --manifest-json", 1)];

fn run(page: &Path) {
    let father = Father::quick();
    let (commands, files) = guides_of::read(page);
    let name = page.file_stem().unwrap().to_string_lossy().into_owned();
    let here: Vec<_> = commands
        .iter()
        .filter(|command| command.place() == Where::Simulator)
        .collect();
    if here.is_empty() {
        return;
    }
    let work = father.site.work();
    // The site of a page that starts one is made by its own commands.
    let starts = here
        .iter()
        .any(|command| command.text.contains("site init lab"));
    let site = if starts { "lab" } else { "site" };
    let mut lines = Vec::new();
    for command in &here {
        for (page, start, before) in BEFORE {
            if *page == name && command.text.starts_with(start) {
                lines.push((0, (*before).to_owned()));
            }
        }
        lines.push((command.line, typed(&command.text)));
        if command.text.contains("site init lab") {
            for (path, body) in &files {
                let place = format!("lab/{path}");
                lines.push((0, format!("cat > {place} <<'END'\n{body}END")));
            }
        }
    }
    for (path, body) in files.iter().filter(|_| !starts) {
        let place = match path.contains('/') {
            // The host of the tests is served on a port of its own.
            true if path == "nodes/father.yaml" => continue,
            true => work.join("site").join(path),
            false => work.join(path),
        };
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, body).unwrap();
    }
    let program = std::path::PathBuf::from(father.site.command(&[]).get_program());
    let told = work.join("told");
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            &format!("exec 3>{}\n{}", told.display(), guides_of::script(&lines)),
        ])
        .current_dir(&work)
        .env_clear()
        .env("HOME", father.site.home())
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
    let said = String::from_utf8_lossy(&output.stderr);
    let codes = guides_of::codes(&std::fs::read_to_string(&told).unwrap());
    assert_eq!(codes.len(), lines.len(), "{name}: {said}");
    for ((line, code), (_, text)) in codes.into_iter().zip(&lines) {
        let expected = CODES
            .iter()
            .find(|(page, start, _)| *page == name && text.starts_with(start));
        let expected = expected.map_or(0, |known| known.2);
        assert_eq!(code, expected, "{name}.md:{line}: {text}\n{said}");
    }
    _ = father.run(&["sim", "stop"]);
}

#[test]
fn every_command_of_the_readme_and_the_guides_works_as_written() {
    for page in guides_of::pages() {
        run(&page);
    }
}

#[test]
fn commands_that_are_run_elsewhere_are_still_in_their_pages() {
    let all: Vec<_> = guides_of::pages()
        .iter()
        .flat_map(|page| guides_of::read(page).0)
        .collect();
    for (page, start, ..) in ELSEWHERE {
        let is_there = all
            .iter()
            .any(|command| command.page == *page && command.text.starts_with(start));
        assert!(is_there, "{page}.md has no command `{start}` any more");
    }
    assert!(all.len() > 60, "only {} commands were found", all.len());
}
