//! Other spellings, and names that are retired.

use crate::support::World;

#[test]
fn the_verb_validate_is_another_spelling() {
    let world = World::new();
    let verb = world.on_site(&["validate", "-M", "n1-push"]);
    let noun = world.on_site(&["manifest", "validate", "-M", "n1-push"]);
    assert_eq!((verb.code, verb.out), (0, noun.out));
    world
        .on_site(&["validate", "-M", "n1-push", "-H", "father"])
        .good();
}

#[test]
fn the_verbs_create_destroy_and_test_are_other_spellings_and_say_so() {
    let world = World::new();
    for (verb, command) in [
        ("create", "apply"),
        ("destroy", "destroy"),
        ("test", "test"),
    ] {
        let arguments = ["-M", "no-such-manifest", "-H", "sim"];
        let old = world.on_site(&[&[verb], &arguments[..]].concat());
        let new = world.on_site(&[&["manifest", command], &arguments[..]].concat());
        assert_eq!((old.code, new.code), (1, 1));
        let notice = format!("notice: `{verb}` is now `homestak manifest {command}`\n");
        assert_eq!(old.err, notice + &new.err);
    }
}

#[test]
fn the_verb_serve_says_what_it_stands_for() {
    let run = World::new().on_site(&["serve"]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("server start"), "{}", run.err);
}

#[test]
fn every_retired_scenario_prints_its_replacement_and_exits_1() {
    let world = World::bare();
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
            let run = world.run(&arguments);
            assert_eq!(run.code, 1, "{arguments:?}");
            assert!(run.err.contains(replacement), "{arguments:?}: {}", run.err);
        }
    }
}

#[test]
fn commands_of_earlier_versions_get_a_hint_that_helps() {
    let world = World::new();
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
        (&["server", "start"], "homestak manifest apply"),
    ] {
        let run = world.on_site(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.err);
        assert!(run.err.contains(hint), "{arguments:?}: {}", run.err);
        for wrong in ["schema", "secrets", "--version"] {
            assert!(!run.err.contains(wrong), "{arguments:?}: {}", run.err);
        }
    }
}

#[test]
fn a_manifest_that_was_renamed_is_named_with_its_new_name() {
    let world = World::new();
    for (old, new) in [
        ("n1-basic", "n1-push"),
        ("n2-quick", "n2-tiered"),
        ("n3-full", "n3-deep"),
    ] {
        let run = world.on_site(&["manifest", "show", "-M", old]);
        assert_eq!(run.code, 1, "{}", run.err);
        let hint = format!("`{old}` is now `{new}`");
        assert!(run.err.contains(&hint), "{old}: {}", run.err);
    }
}
