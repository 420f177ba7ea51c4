//! Each rule applies in its scope and nowhere else.

use super::super::faults_of;
use super::check;

fn is_fault(path: &str, text: &str) -> bool {
    !faults_of(check, path, text).is_empty()
}

const CORE: &str = "crates/core/src/a.rs";
const SITE: &str = "crates/site/src/a.rs";

#[test]
fn core_is_pure() {
    for code in [
        "use tokio::time;",
        "pub async fn f() {}",
        "f().await",
        "std::fs::read(x)",
        "use std::{fs, io};",
        "use std::net::{IpAddr, TcpStream};",
        "std::env::args()",
        "Clock::now()",
        "rand::random()",
        "let x: HashMap<u8, u8> = y;",
        "let x = HashSet::new();",
        "fn f() -> anyhow::Result<()> {",
        "tracing::info!(x)",
    ] {
        assert!(is_fault(CORE, code), "{code}");
    }
}

#[test]
fn pure_code_is_allowed_in_core() {
    for code in [
        "use std::net::IpAddr;",
        "use std::collections::{BTreeMap, HashSet};",
        "x: HashSet<u8>, // tidy: looked up, never iterated",
        "hint(\"openssl rand -hex 32\")",
        "// std::fs is not used.",
        "let random = operand;",
        "use std::{fmt, io};",
        "#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
    ] {
        assert!(!is_fault(CORE, code), "{code}");
    }
    assert!(!is_fault("crates/core/tests/a.rs", "std::fs::read(x)"));
    assert!(!is_fault(SITE, "let x: HashMap<u8, u8> = y;"));
}

#[test]
fn side_effects_are_allowed_in_their_modules() {
    for (code, exempt) in [
        ("println!(\"x\")", "crates/cli/src/ui/mod.rs"),
        ("eprintln!(\"x\")", "xtask/src/ui.rs"),
        ("std::process::exit(1)", "crates/cli/src/ui/mod.rs"),
        ("std::env::var(x)", "crates/cli/src/settings.rs"),
        ("std::env::var_os(x)", "crates/server/src/config.rs"),
        ("Command::new(x)", "crates/site/src/process.rs"),
        ("fs_err::rename(a, b)", "crates/api/src/durable.rs"),
        ("std::fs::rename(a, b)", "crates/api/src/durable.rs"),
        ("rustix::fs::renameat(a, b)", "crates/agent/src/files.rs"),
        ("new.persist(file)?", "crates/api/src/durable.rs"),
        ("jiff::Timestamp::now()", "crates/cli/src/clock.rs"),
        ("task::spawn_blocking(work)", "crates/api/src/stop.rs"),
        ("command.output()?", "crates/cli/src/process.rs"),
        ("std::thread::sleep(PAUSE);", "crates/api/src/limit.rs"),
    ] {
        assert!(is_fault(SITE, code), "{code}");
        assert!(!is_fault(exempt, code), "{code} in {exempt}");
        assert!(!is_fault("crates/site/tests/a.rs", code), "{code} in tests");
    }
    assert!(is_fault(SITE, "tokio::spawn(x)"));
}

#[test]
fn unfinished_code_is_found_in_tests_too() {
    for code in [
        "todo!()",
        "unimplemented!()",
        "dbg!(x)",
        "#[ignore]",
        "#[ignore = \"slow\"]",
        "#[allow(dead_code)]",
        "#![allow(dead_code)]",
        concat!("// FIX", "ME later"),
        concat!("// X", "XX"),
        concat!("// TO", "DO: later"),
        concat!("// TO", "DO(me): later"),
    ] {
        assert!(is_fault("crates/core/tests/a.rs", code), "{code}");
    }
    for code in [
        concat!("// TO", "DO(#12): later"),
        "let todo = \"todo!()\";",
        "#[expect(dead_code, reason = \"x\")]",
        "#[expect(\n    dead_code,\n    reason = \"x\"\n)]",
        ".gitignore]",
    ] {
        assert!(!is_fault(CORE, code), "{code}");
    }
}

#[test]
fn expect_attributes_need_a_reason() {
    assert!(is_fault(CORE, "#[expect(dead_code)]\nfn reason() {}"));
    assert!(is_fault(
        CORE,
        "#[expect(\n    dead_code\n)]\nfn reason() {}"
    ));
}

#[test]
fn markers_in_pages_are_found() {
    assert!(is_fault("docs/a.md", concat!("TO", "DO: write this.")));
    assert!(!is_fault("docs/a.md", "Call `println!` here."));
}
