//! Aliases of commands, and retired names.

use crate::support::TestEnv;

#[test]
fn validate_is_an_alias_of_manifest_validate() {
    let env = TestEnv::new();
    let verb = env.on_site(&["validate", "-M", "n1-push"]);
    let noun = env.on_site(&["manifest", "validate", "-M", "n1-push"]);
    assert_eq!((verb.code, verb.out), (0, noun.out));
    env.on_site(&["validate", "-M", "n1-push", "-H", "father"])
        .good();
}

#[test]
fn create_destroy_and_test_are_aliases_that_print_a_notice() {
    let env = TestEnv::new();
    for (verb, command) in [
        ("create", "apply"),
        ("destroy", "destroy"),
        ("test", "test"),
    ] {
        let arguments = ["-M", "no-such-manifest", "-H", "sim"];
        let old = env.on_site(&[&[verb], &arguments[..]].concat());
        let new = env.on_site(&[&["manifest", command], &arguments[..]].concat());
        assert_eq!((old.code, new.code), (1, 1));
        let notice = format!("notice: `{verb}` is now `homestak manifest {command}`\n");
        assert_eq!(old.err, notice + &new.err);
    }
}

#[test]
fn serve_points_to_server_start() {
    let run = TestEnv::new().on_site(&["serve", "--help"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let notice = "`serve` is now `homestak server start --foreground`";
    assert!(run.err.contains(notice), "{}", run.err);
}

#[test]
fn every_retired_scenario_prints_its_replacement_and_exits_1() {
    let env = TestEnv::without_site();
    let retired = [
        (
            "vm-constructor",
            "homestak manifest apply -M n1-push -H <host>",
        ),
        (
            "vm-destructor",
            "homestak manifest destroy -M n1-push -H <host>",
        ),
        (
            "vm-roundtrip",
            "homestak manifest test -M n1-push -H <host>",
        ),
        (
            "nested-pve-constructor",
            "homestak manifest apply -M n2-tiered -H <host>",
        ),
        (
            "nested-pve-destructor",
            "homestak manifest destroy -M n2-tiered -H <host>",
        ),
        (
            "nested-pve-roundtrip",
            "homestak manifest test -M n2-tiered -H <host>",
        ),
        (
            "recursive-pve-constructor",
            "homestak manifest apply -M <manifest> -H <host>",
        ),
        (
            "recursive-pve-destructor",
            "homestak manifest destroy -M <manifest> -H <host>",
        ),
        (
            "recursive-pve-roundtrip",
            "homestak manifest test -M <manifest> -H <host>",
        ),
    ];
    for (name, replacement) in retired {
        for arguments in [
            vec![name],
            vec!["scenario", "run", name],
            vec!["--scenario", name, "--host", "father"],
        ] {
            let run = env.run(&arguments);
            assert_eq!(run.code, 1, "{arguments:?}");
            assert!(run.err.contains(replacement), "{arguments:?}: {}", run.err);
        }
    }
}

#[test]
fn commands_of_earlier_versions_print_a_hint() {
    let env = TestEnv::new();
    for (arguments, hint) in [
        (&["scenario", "run", "pve-setup"][..], "homestak host role"),
        (
            &["--scenario", "pve-setup", "--host", "father"],
            "homestak host role",
        ),
        (
            &["--scenario", "my-own", "--host", "father"],
            "homestak manifest list",
        ),
        (
            &["scenario", "run", "packer-build"],
            "homestak manifest list",
        ),
        (&["scenario"], "homestak manifest list"),
    ] {
        let run = env.on_site(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.err);
        assert!(run.err.contains(hint), "{arguments:?}: {}", run.err);
        for wrong in ["schema", "secrets", "--version"] {
            assert!(!run.err.contains(wrong), "{arguments:?}: {}", run.err);
        }
    }
}

#[test]
fn a_renamed_manifest_is_reported_with_its_new_name() {
    let env = TestEnv::new();
    for (old, new) in [
        ("n1-basic", "n1-push"),
        ("n2-quick", "n2-tiered"),
        ("n3-full", "n3-deep"),
    ] {
        let run = env.on_site(&["manifest", "show", "-M", old]);
        assert_eq!(run.code, 1, "{}", run.err);
        let hint = format!("`{old}` is now `{new}`");
        assert!(run.err.contains(&hint), "{old}: {}", run.err);
    }
}
