//! A site id that is unknown, lost or changed: no command guesses it.

use std::fs;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::PLAN_FORMAT;
use homestak_engine::journal::Journal as _;
use jiff::Timestamp;

use crate::owner::{APPLY, DESTROY, empty_plan, id_of, old_guest, without_id};
use crate::test_pve::TestPve;

const STATUS: [&str; 4] = ["manifest", "status", "-M", "single-node"];

#[test]
fn an_invalid_site_file_makes_the_id_unknown_and_commands_that_need_it_fail() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    let texts = [
        format!("schema_version: 3\nid: {id}\n"),
        "schema_version: 2\nid: 17\n".to_owned(),
        "id: [\n".to_owned(),
        String::new(),
    ];
    let guests = host.pve.guests();
    for text in texts {
        host.env.write("site.yaml", &text);
        for command in [
            &APPLY[..],
            &DESTROY,
            &["manifest", "plan", "-M", "single-node", "-H", "father"],
            &[
                "manifest",
                "reidentify",
                "-M",
                "single-node",
                "-H",
                "father",
            ],
            &["manifest", "resume"],
            &["manifest", "rollback", "-M", "single-node", "--yes"],
            &["manifest", "status"],
            &STATUS,
            &["manifest", "history"],
            &["manifest", "report"],
            &["manifest", "report", "1"],
            &["manifest", "forget", "test-vm", "--yes"],
            &["ssh", "test-vm", "--", "true"],
            &["exec", "--all", "--", "true"],
            &["console", "test-vm"],
            &["logs", "test-vm"],
            &["site", "new-id", "--yes"],
        ] {
            let run = host.run(command);
            assert_eq!(run.code, 1, "{command:?} with {text:?}: {}", run.err);
            assert!(
                run.err.contains("site.yaml"),
                "{command:?} with {text:?}: {}",
                run.err
            );
        }
        let shown = host.run(&["site", "show"]).good();
        assert!(
            shown.contains("id:         unknown (site.yaml is not valid)"),
            "{shown}"
        );
        let shown = host.run(&["site", "show", "--json-output"]).json();
        assert!(shown["id"].is_null(), "{shown}");
        assert!(shown["id_error"].is_string(), "{shown}");
        let checked = host.run(&["site", "validate"]);
        assert_eq!(checked.code, 1, "{}", checked.err);
        assert!(checked.err.contains("site.yaml:"), "{}", checked.err);
        host.run(&["host", "list"]).good();
        let file = host.env.site().join("site.yaml");
        assert_eq!(fs::read_to_string(file).unwrap(), text);
        assert_eq!(host.pve.guests(), guests);
    }
}

#[test]
fn errors_in_the_site_file_are_shown_by_commands_that_need_its_id() {
    let host = TestPve::quick();
    host.env.write("site.yaml", "schema_version: 2\nid: 17\n");
    let run = host.run(&["manifest", "status"]);
    assert!(run.err.contains("site.yaml:2:5"), "{}", run.err);
    host.env
        .write("site.yaml", "schema_version: 2\nid: No-Id\n");
    let run = host.run(&["manifest", "status"]);
    // `site new-id` fails with the same error, so it is not suggested.
    assert!(
        run.err.contains("restore the id of the site") && !run.err.contains("new-id"),
        "{}",
        run.err
    );
    host.env.write("site.yaml", "# Nothing.\n");
    let run = host.run(&["site", "validate"]);
    assert!(
        run.err.contains("restore the file from git") && !run.err.contains("or delete the file"),
        "{}",
        run.err
    );
    host.env.write("site.yaml", "schema_version: 2\nid: 17\n");
    let run = host.run(&["manifest", "history", "--json-output"]);
    assert!(run.out.contains("\"diagnostics\""), "{}", run.out);
}

