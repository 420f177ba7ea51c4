//! The first screen of the README, as a new user types it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::bed::{Bed, Run};
use crate::program;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a line of the shell where the project is, with the stock site and without a terminal. The
/// programs of this very build stand where `run.sh` would put those that it builds.
fn typed(bed: &Bed, line: &str) -> Run {
    let built = bed.state().with_file_name("built");
    let release = built.join("release");
    if !release.exists() {
        std::fs::create_dir_all(&release).unwrap();
        for name in ["homestak", "homestak-agent"] {
            std::fs::copy(program().with_file_name(name), release.join(name)).unwrap();
        }
    }
    let environment = bed.command(&[]);
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

/// Returns the first command of the README, for someone who is root and sure.
fn first_command() -> String {
    let readme = std::fs::read_to_string(project().join("README.md")).unwrap();
    let line = readme.lines().find(|line| line.contains("./run.sh"));
    let line = line.unwrap().trim_start_matches("sudo ");
    let line = line.split('#').next().unwrap().trim();
    format!("{line} --yes")
}

#[test]
fn st_6_the_first_command_of_the_readme_makes_configures_checks_and_removes_three_machines() {
    let Some(bed) = crate::new_bed() else { return };
    let line = first_command();
    assert!(line.contains("manifest test -M workers -H local --setup"));
    let run = typed(&bed, &line);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let said = format!("{}{}", run.out, run.err);
    for node in ["worker-1", "worker-2", "worker-3"] {
        let verified = format!("verified: {node}: guest");
        assert!(said.contains(&verified), "{said}");
    }
    assert_eq!(said.matches("and matches its spec `base`").count(), 3);
    for phase in ["create   passed", "verify   passed", "destroy  passed"] {
        assert!(said.contains(phase), "{said}");
    }
    bed.is_as_before();
}

#[test]
fn st_2_and_st_8_a_machine_is_created_and_destroyed_twice_by_the_older_verbs() {
    let Some(bed) = crate::new_bed() else { return };
    let create = "./run.sh create -M n1-push -H local --yes";
    let destroy = "./run.sh destroy -M n1-push -H local --yes";
    let first = typed(&bed, create);
    assert_eq!(first.code, 0, "{}", first.err);
    assert!(first.err.contains("manifest apply"), "{}", first.err);
    let nodes = bed.nodes();
    assert_eq!(nodes.len(), 1);
    let ready = "test -s /usr/local/etc/homestak/state/config-complete.json && command -v htop && command -v curl";
    let ready = format!("./run.sh exec edge -- sudo sh -c '{ready}'");
    typed(&bed, &ready).good();

    let again = typed(&bed, create);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    assert_eq!(bed.nodes(), nodes);
    typed(&bed, "./run.sh spec diff edge").good();

    typed(&bed, destroy).good();
    assert!(bed.nodes().is_empty());
    typed(&bed, destroy).good();
    bed.is_as_before();
}
