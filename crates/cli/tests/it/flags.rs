//! Global flags, exit codes, and where output goes.

use crate::support::TestEnv;

#[test]
fn global_flags_work_before_and_after_the_command_words() {
    let env = TestEnv::new();
    let before = env.run(&[
        "--site",
        "site",
        "--json-output",
        "--no-color",
        "-v",
        "manifest",
        "list",
    ]);
    let between = env.run(&[
        "manifest",
        "--site",
        "site",
        "--json-output",
        "-v",
        "list",
        "--no-color",
    ]);
    let after = env.run(&[
        "manifest",
        "list",
        "--site",
        "site",
        "--json-output",
        "--no-color",
        "-v",
    ]);
    assert_eq!(before.out, after.out);
    assert_eq!(before.out, between.out);
    assert!(before.err.contains("site: site (--site)"), "{}", before.err);
    before.json();
}

#[test]
fn every_command_with_json_output_prints_one_json_document_on_stdout() {
    let env = TestEnv::new();
    let token = env.on_site(&["token", "mint", "edge", "base"]).good();
    let commands: &[&[&str]] = &[
        &["manifest", "list"],
        &["manifest", "show", "n2-mixed", "--origin"],
        &["manifest", "validate"],
        &["manifest", "graph", "n1-push"],
        &["spec", "list"],
        &["spec", "show", "base", "--origin"],
        &["spec", "validate"],
        &["site", "show"],
        &["site", "validate"],
        &["resolve", "tofu", "-M", "n1-push", "-H", "father"],
        &["resolve", "ansible"],
        &["token", "mint", "edge", "base"],
        &["token", "inspect", token.trim()],
        &["token", "verify", token.trim()],
        &["secrets", "get", "passwords.vm_root"],
        &["schema"],
        &["schema", "spec"],
        &["explain"],
        &["explain", "SK0402"],
    ];
    for arguments in commands {
        let mut arguments = arguments.to_vec();
        arguments.push("--json-output");
        env.on_site(&arguments).json();
    }
}

#[test]
fn failures_are_json_too_and_messages_stay_on_stderr() {
    let env = TestEnv::new();
    let run = env.on_site(&["manifest", "show", "n1-psh", "--json-output"]);
    assert_eq!(run.code, 1);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["success"], false);
    assert_eq!(json["error"]["hints"][0], "did you mean `n1-push`?");
    assert!(run.err.contains("did you mean"));
    env.write(
        "manifests/bad.yaml",
        "schema_version: 2\nname: bad\nnodes: [{name: a, spec: bsae}]\n",
    );
    let run = env.on_site(&["manifest", "validate", "bad", "--json-output"]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &json["success"]), (1, &false.into()));
    let fault = &json["diagnostics"][0];
    assert_eq!(
        (&fault["code"], &fault["line"], &fault["column"]),
        (&"SK0301".into(), &3.into(), &25.into())
    );
}

#[test]
fn exit_codes_are_as_documented() {
    let env = TestEnv::new();
    env.write(
        "manifests/bad.yaml",
        "schema_version: 2\nname: bad\nnodes: []\n",
    );
    let codes = [
        (vec!["site", "validate"], 1),
        (vec!["manifest", "validate", "n1-push"], 0),
        (vec!["manifest", "validate", "-M", "bad"], 1),
        (vec!["manifest", "show", "nowhere"], 1),
        (vec!["manifest", "show"], 2),
        (vec!["manifest"], 2),
        (vec!["frobnicate"], 2),
        (vec!["manifest", "show", "--frobnicate"], 2),
        (vec!["--version"], 0),
        (vec!["--help"], 0),
        (vec![], 0),
    ];
    for (arguments, code) in codes {
        assert_eq!(env.on_site(&arguments).code, code, "{arguments:?}");
    }
}

#[test]
fn output_to_a_pipe_has_no_colour() {
    let env = TestEnv::new();
    env.write("manifests/bad.yaml", "nodes: []\n");
    let run = env.on_site(&["site", "validate"]);
    assert!(!run.err.contains('\u{1b}') && !run.out.contains('\u{1b}'));
}

#[test]
fn the_state_directory_can_be_set() {
    let env = TestEnv::new();
    let mut command = env.command(&["site", "show", "--json-output"]);
    let run = command
        .env("HOMESTAK_STATE", "/somewhere/else")
        .output()
        .map(crate::support::Run::from)
        .unwrap();
    assert_eq!(run.json()["state"], "/somewhere/else");
    let json = env.run(&["site", "show", "--json-output"]).json();
    assert_eq!(
        json["state"],
        env.home().join(".local/state/homestak").to_str().unwrap()
    );
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let env = TestEnv::new();
    let line = format!("{} schema | head -c 10", env!("CARGO_BIN_EXE_homestak"));
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg(line)
        .current_dir(env.work())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_earlier_spelling_of_a_flag_works_with_a_notice() {
    let env = TestEnv::new();
    let run = env.on_site(&["manifest", "resume", "n1-push", "--from", "edge"]);
    let notice = "notice: `--from` is now `--mark-resolved`";
    assert!(run.err.contains(notice), "{}", run.err);
    let help = env.run(&["manifest", "resume", "--help"]).good();
    assert!(help.contains("--mark-resolved") && !help.contains("--from"));
    let run = env.on_site(&["resolve", "ansible", "--compat", "seed"]);
    let notice = "notice: `--compat seed` is now `--compat legacy`";
    assert!(run.err.contains(notice), "{}", run.err);
    assert!(run.good().contains("\"env_name\""));
    let help = env.run(&["resolve", "ansible", "--help"]).good();
    assert!(help.contains("legacy") && !help.contains("seed"));
}
