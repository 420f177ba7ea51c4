//! Commands of the guides that need real nodes work as they are written.
//! `crates/test-support/src/guides.rs` says which ones, and `it/guides.rs` runs all others.

use std::process::{Command, Stdio};

use crate::bed::Bed;
use crate::guides_of::{self, Where};
use crate::program;

/// A spec that all nodes have.
const SPEC: &str = "schema_version: 1\naccess: {posture: free, users: [{name: ops, sudo: true}]}\nconfig: {timezone: UTC}\n";
const POSTURE: &str =
    "ssh: {permit_root_login: \"no\", password_authentication: \"no\"}\nsudo: {nopasswd: true}\n";

/// Returns the commands of a page that are run here, each with the number of its line.
fn commands(page: &str) -> Vec<(usize, String)> {
    let path = guides_of::pages().into_iter();
    let path = path.filter(|path| path.file_stem().unwrap() == page);
    let commands = path.flat_map(|path| guides_of::read(&path).0);
    let here = commands.filter(|command| command.place() == Where::Nodes);
    here.map(|command| (command.line, command.text)).collect()
}

fn lab() -> Option<Bed> {
    let bed = crate::new_bed()?;
    bed.write("specs/base.yaml", SPEC);
    bed.write("postures/free.yaml", POSTURE);
    let names = ["web", "db", "worker-1"];
    let nodes = names.map(|name| format!("  - {{name: {name}, spec: base}}\n"));
    bed.manifest("cluster", &nodes.concat());
    bed.manifest("workers", "  - {name: worker-1, spec: base}\n");
    Some(bed)
}

/// Types commands where the project's programs are found by their names.
fn type_all(bed: &Bed, page: &str, lines: &[(usize, String)]) {
    let asks = ["manifest destroy", "local clean"];
    let lines: Vec<(usize, String)> = lines
        .iter()
        .map(|(at, text)| {
            let yes = asks.iter().any(|words| text.contains(words));
            (*at, format!("{text}{}", if yes { " --yes" } else { "" }))
        })
        .collect();
    let told = bed.state().with_file_name("told");
    let environment = bed.command(&[]);
    let environment = environment.get_envs();
    let path = format!(
        "{}:/usr/sbin:/usr/bin:/bin",
        program().parent().unwrap().display()
    );
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            &format!("exec 3>{}\n{}", told.display(), guides_of::script(&lines)),
        ])
        .env_clear()
        .envs(environment.filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", path)
        .current_dir(bed.state().parent().unwrap())
        .stdin(Stdio::null());
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let codes = guides_of::codes(&std::fs::read_to_string(&told).unwrap());
    assert_eq!(codes.len(), lines.len(), "{page}: {said}");
    for ((at, code), (_, text)) in codes.into_iter().zip(&lines) {
        assert_eq!(code, 0, "{page}.md:{at}: {text}\n{said}");
    }
}

#[test]
fn the_commands_of_the_guides_to_nodes_and_images_work_as_written() {
    let Some(bed) = lab() else { return };
    bed.apply("cluster");
    type_all(&bed, "images", &commands("images"));
    type_all(&bed, "nodes", &commands("nodes"));
    bed.destroy("cluster");
    bed.is_as_before();
}

#[test]
fn the_commands_of_the_guide_to_this_machine_work_as_written() {
    let Some(bed) = lab() else { return };
    let lines = commands("local");
    assert!(lines.len() > 6, "{lines:?}");
    type_all(&bed, "local", &lines);
    bed.is_as_before();
}

#[test]
fn the_commands_of_the_guides_to_converging_and_drift_work_on_a_node() {
    let Some(bed) = lab() else { return };
    bed.apply("workers");
    bed.inside(
        "worker-1",
        "sudo cp /usr/local/etc/homestak/state/spec.yaml spec.yaml && sudo chmod 644 spec.yaml",
    )
    .good();
    for page in ["converge", "drift"] {
        let lines = commands(page);
        assert!(lines.len() > 2, "{page}: {lines:?}");
        for (at, line) in lines {
            let line = line.trim_start_matches("sudo ");
            let run = bed.inside("worker-1", &format!("sudo {line}"));
            assert_eq!(
                run.code, 0,
                "{page}.md:{at}: {line}\n{}{}",
                run.out, run.err
            );
        }
    }
    bed.destroy("workers");
    bed.is_as_before();
}
