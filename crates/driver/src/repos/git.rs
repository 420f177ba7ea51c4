//! Runs `git` in a directory of our own, with limits.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use homestak_api::limit;
use rustix::fs::MemfdFlags;

use super::error::RepoError;
use super::source::Owner;
use super::temporary_repo::index_path;
use crate::process::git;

/// How long all commands for one repository may take: packing one of gigabytes takes minutes.
const TIME: Duration = Duration::from_secs(900);
/// How long one may take that reads neither a working tree nor all objects.
const SHORT: Duration = Duration::from_secs(120);
/// The commands that may take longer.
const LONG: &[&str] = &[
    "diff-files",
    "ls-files",
    "ls-tree",
    "rev-list",
    "update-index",
    "write-tree",
];
/// How long a program may take to end after its output has ended: the owner of a repository can stop
/// programs that run as that user.
const END: Duration = Duration::from_secs(10);
/// How often it is polled for its end.
const POLL: Duration = Duration::from_millis(5);
/// Most files of a list: each needs some memory, however short its name is.
const PARTS: usize = 1_500_000;
/// The largest pack, in bytes.
const PACK_BYTES: u64 = 16 << 30;

/// `git` with a git directory, a working tree if there is one, and a user.
#[derive(Clone, Debug)]
pub(super) struct Git {
    directory: PathBuf,
    tree: Option<PathBuf>,
    /// Where objects are written, without those that are borrowed.
    objects: Option<PathBuf>,
    owner: Option<Owner>,
    /// When all commands must have ended, by the monotonic clock.
    until: Duration,
}

impl Git {
    /// Uses a git directory of our own, as `owner` if that is another user. The time for all commands
    /// begins.
    pub(super) fn new(directory: &Path, owner: Option<Owner>) -> Self {
        Self {
            directory: directory.to_owned(),
            tree: None,
            objects: None,
            owner,
            until: limit::monotonic().saturating_add(TIME),
        }
    }

