//! Alarm bells: what never appears in a room.
//!
//! In: a file. Out: a fault for each call or word that belongs to another room, or nowhere.
//! Never: what clippy finds by type; this looks at words, and finds what no lint knows.

use super::Fault;
use super::line::{Line, find_word, lines};
use crate::tree::File;

/// Something that must not appear.
struct Bell {
    /// How it is written; any of these.
    needles: &'static [&'static str],
    /// Start of the paths it is about.
    room: &'static str,
    /// Parts of paths where it belongs.
    home: &'static [&'static str],
    /// Whether tests may have it.
    tests: Tests,
    /// What to do instead.
    instead: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    Excused,
    Included,
}

const fn core(needles: &'static [&'static str], instead: &'static str) -> Bell {
    Bell {
        needles,
        room: "crates/core/",
        home: &[],
        tests: Tests::Excused,
        instead,
    }
}

const BELLS: &[Bell] = &[
    core(
        &["tokio", "async fn", ".await"],
        "core is synchronous; put it into an adapter",
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
        "core has no sockets; addresses are data, connections are an adapter's",
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
        "its order differs from run to run; use `BTreeMap` or `BTreeSet`, or say `// tidy: ` why it is never walked",
    ),
    core(
        &["anyhow"],
        "libraries have error enums; write one with `thiserror`",
    ),
    core(
        &["tracing::info", "tracing::warn", "tracing::error"],
        "core logs at debug and below; return what is worth more",
    ),
    Bell {
        needles: &["println!", "eprintln!", "print!", "eprint!"],
        room: "",
        home: &[
            "crates/cli/src/ui/",
            "crates/agent/src/ui.rs",
            "crates/sim/examples/",
            "xtask/",
        ],
        tests: Tests::Excused,
        instead: "only `ui` prints; return the text",
    },
    Bell {
        needles: &["process::exit"],
        room: "",
        home: &["crates/cli/src/ui/", "crates/agent/src/ui.rs"],
        tests: Tests::Excused,
        instead: "return an exit code from `main`",
    },
    Bell {
        needles: &["env::var", "env::var_os", "env::vars", "env::vars_os"],
        room: "",
        // What a child process may have of it is listed where it is started.
        home: &[
            "/settings.rs",
            "/config.rs",
            "/environment.rs",
            "/process.rs",
        ],
        tests: Tests::Excused,
        instead: "the environment is read in `settings.rs`, where every variable is documented",
    },
    Bell {
        needles: &["Command::new"],
        room: "",
        home: &["/process.rs"],
        tests: Tests::Excused,
        instead: "processes are started in one `process.rs` per crate",
    },
    Bell {
        needles: &[
            "SystemTime::now",
            "Timestamp::now",
            "Instant::now",
            "Zoned::now",
        ],
        room: "",
        home: &["/clock.rs"],
        tests: Tests::Excused,
        instead: "time is a parameter; only `clock.rs` asks for it",
    },
    Bell {
        needles: &[
            "fs::rename",
            "fs_err::rename",
            "renameat",
            "renameat_with",
            ".persist",
            ".persist_noclobber",
        ],
        room: "",
        // The agent replaces files below directories that others own: it holds the directory and
        // renames within it, which paths cannot do.
        home: &["crates/api/src/durable.rs", "crates/agent/src/"],
        tests: Tests::Excused,
        instead: "use `homestak_api::durable`, which syncs the file and its directory",
    },
    Bell {
        needles: &["tokio::spawn"],
        room: "",
        home: &[],
        tests: Tests::Excused,
        instead: "use the tracked spawner in `api::runtime`, so that a panic is seen",
    },
    Bell {
        needles: &["spawn_blocking", "block_in_place"],
        room: "",
        home: &["crates/api/src/stop.rs"],
        tests: Tests::Excused,
        instead: "use `off` of `api::runtime`, `engine::context` or `driver`, which can be interrupted",
    },
    Bell {
        needles: &[".output()", "wait_with_output"],
        room: "crates/",
        // What the terminal is asked; `stty` answers at once.
        home: &["crates/cli/src/process.rs", "crates/agent/"],
        tests: Tests::Excused,
        instead: "use `api::limit::output`, which has a deadline",
    },
    Bell {
        needles: &["thread::sleep"],
        room: "crates/",
        // Threads that have a deadline of their own and are not the runtime's.
        home: &[
            "crates/agent/",
            "crates/api/",
            "crates/driver/src/nodes.rs",
            "crates/providers/src/image/store.rs",
            "crates/providers/src/local/",
            "crates/providers/src/push/",
            "crates/sim/",
            "crates/store/src/sqlite/file.rs",
        ],
        tests: Tests::Excused,
        instead: "use `api::runtime::pause` on a thread that may wait, or the clock's `sleep`",
    },
    Bell {
        needles: &["todo!", "unimplemented!", "dbg!"],
        room: "",
        home: &[],
        tests: Tests::Included,
        instead: "finish it",
    },
    Bell {
        needles: &["#[ignore"],
        room: "",
        home: &[],
        tests: Tests::Included,
        instead: "fix or delete the test",
    },
    Bell {
        needles: &["#[allow(", "#![allow("],
        room: "",
        home: &[],
        tests: Tests::Included,
        instead: "write `#[expect(..., reason = \"...\")]`, which tells when it is no longer needed",
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
        for bell in BELLS.iter().filter(|bell| bell.rings_in(file, line)) {
            if let Some(needle) = bell
                .needles
                .iter()
                .find(|needle| appears(&line.code, needle))
            {
                fault(format!("`{needle}` does not belong here, {}", bell.instead));
            }
        }
        if expects_without_reason(&lines[index..]) {
            fault("`#[expect(` without a reason, add `reason = \"...\"`".into());
        }
        unfinished(&line.comment, &mut fault);
    }
}

impl Bell {
    fn rings_in(&self, file: &File, line: &Line<'_>) -> bool {
        file.path.starts_with(self.room)
            && !self.home.iter().any(|home| file.path.contains(home))
            && !(line.test && self.tests == Tests::Excused)
    }
}

/// Returns whether code has a word. Collections may be imported: it is their use that counts.
/// `std::fs` is found in `use std::{fs, io}` too.
fn appears(code: &str, needle: &str) -> bool {
    if needle.starts_with("Hash") && code.trim_start().starts_with("use ") {
        return false;
    }
    if find_word(code, needle).is_some() {
        return true;
    }
    let Some(module) = needle.strip_prefix("std::") else {
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

/// Finds marks of unfinished work in a comment.
fn unfinished(comment: &str, fault: &mut impl FnMut(String)) {
    for mark in [concat!("FIX", "ME"), concat!("X", "XX")] {
        if find_word(comment, mark).is_some() {
            fault(format!(
                "`{mark}`, mend it or write `TODO(#123):` with an issue"
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
