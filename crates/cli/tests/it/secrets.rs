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
    assert!(!text.contains("token-value") && !text.contains("AAAAkeyvalue"));
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
    assert!(mint.err.contains("cannot be opened"), "{}", mint.err);
}

#[test]
fn nodes_are_not_configured_when_it_is_unknown_who_has_which_key() {
    // Only root plans nodes on this machine.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = sealed();
    world.write(
        "specs/keyed.yaml",
        "schema_version: 1\naccess: {posture: dev, users: [{name: alice}]}\n",
    );
    world.write(
        "specs/closed.yaml",
        "schema_version: 1\naccess: {posture: dev, users: [{name: alice, ssh_keys: []}]}\n",
    );
    let plan = |spec: &str| {
        let nodes = format!("  - {{name: web, spec: {spec}, preset: vm-small, image: debian-12}}");
        world.write(
            "manifests/one.yaml",
            &format!("schema_version: 2\nname: one\nnodes:\n{nodes}\n"),
        );
        let mut command = world.command(&["manifest", "plan", "-M", "one", "-H", "local"]);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_LOCAL_ROOT", world.work().join("local"))
            .output()
            .map(Run::from)
            .unwrap()
    };
    plan("keyed").good();
    std::fs::remove_dir_all(world.home().join(".config")).unwrap();
    let run = plan("keyed");
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    for told in [
        "`site/secrets.yaml.enc`",
        "no key opens them",
        "SOPS_AGE_KEY_FILE",
        "nothing was changed",
    ] {
        assert!(run.err.contains(told), "{told}: {}", run.err);
    }
    plan("closed").good();
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
fn a_changed_sealed_comment_is_reported_with_its_line() {
    let world = World::new();
    world.run(&["secrets", "keygen"]).good();
    let plain = world.site().join("secrets.yaml");
    let text = std::fs::read_to_string(&plain).unwrap();
    world.secrets(&format!("# of the first host\n{text}"));
    world.on_site(&["secrets", "encrypt"]).good();
    std::fs::remove_file(&plain).unwrap();
    let whole = world.on_site(&["secrets", "check"]);
    assert!(!whole.err.contains("comment"), "{}", whole.err);
    whole.good();
    let file = world.site().join("secrets.yaml.enc");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("#ENC[AES256_GCM,data:").unwrap();
    let first = if after.starts_with('A') { 'B' } else { 'A' };
    let changed = format!("{before}#ENC[AES256_GCM,data:{first}{}", &after[1..]);
    std::fs::write(&file, changed).unwrap();
    let run = world.on_site(&["secrets", "check"]);
    assert!(
        run.err
            .contains("line 1: the sealed comment cannot be opened"),
        "{}{}",
        run.out,
        run.err
    );
    assert!(run.out.contains("sealed, intact"), "{}", run.out);
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

/// Writes a plain file beside the sealed one, from the sealed one and with a change.
fn plain_beside(world: &World, from: &str, to: &str) {
    let plain = world.on_site(&["secrets", "decrypt", "--stdout"]).good();
    world.secrets(&plain.replace(from, to));
}

#[test]
fn a_plain_file_beside_the_sealed_one_with_the_same_content_is_a_notice() {
    let world = sealed();
    plain_beside(&world, "", "");
    let run = world.on_site(&["site", "validate"]);
    assert!(
        run.err.contains("SK0906") && run.err.contains("rm site/secrets.yaml"),
        "{}",
        run.err
    );
    run.good();
    let show = world.on_site(&["site", "show", "--json-output"]).json();
    assert_eq!(show["secrets"], "sealed");
    world
        .on_site(&["secrets", "get", "api_tokens.father"])
        .good();
}

#[test]
fn plain_and_sealed_secrets_that_differ_are_an_error_that_names_keys_and_no_value() {
    let world = sealed();
    plain_beside(&world, "token-value", "other-value");
    for arguments in [
        &["site", "validate"][..],
        &["secrets", "get", "api_tokens.father"],
        &["token", "mint", "edge", "base"],
    ] {
        let run = world.on_site(arguments);
        assert_eq!(run.code, 1, "{arguments:?}: {}{}", run.out, run.err);
        assert!(
            run.err.contains("SK0606") && run.err.contains("`api_tokens.father`"),
            "{}",
            run.err
        );
        let said = run.out + &run.err;
        assert!(!said.contains("other-value") && !said.contains("token-value"));
        assert!(!said.contains("vm_root"), "equal keys are not named");
    }
}

#[test]
fn a_plain_file_with_more_in_it_or_with_a_fault_is_not_the_same_content() {
    let world = sealed();
    let cases = [
        (
            "api_tokens:\n  extra: x-value\n",
            "`secrets.yaml` is not valid",
        ),
        ("  bad: [\n", "`secrets.yaml` is not valid"),
        ("more: {a: more-value}\n", "only `secrets.yaml` has `more`"),
    ];
    for (more, told) in cases {
        plain_beside(&world, "", "");
        let plain = world.site().join("secrets.yaml");
        let text = std::fs::read_to_string(&plain).unwrap();
        world.secrets(&format!("{text}{more}"));
        let run = world.on_site(&["site", "validate"]);
        assert_eq!(run.code, 1, "{more}{}", run.err);
        assert!(
            run.err.contains("SK0606") && run.err.contains(told),
            "{}",
            run.err
        );
        assert!(
            !run.err.contains("SK0906") && !run.err.contains("-value"),
            "{}",
            run.err
        );
        std::fs::remove_file(plain).unwrap();
    }
    plain_beside(&world, "  vm_root", "  other");
    let run = world.on_site(&["site", "validate"]);
    assert!(
        run.err
            .contains("only `secrets.yaml.enc` has `passwords.vm_root`")
            && run
                .err
                .contains("only `secrets.yaml` has `passwords.other`"),
        "{}",
        run.err
    );
}

#[test]
fn a_key_that_an_edit_removed_is_not_valid_because_a_plain_file_still_has_it() {
    let world = sealed();
    plain_beside(&world, "", "");
    let run = edit(&world, "sed -i /vm_root/d");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(
        run.err.contains("site/secrets.yaml` is not sealed"),
        "{}",
        run.err
    );
    let run = world.on_site(&["secrets", "get", "passwords.vm_root"]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("`passwords.vm_root`"), "{}", run.err);
    std::fs::remove_file(world.site().join("secrets.yaml")).unwrap();
    let run = world.on_site(&["secrets", "get", "passwords.vm_root"]);
    assert_eq!(run.code, 1, "{}", run.out);
}

#[test]
fn without_the_key_a_plain_file_beside_the_sealed_one_is_never_used() {
    let world = sealed();
    plain_beside(&world, "", "");
    std::fs::remove_dir_all(world.home().join(".config")).unwrap();
    let run = world.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("SK0606"), "{}", run.err);
    assert_eq!(
        world.on_site(&["secrets", "get", "api_tokens.father"]).code,
        1
    );
}

#[test]
fn a_file_with_the_name_of_a_sealed_one_must_be_sealed() {
    let world = World::new();
    let plain = world.site().join("secrets.yaml");
    std::fs::rename(&plain, world.site().join("secrets.yaml.enc")).unwrap();
    let run = world.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("SK0605"), "{}", run.err);
    let run = world.on_site(&["secrets", "check"]);
    assert!(
        run.err.contains("encrypt --in-place site/secrets.yaml.enc"),
        "{}",
        run.err
    );
    assert_eq!(edit(&world, "true").code, 1);
    world.run(&["secrets", "keygen"]).good();
    world
        .on_site(&["secrets", "encrypt", "--in-place", "site/secrets.yaml.enc"])
        .good();
    world.on_site(&["site", "validate"]).good();
}

