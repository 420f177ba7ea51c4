//! Every kind of `--json-output` is printed by a test, and so validated: by a call below, or by a test
//! that is named here because it needs nodes or more preparation.

use std::collections::BTreeSet;
use std::path::Path;

use homestak_api::v1::{OUTPUTS, Program};
use homestak_test_support::output;

use crate::server::Site;
use crate::support::{Run, TestEnv};

/// Kinds and commands on a site, in order.
const ON_SITE: &[(&str, &str)] = &[
    ("site.init", "site init other"),
    ("site.show", "site show"),
    ("site.new-id", "site new-id --yes"),
    ("site.validate", "site validate"),
    ("error", "manifest show nowhere"),
    ("explain", "explain SK0301"),
    ("schema", "schema --out schemas"),
    ("host.list", "host list"),
    ("host.role", "host role father"),
    ("host.show", "host show father --offline"),
    ("image.list", "image list"),
    ("local.show", "local show"),
    ("local.clean", "local clean --yes"),
    ("manifest.graph", "manifest graph n1-push"),
    ("manifest.list", "manifest list"),
    ("manifest.migrate", "manifest migrate first.yaml"),
    ("manifest.show", "manifest show n1-push"),
    ("manifest.validate", "manifest validate"),
    ("spec.list", "spec list"),
    ("spec.show", "spec show base"),
    ("spec.validate", "spec validate"),
    ("token.mint", "token mint edge base"),
    ("secrets.get", "secrets get passwords.vm_root"),
    ("secrets.keygen", "secrets keygen"),
    ("secrets.encrypt", "secrets encrypt"),
    ("secrets.check", "secrets check"),
    ("secrets.edit", "secrets edit"),
    ("secrets.decrypt", "secrets decrypt --force"),
];

/// Kinds and commands on the simulator, in order.
const ON_SIM: &[(&str, &str)] = &[
    ("sim.start", "sim start --speed 200"),
    ("sim.status", "sim status"),
    ("host.preflight", "host preflight sim"),
    ("manifest.test", "manifest test -M n1-push -H sim --yes"),
    ("manifest.plan", "manifest plan -M n1-push -H sim"),
    ("manifest.apply", "manifest apply -M n1-push -H sim --yes"),
    (
        "manifest.configure",
        "manifest configure -M n1-push -H sim --yes",
    ),
    (
        "manifest.reidentify",
        "manifest reidentify -M n1-push -H sim --yes",
    ),
    ("manifest.status", "manifest status -M n1-push"),
    ("manifest.history", "manifest history"),
    ("manifest.report", "manifest report"),
    ("manifest.unlock", "manifest unlock -M n1-push -H sim --yes"),
    ("state.rebuild", "state rebuild -H sim"),
    (
        "manifest.forget",
        "manifest forget edge -M n1-push -H sim --yes",
    ),
    (
        "manifest.destroy",
        "manifest destroy -M n1-push -H sim --yes",
    ),
    ("sim.stop", "sim stop"),
    ("sim.reset", "sim reset"),
];

/// Kinds and commands on a site with a server, in order. `PORT` is its port.
const ON_SERVER: &[(&str, &str)] = &[
    ("server.publish", "server publish"),
    ("server.check", "server check"),
    ("server.start", "server start --port PORT"),
    ("server.status", "server status --port PORT"),
    ("server.reload", "server reload --port PORT"),
    ("server.rotate-key", "server rotate-key token"),
    ("server.trust", "server trust"),
    ("node.list", "node list"),
    ("token.list", "token list"),
    ("job.list", "job list"),
    ("server.stop", "server stop --port PORT"),
];

