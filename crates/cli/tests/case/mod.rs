//! Runs one `.case` file (see [`Case::parse`]): creates a site, runs the program, and compares exit
//! code and output with the `.out` file.
//!
//! The environment and the home directory of the caller are not used.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use datatest_stable::Result;
use snapbox::cmd::Command;
use snapbox::{Assert, Data};

/// Parts of secret values in cases and in the base site. No output may contain one of them.
const SECRET_MARKS: &[&str] = &["hush", "4711"];

/// A case as written.
pub(crate) struct Case {
    arguments: Vec<String>,
    exit: i32,
    /// The site that the files of the case are added to.
    site: Site,
    /// Whether a code such as `SK0201` must be printed.
    code: bool,
    blocks: Vec<Block>,
}

/// The site that the files of the case are added to.
#[derive(Clone, Copy, PartialEq)]
enum Site {
    /// All of `case/base/`.
    Base,
    /// All of `case/bare/`: specs and presets only.
    Bare,
    /// An empty directory.
    None,
}

/// A file of the case.
struct Block {
    path: PathBuf,
    options: Vec<String>,
    body: Vec<u8>,
}

impl Case {
    /// Reads a case. Before the first block:
    ///
    /// - `# ...` is a comment on the case,
    /// - `$ ARGUMENTS` is run instead of `site validate`; quotes work as in a shell,
    /// - `exit: N` is the exit code, when it is not the harness's usual one,
    /// - `site: bare` starts from a site of specs and presets only, `site: none` from an empty one,
    /// - `code: none` for an error that has no code.
    ///
    /// Then blocks: `--- PATH (OPTION) ...` and the file's text. Options: `delete`, `directory`,
    /// `mode 0644`, `symlink TARGET`, `tracked` (by git). In the text, `«3×ab»` stands for
    /// `ababab` and `«hex ff fe»` for bytes; `\n` is a line break within such a mark.
    pub(crate) fn parse(text: &str, exit: i32) -> Result<Self> {
        let mut case = Self {
            arguments: vec!["site".into(), "validate".into()],
            exit,
            site: Site::Base,
            code: exit != 0,
            blocks: Vec::new(),
        };
        for line in text.split_inclusive('\n') {
            let words = line.trim_end();
            if let Some(header) = words.strip_prefix("--- ") {
                case.blocks.push(Block::header(header));
            } else if let Some(block) = case.blocks.last_mut() {
                block.body.extend_from_slice(&expand(line)?);
            } else if let Some(arguments) = words.strip_prefix("$ ") {
                case.arguments = split(arguments);
            } else if let Some(code) = words.strip_prefix("exit: ") {
                case.exit = code.parse()?;
            } else if words == "site: bare" {
                case.site = Site::Bare;
            } else if words == "site: none" {
                case.site = Site::None;
            } else if words == "code: none" {
                case.code = false;
            } else if !words.is_empty() && !words.starts_with('#') {
                return Err(format!("`{words}` stands before the first block").into());
            }
        }
        Ok(case)
    }

