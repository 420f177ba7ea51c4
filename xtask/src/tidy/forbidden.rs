//! Calls and words that are forbidden in some directories, where no clippy lint covers them.

use super::Fault;
use super::line::{Line, find_word, lines};
use crate::tree::File;

/// Something that must not appear in a part of the tree.
struct Rule {
    /// Any of these.
    patterns: &'static [&'static str],
    /// Prefix of the paths that the rule applies to.
    scope: &'static str,
    /// Parts of paths where it is allowed.
    exempt: &'static [&'static str],
    /// Whether the rule applies to tests.
    tests: Tests,
    /// What to do instead.
    instead: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    Exempt,
    Included,
}

const fn core(patterns: &'static [&'static str], instead: &'static str) -> Rule {
    Rule {
        patterns,
        scope: "crates/core/",
        exempt: &[],
        tests: Tests::Exempt,
        instead,
    }
}

const RULES: &[Rule] = &[
    core(
        &["tokio", "async fn", ".await"],
        "core is synchronous; put it into an adapter crate",
    ),
    core(
        &["std::fs", "fs_err"],
        "core reads no files; take text as a parameter",
    ),
    core(
        &[
            "TcpStream",
            "TcpListener",
            "UdpSocket",
            "UnixStream",
            "ToSocketAddrs",
        ],
        "core has no sockets; connect in an adapter crate",
    ),
    core(
        &["std::env"],
        "core reads no environment; take the value as a parameter",
    ),
    core(&["::now("], "core has no clock; take time as a parameter"),
    core(
        &["rand", "getrandom", "fastrand", "RandomState"],
        "core has no randomness; take bytes as a parameter",
    ),
    core(
        &["HashMap", "HashSet"],
        "its order differs from run to run; use `BTreeMap` or `BTreeSet`, or state with `// tidy: ` why it is never iterated",
    ),
    core(
        &["anyhow"],
        "libraries have error enums; write one with `thiserror`",
    ),
    core(
        &["tracing::info", "tracing::warn", "tracing::error"],
        "core logs at debug and below; return anything more important",
    ),
    Rule {
        patterns: &["println!", "eprintln!", "print!", "eprint!"],
        scope: "",
        exempt: &[
            "crates/cli/src/ui/",
            "crates/agent/src/ui.rs",
            "crates/sim/examples/",
            "xtask/",
        ],
        tests: Tests::Exempt,
        instead: "only `ui` prints; return the text",
    },
    Rule {
        patterns: &["process::exit"],
        scope: "",
        exempt: &["crates/cli/src/ui/", "crates/agent/src/ui.rs"],
        tests: Tests::Exempt,
        instead: "return an exit code from `main`",
    },
    Rule {
        patterns: &["env::var", "env::var_os", "env::vars", "env::vars_os"],
        scope: "",
        // `process.rs` lists the variables that child processes inherit.
        exempt: &[
            "/settings.rs",
            "/config.rs",
            "/environment.rs",
            "/process.rs",
        ],
        tests: Tests::Exempt,
        instead: "the environment is read in `settings.rs`, where every variable is documented",
    },
    Rule {
        patterns: &["Command::new"],
        scope: "",
        exempt: &["/process.rs"],
        tests: Tests::Exempt,
        instead: "processes are started in one `process.rs` per crate",
    },
    Rule {
        patterns: &[
            "SystemTime::now",
            "Timestamp::now",
            "Instant::now",
            "Zoned::now",
        ],
        scope: "",
        exempt: &["/clock.rs"],
        tests: Tests::Exempt,
        instead: "time is a parameter; only `clock.rs` reads the clock",
    },
    Rule {
        patterns: &[
            "fs::rename",
            "fs_err::rename",
            "renameat",
            "renameat_with",
            ".persist",
            ".persist_noclobber",
        ],
        scope: "",
        // The agent replaces files below directories that others own: it holds the directory and
        // renames within it, which paths cannot do.
        exempt: &["crates/api/src/durable.rs", "crates/agent/src/"],
        tests: Tests::Exempt,
        instead: "use `homestak_api::durable`, which syncs the file and its directory",
    },
    Rule {
        patterns: &["tokio::spawn"],
        scope: "",
        exempt: &[],
        tests: Tests::Exempt,
        instead: "use the tracked spawner in `api::runtime`, so that a panic is seen",
    },
    Rule {
        patterns: &["spawn_blocking", "block_in_place"],
        scope: "",
        exempt: &["crates/api/src/stop.rs"],
        tests: Tests::Exempt,
        instead: "use `run_blocking` of `api::runtime`, `engine::context` or `driver`, which can be interrupted",
    },
    Rule {
        patterns: &[".output()", "wait_with_output"],
        scope: "crates/",
        // `stty` returns immediately.
        exempt: &["crates/cli/src/process.rs", "crates/agent/"],
        tests: Tests::Exempt,
        instead: "use `api::limit::output`, which has a deadline",
    },
    Rule {
        patterns: &["thread::sleep"],
        scope: "crates/",
        // Threads outside the runtime, with their own deadline.
        exempt: &[
            "crates/agent/",
            "crates/api/",
            "crates/driver/src/nodes.rs",
            "crates/providers/src/image/store.rs",
            "crates/providers/src/local/",
            "crates/providers/src/push/",
            "crates/sim/",
            "crates/store/src/sqlite/file.rs",
        ],
        tests: Tests::Exempt,
        instead: "use `api::runtime::pause` on a thread that may wait, or the clock's `sleep`",
    },
    Rule {
        patterns: &["todo!", "unimplemented!", "dbg!"],
        scope: "",
        exempt: &[],
        tests: Tests::Included,
        instead: "finish it",
    },
    Rule {
        patterns: &["#[ignore"],
        scope: "",
        exempt: &[],
        tests: Tests::Included,
        instead: "fix or delete the test",
    },
    Rule {
        patterns: &["#[allow(", "#![allow("],
        scope: "",
        exempt: &[],
        tests: Tests::Included,
        instead: "write `#[expect(..., reason = \"...\")]`, which warns when it is no longer needed",
    },
];

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    let comments = file.is_rust() || file.ends_in(&["md", "sh", "toml", "yaml", "yml"]);
    if !comments || file.is_test_data() {
        return;
    }
    let lines = lines(file);
    for (index, line) in lines.iter().enumerate() {
        let mut fault = |message: String| faults.push(Fault::new(&file.path, line.number, message));
        if line.excused {
            continue;
        }
        for rule in RULES.iter().filter(|rule| rule.applies_to(file, line)) {
            if let Some(pattern) = rule
                .patterns
                .iter()
                .find(|pattern| appears(&line.code, pattern))
            {
                fault(format!("`{pattern}` is not allowed here, {}", rule.instead));
            }
        }
        if expects_without_reason(&lines[index..]) {
            fault("`#[expect(` without a reason, add `reason = \"...\"`".into());
        }
        unfinished(&line.comment, &mut fault);
    }
}

