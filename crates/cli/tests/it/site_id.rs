//! A site's id that is unknown, lost or changed: nothing acts under a guess.

use std::fs;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::PLAN_FORMAT;
use homestak_engine::journal::Journal as _;
use jiff::Timestamp;

use crate::father::Father;
use crate::owner::{APPLY, DESTROY, empty_plan, id_of, old_guest, without_id};

const STATUS: [&str; 4] = ["manifest", "status", "-M", "single-node"];

#[test]
fn with_a_site_file_that_is_not_valid_the_id_is_unknown_and_nothing_uses_one() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    let texts = [
        format!("schema_version: 3\nid: {id}\n"),
        "schema_version: 2\nid: 17\n".to_owned(),
        "id: [\n".to_owned(),
        String::new(),
    ];
    let guests = father.pve.guests();
    for text in texts {
        father.site.write("site.yaml", &text);
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
            let run = father.run(command);
            assert_eq!(run.code, 1, "{command:?} with {text:?}: {}", run.err);
            assert!(
                run.err.contains("site.yaml"),
                "{command:?} with {text:?}: {}",
                run.err
            );
        }
        let shown = father.run(&["site", "show"]).good();
        assert!(
            shown.contains("id:         unknown (site.yaml is not valid)"),
            "{shown}"
        );
        let shown = father.run(&["site", "show", "--json-output"]).json();
        assert!(shown["id"].is_null(), "{shown}");
        assert!(shown["id_error"].is_string(), "{shown}");
        let checked = father.run(&["site", "validate"]);
        assert_eq!(checked.code, 1, "{}", checked.err);
        assert!(checked.err.contains("site.yaml:"), "{}", checked.err);
        father.run(&["host", "list"]).good();
        let file = father.site.site().join("site.yaml");
        assert_eq!(fs::read_to_string(file).unwrap(), text);
        assert_eq!(father.pve.guests(), guests);
    }
}

#[test]
fn faults_of_the_site_file_are_shown_by_commands_that_need_its_id() {
    let father = Father::quick();
    father
        .site
        .write("site.yaml", "schema_version: 2\nid: 17\n");
    let run = father.run(&["manifest", "status"]);
    assert!(run.err.contains("site.yaml:2:5"), "{}", run.err);
    father
        .site
        .write("site.yaml", "schema_version: 2\nid: No-Id\n");
    let run = father.run(&["manifest", "status"]);
    // The command that gives a site another id fails by the same fault, so it is no way out.
    assert!(
        run.err.contains("restore the id of the site") && !run.err.contains("new-id"),
        "{}",
        run.err
    );
    father.site.write("site.yaml", "# Nothing.\n");
    let run = father.run(&["site", "validate"]);
    assert!(
        run.err.contains("restore the file from git") && !run.err.contains("or delete the file"),
        "{}",
        run.err
    );
    father
        .site
        .write("site.yaml", "schema_version: 2\nid: 17\n");
    let run = father.run(&["manifest", "history", "--json-output"]);
    assert!(run.out.contains("\"diagnostics\""), "{}", run.out);
}

#[test]
fn a_site_that_lost_its_id_is_refused_while_the_journal_knows_its_manifest_under_one() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    let text = without_id(&father);
    let guests = father.pve.guests();
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
        let run = father.run(command);
        assert_eq!(run.code, 3, "{command:?}: {}", run.err);
        for part in [
            &format!("runs of `single-node` on father of the site `{id}`"),
            &format!("homestak site new-id --id {id}"),
            "homestak site new-id gives",
        ] {
            assert!(run.err.contains(part), "{command:?}, {part}: {}", run.err);
        }
    }
    let file = father.site.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(father.pve.guests(), guests);
    let back = ["site", "new-id", "--id", &id];
    father.run(&back).good();
    father.run(&DESTROY).good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_site_that_lost_its_id_may_get_one_of_its_own() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    without_id(&father);
    father.run(&["site", "new-id"]).good();
    father.run(&APPLY).good();
    assert_eq!(father.guests(), ["test-vm", "test-vm"]);
}

#[test]
fn with_another_id_nothing_to_do_says_which_id_the_journal_knows() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    father.run(&["site", "new-id", "--yes"]).good();
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
        let run = father.run(command);
        let hint = format!("homestak site new-id --id {id}");
        assert!(run.err.contains(&hint), "{command:?}: {}", run.err);
    }
    // Of a host and manifest that are not known under another id, nothing is said.
    let run = father.run(&["manifest", "history", "-M", "single-node", "-H", "sim"]);
    assert!(!run.err.contains("new-id"), "{}", run.err);
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn another_id_is_only_given_after_unfinished_runs_of_the_old_one_are_named() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    let plan = empty_plan(PLAN_FORMAT, SiteId::new(&id));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let journal = homestak_store::Sqlite::open(&father.state()).unwrap();
        let begun = journal.begin("apply", &plan, "mark", Timestamp::UNIX_EPOCH);
        begun.await.unwrap();
    });
    let run = father.run(&["site", "new-id"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err
            .contains("run 1 (apply `single-node` on father) is unfinished"),
        "{}",
        run.err
    );
    assert_eq!(id_of(&father), Some(id));
}

