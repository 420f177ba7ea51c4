//! What is found before anything is changed, and examples that hold.

use crate::support::World;

#[test]
fn the_site_that_is_suggested_holds_in_every_directory() {
    let world = World::bare();
    let run = world.run(&["site", "init", "lab"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let place = world.work().join("lab").display().to_string();
    let line = format!("export HOMESTAK_SITE_CONFIG={place} ");
    assert!(run.err.contains(&line), "{}", run.err);
}

#[test]
fn the_examples_of_secrets_are_valid_when_they_are_uncommented() {
    let world = World::new();
    let example = std::fs::read_to_string(world.site().join("secrets.yaml.example")).unwrap();
    assert!(!example.contains("root@pam"), "{example}");
    let mut lines = example.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("# Copy to"), "{first}");
    let uncommented: Vec<&str> = lines
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .collect();
    world.secrets(&uncommented.join("\n"));
    let run = world.on_site(&["site", "validate"]);
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
}

#[test]
fn a_fixed_address_outside_the_local_network_is_found_by_preflight() {
    let world = World::new();
    let root = world.work().join("local");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("network.json"), "{\"base\":\"10.77.0.0\"}").unwrap();
    world.write(
        "manifests/fixed.yaml",
        "schema_version: 2\nname: fixed\nnodes:\n  - {name: good, ip: 10.77.0.9}\n  - {name: bad, ip: 198.51.100.7}\n  - {name: own, ip: 10.77.0.1}\n",
    );
    let run = world
        .command(&["host", "preflight", "local", "-M", "fixed", "--json-output"])
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_LOCAL_ROOT", &root)
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let about: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["check"] == "addresses")
        .map(|finding| finding["detail"].as_str().unwrap())
        .collect();
    assert_eq!(
        about,
        [
            "`bad` cannot have 198.51.100.7: the network of the local host is 10.77.0.0/20, with 10.77.0.1 as gateway",
            "`own` cannot have 10.77.0.1: the network of the local host is 10.77.0.0/20, with 10.77.0.1 as gateway",
        ]
    );
    assert_eq!(run.status.code(), Some(1));
}

#[test]
fn bash_completes_names_of_manifests_hosts_and_nodes() {
    let world = World::new();
    let sim = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_SIM_SPEED", "200");
        command
            .output()
            .map(crate::support::Run::from)
            .unwrap()
            .good()
    };
    sim(&["manifest", "apply", "-M", "n1-push", "-H", "sim"]);
    sim(&["sim", "stop"]);
    let script = world.run(&["completions", "bash"]).good();
    let path = world.work().join("completions.bash");
    std::fs::write(&path, script).unwrap();
    let program = world.command(&[]).get_program().to_owned();
    let directory = std::path::Path::new(&program).parent().unwrap().to_owned();
    let complete = |words: &str| {
        let line = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _homestak_names homestak \"${{COMP_WORDS[COMP_CWORD]}}\" x; printf '%s ' \"${{COMPREPLY[@]}}\"",
            path.display()
        );
        let mut shell = std::process::Command::new("bash");
        shell
            .args(["-c", &line])
            .current_dir(world.work())
            .env_clear();
        shell
            .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
            .env("HOME", world.home())
            .env("HOMESTAK_SITE_CONFIG", "site");
        shell
            .output()
            .map(crate::support::Run::from)
            .unwrap()
            .good()
    };
    assert_eq!(
        complete("homestak manifest plan -M n1-"),
        "n1-pull n1-push "
    );
    assert_eq!(
        complete("homestak manifest plan -M n1-push -H fa"),
        "father "
    );
    assert_eq!(complete("homestak ssh ''"), "edge ");
    assert_eq!(complete("homestak host show ''"), "father local sim ");
    // Everything else is as before.
    assert!(complete("homestak manif").contains("manifest"));
}

#[test]
fn sealing_for_others_alone_warns_that_it_cannot_be_opened_here() {
    let world = World::new();
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let run = world.on_site(&["secrets", "encrypt", "-r", recipient]);
    assert!(
        run.err.contains("none of your keys can open it"),
        "{}",
        run.err
    );
    let own = world.on_site(&["secrets", "keygen"]);
    let run = world.on_site(&["secrets", "encrypt"]);
    assert!(
        !run.err.contains("none of your keys"),
        "{}{}",
        own.err,
        run.err
    );
    world.on_site(&["secrets", "check"]).good();
}
