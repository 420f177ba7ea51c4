//! Commands of the README and the guides: every line of a fenced `sh` or `console` block.
//!
//! Run by `crates/cli/tests/it/guides.rs` (with the simulator) and `crates/cli/tests/local/guides.rs` (with real nodes of this machine).

use std::path::{Path, PathBuf};

/// Which test runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBy {
    /// `it/guides.rs`.
    Simulator,
    /// `local/guides.rs`.
    Nodes,
    /// None, for the reason given in [`EXCEPTIONS`].
    None,
}

/// Commands that `it/guides.rs` does not run: page, start of the command, which test runs it
/// instead, and why.
pub const EXCEPTIONS: &[(&str, &str, RunBy, &str)] = &[
    (
        "README",
        "sudo ./run.sh manifest test",
        RunBy::None,
        "run by `local/readme.rs`",
    ),
    (
        "README",
        "make build",
        RunBy::None,
        "a build for release takes minutes, and these tests are built already",
    ),
    (
        "README",
        "sudo install",
        RunBy::None,
        "it would change this machine",
    ),
    (
        "README",
        "make test",
        RunBy::None,
        "it would run this very test",
    ),
    (
        "converge",
        "export HOMESTAK_SERVER",
        RunBy::None,
        "there is no server yet; `agent/tests/fetch` asks one of its own",
    ),
    (
        "converge",
        "homestak-agent spec get",
        RunBy::None,
        "the same",
    ),
    (
        "converge",
        "homestak-agent job confirm",
        RunBy::None,
        "a job that waits for it; `agent/tests/node/confirm.rs` runs it",
    ),
    (
        "converge",
        "homestak-agent config confirm",
        RunBy::None,
        "the same",
    ),
    (
        "converge",
        "homestak-agent config apply --spec spec.yaml --confirm",
        RunBy::None,
        "it waits for a second connection; `agent/tests/node/confirm.rs` runs it",
    ),
    (
        "converge",
        "homestak-agent",
        RunBy::Nodes,
        "it changes the machine that it runs on",
    ),
    ("drift", "sudo homestak-agent", RunBy::Nodes, "the same"),
    (
        "hosts",
        "qm ",
        RunBy::None,
        "a program of Proxmox VE, run on the host",
    ),
    ("hosts", "pvesh ", RunBy::None, "the same"),
    (
        "images",
        "homestak image remove",
        RunBy::None,
        "images may be shared with other tests; `it/images.rs` runs it",
    ),
    (
        "images",
        "homestak image build",
        RunBy::Nodes,
        "builds an image, as root",
    ),
    ("images", "homestak image", RunBy::Nodes, "needs root"),
    (
        "local",
        "homestak manifest test",
        RunBy::None,
        "run by `local/readme.rs`",
    ),
    (
        "local",
        "homestak local setup",
        RunBy::None,
        "installs packages on this machine; `tests/prepare` installs the same",
    ),
    ("local", "homestak", RunBy::Nodes, "real nodes"),
    (
        "nodes",
        "ssh -i STATE",
        RunBy::None,
        "STATE, UUID and ADDRESS stand for values; `it/nodes.rs` connects the same way",
    ),
    (
        "nodes",
        "homestak logs web -f",
        RunBy::None,
        "it has no end; `local/node_access.rs` runs it",
    ),
    ("nodes", "homestak", RunBy::Nodes, "nodes that answer"),
];

/// A command of a page.
#[derive(Debug)]
pub struct Command {
    /// The page.
    pub page: String,
    /// Its line number in the page.
    pub line: usize,
    /// The command line.
    pub text: String,
}

impl Command {
    /// Returns which test runs it.
    pub fn run_by(&self) -> RunBy {
        let fits = |(page, start, ..): &&(&str, &str, RunBy, &str)| {
            self.page == *page && self.text.starts_with(start)
        };
        EXCEPTIONS
            .iter()
            .find(fits)
            .map_or(RunBy::Simulator, |found| found.2)
    }
}

/// The README, and every guide.
pub fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = std::fs::read_dir(root.join("docs/guides")).unwrap();
    let mut pages: Vec<PathBuf> = guides.map(|entry| entry.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// Returns the commands of a page, and its files: YAML blocks that begin with a file name in a
/// comment.
pub fn read(page: &Path) -> (Vec<Command>, Vec<(String, String)>) {
    let text = std::fs::read_to_string(page).unwrap();
    let name = page.file_stem().unwrap().to_string_lossy().into_owned();
    let (mut commands, mut files) = (Vec::new(), Vec::new());
    let mut block: Option<&str> = None;
    for (at, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            block = if block.is_none() { Some(kind) } else { None };
            if block == Some("yaml") {
                files.push((String::new(), String::new()));
            }
            continue;
        }
        let typed = match block {
            Some("sh") => Some(line),
            Some("console") => line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")),
            Some("yaml") => {
                let (path, body) = files.last_mut().unwrap();
                if body.is_empty() {
                    let named = line.strip_prefix("# ").unwrap_or_default();
                    let word = named.split([' ', ':']).next().unwrap_or_default();
                    if word.ends_with(".yaml") {
                        *path = word.to_owned();
                    }
                }
                body.push_str(line);
                body.push('\n');
                None
            }
            _ => None,
        };
        // A comment begins with two spaces, or after one in a line of `&&`.
        let typed = typed.map(|line| line.split("  #").next().unwrap_or(line));
        let typed = typed.map(|line| line.split(" # ").next().unwrap_or(line).trim());
        if let Some(text) = typed.filter(|text| !text.is_empty()) {
            commands.push(Command {
                page: name.clone(),
                line: at + 1,
                text: text.to_owned(),
            });
        }
    }
    files.retain(|(path, _)| !path.is_empty());
    (commands, files)
}

/// Returns a script that runs the commands in one shell, so that variables are kept, and writes the
/// exit code of each to file descriptor 3.
pub fn script(commands: &[(usize, String)]) -> String {
    let mut script = "set +e\n".to_owned();
    for (at, command) in commands {
        script += &format!("echo \"== {at}\" >&3\n{command}\necho \"code $?\" >&3\n");
    }
    script
}

/// Parses the output of [`script`]: line number and exit code of each command.
pub fn codes(text: &str) -> Vec<(usize, i32)> {
    let mut codes = Vec::new();
    let mut at = 0;
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("== ") {
            at = number.parse().unwrap();
        } else if let Some(code) = line.strip_prefix("code ") {
            codes.push((at, code.parse().unwrap()));
        }
    }
    codes
}