#[test]
fn a_run_of_an_older_program_is_not_called_resumable() {
    let father = Father::quick();
    father.single();
    old_guest(&father);
    let status = father.run(&STATUS);
    assert!(status.err.contains("manifest reidentify"), "{}", status.err);
    assert!(!status.err.contains("manifest resume"), "{}", status.err);
    for command in [
        &["manifest", "status", "-M", "single-node", "--json-output"][..],
        &["manifest", "history", "--json-output"],
    ] {
        let json = father.run(command).json();
        assert_eq!(json["runs"][0]["resumable"], false, "{json}");
    }
    let report = father.run(&["manifest", "report", "--json-output"]).json();
    assert_eq!(report["resumable"], false, "{report}");
    let report = father.run(&["manifest", "report"]).good();
    assert!(report.contains("manifest reidentify"), "{report}");
}

#[test]
fn an_unfinished_run_of_an_earlier_form_is_continued_by_its_command() {
    for verb in ["apply", "destroy"] {
        let father = Father::quick();
        father.single();
        let id = id_of(&father).unwrap();
        let plan = empty_plan(PLAN_FORMAT - 1, SiteId::new(&id));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let journal = homestak_store::Sqlite::open(&father.state()).unwrap();
            let begun = journal.begin(verb, &plan, "mark", Timestamp::UNIX_EPOCH);
            begun.await.unwrap();
        });
        let hint = format!("homestak manifest {verb} -M single-node -H father continues");
        let which = ["-M", "single-node", "-H", "father"];
        for command in ["resume", "rollback"] {
            let refused = father.run(&[&["manifest", command][..], &which].concat());
            assert_eq!(refused.code, 3, "{}", refused.err);
            assert!(refused.err.contains(&hint), "{}", refused.err);
            assert!(!refused.err.contains("reidentify"), "{}", refused.err);
        }
        let status = father.run(&STATUS);
        assert!(status.err.contains(&hint), "{}", status.err);
        let report = father.run(&["manifest", "report"]).good();
        assert!(report.contains(&hint), "{report}");
        father.run(&APPLY).good();
        let history = father.run(&["manifest", "history", "--json-output"]).json();
        assert_eq!(history["runs"][1]["ending"], "superseded", "{history}");
    }
}

#[test]
fn runs_of_another_site_are_not_reported() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    let report = father
        .run(&["manifest", "report", "1", "--json-output"])
        .json();
    assert_eq!(report["site"], *id);
    father.run(&["site", "new-id", "--yes"]).good();
    let run = father.run(&["manifest", "report", "1"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.err.contains("There is no such run"), "{}", run.err);
    assert!(run.err.contains(&id), "{}", run.err);
}

#[test]
fn a_written_plan_of_another_site_is_refused_as_such() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
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
    father.run(&plan).good();
    father.run(&["site", "new-id", "--yes"]).good();
    let run = father.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    let now = id_of(&father).unwrap();
    let said = format!("the plan is of the site `{id}`, and this site is `{now}`");
    assert!(run.err.contains(&said), "{}", run.err);
    assert!(!run.err.contains("test-vm`: "), "{}", run.err);
}

#[test]
fn the_id_that_a_site_has_already_changes_nothing() {
    let father = Father::quick();
    let id = id_of(&father).unwrap();
    let file = father.site.site().join("site.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let before = text.replace(&id, &format!("{id} # ours"));
    fs::write(&file, &before).unwrap();
    let run = father.run(&["site", "new-id", "--id", &id]);
    assert!(run.err.contains("already"), "{}", run.err);
    run.good();
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn an_id_file_of_the_built_in_site_that_is_not_valid_can_be_replaced() {
    let world = crate::support::World::bare();
    world.run(&["site", "new-id"]).good();
    let file = world.home().join(".local/state/homestak/site-id");
    for text in ["what?\n", "", "\n"] {
        fs::write(&file, text).unwrap();
        let shown = world.run(&["site", "show"]).good();
        assert!(
            shown.contains("id:         unknown (site-id is not valid)"),
            "{shown}"
        );
        for command in [
            &["manifest", "plan", "-M", "n1-push", "-H", "sim"][..],
            &["manifest", "history"],
            &["site", "new-id", "--yes"],
        ] {
            let run = world.run(command);
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
        world.run(&right).good();
        let shown = world.run(&["site", "show", "--json-output"]).json();
        assert_eq!(shown["id"], "kq7f2mzx4vbt3npw");
    }
}

#[test]
fn the_lines_for_a_site_that_cannot_be_written_say_what_they_replace() {
    let father = Father::quick();
    father.single();
    let text = "{defaults: {timezone: UTC}}\n";
    father.site.write("site.yaml", text);
    let what = "replace the line `schema_version`, or add both";
    let run = father.run(&APPLY);
    assert!(run.err.contains(what), "{}", run.err);
    assert!(run.err.contains("nothing was created"), "{}", run.err);
    let run = father.run(&["site", "new-id"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains(what), "{}", run.err);
    assert!(!run.err.contains("created"), "{}", run.err);
}

#[test]
fn a_site_with_an_id_gets_the_schema_version_that_older_programs_refuse() {
    for version in ["schema_version: 1\n", ""] {
        let father = Father::quick();
        father.single();
        let id = "kq7f2mzx4vbt3npw";
        let text = format!("# Ours.\n{version}id: {id}\n");
        father.site.write("site.yaml", &text);
        let run = father.run(&APPLY);
        let said = "has `schema_version: 2` from now on";
        assert!(run.err.contains(said), "{}", run.err);
        run.good();
        let file = father.site.site().join("site.yaml");
        let now = fs::read_to_string(file).unwrap();
        assert_eq!(now, format!("# Ours.\nschema_version: 2\nid: {id}\n"));
    }
}
