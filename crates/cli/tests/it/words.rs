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
        ("vm-constructor", "./run.sh create -M n1-push -H <host>"),
        ("vm-destructor", "./run.sh destroy -M n1-push -H <host>"),
        ("vm-roundtrip", "./run.sh test -M n1-push -H <host>"),
        (
            "nested-pve-constructor",
            "./run.sh create -M n2-tiered -H <host>",
        ),
        (
            "nested-pve-destructor",
            "./run.sh destroy -M n2-tiered -H <host>",
        ),
        (
            "nested-pve-roundtrip",
            "./run.sh test -M n2-tiered -H <host>",
        ),
        (
            "recursive-pve-constructor",
            "./run.sh create -M <manifest> -H <host>",
        ),
        (
            "recursive-pve-destructor",
            "./run.sh destroy -M <manifest> -H <host>",
        ),
        (
            "recursive-pve-roundtrip",
            "./run.sh test -M <manifest> -H <host>",
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