    /// Uses another git directory as this user, within the same time.
    pub(super) fn in_copy(&self, directory: &Path) -> Self {
        Self {
            until: self.until,
            ..Self::new(directory, None)
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_sub(limit::monotonic())
    }

    /// Uses a working tree.
    pub(super) fn with_tree(self, tree: &Path) -> Self {
        Self {
            tree: Some(tree.to_owned()),
            ..self
        }
    }

    /// Writes objects to a directory, and sees no others.
    pub(super) fn writing_to(&self, objects: PathBuf) -> Self {
        Self {
            objects: Some(objects),
            ..self.clone()
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = git(self.owner.map(|owner| (owner.user, owner.group)));
        // By git, which may be another user: this program could be led to a directory that it may not
        // enter.
        if let Some(tree) = &self.tree {
            command.arg("-C").arg(tree).env("GIT_WORK_TREE", tree);
        }
        command.args(arguments).current_dir("/");
        command.env("HOME", &self.directory);
        command.env("GIT_DIR", &self.directory);
        command.env("GIT_INDEX_FILE", index_path(&self.directory));
        if let Some(objects) = &self.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command and returns what it prints.
    pub(super) fn run(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, RepoError> {
        let name = arguments.first().copied().unwrap_or_default();
        let within = match LONG.contains(&name) {
            true => self.left(),
            false => self.left().min(SHORT),
        };
        let output = limit::output(&mut self.command(arguments), input, within);
        let output = output.map_err(|source| RepoError::Run {
            command: name.to_owned(),
            source,
        })?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(RepoError::git(name, &output.stderr)),
        }
    }

    /// Runs a command and returns the line that it prints.
    pub(super) fn line(&self, arguments: &[&str], input: &[u8]) -> Result<String, RepoError> {
        let printed = self.run(arguments, input)?;
        Ok(String::from_utf8_lossy(&printed).trim_end().to_owned())
    }

    /// Runs a command and returns the parts of its output between NUL characters.
    pub(super) fn list(&self, arguments: &[&str]) -> Result<Vec<Vec<u8>>, RepoError> {
        let printed = self.run(arguments, b"")?;
        let parts = printed.split(|byte| *byte == 0);
        let parts = parts.filter(|part| !part.is_empty());
        let parts: Vec<Vec<u8>> = parts.take(PARTS + 1).map(<[u8]>::to_vec).collect();
        match parts.len() > PARTS {
            true => Err(RepoError::unusable(format!(
                "it has more than {PARTS} files"
            ))),
            false => Ok(parts),
        }
    }

    /// Packs what is reachable, and writes pack and index into another git directory. `revisions`
    /// has a line for each object, and `^` before those whose objects are left out. Returns the
    /// name of the pack.
    pub(super) fn pack_into(&self, to: &Self, revisions: &str) -> Result<String, RepoError> {
        let failed = |command: &str| {
            let command = command.to_owned();
            move |source| RepoError::Run { command, source }
        };
        // In memory: a file in a directory of another user could be a link by now.
        let input = in_memory(revisions).map_err(failed("pack-objects"))?;
        let words = [
            "pack-objects",
            "--revs",
            "--stdout",
            "--delta-base-offset",
            "-q",
        ];
        let mut packing = self.command(&words);
        let mut packing = packing
            .stdin(input)
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed("pack-objects"))?;
        let limit = format!("--max-input-size={PACK_BYTES}");
        let mut storing = to.command(&["index-pack", "--stdin", &limit]);
        if let Some(packed) = packing.stdout.take() {
            storing.stdin(packed);
        }
        let stored = limit::output(&mut storing, b"", self.left());
        // Its end of the pipe is closed with the command, so that packing ends as well.
        drop(storing);
        if !matches!(&stored, Ok(output) if output.status.success()) {
            _ = packing.kill();
        }
        let packed = ended(&mut packing).map_err(failed("pack-objects"))?;
        let stored = stored.map_err(failed("index-pack"))?;
        if !packed.success() {
            return Err(RepoError::git(
                "pack-objects",
                b"objects are missing, cannot be read, or need too much memory",
            ));
        }
        if !stored.status.success() {
            return Err(RepoError::git("index-pack", &stored.stderr));
        }
        let printed = String::from_utf8_lossy(&stored.stdout);
        let digest = printed.split_whitespace().last().unwrap_or_default();
        Ok(format!("pack-{digest}"))
    }
}

/// Parses a configuration file of git; files that it includes are not read.
pub(super) fn config_entries(
    text: &[u8],
    owner: Owner,
) -> Result<Vec<(String, String)>, RepoError> {
    let git = Git::new(Path::new("/nonexistent"), owner.if_other());
    // Includes are followed in standard input unless that is switched off.
    let words = ["config", "--no-includes", "--file", "-", "--list", "-z"];
    let printed = git.run(&words, text)?;
    let parts = printed.split(|byte| *byte == 0);
    let parts = parts.filter(|part| !part.is_empty()).map(|part| {
        let text = String::from_utf8_lossy(part);
        let (key, value) = text.split_once('\n').unwrap_or((&text, "true"));
        (key.to_owned(), value.to_owned())
    });
    Ok(parts.collect())
}

/// Returns a file without a name, to be read from its start.
fn in_memory(text: &str) -> io::Result<File> {
    let create = |flags| rustix::fs::memfd_create("revisions", MemfdFlags::CLOEXEC | flags);
    // Kernels before 6.3 do not know the flag; a later one can be set up to require it.
    let file = create(MemfdFlags::NOEXEC_SEAL).or_else(|_| create(MemfdFlags::empty()))?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Waits for a program whose output has ended; one that goes on is killed.
fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let begun = limit::monotonic();
    while limit::monotonic().saturating_sub(begun) < END {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if homestak_api::runtime::pause(POLL).is_err() {
            break;
        }
    }
    child.kill()?;
    child.wait()
}
