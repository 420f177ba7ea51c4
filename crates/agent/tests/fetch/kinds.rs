//! Every kind of output of the agent is printed by a test, and so validated: by a call below, or by a
//! test that is named here because it needs a node.

use std::collections::BTreeSet;
use std::path::Path;

use homestak_api::v1::{OUTPUTS, Program};
use homestak_test_support::output;
use homestak_test_support::server::Server;

use super::{TOKEN, good, run, spec};

/// Kinds and commands. `FILE` is a spec, `OUT` a file to write, `SERVER` the options that name a server.
const HERE: &[(&str, &str)] = &[
    ("config.confirm", "config confirm"),
    ("config.fetch", "config fetch -o OUT -i web SERVER"),
    ("job", "job follow --id no-such"),
    ("spec.get", "spec get -o OUT -i web SERVER"),
    ("spec.validate", "spec validate FILE"),
];

/// Kinds that other tests print, with file and test.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "config.apply",
        "node/refused.rs",
        "specs_that_cannot_be_applied_are_refused_and_change_nothing",
    ),
    (
        "config.check",
        "node/refused.rs",
        "specs_that_cannot_be_applied_are_refused_and_change_nothing",
    ),
    (
        "config.show",
        "node/killed.rs",
        "a_run_killed_after_any_step_and_repeated_has_the_same_result",
    ),
    (
        "node-job",
        "node/node_job.rs",
        "updates_install_the_packages_of_their_scope_once_and_in_the_window_of_the_spec",
    ),
    (
        "pull",
        "node/pull.rs",
        "a_machine_configures_itself_from_its_first_boot_on_also_when_it_was_refused_for_a_while",
    ),
    (
        "run",
        "node/drift.rs",
        "changes_on_a_node_are_detected_and_corrected_reported_or_ignored",
    ),
    (
        "status",
        "node/job.rs",
        "a_job_continues_without_its_connection_and_runs_once",
    ),
];

#[test]
fn every_kind_is_printed_by_a_test() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (kind, file, test) in ELSEWHERE {
        let text = std::fs::read_to_string(tests.join(file)).unwrap();
        let has_test = text.contains(&format!("fn {test}()"));
        assert!(has_test, "{kind}: {file} has no test {test}");
    }
    let here = HERE.iter().map(|(kind, _)| *kind);
    let printed: Vec<&str> = here
        .chain(ELSEWHERE.iter().map(|(kind, ..)| *kind))
        .collect();
    let all = OUTPUTS.iter();
    let all = all.filter(|output| output.program == Program::Agent);
    let all: BTreeSet<&str> = all.map(|output| output.kind).collect();
    assert_eq!(printed.iter().copied().collect::<BTreeSet<_>>(), all);
    assert_eq!(printed.len(), all.len(), "a kind is listed twice");
}

#[test]
fn commands_that_need_no_node_print_their_kinds() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("spec.json"), spec("web")).unwrap();
    for (kind, line) in HERE {
        let server = Server::new(vec![good()]);
        let options = format!("-s {} --fingerprint {}", server.url(), server.fingerprint);
        let line = line
            .replace("SERVER", &options)
            .replace("OUT", &path("got.json"))
            .replace("FILE", &path("spec.json"));
        let words: Vec<&str> = line.split(' ').chain(["--json-output"]).collect();
        let run = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
        let kinds = output::kinds(&run.out);
        assert_eq!(kinds, [*kind], "{line}: {}\n{}", run.out, run.err);
    }
}
