//! Messages and exit codes that new users of the program depend on.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs the program with an accelerated simulator.
fn on_sim(env: &TestEnv, line: &str) -> Run {
    let mut command = env.command(&words(line));
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    Run::of(&mut command)
}

#[test]
fn a_command_whose_output_cannot_be_written_fails() {
    let env = TestEnv::new();
    for line in [
        "manifest list",
        "manifest list --json-output",
        "--help",
        "manifest --help",
    ] {
        let mut command = env.command(&words(line));
        command.stdout(File::create("/dev/full").unwrap());
        let run = command.stderr(Stdio::piped()).output().map(Run::from);
        let run = run.unwrap();
        assert_eq!(run.code, 1, "{line}: {}", run.err);
        assert!(run.err.contains("Cannot write the output"), "{}", run.err);
    }
}

#[test]
fn output_to_a_closed_pipe_is_no_error() {
    let env = TestEnv::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let run = env.command(&["manifest", "list"]).stdout(writer).output();
    let run = run.map(Run::from).unwrap();
    assert_eq!((run.code, run.err.as_str()), (0, ""));
}

#[test]
fn apply_and_destroy_without_a_host_are_refused_and_name_the_recorded_hosts() {
    let host = TestPve::quick();
    host.workers(1, "");
    host.run(&words("manifest apply -M workers -H father"))
        .good();
    let refused = host.run(&words("manifest apply -M workers --yes"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("pass -H father"), "{}", refused.err);
    let refused = host.run(&words("manifest destroy -M workers --yes"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("no host is set"), "{}", refused.err);
    assert!(refused.err.contains("pass -H father"), "{}", refused.err);
    let notice = "`workers` has nodes on `father`, which this plan does not include: `worker-1`";
    assert!(refused.err.contains(notice), "{}", refused.err);
    assert_eq!(host.guests(), ["worker-1"]);
}

#[test]
fn status_reports_no_hosts_outside_a_plan() {
    let host = TestPve::cluster();
    host.workers(1, "");
    for name in ["father", "mother"] {
        host.run(&["manifest", "apply", "-M", "workers", "-H", name])
            .good();
    }
    let status = host.run(&words("manifest status -M workers"));
    assert!(!status.err.contains("plan"), "{}", status.err);
}

#[test]
fn status_of_a_failed_run_names_resume_and_apply() {
    let host = TestPve::quick();
    host.env.write("images/nowhere.yaml", "name: nowhere\n");
    let node = "  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n";
    host.manifest("half", "", node);
    let failed = host.run(&words("manifest apply -M half -H father --skip-preflight"));
    assert_eq!(failed.code, 1, "{}", failed.err);
    let status = host.run(&words("manifest status -M half"));
    for command in ["resume", "apply"] {
        let command = format!("homestak manifest {command} -M half -H father");
        assert!(status.err.contains(&command), "{}", status.err);
    }
}

#[test]
fn specs_of_simulated_nodes_are_reported_as_not_applied() {
    let env = TestEnv::new();
    let plan = on_sim(&env, "manifest plan -M n1-push -H sim").good();
    let line = "simulated: the spec of 1 node is not applied";
    assert!(plan.contains(line), "{plan}");
    on_sim(&env, "manifest apply -M n1-push -H sim").good();
    let status = on_sim(&env, "manifest status -M n1-push").good();
    assert!(status.contains("running  simulated"), "{status}");
    let json = on_sim(&env, "manifest status -M n1-push --json-output").json();
    assert_eq!(json["runs"][0]["nodes"][0]["differs"], Value::Null);
    on_sim(&env, "sim stop").good();
}

#[test]
fn usage_errors_are_printed_as_json_on_request() {
    let env = TestEnv::new();
    for (line, message) in [
        ("manifest plan --nope --json-output", "'--nope'"),
        ("manifest plan -M x --depth 0 --json-output", "--depth"),
        ("manifest --json-output", "requires a subcommand"),
    ] {
        let run = env.run(&words(line));
        assert_eq!(run.code, 2, "{line}: {}", run.err);
        let json: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(json["kind"], "error", "{json}");
        assert_eq!(json["error"]["kind"], "usage", "{json}");
        let text = json["error"]["message"].as_str().unwrap();
        assert!(text.contains(message), "{text}");
        assert!(!run.err.is_empty(), "{line}");
    }
}

#[test]
fn a_missing_plan_file_is_named_as_a_file() {
    let env = TestEnv::new();
    let run = env.on_site(&["manifest", "apply", "nofile.json"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let hint = "there is no file `nofile.json` either";
    assert!(run.err.contains(hint), "{}", run.err);
}

#[test]
fn without_a_terminal_the_command_that_confirms_is_printed() {
    let host = TestPve::quick();
    host.workers(1, "");
    host.run(&words("manifest apply -M workers -H father"))
        .good();
    let line = "manifest destroy -M workers -H father --on-error continue";
    let refused = host.run(&words(line));
    assert_eq!(refused.code, 3, "{}", refused.err);
    let hint = format!("to confirm: homestak {line} --yes");
    assert!(refused.err.contains(&hint), "{}", refused.err);
}

#[test]
fn an_interrupt_at_the_question_changes_nothing_and_reports_so() {
    let host = TestPve::quick();
    host.workers(1, "");
    host.run(&words("manifest apply -M workers -H father"))
        .good();
    let program = host.command(&[]);
    let line = format!(
        "{} manifest destroy -M workers -H father",
        program.get_program().to_str().unwrap()
    );
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env_clear();
    let variables = program.get_envs();
    script.envs(variables.filter_map(|(key, value)| Some((key, value?))));
    script.env("SHELL", "/bin/sh").current_dir(host.env.work());
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut text, mut bytes) = (String::new(), [0; 1024]);
    let mut interrupted = false;
    while let Ok(read @ 1..) = output.read(&mut bytes) {
        text += &String::from_utf8_lossy(&bytes[..read]);
        if text.contains("[y/N]") && !std::mem::replace(&mut interrupted, true) {
            input.write_all(b"\x03").unwrap();
        }
    }
    child.wait().unwrap();
    assert!(text.contains("Interrupted. Nothing was changed."), "{text}");
    assert_eq!(host.guests(), ["worker-1"]);
}

#[test]
fn explain_lists_all_codes_in_order_for_an_unknown_one() {
    let env = TestEnv::new();
    let err = env.run(&["explain", "foo"]).bad();
    let codes: Vec<&str> = err
        .lines()
        .filter(|line| line.starts_with("  SK"))
        .collect();
    assert!(codes.len() > 20, "{err}");
    assert!(codes.is_sorted(), "{err}");
}

#[test]
fn an_invalid_site_file_causes_no_notices_about_defaults() {
    let env = TestEnv::new();
    env.write(
        "manifests/lab.yaml",
        "schema_version: 2\nname: lab\nnodes:\n  - {name: web, preset: vm-small}\n",
    );
    env.write("site.yaml", "schema_version: 2\ndefaults: [\n");
    let run = env.on_site(&["manifest", "validate", "-M", "lab"]);
    assert!(!run.err.contains("sets no image"), "{}", run.err);
    env.write("site.yaml", "schema_version: 2\n");
    let run = env.on_site(&["manifest", "validate", "-M", "lab"]);
    assert!(run.err.contains("sets no image"), "{}", run.err);
}
