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
fn verbs_of_commands_to_come_say_what_they_stand_for() {
    let world = World::new();
    for (verb, command) in [
        ("create", "manifest apply"),
        ("destroy", "manifest destroy"),
        ("test", "manifest test"),
        ("serve", "server start"),
    ] {
        let run = world.on_site(&[verb]);
        assert_ne!(run.code, 0);
        assert!(run.err.contains(command), "{verb}: {}", run.err);
    }
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
