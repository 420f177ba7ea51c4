//! Which site is used, and whose it may be.

use crate::support::{World, set_mode};

/// A world whose site is found as `./site-config`.
fn discovered() -> World {
    let world = World::bare();
    world.run(&["site", "init", "site-config"]).good();
    world
}

#[test]
fn a_site_of_another_user_is_refused_with_what_to_do() {
    let world = discovered();
    world.run(&["site", "validate"]).good();
    let place = world.work().join("site-config");
    if std::os::unix::fs::chown(&place, Some(12345), None).is_err() {
        // Only root can give files away.
        return;
    }
    let run = world.run(&["site", "validate"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(
        run.err.contains("belongs to user 12345") && run.err.contains("homestak --site "),
        "{}",
        run.err
    );
    world
        .run(&["--site", "site-config", "site", "validate"])
        .good();
    // Root that was reached by sudo uses the site of whoever called it, and nobody else's.
    for (caller, code) in [("12345", 0), ("12346", 3)] {
        let mut command = world.command(&["site", "validate"]);
        let output = command.env("SUDO_UID", caller).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{caller}");
    }
}

#[test]
fn a_site_that_everyone_can_write_to_is_refused_even_when_it_is_named() {
    let world = discovered();
    set_mode(&world.work().join("site-config"), 0o777);
    for arguments in [
        &["site", "validate"][..],
        &["--site", "site-config", "site", "validate"],
    ] {
        let run = world.run(arguments);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(run.err.contains("hint: chmod o-w "), "{}", run.err);
    }
}
