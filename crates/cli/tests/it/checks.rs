//! Checks before any change, examples of the stock site, and shell completion.

use crate::support::TestEnv;
use crate::test_pve::TestPve;

#[test]
fn site_init_suggests_an_absolute_path() {
    let env = TestEnv::without_site();
    let run = env.run(&["site", "init", "lab"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let path = env.work().join("lab").display().to_string();
    let line = format!("export HOMESTAK_SITE_CONFIG={path} ");
    assert!(run.err.contains(&line), "{}", run.err);
}

#[test]
fn the_secrets_example_is_valid_when_uncommented() {
    let env = TestEnv::new();
    let example = std::fs::read_to_string(env.site().join("secrets.yaml.example")).unwrap();
    assert!(!example.contains("root@pam"), "{example}");
    let mut lines = example.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("# Copy to"), "{first}");
    let uncommented: Vec<&str> = lines
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .collect();
    env.secrets(&uncommented.join("\n"));
    let run = env.on_site(&["site", "validate"]);
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
}

#[test]
fn preflight_reports_a_fixed_address_outside_the_local_network() {
    let env = TestEnv::new();
    let root = env.work().join("local");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("network.json"), "{\"base\":\"10.77.0.0\"}").unwrap();
    env.write(
        "manifests/fixed.yaml",
        "schema_version: 2\nname: fixed\nnodes:\n  - {name: good, ip: 10.77.0.9}\n  - {name: bad, ip: 198.51.100.7}\n  - {name: own, ip: 10.77.0.1}\n",
    );
    let run = env
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
    let env = TestEnv::new();
    let sim = |arguments: &[&str]| {
        let mut command = env.command(arguments);
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
    let script = env.run(&["completions", "bash"]).good();
    let path = env.work().join("completions.bash");
    std::fs::write(&path, script).unwrap();
    let program = env.command(&[]).get_program().to_owned();
    let directory = std::path::Path::new(&program).parent().unwrap().to_owned();
    let complete = |words: &str| {
        let line = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _homestak_names homestak \"${{COMP_WORDS[COMP_CWORD]}}\" x; printf '%s ' \"${{COMPREPLY[@]}}\"",
            path.display()
        );
        let mut shell = std::process::Command::new("bash");
        shell
            .args(["-c", &line])
            .current_dir(env.work())
            .env_clear();
        shell
            .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
            .env("HOME", env.home())
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
    // Other words are completed by the generated script.
    assert!(complete("homestak manif").contains("manifest"));
}

#[test]
fn encrypting_only_for_others_warns_that_it_cannot_be_opened_here() {
    let env = TestEnv::new();
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let run = env.on_site(&["secrets", "encrypt", "-r", recipient]);
    assert!(
        run.err.contains("none of your keys can decrypt it"),
        "{}",
        run.err
    );
    let own = env.on_site(&["secrets", "keygen"]);
    let run = env.on_site(&["secrets", "encrypt"]);
    assert!(
        !run.err.contains("none of your keys"),
        "{}{}",
        own.err,
        run.err
    );
    env.on_site(&["secrets", "check"]).good();
}

#[test]
fn changes_and_deletions_need_no_storage_for_images() {
    let host = TestPve::quick();
    let sized = |disk: u32| {
        host.env.write(
            "presets/own.yaml",
            &format!("cores: 1\nmemory: 1024\ndisk: {disk}\n"),
        );
    };
    sized(10);
    host.manifest(
        "single-node",
        "",
        "  - {name: test-vm, preset: own, image: debian-12}\n",
    );
    let on = ["-M", "single-node", "-H", "father"];
    let run = |verb: &[&str]| host.run(&[&["manifest"], verb, &on[..]].concat());
    run(&["apply"]).good();
    host.pve.set_content("local", &["images"]);
    sized(20);
    // For all kinds of runs, the host lacks something.
    let host_check = host.run(&["host", "preflight", "father"]);
    assert_eq!(host_check.code, 1, "{}", host_check.out);
    let changed = run(&["apply"]);
    assert_eq!(changed.code, 0, "{}", changed.err);
    assert!(changed.err.contains("disk grown"), "{}", changed.err);
    let destroyed = run(&["destroy", "--yes"]);
    assert_eq!(destroyed.code, 0, "{}", destroyed.err);
    assert!(host.guests().is_empty());
    // Creating it needs them.
    let created = run(&["apply"]);
    assert_eq!(created.code, 3, "{}", created.err);
    assert!(
        created.err.contains("does not allow content"),
        "{}",
        created.err
    );
}

#[test]
fn a_disk_that_cannot_grow_is_warned_of_and_a_guest_that_cannot_fit_is_refused_before_any_change() {
    let host = TestPve::quick();
    let sized = |disk: u32| {
        host.env.write(
            "presets/own.yaml",
            &format!("cores: 1\nmemory: 1024\ndisk: {disk}\n"),
        );
    };
    host.manifest(
        "pair",
        "",
        "  - {name: one, preset: vm-small, image: debian-12}\n  - {name: two, preset: own, image: debian-12}\n",
    );
    let on = ["-M", "pair", "-H", "father"];
    let run = || host.run(&[&["manifest", "apply"], &on[..]].concat());
    sized(4000);
    let refused = run();
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("needs 4000.0 GiB"), "{}", refused.err);
    assert!(host.guests().is_empty(), "nothing was created");
    sized(10);
    let created = run();
    assert_eq!(created.code, 0, "{}", created.err);
    sized(4000);
    let grown = run();
    assert!(grown.err.contains("may be needed"), "{}", grown.err);
}

#[test]
fn a_host_that_names_no_machine_is_checked_on_the_machine_of_its_guests() {
    let host = TestPve::quick();
    let file = host.env.site().join("nodes/father.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let unnamed = text.replace("node: pve1\n", "");
    host.env.write("nodes/father.yaml", &unnamed);
    host.single();
    for verb in ["apply", "destroy"] {
        let run = host.run(&[
            "manifest",
            verb,
            "-M",
            "single-node",
            "-H",
            "father",
            "--yes",
        ]);
        assert_eq!(run.code, 0, "{verb}: {}{}", run.out, run.err);
    }
}

#[test]
fn preflight_refuses_more_memory_than_the_host_has_for_a_node_that_exists() {
    let host = TestPve::quick();
    host.manifest(
        "odd",
        "",
        "  - {name: odd, preset: odd, image: debian-12}\n",
    );
    for (memory, code) in [(1024, 0), (16 << 20, 3)] {
        let preset = format!("cores: 1\nmemory: {memory}\ndisk: 10\n");
        host.env.write("presets/odd.yaml", &preset);
        let run = host.run(&["manifest", "apply", "-M", "odd", "-H", "father", "--yes"]);
        assert_eq!(run.code, code, "{memory}: {}{}", run.out, run.err);
        let is_too_large = run.err.contains("of memory, but the guest needs");
        assert_eq!(is_too_large, code == 3, "{}", run.err);
    }
}
