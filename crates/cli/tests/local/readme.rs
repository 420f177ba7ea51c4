//! The first commands of the README, as a new user runs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::program;
use crate::test_host::{Run, TestHost};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a shell line in the repository, with the stock site and without a terminal. The programs of
/// this build are placed where `run.sh` would build them.
fn run_line(host: &TestHost, line: &str) -> Run {
    let built = host.state().with_file_name("built");
    let release = built.join("release");
    if !release.exists() {
        std::fs::create_dir_all(&release).unwrap();
        for name in ["homestak", "homestak-agent"] {
            std::fs::copy(program().with_file_name(name), release.join(name)).unwrap();
        }
    }
    let environment = host.command(&[]);
    let environment = environment.get_envs();
    let mut shell = std::process::Command::new("bash");
    shell
        .env_clear()
        .envs(environment.filter_map(|(name, value)| Some((name, value?))))
        .env_remove("HOMESTAK_SITE_CONFIG")
        .env("CARGO_TARGET_DIR", built)
        .args(["-c", line])
        .current_dir(project())
        .stdin(Stdio::null());
    shell.output().map(Run::from).unwrap()
}

/// Returns the first commands of the README, without `sudo` and with `--yes`.
fn first_commands() -> [String; 2] {
    let readme = std::fs::read_to_string(project().join("README.md")).unwrap();
    let mut lines = readme.lines().filter(|line| line.contains("./run.sh"));
    [(); 2].map(|()| {
        let line = lines.next().unwrap().trim_start_matches("sudo ");
        let line = line.split('#').next().unwrap().trim();
        format!("{line} --yes")
    })
}

#[test]
fn st_6_the_first_command_of_the_readme_creates_configures_verifies_and_destroys_three_machines() {
    let Some(host) = crate::host() else { return };
    let [line, _] = first_commands();
    assert!(line.contains("manifest test -M workers -H local --setup"));
    let run = run_line(&host, &line);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let output = format!("{}{}", run.out, run.err);
    for node in ["worker-1", "worker-2", "worker-3"] {
        let verified = format!("verified: {node}: guest");
        assert!(output.contains(&verified), "{output}");
    }
    assert_eq!(output.matches("and matches its spec `base`").count(), 3);
    for phase in ["create   passed", "verify   passed", "destroy  passed"] {
        assert!(output.contains(phase), "{output}");
    }
    host.assert_unchanged();
}

#[test]
fn st_1_the_second_command_of_the_readme_tests_a_machine_that_configures_itself() {
    let Some(host) = crate::host() else { return };
    let [_, line] = first_commands();
    assert!(line.contains("manifest test -M n1-pull -H local"));
    let run = run_line(&host, &line);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let output = format!("{}{}", run.out, run.err);
    for part in [
        "edge: fetch its spec",
        "edge: configured",
        "and matches its spec `base`",
        "verify   passed",
        "destroy  passed",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    crate::pull::server_has_ended(&host);
    host.assert_unchanged();
}

#[test]
fn st_2_and_st_8_a_machine_is_created_and_destroyed_twice_by_the_older_verbs() {
    let Some(host) = crate::host() else { return };
    let create = "./run.sh create -M n1-push -H local --yes";
    let destroy = "./run.sh destroy -M n1-push -H local --yes";
    let first = run_line(&host, create);
    assert_eq!(first.code, 0, "{}", first.err);
    assert!(first.err.contains("manifest apply"), "{}", first.err);
    let nodes = host.nodes();
    assert_eq!(nodes.len(), 1);
    let ready = "test -s /usr/local/etc/homestak/state/config-complete.json && command -v htop && command -v curl";
    let ready = format!("./run.sh exec edge -- sudo sh -c '{ready}'");
    run_line(&host, &ready).good();

    let again = run_line(&host, create);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    assert_eq!(host.nodes(), nodes);
    run_line(&host, "./run.sh spec diff edge").good();

    run_line(&host, destroy).good();
    assert!(host.nodes().is_empty());
    run_line(&host, destroy).good();
    host.assert_unchanged();
}
