//! Commands of the README and the guides: every line of a fenced `sh` or `console` block.
//!
//! Run by `crates/cli/tests/it/guides.rs` (with the simulator) and `crates/cli/tests/local/guides.rs` (with real nodes of this machine).

use std::path::{Path, PathBuf};

/// Where a command is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In `it/guides.rs`.
    Simulator,
    /// In `local/guides.rs`.
    Nodes,
    /// Nowhere, for a reason that is written beside it.
    Nowhere,
}

/// Commands that `it/guides.rs` does not run: page, how the command begins, where it is run instead
/// and why. All others are run there.
pub const ELSEWHERE: &[(&str, &str, Where, &str)] = &[
    (
        "README",
        "sudo ./run.sh manifest test",
        Where::Nowhere,
        "run by `local/readme.rs`",
    ),
    (
        "README",
        "make build",
        Where::Nowhere,
        "a build for release takes minutes, and these tests are built already",
    ),
    (
        "README",
        "sudo install",
        Where::Nowhere,
        "it would change this machine",
    ),
    (
        "README",
        "make test",
        Where::Nowhere,
        "it would run this very test",
    ),
    (
        "converge",
        "export HOMESTAK_SERVER",
        Where::Nowhere,
        "there is no server yet; `agent/tests/fetch` asks one of its own",
    ),
    (
        "converge",
        "homestak-agent spec get",
        Where::Nowhere,
        "the same",
    ),
    (
        "converge",
        "homestak-agent job confirm",
        Where::Nowhere,
        "a job that waits for it; `agent/tests/node/confirm.rs` runs it",
    ),
    (
        "converge",
        "homestak-agent config confirm",
        Where::Nowhere,
        "the same",
    ),
    (
        "converge",
        "homestak-agent config apply --spec spec.yaml --confirm",
        Where::Nowhere,
        "it waits for a second connection; `agent/tests/node/confirm.rs` runs it",
    ),
    (
        "converge",
        "homestak-agent",
        Where::Nodes,
        "it changes the machine that it runs on",
    ),
    ("drift", "sudo homestak-agent", Where::Nodes, "the same"),
    (
        "hosts",
        "qm ",
        Where::Nowhere,
        "a program of Proxmox VE, run on the host",
    ),
    ("hosts", "pvesh ", Where::Nowhere, "the same"),
    (
        "images",
        "homestak image remove",
        Where::Nowhere,
        "images may be shared with other tests; `it/images.rs` runs it",
    ),
    (
        "images",
        "homestak image build",
        Where::Nodes,
        "builds an image, as root",
    ),
    ("images", "homestak image", Where::Nodes, "needs root"),
    (
        "local",
        "homestak manifest test",
        Where::Nowhere,
        "run by `local/readme.rs`",
    ),
    (
        "local",
        "homestak local setup",
        Where::Nowhere,
        "installs packages on this machine; `tests/prepare` installs the same",
    ),
    ("local", "homestak", Where::Nodes, "real nodes"),
    (
        "nodes",
        "ssh -i STATE",
        Where::Nowhere,
        "STATE, UUID and ADDRESS stand for values; `it/nodes.rs` connects the same way",
    ),
    (
        "nodes",
        "homestak logs web -f",
        Where::Nowhere,
        "it has no end; `local/handy.rs` runs it",
    ),
    ("nodes", "homestak", Where::Nodes, "nodes that answer"),
];

/// A command of a page.
#[derive(Debug)]
pub struct Command {
    /// The page.
    pub page: String,
    /// Number of its line in the page.
    pub line: usize,
    /// What is typed.
    pub text: String,
}

impl Command {
    /// Returns where it is run.
    pub fn place(&self) -> Where {
        let fits = |(page, start, ..): &&(&str, &str, Where, &str)| {
            self.page == *page && self.text.starts_with(start)
        };
        ELSEWHERE
            .iter()
            .find(fits)
            .map_or(Where::Simulator, |found| found.2)
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

/// Returns the commands of a page, and files that it shows: blocks of YAML that begin with the name
/// of a file in a comment.
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

/// Runs commands in one shell, so that each sees what the ones before it have set, and returns what
/// was printed, the code of each, and what all of them printed.
pub fn script(commands: &[(usize, String)]) -> String {
    let mut script = "set +e\n".to_owned();
    for (at, command) in commands {
        script += &format!("echo \"== {at}\" >&3\n{command}\necho \"code $?\" >&3\n");
    }
    script
}

/// Reads what [`script`] wrote: the code of each command by the number of its line.
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
