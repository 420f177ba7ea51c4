//! `homestak secrets`: encrypt, decrypt, edit, get and check.

use crate::support::{Run, TestEnv, mode, set_mode};

/// An environment with a key and sealed secrets, without the plain file.
fn sealed() -> TestEnv {
    let env = TestEnv::new();
    env.run(&["secrets", "keygen"]).good();
    env.on_site(&["secrets", "encrypt"]).good();
    std::fs::remove_file(env.site().join("secrets.yaml")).unwrap();
    env
}

fn edit(env: &TestEnv, editor: &str) -> Run {
    let mut command = env.command(&["secrets", "edit"]);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("EDITOR", editor)
        .output()
        .map(Run::from)
        .unwrap()
}

#[test]
fn a_key_is_private_and_never_overwritten() {
    let env = TestEnv::without_site();
    let recipient = env.run(&["secrets", "keygen"]).good();
    assert!(recipient.starts_with("age1"));
    let file = env.home().join(".config/sops/age/keys.txt");
    assert_eq!(mode(&file), 0o600);
    let before = std::fs::read(&file).unwrap();
    assert_eq!(env.run(&["secrets", "keygen"]).code, 3);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn sealed_secrets_work_like_plain_ones() {
    let env = sealed();
    let text = std::fs::read_to_string(env.site().join("secrets.yaml.enc")).unwrap();
    assert!(!text.contains("token-value") && !text.contains("AAAAkeyvalue"));
    assert_eq!(
        env.on_site(&["secrets", "get", "api_tokens.father"]).good(),
        "root@pam!homestak=token-value\n"
    );
    env.on_site(&["secrets", "check"]).good();
    env.on_site(&["token", "mint", "edge", "base"]).good();
    assert_eq!(
        env.on_site(&["site", "show", "--json-output"]).json()["secrets"],
        "sealed"
    );
    env.on_site(&["site", "validate"]).good();
}

#[test]
fn a_sealed_file_may_have_the_plain_name() {
    let env = TestEnv::new();
    env.run(&["secrets", "keygen"]).good();
    env.on_site(&["secrets", "encrypt", "--in-place"]).good();
    assert_eq!(
        env.on_site(&["secrets", "get", "passwords.vm_root"]).good(),
        "$6$salt$hash-value\n"
    );
    assert_eq!(
        env.on_site(&["secrets", "decrypt"]).code,
        2,
        "there is no name to write to"
    );
}

#[test]
fn decrypting_writes_a_private_file_and_does_not_overwrite_changes() {
    let env = sealed();
    env.on_site(&["secrets", "decrypt"]).good();
    let plain = env.site().join("secrets.yaml");
    assert_eq!(mode(&plain), 0o600);
    std::fs::write(&plain, "other: work\n").unwrap();
    let refused = env.on_site(&["secrets", "decrypt"]);
    assert_eq!(refused.code, 3);
    assert_eq!(std::fs::read_to_string(&plain).unwrap(), "other: work\n");
    env.on_site(&["secrets", "decrypt", "--force"]).good();
    assert!(
        std::fs::read_to_string(&plain)
            .unwrap()
            .contains("token-value")
    );
}

#[test]
fn an_edit_changes_one_value_and_keeps_the_ciphertext_of_the_others() {
    let env = sealed();
    let file = env.site().join("secrets.yaml.enc");
    let lines = || -> Vec<String> {
        std::fs::read_to_string(&file)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let before = lines();
    assert_eq!(edit(&env, "sed -i s/token-value/new-value/").code, 0);
    let after = lines();
    assert_eq!(
        env.on_site(&["secrets", "get", "api_tokens.father"]).good(),
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
fn an_invalid_edit_leaves_the_sealed_file_unchanged_and_keeps_the_edited_text() {
    let env = sealed();
    let file = env.site().join("secrets.yaml.enc");
    let before = std::fs::read(&file).unwrap();
    let run = edit(&env, "sed -i s/api_tokens:/api_token:/");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0201"), "{}", run.err);
    assert!(!run.err.contains("token-value"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let saved = run
        .err
        .split("kept in ")
        .nth(1)
        .unwrap()
        .split(" (mode")
        .next()
        .unwrap();
    assert_eq!(mode(saved.as_ref()), 0o600);
    assert_eq!(mode(std::path::Path::new(saved).parent().unwrap()), 0o700);
    std::fs::remove_dir_all(std::path::Path::new(saved).parent().unwrap()).unwrap();
    assert_eq!(edit(&env, "false").code, 1);
    assert!(edit(&env, "true").err.contains("Nothing was changed"));
}

#[test]
fn without_the_key_the_site_still_validates_and_reports_what_was_not_checked() {
    let env = sealed();
    env.write(
        "specs/keyed.yaml",
        "schema_version: 1\naccess: {users: [{name: ops, ssh_keys: [nobody@desk]}]}\n",
    );
    let with = env.on_site(&["spec", "validate", "keyed"]);
    assert_eq!(with.code, 1, "{}", with.err);
    std::fs::remove_dir_all(env.home().join(".config")).unwrap();
    let without = env.on_site(&["site", "validate"]);
    assert_eq!(without.code, 0, "{}", without.err);
    assert!(without.err.contains("SK0603"), "{}", without.err);
    let mint = env.on_site(&["token", "mint", "edge", "base"]);
    assert!(mint.err.contains("cannot be decrypted"), "{}", mint.err);
}

#[test]
fn nodes_are_not_configured_when_ssh_keys_cannot_be_decrypted() {
    // Only root plans nodes on this machine.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let env = sealed();
    env.write(
        "specs/keyed.yaml",
        "schema_version: 1\naccess: {posture: dev, users: [{name: alice}]}\n",
    );
    env.write(
        "specs/closed.yaml",
        "schema_version: 1\naccess: {posture: dev, users: [{name: alice, ssh_keys: []}]}\n",
    );
    let plan = |spec: &str| {
        let nodes = format!("  - {{name: web, spec: {spec}, preset: vm-small, image: debian-12}}");
        env.write(
            "manifests/one.yaml",
            &format!("schema_version: 2\nname: one\nnodes:\n{nodes}\n"),
        );
        let mut command = env.command(&["manifest", "plan", "-M", "one", "-H", "local"]);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_LOCAL_ROOT", env.work().join("local"))
            .output()
            .map(Run::from)
            .unwrap()
    };
    plan("keyed").good();
    std::fs::remove_dir_all(env.home().join(".config")).unwrap();
    let run = plan("keyed");
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    for expected in [
        "`site/secrets.yaml.enc`",
        "no key decrypts them",
        "SOPS_AGE_KEY_FILE",
        "nothing was changed",
    ] {
        assert!(run.err.contains(expected), "{expected}: {}", run.err);
    }
    plan("closed").good();
}

#[test]
fn a_modified_sealed_file_is_an_error() {
    let env = sealed();
    let file = env.site().join("secrets.yaml.enc");
    let text = std::fs::read_to_string(&file).unwrap();
    let swapped: String = text
        .lines()
        .filter(|line| !line.contains("vm_root"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&file, swapped).unwrap();
    let run = env.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0603"), "{}", run.err);
}

#[test]
fn a_modified_sealed_comment_is_reported_with_its_line() {
    let env = TestEnv::new();
    env.run(&["secrets", "keygen"]).good();
    let plain = env.site().join("secrets.yaml");
    let text = std::fs::read_to_string(&plain).unwrap();
    env.secrets(&format!("# of the first host\n{text}"));
    env.on_site(&["secrets", "encrypt"]).good();
    std::fs::remove_file(&plain).unwrap();
    let whole = env.on_site(&["secrets", "check"]);
    assert!(!whole.err.contains("comment"), "{}", whole.err);
    whole.good();
    let file = env.site().join("secrets.yaml.enc");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("#ENC[AES256_GCM,data:").unwrap();
    let first = if after.starts_with('A') { 'B' } else { 'A' };
    let changed = format!("{before}#ENC[AES256_GCM,data:{first}{}", &after[1..]);
    std::fs::write(&file, changed).unwrap();
    let run = env.on_site(&["secrets", "check"]);
    assert!(
        run.err
            .contains("line 1: the encrypted comment cannot be decrypted"),
        "{}{}",
        run.out,
        run.err
    );
    assert!(run.out.contains("encrypted, intact"), "{}", run.out);
}

#[test]
fn plain_secrets_in_git_are_an_error_and_sealed_ones_are_not() {
    let env = sealed();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .arg("-C")
            .arg(env.site())
            .args(arguments)
            .status()
            .unwrap();
        assert!(status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "-A", "-f"]);
    env.on_site(&["site", "validate"]).good();
    env.on_site(&["secrets", "decrypt"]).good();
    env.on_site(&["site", "validate"]).good();
    git(&["add", "-f", "secrets.yaml"]);
    let run = env.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("SK0601"), "{}", run.err);
}

#[test]
fn secrets_that_others_can_read_print_a_notice() {
    let env = TestEnv::new();
    set_mode(&env.site().join("secrets.yaml"), 0o644);
    let run = env.on_site(&["site", "validate"]);
    assert!(
        run.err.contains("SK0602") && run.err.contains("chmod 600"),
        "{}",
        run.err
    );
    run.good();
}

#[test]
fn recipients_come_from_the_sops_rules_of_the_site() {
    let env = TestEnv::new();
    let other = env.run(&["secrets", "keygen", "--out", "other.txt"]).good();
    env.run(&["secrets", "keygen"]).good();
    env.write(
        ".sops.yaml",
        &format!("creation_rules:\n  - path_regex: secrets\\.yaml$\n    age: {other}"),
    );
    env.on_site(&["secrets", "encrypt"]).good();
    let text = std::fs::read_to_string(env.site().join("secrets.yaml.enc")).unwrap();
    assert!(text.contains(other.trim()));
    assert_eq!(
        env.on_site(&["secrets", "check"]).code,
        1,
        "our own key is not a recipient"
    );
    let mut command = env.command(&["secrets", "check"]);
    let run = command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("SOPS_AGE_KEY_FILE", "other.txt")
        .output()
        .map(Run::from);
    run.unwrap().good();
}

/// Writes a plain file beside the sealed one, from the sealed one and with a change.
fn plain_beside(env: &TestEnv, from: &str, to: &str) {
    let plain = env.on_site(&["secrets", "decrypt", "--stdout"]).good();
    env.secrets(&plain.replace(from, to));
}

#[test]
fn a_plain_file_equal_to_the_sealed_one_prints_a_notice() {
    let env = sealed();
    plain_beside(&env, "", "");
    let run = env.on_site(&["site", "validate"]);
    assert!(
        run.err.contains("SK0906") && run.err.contains("rm site/secrets.yaml"),
        "{}",
        run.err
    );
    run.good();
    let show = env.on_site(&["site", "show", "--json-output"]).json();
    assert_eq!(show["secrets"], "sealed");
    env.on_site(&["secrets", "get", "api_tokens.father"]).good();
}

#[test]
fn plain_and_sealed_secrets_that_differ_are_an_error_that_names_keys_and_no_value() {
    let env = sealed();
    plain_beside(&env, "token-value", "other-value");
    for arguments in [
        &["site", "validate"][..],
        &["secrets", "get", "api_tokens.father"],
        &["token", "mint", "edge", "base"],
    ] {
        let run = env.on_site(arguments);
        assert_eq!(run.code, 1, "{arguments:?}: {}{}", run.out, run.err);
        assert!(
            run.err.contains("SK0606") && run.err.contains("`api_tokens.father`"),
            "{}",
            run.err
        );
        let output = run.out + &run.err;
        assert!(!output.contains("other-value") && !output.contains("token-value"));
        assert!(!output.contains("vm_root"), "equal keys are not named");
    }
}

#[test]
fn a_plain_file_with_extra_keys_or_errors_differs_from_the_sealed_one() {
    let env = sealed();
    let cases = [
        (
            "api_tokens:\n  extra: x-value\n",
            "`secrets.yaml` is not valid",
        ),
        ("  bad: [\n", "`secrets.yaml` is not valid"),
        ("more: {a: more-value}\n", "only `secrets.yaml` has `more`"),
    ];
    for (more, expected) in cases {
        plain_beside(&env, "", "");
        let plain = env.site().join("secrets.yaml");
        let text = std::fs::read_to_string(&plain).unwrap();
        env.secrets(&format!("{text}{more}"));
        let run = env.on_site(&["site", "validate"]);
        assert_eq!(run.code, 1, "{more}{}", run.err);
        assert!(
            run.err.contains("SK0606") && run.err.contains(expected),
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
    plain_beside(&env, "  vm_root", "  other");
    let run = env.on_site(&["site", "validate"]);
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
fn a_removed_secret_is_not_read_from_a_plain_file() {
    let env = sealed();
    plain_beside(&env, "", "");
    let run = edit(&env, "sed -i /vm_root/d");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(
        run.err.contains("site/secrets.yaml` is not encrypted"),
        "{}",
        run.err
    );
    let run = env.on_site(&["secrets", "get", "passwords.vm_root"]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("`passwords.vm_root`"), "{}", run.err);
    std::fs::remove_file(env.site().join("secrets.yaml")).unwrap();
    let run = env.on_site(&["secrets", "get", "passwords.vm_root"]);
    assert_eq!(run.code, 1, "{}", run.out);
}

#[test]
fn without_the_key_a_plain_file_beside_the_sealed_one_is_never_used() {
    let env = sealed();
    plain_beside(&env, "", "");
    std::fs::remove_dir_all(env.home().join(".config")).unwrap();
    let run = env.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("SK0606"), "{}", run.err);
    assert_eq!(
        env.on_site(&["secrets", "get", "api_tokens.father"]).code,
        1
    );
}

#[test]
fn a_file_with_the_name_of_a_sealed_one_must_be_sealed() {
    let env = TestEnv::new();
    let plain = env.site().join("secrets.yaml");
    std::fs::rename(&plain, env.site().join("secrets.yaml.enc")).unwrap();
    let run = env.on_site(&["site", "validate"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("SK0605"), "{}", run.err);
    let run = env.on_site(&["secrets", "check"]);
    assert!(
        run.err.contains("encrypt --in-place site/secrets.yaml.enc"),
        "{}",
        run.err
    );
    assert_eq!(edit(&env, "true").code, 1);
    env.run(&["secrets", "keygen"]).good();
    env.on_site(&["secrets", "encrypt", "--in-place", "site/secrets.yaml.enc"])
        .good();
    env.on_site(&["site", "validate"]).good();
}

/// Starts an edit whose editor waits; returns the child and the file being edited.
fn start_edit(env: &TestEnv, name: &str) -> (std::process::Child, std::path::PathBuf) {
    let (script, marker) = (
        env.work().join(name),
        env.work().join(format!("{name}-seen")),
    );
    let text = format!(
        "#!/bin/sh\necho scratch > \"$1~\"\necho $$ \"$1\" > {0}.new\nmv {0}.new {0}\nexec sleep 600\n",
        marker.display()
    );
    std::fs::write(&script, text).unwrap();
    set_mode(&script, 0o755);
    let child = env
        .command(&["secrets", "edit"])
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("EDITOR", &script)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !marker.exists() {
        assert!(
            std::time::Instant::now() < until,
            "the editor did not start"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let line = std::fs::read_to_string(&marker).unwrap();
    let (editor, file) = line.trim().split_once(' ').unwrap();
    std::fs::write(env.work().join(format!("{name}-editor")), editor).unwrap();
    (child, file.into())
}

fn send(signal: &str, id: &str) {
    _ = std::process::Command::new("kill")
        .args([signal, id])
        .status();
}

/// Kills the editor of a killed edit.
fn end_editor(env: &TestEnv, name: &str) {
    let id = std::fs::read_to_string(env.work().join(format!("{name}-editor"))).unwrap();
    send("-KILL", &id);
}

#[test]
fn an_edit_ended_by_a_signal_leaves_no_plain_text_and_no_editor() {
    use std::os::unix::process::ExitStatusExt as _;
    let env = sealed();
    for (signal, number) in [("-TERM", 15), ("-HUP", 1), ("-INT", 2)] {
        let name = format!("editor{signal}");
        let (mut child, file) = start_edit(&env, &name);
        assert!(file.exists());
        send(signal, &child.id().to_string());
        let status = child.wait().unwrap();
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        let leftover = file.parent().unwrap().exists();
        let editor = std::fs::read_to_string(env.work().join(format!("{name}-editor"))).unwrap();
        let runs = std::path::Path::new("/proc").join(&editor).exists();
        end_editor(&env, &name);
        _ = std::fs::remove_dir_all(file.parent().unwrap());
        assert!(!leftover, "{signal}: the plain text is still there");
        assert!(!runs, "{signal}: the editor still runs");
        assert_eq!(code, Some(128 + number), "{signal}");
    }
}

#[test]
fn leftovers_of_a_killed_edit_are_removed_at_the_next_start_and_running_edits_are_kept() {
    let env = sealed();
    let (mut dead, leftover) = start_edit(&env, "first");
    let (mut alive, used) = start_edit(&env, "second");
    dead.kill().unwrap();
    dead.wait().unwrap();
    end_editor(&env, "first");
    // SIGKILL cannot be handled, so the next start of the program cleans up, for any site.
    env.on_site(&["secrets", "check"]).good();
    let (leftover_exists, used_exists) = (leftover.parent().unwrap().exists(), used.exists());
    send("-TERM", &alive.id().to_string());
    alive.wait().unwrap();
    end_editor(&env, "second");
    _ = std::fs::remove_dir_all(leftover.parent().unwrap());
    _ = std::fs::remove_dir_all(used.parent().unwrap());
    assert!(!leftover_exists, "the plain text of the killed edit");
    assert!(used_exists, "the text of an edit that still runs");
}