/// Kinds that other tests print, with file and test.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "exec",
        "it/nodes.rs",
        "exec_prefixes_lines_with_the_node_and_reports_exit_codes",
    ),
    (
        "host.trust",
        "it/hosts.rs",
        "trusting_a_host_keeps_comments_and_host_show_reports_its_version",
    ),
    (
        "image.build",
        // Every test on real nodes begins with it.
        "local/node_access.rs",
        "ssh_exec_logs_and_console_work_on_nodes",
    ),
    (
        "image.remove",
        "it/images.rs",
        "images_are_listed_verified_and_removed",
    ),
    (
        "image.verify",
        "it/images.rs",
        "images_are_listed_verified_and_removed",
    ),
    (
        "job.cancel",
        "local/jobs.rs",
        "a_node_that_pulls_takes_jobs_from_the_server_at_most_once",
    ),
    (
        "job.show",
        "local/jobs.rs",
        "a_node_that_pulls_takes_jobs_from_the_server_at_most_once",
    ),
    (
        "logs",
        "local/node_access.rs",
        "ssh_exec_logs_and_console_work_on_nodes",
    ),
    (
        "manifest.resume",
        "it/untagged.rs",
        "a_guest_without_tags_is_not_reported_destroyed_and_its_identity_is_not_reused",
    ),
    (
        "manifest.rollback",
        "it/untagged.rs",
        "a_rollback_does_not_report_a_guest_without_tags_as_reverted",
    ),
    (
        "node.enrol",
        "local/permanent_server.rs",
        "nodes_of_a_permanent_server_outlive_its_registry_its_certificate_and_the_keys_of_the_site",
    ),
    (
        "node.job",
        "local/jobs.rs",
        "a_node_that_pulls_takes_jobs_from_the_server_at_most_once",
    ),
    (
        "node.revoke",
        "local/permanent_server.rs",
        "nodes_of_a_permanent_server_outlive_its_registry_its_certificate_and_the_keys_of_the_site",
    ),
    (
        "node.show",
        "local/jobs.rs",
        "a_node_that_pulls_takes_jobs_from_the_server_at_most_once",
    ),
    (
        "node.update",
        "it/jobs.rs",
        "simulated_nodes_run_no_jobs_and_are_not_updated",
    ),
    (
        "sim.replay",
        "it/kinds.rs",
        "a_replay_of_recordings_prints_its_kind",
    ),
    (
        "sim.serve",
        "it/hosts.rs",
        "an_untrusted_host_is_not_contacted",
    ),
    (
        "spec.diff",
        "local/private.rs",
        "content_of_private_files_is_neither_printed_nor_stored",
    ),
    (
        "token.inspect",
        "it/flags.rs",
        "every_command_with_json_output_prints_one_json_document_on_stdout",
    ),
    (
        "token.revoke",
        "it/server_sharing.rs",
        "two_runs_share_a_server_which_ends_after_both_were_killed",
    ),
    (
        "token.verify",
        "it/flags.rs",
        "every_command_with_json_output_prints_one_json_document_on_stdout",
    ),
];

/// Requires that a run printed one output of this kind.
fn assert_kind(run: &Run, kind: &str, line: &str) {
    let kinds = output::kinds(&run.out);
    assert_eq!(kinds, [kind], "{line}: {}\n{}", run.out, run.err);
}

#[test]
fn every_kind_is_printed_by_a_test() {
    let here = [ON_SITE, ON_SIM, ON_SERVER].into_iter().flatten();
    let here = here.map(|(kind, _)| *kind);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (kind, file, test) in ELSEWHERE {
        let text = std::fs::read_to_string(tests.join(file)).unwrap();
        let has_test = text.contains(&format!("fn {test}()"));
        assert!(has_test, "{kind}: {file} has no test {test}");
    }
    let printed: Vec<&str> = here
        .chain(ELSEWHERE.iter().map(|(kind, ..)| *kind))
        .collect();
    let all = OUTPUTS.iter();
    let all = all.filter(|output| output.program == Program::Homestak);
    let all: BTreeSet<&str> = all.map(|output| output.kind).collect();
    assert_eq!(printed.iter().copied().collect::<BTreeSet<_>>(), all);
    assert_eq!(printed.len(), all.len(), "a kind is listed twice");
}

#[test]
fn commands_on_a_site_print_their_kinds() {
    let env = TestEnv::new();
    let first = "schema_version: 1\nname: first\npattern: flat\nlevels:\n  - name: edge\n    preset: vm-small\n    image: debian-12\n";
    std::fs::write(env.work().join("first.yaml"), first).unwrap();
    for (kind, line) in ON_SITE {
        let words: Vec<&str> = line.split(' ').chain(["--json-output"]).collect();
        let mut command = env.command(&words);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_LOCAL_ROOT", env.work().join("root"))
            .env("EDITOR", "sed -i s/token-value/new-value/");
        assert_kind(&Run::of(&mut command), kind, line);
    }
}

#[test]
fn commands_on_the_simulator_print_their_kinds() {
    let env = TestEnv::new();
    for (kind, line) in ON_SIM {
        let words: Vec<&str> = line.split(' ').chain(["--json-output"]).collect();
        let run = env.on_site(&words);
        assert_kind(&run, kind, line);
        let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        if *kind == "manifest.test" {
            let reports = json["reports"].as_array().unwrap().iter();
            let mut reports = reports.filter_map(serde_json::Value::as_str);
            let file = reports.find(|file| file.ends_with(".json")).unwrap();
            let text = std::fs::read_to_string(file).unwrap();
            let report = serde_json::from_str(&text).unwrap();
            output::check_untagged(Program::Homestak, "test-report", &report);
        }
    }
}

#[test]
fn commands_on_a_server_print_their_kinds() {
    let site = Site::new();
    for (kind, line) in ON_SERVER {
        let line = line.replace("PORT", &site.port.to_string());
        let run = site.run(&format!("{line} --json-output"));
        assert_kind(&run, kind, &line);
    }
}

#[test]
fn a_replay_of_recordings_prints_its_kind() {
    let env = TestEnv::new();
    let recording =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/tests/recordings/small.jsonl");
    let recording = recording.to_str().unwrap();
    let run = env.on_site(&["sim", "replay", recording, "--json-output"]);
    assert_kind(&run, "sim.replay", "sim replay");
}