#[test]
fn a_site_without_its_id_is_refused_while_the_journal_has_its_manifest_under_one() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    let text = without_id(&host);
    let guests = host.pve.guests();
    let reidentify = [
        "manifest",
        "reidentify",
        "-M",
        "single-node",
        "-H",
        "father",
    ];
    let test = ["manifest", "test", "-M", "single-node", "-H", "father"];
    for command in [&APPLY[..], &DESTROY, &reidentify, &test] {
        let run = host.run(command);
        assert_eq!(run.code, 3, "{command:?}: {}", run.err);
        for part in [
            &format!("runs of `single-node` on father of the site `{id}`"),
            &format!("homestak site new-id --id {id}"),
            "homestak site new-id gives",
        ] {
            assert!(run.err.contains(part), "{command:?}, {part}: {}", run.err);
        }
    }
    let file = host.env.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(host.pve.guests(), guests);
    let restore = ["site", "new-id", "--id", &id];
    host.run(&restore).good();
    host.run(&DESTROY).good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_site_that_lost_its_id_can_get_a_new_one() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    without_id(&host);
    host.run(&["site", "new-id"]).good();
    host.run(&APPLY).good();
    assert_eq!(host.guests(), ["test-vm", "test-vm"]);
}

#[test]
fn with_a_new_id_commands_name_the_id_in_the_journal() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    host.run(&["site", "new-id", "--yes"]).good();
    for command in [
        &DESTROY[..],
        &["manifest", "status"],
        &STATUS,
        &["manifest", "history"],
        &["manifest", "report"],
        &["manifest", "resume"],
        &["manifest", "resume", "-M", "single-node"],
        &["manifest", "rollback", "-M", "single-node", "--yes"],
        &["ssh", "test-vm"],
        &["exec", "test-vm", "--", "true"],
        &["spec", "diff", "test-vm"],
    ] {
        let run = host.run(command);
        let hint = format!("homestak site new-id --id {id}");
        assert!(run.err.contains(&hint), "{command:?}: {}", run.err);
    }
    // No hint for a host and manifest that are not recorded under another id.
    let run = host.run(&["manifest", "history", "-M", "single-node", "-H", "sim"]);
    assert!(!run.err.contains("new-id"), "{}", run.err);
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn new_id_names_unfinished_runs_of_the_old_id_and_needs_confirmation() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    let plan = empty_plan(PLAN_FORMAT, SiteId::new(&id));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let journal = homestak_store::Sqlite::open(&host.state()).unwrap();
        let begun = journal.begin("apply", &plan, "mark", Timestamp::UNIX_EPOCH);
        begun.await.unwrap();
    });
    let run = host.run(&["site", "new-id"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err
            .contains("run 1 (apply `single-node` on father) is unfinished"),
        "{}",
        run.err
    );
    assert_eq!(id_of(&host), Some(id));
}

#[test]
fn a_run_of_an_older_release_is_not_reported_as_resumable() {
    let host = TestPve::quick();
    host.single();
    old_guest(&host);
    let status = host.run(&STATUS);
    assert!(status.err.contains("manifest reidentify"), "{}", status.err);
    assert!(!status.err.contains("manifest resume"), "{}", status.err);
    for command in [
        &["manifest", "status", "-M", "single-node", "--json-output"][..],
        &["manifest", "history", "--json-output"],
    ] {
        let json = host.run(command).json();
        assert_eq!(json["runs"][0]["resumable"], false, "{json}");
    }
    let report = host.run(&["manifest", "report", "--json-output"]).json();
    assert_eq!(report["resumable"], false, "{report}");
    let report = host.run(&["manifest", "report"]).good();
    assert!(report.contains("manifest reidentify"), "{report}");
}

#[test]
fn an_unfinished_run_of_an_earlier_format_is_continued_by_its_command() {
    for verb in ["apply", "destroy"] {
        let host = TestPve::quick();
        host.single();
        let id = id_of(&host).unwrap();
        let plan = empty_plan(PLAN_FORMAT - 1, SiteId::new(&id));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let journal = homestak_store::Sqlite::open(&host.state()).unwrap();
            let begun = journal.begin(verb, &plan, "mark", Timestamp::UNIX_EPOCH);
            begun.await.unwrap();
        });
        let hint = format!("homestak manifest {verb} -M single-node -H father continues");
        let which = ["-M", "single-node", "-H", "father"];
        for command in ["resume", "rollback"] {
            let refused = host.run(&[&["manifest", command][..], &which].concat());
            assert_eq!(refused.code, 3, "{}", refused.err);
            assert!(refused.err.contains(&hint), "{}", refused.err);
            assert!(!refused.err.contains("reidentify"), "{}", refused.err);
        }
        let status = host.run(&STATUS);
        assert!(status.err.contains(&hint), "{}", status.err);
        let report = host.run(&["manifest", "report"]).good();
        assert!(report.contains(&hint), "{report}");
        host.run(&APPLY).good();
        let history = host.run(&["manifest", "history", "--json-output"]).json();
        assert_eq!(history["runs"][1]["ending"], "superseded", "{history}");
    }
}