/// An edit that waits in its editor: the child, and the file that the editor was given.
fn waiting(world: &World, name: &str) -> (std::process::Child, std::path::PathBuf) {
    let (script, seen) = (
        world.work().join(name),
        world.work().join(format!("{name}-seen")),
    );
    let text = format!(
        "#!/bin/sh\necho scratch > \"$1~\"\necho $$ \"$1\" > {0}.new\nmv {0}.new {0}\nexec sleep 600\n",
        seen.display()
    );
    std::fs::write(&script, text).unwrap();
    set_mode(&script, 0o755);
    let child = world
        .command(&["secrets", "edit"])
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("EDITOR", &script)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !seen.exists() {
        assert!(
            std::time::Instant::now() < until,
            "the editor did not start"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let said = std::fs::read_to_string(&seen).unwrap();
    let (editor, file) = said.trim().split_once(' ').unwrap();
    std::fs::write(world.work().join(format!("{name}-editor")), editor).unwrap();
    (child, file.into())
}

fn send(signal: &str, id: &str) {
    _ = std::process::Command::new("kill")
        .args([signal, id])
        .status();
}

/// Ends the editor of an edit that was killed.
fn end_editor(world: &World, name: &str) {
    let id = std::fs::read_to_string(world.work().join(format!("{name}-editor"))).unwrap();
    send("-KILL", &id);
}

#[test]
fn an_edit_that_is_ended_by_a_signal_leaves_no_plain_text_and_no_editor() {
    use std::os::unix::process::ExitStatusExt as _;
    let world = sealed();
    for (signal, number) in [("-TERM", 15), ("-HUP", 1), ("-INT", 2)] {
        let name = format!("editor{signal}");
        let (mut child, file) = waiting(&world, &name);
        assert!(file.exists());
        send(signal, &child.id().to_string());
        let status = child.wait().unwrap();
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        let left = file.parent().unwrap().exists();
        let editor = std::fs::read_to_string(world.work().join(format!("{name}-editor"))).unwrap();
        let runs = std::path::Path::new("/proc").join(&editor).exists();
        end_editor(&world, &name);
        _ = std::fs::remove_dir_all(file.parent().unwrap());
        assert!(!left, "{signal}: the plain text is still there");
        assert!(!runs, "{signal}: the editor still runs");
        assert_eq!(code, Some(128 + number), "{signal}");
    }
}

#[test]
fn what_a_killed_edit_left_is_removed_at_the_next_start_and_other_edits_are_not() {
    let world = sealed();
    let (mut dead, left) = waiting(&world, "first");
    let (mut alive, used) = waiting(&world, "second");
    dead.kill().unwrap();
    dead.wait().unwrap();
    end_editor(&world, "first");
    // Nothing can be done about SIGKILL itself; any start of the program does, also one elsewhere.
    world.on_site(&["secrets", "check"]).good();
    let (left_is_there, used_is_there) = (left.parent().unwrap().exists(), used.exists());
    send("-TERM", &alive.id().to_string());
    alive.wait().unwrap();
    end_editor(&world, "second");
    _ = std::fs::remove_dir_all(left.parent().unwrap());
    _ = std::fs::remove_dir_all(used.parent().unwrap());
    assert!(!left_is_there, "the plain text of the killed edit");
    assert!(used_is_there, "the text of an edit that still runs");
}