    /// Runs the case and compares what it printed with the snapshot beside `path`.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let shown = self.run(directory.path())?;
        for mark in SECRET_MARKS {
            assert!(!shown.contains(mark), "a secret was printed:\n{shown}");
        }
        for word in ["panicked", "RUST_BACKTRACE"] {
            assert!(!shown.contains(word), "the program panicked:\n{shown}");
        }
        let code = shown.match_indices("SK").any(|(at, _)| {
            let digits = shown.get(at + 2..at + 6).unwrap_or_default();
            digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
        });
        assert!(code || !self.code, "no code was printed:\n{shown}");
        let snapshot = path.with_extension("out");
        let expected = Data::read_from(&snapshot, Some(snapbox::data::DataFormat::Text)).raw();
        Assert::new()
            .action_env("SNAPSHOTS")
            .eq(Data::text(shown.clone()), expected);
        let exit = format!("exit {}\n", self.exit);
        assert!(shown.starts_with(&exit), "expected {exit}, got:\n{shown}");
        Ok(())
    }

    /// Creates the site and runs the program. Returns exit code and output as one text.
    fn run(&self, directory: &Path) -> Result<String> {
        let site = directory.join("site");
        fs_err::create_dir_all(&site)?;
        let sites = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/case");
        match self.site {
            Site::Base => copy(&sites.join("base"), &site)?,
            Site::Bare => copy(&sites.join("bare"), &site)?,
            Site::None => {}
        }
        let secrets = site.join("secrets.yaml");
        for block in &self.blocks {
            block.write(&site)?;
            if block.path == Path::new("secrets.yaml") && block.options.is_empty() {
                set_mode(&secrets, 0o600)?;
            }
        }
        if self.site == Site::Base && !self.writes("secrets.yaml") {
            set_mode(&secrets, 0o600)?;
        }
        self.track(&site)?;
        let output = command(env!("CARGO_BIN_EXE_homestak"), directory)
            .args(&self.arguments)
            .args(["--site", "site", "--no-color"])
            .output()?;
        let exit = output
            .status
            .code()
            .map_or_else(|| "none".to_owned(), |code| code.to_string());
        let stdout = String::from_utf8(output.stdout)?;
        homestak_test_support::output::check(&stdout);
        Ok(format!(
            "exit {exit}\n--- stdout\n{stdout}--- stderr\n{}",
            String::from_utf8(output.stderr)?
        ))
    }

    fn writes(&self, path: &str) -> bool {
        self.blocks
            .iter()
            .any(|block| block.path == Path::new(path))
    }

    /// Makes the site a git repository when a block asks for it.
    fn track(&self, site: &Path) -> Result<()> {
        for block in &self.blocks {
            if !block.options.iter().any(|option| option == "tracked") {
                continue;
            }
            for arguments in [vec!["init", "--quiet"], vec!["add", "--force"]] {
                let adding = arguments[0] == "add";
                let path = adding.then_some(&block.path);
                command("git", site)
                    .args(arguments)
                    .args(path)
                    .assert()
                    .success();
            }
        }
        Ok(())
    }
}

impl Block {
    fn header(header: &str) -> Self {
        let mut parts = header.split(" (");
        let path = parts.next().unwrap_or_default().trim();
        let options = parts
            .map(|option| option.trim_end().trim_end_matches(')').to_owned())
            .collect();
        Self {
            path: path.into(),
            options,
            body: Vec::new(),
        }
    }

    fn write(&self, site: &Path) -> Result<()> {
        let depth = self
            .path
            .components()
            .filter(|part| *part == Component::ParentDir);
        assert!(
            self.path.is_relative() && depth.count() <= 1,
            "a case stays in its directory"
        );
        let path = site.join(&self.path);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        let mut mode = None;
        for option in &self.options {
            match option.split_once(' ').unwrap_or((option.as_str(), "")) {
                ("delete", _) if path.is_dir() => return Ok(fs_err::remove_dir_all(path)?),
                ("delete", _) => return Ok(fs_err::remove_file(path)?),
                ("directory", _) => {
                    _ = fs_err::remove_file(&path);
                    return Ok(fs_err::create_dir_all(path)?);
                }
                ("symlink", target) => {
                    _ = fs_err::remove_file(&path);
                    return Ok(fs_err::os::unix::fs::symlink(target, path)?);
                }
                ("mode", octal) => mode = Some(u32::from_str_radix(octal, 8)?),
                ("tracked", _) => mode = Some(0o600),
                _ => return Err(format!("unknown option `{option}`").into()),
            }
        }
        fs_err::write(&path, &self.body)?;
        if let Some(mode) = mode {
            set_mode(&path, mode)?;
        }
        Ok(())
    }
}

/// A command that inherits no environment variables.
fn command(program: &str, directory: &Path) -> Command {
    let home = directory.display().to_string();
    Command::new(program)
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home)
        // Ignores a repository that contains the temporary directory.
        .env("GIT_CEILING_DIRECTORIES", &home)
        .env("GIT_CONFIG_NOSYSTEM", "1")
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs_err::set_permissions(
        path,
        std::fs::Permissions::from_mode(mode),
    )?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs_err::create_dir_all(to)?;
    for entry in fs_err::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs_err::write(target, fs_err::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// Splits arguments at spaces, except within single quotes.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (nth, part) in line.split('\'').enumerate() {
        if nth % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Replaces the marks of a line: `«3×ab»` and `«hex ff fe»`.
fn expand(line: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('«') {
        bytes.extend_from_slice(before.as_bytes());
        let (mark, behind) = after.split_once('»').ok_or("a mark is not closed")?;
        if let Some(hex) = mark.strip_prefix("hex ") {
            for byte in hex.split_whitespace() {
                bytes.push(u8::from_str_radix(byte, 16)?);
            }
        } else {
            let (times, text) = mark.split_once('×').ok_or("a mark has no ×")?;
            let text = text.replace("\\n", "\n").repeat(times.parse()?);
            bytes.extend_from_slice(text.as_bytes());
        }
        rest = behind;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}