#[test]
fn runs_of_another_site_are_not_reported() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    let report = host
        .run(&["manifest", "report", "1", "--json-output"])
        .json();
    assert_eq!(report["site"], *id);
    host.run(&["site", "new-id", "--yes"]).good();
    let run = host.run(&["manifest", "report", "1"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let belongs = format!("Run 1 belongs to the site `{id}`");
    assert!(run.err.contains(&belongs), "{}", run.err);
    let none = host.run(&["manifest", "report", "7"]);
    assert!(none.err.contains("There is no run 7."), "{}", none.err);
}

#[test]
fn a_saved_plan_of_another_site_is_refused() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    let plan = [
        "manifest",
        "plan",
        "-M",
        "single-node",
        "-H",
        "father",
        "--out",
        "plan.json",
    ];
    host.run(&plan).good();
    host.run(&["site", "new-id", "--yes"]).good();
    let run = host.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    let now = id_of(&host).unwrap();
    let expected = format!("the plan is of the site `{id}`, and this site is `{now}`");
    assert!(run.err.contains(&expected), "{}", run.err);
    assert!(!run.err.contains("test-vm`: "), "{}", run.err);
}

#[test]
fn setting_the_current_id_changes_nothing() {
    let host = TestPve::quick();
    let id = id_of(&host).unwrap();
    let file = host.env.site().join("site.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let before = text.replace(&id, &format!("{id} # ours"));
    fs::write(&file, &before).unwrap();
    let run = host.run(&["site", "new-id", "--id", &id]);
    assert!(run.err.contains("already"), "{}", run.err);
    run.good();
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn an_invalid_id_file_of_the_built_in_site_can_be_replaced() {
    let env = crate::support::TestEnv::without_site();
    env.run(&["site", "new-id"]).good();
    let file = env.home().join(".local/state/homestak/site-id");
    for text in ["what?\n", "", "\n"] {
        fs::write(&file, text).unwrap();
        let shown = env.run(&["site", "show"]).good();
        assert!(
            shown.contains("id:         unknown (site-id is not valid)"),
            "{shown}"
        );
        for command in [
            &["manifest", "plan", "-M", "n1-push", "-H", "sim"][..],
            &["manifest", "history"],
            &["site", "new-id", "--yes"],
        ] {
            let run = env.run(command);
            assert_eq!(run.code, 1, "{command:?}: {}", run.err);
            for part in [
                &format!("it contains {:?}", text.trim()),
                "homestak-s-ID",
                "homestak manifest plan -v",
                "homestak site new-id --id ID",
            ] {
                assert!(run.err.contains(part), "{command:?}, {part}: {}", run.err);
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let right = ["site", "new-id", "--id", "kq7f2mzx4vbt3npw"];
        env.run(&right).good();
        let shown = env.run(&["site", "show", "--json-output"]).json();
        assert_eq!(shown["id"], "kq7f2mzx4vbt3npw");
    }
}

#[test]
fn when_site_yaml_cannot_be_edited_the_lines_to_replace_are_printed() {
    let host = TestPve::quick();
    host.single();
    let text = "{defaults: {timezone: UTC}}\n";
    host.env.write("site.yaml", text);
    let what = "replace the line `schema_version`, or add both";
    let run = host.run(&APPLY);
    assert!(run.err.contains(what), "{}", run.err);
    assert!(run.err.contains("nothing was created"), "{}", run.err);
    let run = host.run(&["site", "new-id"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains(what), "{}", run.err);
    assert!(!run.err.contains("created"), "{}", run.err);
}

#[test]
fn a_site_with_an_id_gets_the_schema_version_that_older_releases_refuse() {
    for version in ["schema_version: 1\n", ""] {
        let host = TestPve::quick();
        host.single();
        let id = "kq7f2mzx4vbt3npw";
        let text = format!("# Ours.\n{version}id: {id}\n");
        host.env.write("site.yaml", &text);
        let run = host.run(&APPLY);
        let expected = "has `schema_version: 2` from now on";
        assert!(run.err.contains(expected), "{}", run.err);
        run.good();
        let file = host.env.site().join("site.yaml");
        let now = fs::read_to_string(file).unwrap();
        assert_eq!(now, format!("# Ours.\nschema_version: 2\nid: {id}\n"));
    }
}
