//! Which site is used, and which owners and modes are refused.

use crate::support::{TestEnv, set_mode};

/// An environment whose site is found as `./site-config`.
fn discovered() -> TestEnv {
    let env = TestEnv::without_site();
    env.run(&["site", "init", "site-config"]).good();
    env
}

#[test]
fn a_site_of_another_user_is_refused_with_a_hint() {
    let env = discovered();
    env.run(&["site", "validate"]).good();
    let path = env.work().join("site-config");
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        // Only root can change the owner.
        return;
    }
    let run = env.run(&["site", "validate"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err.contains("belongs to user 12345") && run.err.contains("homestak --site "),
        "{}",
        run.err
    );
    env.run(&["--site", "site-config", "site", "validate"])
        .good();
    // Under sudo, root accepts only the site of the calling user.
    for (caller, code) in [("12345", 0), ("12346", 3)] {
        let mut command = env.command(&["site", "validate"]);
        let output = command.env("SUDO_UID", caller).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{caller}");
    }
}

#[test]
fn a_world_writable_site_is_refused_even_when_named_explicitly() {
    let env = discovered();
    set_mode(&env.work().join("site-config"), 0o777);
    for arguments in [
        &["site", "validate"][..],
        &["--site", "site-config", "site", "validate"],
    ] {
        let run = env.run(arguments);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(run.err.contains("hint: chmod o-w "), "{}", run.err);
    }
}