impl Rule {
    fn applies_to(&self, file: &File, line: &Line<'_>) -> bool {
        file.path.starts_with(self.scope)
            && !self.exempt.iter().any(|exempt| file.path.contains(exempt))
            && !(line.test && self.tests == Tests::Exempt)
    }
}

/// Returns whether code contains a pattern. Importing a collection is allowed, using it is not.
/// `std::fs` is found in `use std::{fs, io}` too.
fn appears(code: &str, pattern: &str) -> bool {
    if pattern.starts_with("Hash") && code.trim_start().starts_with("use ") {
        return false;
    }
    if find_word(code, pattern).is_some() {
        return true;
    }
    let Some(module) = pattern.strip_prefix("std::") else {
        return false;
    };
    code.split_once("std::{")
        .is_some_and(|(_, list)| find_word(list, module).is_some())
}

/// Returns whether the first line starts an `expect` that gives no reason before it ends.
fn expects_without_reason(lines: &[Line<'_>]) -> bool {
    let starts =
        |line: &Line<'_>| line.code.contains("#[expect(") || line.code.contains("#![expect(");
    if !lines.first().is_some_and(starts) {
        return false;
    }
    for line in lines {
        if find_word(&line.code, "reason").is_some() {
            return false;
        }
        if line.code.contains(")]") {
            break;
        }
    }
    true
}

/// Finds markers of unfinished work in a comment.
fn unfinished(comment: &str, fault: &mut impl FnMut(String)) {
    for mark in [concat!("FIX", "ME"), concat!("X", "XX")] {
        if find_word(comment, mark).is_some() {
            fault(format!(
                "`{mark}`, fix it or write `TODO(#123):` with an issue"
            ));
        }
    }
    let mark = concat!("TO", "DO");
    let Some(at) = find_word(comment, mark) else {
        return;
    };
    let number = comment[at + mark.len()..]
        .strip_prefix("(#")
        .and_then(|rest| rest.split_once(')'))
        .map_or("", |(number, _)| number);
    if number.is_empty() || !number.chars().all(|digit| digit.is_ascii_digit()) {
        fault(format!(
            "`{mark}` without an issue, write `{mark}(#123):`, or do it"
        ));
    }
}

#[cfg(test)]
mod tests;
