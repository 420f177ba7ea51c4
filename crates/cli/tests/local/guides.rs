//! Commands of the guides that need real nodes work as written.
//! `crates/test-support/src/guides.rs` lists them, and `it/guides.rs` runs all others.

use std::process::{Command, Stdio};

use crate::guide_commands::{self, RunBy};
use crate::program;
use crate::test_host::TestHost;

/// The spec of all nodes.
const SPEC: &str = "schema_version: 1\naccess: {posture: free, users: [{name: ops, sudo: true}]}\nconfig: {timezone: UTC}\n";
const POSTURE: &str =
    "ssh: {permit_root_login: \"no\", password_authentication: \"no\"}\nsudo: {nopasswd: true}\n";

/// Returns the commands of a page that are run here, each with the number of its line.
fn commands(page: &str) -> Vec<(usize, String)> {
    let path = guide_commands::pages().into_iter();
    let path = path.filter(|path| path.file_stem().unwrap() == page);
    let commands = path.flat_map(|path| guide_commands::read(&path).0);
    let selected = commands.filter(|command| command.run_by() == RunBy::Nodes);
    selected
        .map(|command| (command.line, command.text))
        .collect()
}

fn host_with_manifests() -> Option<TestHost> {
    let host = crate::host()?;
    host.write("specs/base.yaml", SPEC);
    host.write("postures/free.yaml", POSTURE);
    let names = ["web", "db", "worker-1"];
    let nodes = names.map(|name| format!("  - {{name: {name}, spec: base}}\n"));
    host.manifest("cluster", &nodes.concat());
    host.manifest("workers", "  - {name: worker-1, spec: base}\n");
    Some(host)
}

/// Runs commands in a shell that has the programs in its `PATH`.
fn run_all(host: &TestHost, page: &str, lines: &[(usize, String)]) {
    let asks = ["manifest destroy", "local clean"];
    let lines: Vec<(usize, String)> = lines
        .iter()
        .map(|(at, text)| {
            let yes = asks.iter().any(|words| text.contains(words));
            (*at, format!("{text}{}", if yes { " --yes" } else { "" }))
        })
        .collect();
    let codes_file = host.state().with_file_name("codes");
    let environment = host.command(&[]);
    let environment = environment.get_envs();
    let path = format!(
        "{}:/usr/sbin:/usr/bin:/bin",
        program().parent().unwrap().display()
    );
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
        .env_clear()
        .envs(environment.filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", path)
        .current_dir(host.state().parent().unwrap())
        .stdin(Stdio::null());
    let output = shell.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let codes = guide_commands::codes(&std::fs::read_to_string(&codes_file).unwrap());
    assert_eq!(codes.len(), lines.len(), "{page}: {stderr}");
    for ((at, code), (_, text)) in codes.into_iter().zip(&lines) {
        assert_eq!(code, 0, "{page}.md:{at}: {text}\n{stderr}");
    }
}

#[test]
fn the_commands_of_the_guides_to_nodes_and_images_work_as_written() {
    let Some(host) = host_with_manifests() else {
        return;
    };
    host.apply("cluster");
    run_all(&host, "images", &commands("images"));
    run_all(&host, "nodes", &commands("nodes"));
    host.destroy("cluster");
    host.assert_unchanged();
}

#[test]
fn the_commands_of_the_local_guide_work_as_written() {
    let Some(host) = host_with_manifests() else {
        return;
    };
    let lines = commands("local");
    assert!(lines.len() > 6, "{lines:?}");
    run_all(&host, "local", &lines);
    host.assert_unchanged();
}

#[test]
fn the_commands_of_the_guides_to_converging_and_drift_work_on_a_node() {
    let Some(host) = host_with_manifests() else {
        return;
    };
    host.apply("workers");
    host.inside(
        "worker-1",
        "sudo cp /usr/local/etc/homestak/state/spec.yaml spec.yaml && sudo chmod 644 spec.yaml",
    )
    .good();
    for page in ["converge", "drift"] {
        let lines = commands(page);
        assert!(lines.len() > 2, "{page}: {lines:?}");
        for (at, line) in lines {
            let line = line.trim_start_matches("sudo ");
            let run = host.inside("worker-1", &format!("sudo {line}"));
            assert_eq!(
                run.code, 0,
                "{page}.md:{at}: {line}\n{}{}",
                run.out, run.err
            );
        }
    }
    host.destroy("workers");
    host.assert_unchanged();
}
