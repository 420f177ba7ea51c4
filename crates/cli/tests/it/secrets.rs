//! Secrets sealed, opened, changed and looked up.

use crate::support::{Run, World, mode, set_mode};

/// A world with a key, whose secrets are sealed and no longer there in plain.
fn sealed() -> World {
    let world = World::new();
    world.run(&["secrets", "keygen"]).good();
    world.on_site(&["secrets", "encrypt"]).good();
    std::fs::remove_file(world.site().join("secrets.yaml")).unwrap();
    world
}

fn edit(world: &World, editor: &str) -> Run {
    let mut command = world.command(&["secrets", "edit"]);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("EDITOR", editor)
        .output()
        .map(Run::from)
        .unwrap()
}

#[test]
fn a_key_is_private_and_never_overwritten() {
    let world = World::bare();
    let recipient = world.run(&["secrets", "keygen"]).good();
    assert!(recipient.starts_with("age1"));
    let file = world.home().join(".config/sops/age/keys.txt");
    assert_eq!(mode(&file), 0o600);
    let before = std::fs::read(&file).unwrap();
    assert_eq!(world.run(&["secrets", "keygen"]).code, 3);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn sealed_secrets_serve_as_well_as_plain_ones() {
    let world = sealed();
    let text = std::fs::read_to_string(world.site().join("secrets.yaml.enc")).unwrap();
    assert!(!text.contains("token-value") && !text.contains("AAAA-key-value"));
    assert_eq!(
        world
            .on_site(&["secrets", "get", "api_tokens.father"])
            .good(),
        "root@pam!homestak=token-value\n"
    );
    world.on_site(&["secrets", "check"]).good();
    world.on_site(&["token", "mint", "edge", "base"]).good();
    assert_eq!(
        world.on_site(&["site", "show", "--json-output"]).json()["secrets"],
        "sealed"
    );
    world.on_site(&["site", "validate"]).good();
}

#[test]
fn a_sealed_file_may_carry_the_plain_name() {
    let world = World::new();
    world.run(&["secrets", "keygen"]).good();
    world.on_site(&["secrets", "encrypt", "--in-place"]).good();
    assert_eq!(
        world
            .on_site(&["secrets", "get", "passwords.vm_root"])
            .good(),
        "$6$salt$hash-value\n"
    );
    assert_eq!(
        world.on_site(&["secrets", "decrypt"]).code,
        2,
        "there is no name to write to"
    );
}

#[test]
fn opening_writes_a_private_file_and_loses_nothing() {
    let world = sealed();
    world.on_site(&["secrets", "decrypt"]).good();
    let plain = world.site().join("secrets.yaml");
    assert_eq!(mode(&plain), 0o600);
    std::fs::write(&plain, "other: work\n").unwrap();
    let refused = world.on_site(&["secrets", "decrypt"]);
    assert_eq!(refused.code, 3);
    assert_eq!(std::fs::read_to_string(&plain).unwrap(), "other: work\n");
    world.on_site(&["secrets", "decrypt", "--force"]).good();
    assert!(
        std::fs::read_to_string(&plain)
            .unwrap()
            .contains("token-value")
    );
}

#[test]
fn an_edit_changes_one_value_and_keeps_the_ciphertext_of_the_others() {
    let world = sealed();
    let file = world.site().join("secrets.yaml.enc");
    let lines = || -> Vec<String> {
        std::fs::read_to_string(&file)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let before = lines();
    assert_eq!(edit(&world, "sed -i s/token-value/new-value/").code, 0);
    let after = lines();
    assert_eq!(
        world
            .on_site(&["secrets", "get", "api_tokens.father"])
            .good(),
        "root@pam!homestak=new-value\n"
    );
    let changed: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(one, other)| one != other)
        .map(|(one, _)| one.trim())
        .collect();
    assert!(
        changed.iter().all(|line| ["father", "lastmodified", "mac"]
            .iter()
            .any(|key| line.starts_with(key))),
        "{changed:?}"
    );
}

#[test]
fn an_edit_with_faults_leaves_the_sealed_file_and_keeps_the_change() {
    let world = sealed();
    let file = world.site().join("secrets.yaml.enc");
    let before = std::fs::read(&file).unwrap();
    let run = edit(&world, "sed -i s/api_tokens:/api_token:/");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0201"), "{}", run.err);
    assert!(!run.err.contains("token-value"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let kept = run
        .err
        .split("kept in ")
        .nth(1)
        .unwrap()
        .split(" (mode")
        .next()
        .unwrap();
    assert_eq!(mode(kept.as_ref()), 0o600);
    assert_eq!(mode(std::path::Path::new(kept).parent().unwrap()), 0o700);
    std::fs::remove_dir_all(std::path::Path::new(kept).parent().unwrap()).unwrap();
    assert_eq!(edit(&world, "false").code, 1);
    assert!(edit(&world, "true").err.contains("Nothing was changed"));
}

#[test]
fn without_the_key_the_site_still_validates_and_says_what_it_could_not_check() {
    let world = sealed();
    world.write(
        "specs/keyed.yaml",
        "schema_version: 1\naccess: {users: [{name: ops, ssh_keys: [nobody@desk]}]}\n",
    );
    let with = world.on_site(&["spec", "validate", "keyed"]);
    assert_eq!(with.code, 1, "{}", with.err);
    std::fs::remove_dir_all(world.home().join(".config")).unwrap();
    let without = world.on_site(&["site", "validate"]);
    assert_eq!(without.code, 0, "{}", without.err);
    assert!(without.err.contains("SK0603"), "{}", without.err);
    let mint = world.on_site(&["token", "mint", "edge", "base"]);
    assert!(mint.err.contains("could not be opened"), "{}", mint.err);
}

#[test]
fn a_changed_sealed_file_is_a_fault() {
    let world = sealed();
    let file = world.site().join("secrets.yaml.enc");
    let text = std::fs::read_to_string(&file).unwrap();
    let swapped: String = text
        .lines()
        .filter(|line| !line.contains("vm_root"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&file, swapped).unwrap();
    let run = world.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0603"), "{}", run.err);
}

#[test]
fn plain_secrets_in_git_are_a_fault_and_sealed_ones_are_not() {
    let world = sealed();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .arg("-C")
            .arg(world.site())
            .args(arguments)
            .status()
            .unwrap();
        assert!(status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "-A", "-f"]);
    world.on_site(&["site", "validate"]).good();
    world.on_site(&["secrets", "decrypt"]).good();
    world.on_site(&["site", "validate"]).good();
    git(&["add", "-f", "secrets.yaml"]);
    let run = world.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0601"), "{}", run.err);
}

#[test]
fn secrets_that_others_can_read_are_noticed() {
    let world = World::new();
    set_mode(&world.site().join("secrets.yaml"), 0o644);
    let run = world.on_site(&["site", "validate"]);
    assert!(
        run.err.contains("SK0602") && run.err.contains("chmod 600"),
        "{}",
        run.err
    );
    run.good();
}

#[test]
fn recipients_come_from_the_rules_of_the_site() {
    let world = World::new();
    let other = world
        .run(&["secrets", "keygen", "--out", "other.txt"])
        .good();
    world.run(&["secrets", "keygen"]).good();
    world.write(
        ".sops.yaml",
        &format!("creation_rules:\n  - path_regex: secrets\\.yaml$\n    age: {other}"),
    );
    world.on_site(&["secrets", "encrypt"]).good();
    let text = std::fs::read_to_string(world.site().join("secrets.yaml.enc")).unwrap();
    assert!(text.contains(other.trim()));
    assert_eq!(
        world.on_site(&["secrets", "check"]).code,
        1,
        "our own key is not a recipient"
    );
    let mut command = world.command(&["secrets", "check"]);
    let run = command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("SOPS_AGE_KEY_FILE", "other.txt")
        .output()
        .map(Run::from);
    run.unwrap().good();
}
