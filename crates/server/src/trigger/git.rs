//! Reads branches of repositories with `git`, which is neither trusted to end nor to print little.
//!
//! Flow: each check has a directory of its own with the only configuration that git reads. It lists
//! one reference, and where a signature is needed fetches one commit without its files.
//! Guarantees: no hook, no helper and no program but git's own and `ssh` is run; nothing is checked
//! out; time, processor time, memory and the size of files are limited; the processes end with the
//! check.
//! Assumptions: the address is one of those that [`homestak_core::doc::git::GitUrl`] accepts.
//! When it goes wrong: the error is git's last line, escaped and cut.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::environment::PROXIES;
use homestak_api::limit::Limit;
use homestak_api::trusted_path;
use homestak_core::foreign;

use super::target::Branch;
use crate::process::{LESS_MEMORY, NOT_RUN, limited_git};

/// The time and the memory of a command.
type Limits = (Duration, u64);
/// How long listing a reference, or reading a commit, may take.
const SHORT: Duration = Duration::from_secs(30);
/// The most memory of a process that lists references, in bytes: git needs a fifth of it.
pub(super) const LIST_MEMORY: u64 = 128 << 20;
/// The limits of listing a reference.
const LIST: Limits = (SHORT, LIST_MEMORY);
/// The most memory of a process that fetches, or reads what was fetched, in bytes. One commit needs
/// little; objects can be a thousand times as large as what is sent.
const FETCH_MEMORY: u64 = 256 << 20;
/// The limits of fetching a commit.
const FETCH: Limits = (Duration::from_secs(60), FETCH_MEMORY);
/// The limits of reading what was fetched.
const READ: Limits = (SHORT, FETCH_MEMORY);
/// How much of git's output is read.
const OUTPUT: u64 = 64 << 10;
/// How much of git's errors is kept.
const ERROR: usize = 300;
/// The group of a user whose repository is read, as of Debian's `nogroup`: what others may not read is not
/// read for it either.
const NO_GROUP: u32 = 65534;
/// What the keys of signers are listed under.
const PRINCIPAL: &str = "homestak";
/// The reference of the fetched commit.
const TIP: &str = "refs/homestak/tip";

/// Held while objects of others are in memory: one check at a time.
static FETCHING: Mutex<()> = Mutex::new(());

/// A check of one branch. Its directory is removed with it.
pub(crate) struct GitCheck<'a> {
    directory: PathBuf,
    branch: &'a Branch,
    is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Who a local repository belongs to, if this is root and that is another user.
    owner: Option<u32>,
}

/// What git did.
struct Ended {
    is_success: bool,
    output: Vec<u8>,
    error: String,
}

impl<'a> GitCheck<'a> {
    /// Creates the directory.
    pub(crate) fn new(
        directory: PathBuf,
        branch: &'a Branch,
        is_stopped: &'a (dyn Fn() -> bool + Sync),
    ) -> io::Result<Self> {
        let owner = match branch.repo.is_local() {
            true => other_owner(Path::new(branch.repo.as_str()))?,
            false => None,
        };
        durable::create_private(&directory)?;
        let check = Self {
            directory,
            branch,
            is_stopped,
            owner,
        };
        check.write("gitconfig", &check.configuration())?;
        Ok(check)
    }

    fn write(&self, file: &str, content: &str) -> io::Result<()> {
        durable::write(
            &self.directory.join(file),
            content.as_bytes(),
            Access::PRIVATE,
        )
    }

    /// Returns the configuration, which takes the place of that of the user. The address is in it and
    /// not in an argument.
    fn configuration(&self) -> String {
        let quoted =
            |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let url = self.branch.repo.as_str();
        let signers = quoted(&self.directory.join("signers").to_string_lossy());
        let mut text = format!(
            "[core]\n hooksPath = /dev/null\n fsmonitor = false\n askPass = /bin/false\n\
             [credential]\n helper = \n[gc]\n auto = 0\n[maintenance]\n auto = false\n\
             [submodule]\n recurse = false\n[protocol]\n version = 2\n\
             [http]\n followRedirects = false\n lowSpeedLimit = 100\n lowSpeedTime = 20\n\
             [fetch]\n fsckObjects = true\n\
             [remote \"source\"]\n url = {}\n promisor = true\n partialCloneFilter = tree:0\n\
             [gpg]\n program = /bin/false\n[gpg \"openpgp\"]\n program = /bin/false\n\
             [gpg \"x509\"]\n program = /bin/false\n\
             [gpg \"ssh\"]\n program = ssh-keygen\n allowedSignersFile = {signers}\n",
            quoted(url)
        );
        for (name, value) in LESS_MEMORY {
            let (section, name) = name.split_once('.').unwrap_or(("core", name));
            text += &format!("[{section}]\n {name} = {value}\n");
        }
        // The repository may belong to another user: only references and commits are read from it, and
        // no program that it configures is run by that.
        if self.branch.repo.is_local() {
            let (path, inner) = (quoted(url), quoted(&format!("{url}/.git")));
            text += &format!("[safe]\n directory = {path}\n directory = {inner}\n");
        }
        if let Some(owner) = self.owner {
            let program = quoted(&reading_as(owner));
            text += &format!("[remote \"source\"]\n uploadpack = {program}\n");
        }
        text
    }

    fn run(&self, arguments: &[&str], (time, memory): Limits) -> Result<Ended, String> {
        let protocol = match self.branch.repo.as_str() {
            url if url.starts_with("https://") => "https",
            url if url.starts_with("ssh://") => "ssh",
            _ => "file",
        };
        let mut command = limited_git(memory, PROXIES);
        command
            .args(arguments)
            .env("GIT_ALLOW_PROTOCOL", protocol)
            .env("GIT_CONFIG_GLOBAL", self.directory.join("gitconfig"))
            .env("GIT_DIR", self.directory.join("repo.git"))
            // Credentials of other programs are there.
            .env("HOME", &self.directory)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            _ = from.take(OUTPUT).read_to_end(&mut bytes);
            bytes
        };
        let ended = Limit::new(time, self.is_stopped).run(&mut command, b"", read, read);
        let ended = ended.map_err(|error| format!("cannot run git: {error}"))?;
        let Some((status, output, error)) = ended else {
            return Err(match (self.is_stopped)() {
                true => "the server was stopped".to_owned(),
                false => format!("git took longer than {} s", time.as_secs()),
            });
        };
        let error = String::from_utf8_lossy(&error);
        if status.code() == Some(NOT_RUN) {
            return Err(not_run(&error));
        }
        Ok(Ended {
            is_success: status.success(),
            output,
            error: error.into_owned(),
        })
    }

    /// Returns the newest commit of the branch.
    pub(crate) fn commit(&self) -> Result<String, String> {
        let reference = self.branch.reference();
        // A directory that is no repository: git lists without one, and reads nothing around it.
        let ended = self.run(&["ls-remote", "--quiet", "source", &reference], LIST)?;
        if !ended.is_success {
            return Err(last_line(&ended.error));
        }
        let output = String::from_utf8_lossy(&ended.output);
        let mut lines = output.lines().filter_map(|line| line.split_once('\t'));
        // A pattern matches the end of other references too.
        let found = lines.find(|(_, name)| *name == reference);
        let found = found
            .map(|(commit, _)| commit)
            .filter(|commit| is_commit(commit));
        found
            .map(str::to_owned)
            .ok_or_else(|| match &self.branch.branch {
                Some(branch) => format!("the repository has no branch `{branch}`"),
                None => "the repository has no default branch, or it is empty".to_owned(),
            })
    }

    /// Fetches the newest commit, which must be `commit`: only itself where the other side can do
    /// that, otherwise its files too, packed.
    pub(crate) fn fetch(&self, commit: &str) -> Result<(), String> {
        let created = self.run(&["init", "--quiet", "--bare", "--template="], LIST)?;
        if !created.is_success {
            return Err(last_line(&created.error));
        }
        let refspec = format!("+{}:{TIP}", self.branch.reference());
        let _turn = turn();
        let fetched = self.run(
            &[
                "fetch",
                "--quiet",
                "--depth=1",
                "--filter=tree:0",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-auto-maintenance",
                "--no-recurse-submodules",
                "source",
                &refspec,
            ],
            FETCH,
        )?;
        if !fetched.is_success {
            // A server that cannot send the commit alone sends all files of it.
            return Err(match fetched.error.contains("index-pack") {
                true => "its commit with all files is larger than 64 MiB, or not valid".to_owned(),
                false => last_line(&fetched.error),
            });
        }
        let parsed = self.run(&["rev-parse", "--verify", TIP], READ)?;
        match parsed.is_success && parsed.output.trim_ascii() == commit.as_bytes() {
            true => Ok(()),
            false => Err("the branch changed while it was read".to_owned()),
        }
    }

    /// Verifies the signature of the fetched commit: an SSH signature of one of the keys. Returns why
    /// it is refused.
    pub(crate) fn verify<'k>(
        &self,
        keys: impl Iterator<Item = &'k String>,
    ) -> Result<Result<(), String>, String> {
        let lines = keys.map(|key| format!("{PRINCIPAL} namespaces=\"git\" {key}\n"));
        self.write("signers", &lines.collect::<String>())
            .map_err(|error| format!("cannot write the list of signers: {error}"))?;
        let _turn = turn();
        let ended = self.run(&["verify-commit", "--raw", TIP], READ)?;
        let good = format!("Good \"git\" signature for {PRINCIPAL} with ");
        if ended.is_success && ended.error.lines().any(|line| line.starts_with(&good)) {
            return Ok(Ok(()));
        }
        if ended.error.contains("ssh-keygen") && ended.error.contains("cannot run") {
            return Err(
                "ssh-keygen is not installed on this machine (Debian: apt install openssh-client)"
                    .to_owned(),
            );
        }
        Ok(Err(match ended.error.contains("signature") {
            true => "the commit is not signed by one of `signed_by`".to_owned(),
            false => "the commit has no valid signature".to_owned(),
        }))
    }
}

/// Returns the owner of a local repository, if git must read it as another user than this one. Nobody else
/// may have led the path there.
fn other_owner(path: &Path) -> io::Result<Option<u32>> {
    let found = match trusted_path::resolve(path) {
        // git reports it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    found.require_only(found.owner).map_err(io::Error::other)?;
    Ok((found.owner != 0).then_some(found.owner))
}

/// Returns the command with which git reads a local repository as its owner, without the groups of root.
/// The directory of the check belongs to root: that user has another one, and no configuration.
fn reading_as(owner: u32) -> String {
    format!(
        "env -C / HOME=/nonexistent GIT_CONFIG_GLOBAL=/dev/null setsid setpriv --pdeathsig=KILL \
         --clear-groups --no-new-privs --reuid={owner} --regid={NO_GROUP} -- git-upload-pack"
    )
}

impl Drop for GitCheck<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_dir_all(&self.directory) {
            tracing::warn!(%error, "cannot remove the directory of a check");
        }
    }
}

/// Waits until no other check has objects in memory: at most for its limits of time.
fn turn() -> MutexGuard<'static, ()> {
    // There is nothing that a panic could leave incomplete.
    FETCHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns why git was not run, by what the programs before it print.
pub(super) fn not_run(error: &str) -> String {
    match error.contains("failed to execute git") {
        true => "git is not installed on this machine (Debian: apt install git)".to_owned(),
        false => format!("cannot run git: {}", last_line(error)),
    }
}

/// Returns whether a text is the id of a commit.
fn is_commit(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    // Git prints zeros for a reference that it cannot read.
    let is_zero = text.bytes().all(|byte| byte == b'0');
    [40, 64].contains(&text.len()) && text.bytes().all(is_digit) && !is_zero
}

/// Returns the most informative line of an error, escaped: other machines write it.
fn last_line(error: &str) -> String {
    let lines = || error.lines().filter(|line| !line.trim().is_empty());
    let fatal = lines().find(|line| line.starts_with("fatal: "));
    let line = fatal
        .or_else(|| lines().next_back())
        .unwrap_or("git failed");
    let line = line.strip_prefix("fatal: ").unwrap_or(line);
    let line: String = line.chars().take(ERROR).collect();
    foreign::escape(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_short_line_without_control_characters() {
        assert_eq!(last_line(""), "git failed");
        assert_eq!(last_line("warning: x\nfatal: no\nlater\n"), "no");
        assert_eq!(last_line("one\ntwo\n\n"), "two");
        let long = last_line(&format!("fatal: \x1b]0;title\x07{}", "x".repeat(5000)));
        assert!(
            !long.contains(char::is_control) && long.len() < 1000,
            "{long}"
        );
    }

    #[test]
    fn an_address_cannot_add_lines_to_the_configuration() {
        let root = tempfile::tempdir().expect("a directory");
        let repo = homestak_core::doc::git::GitUrl::new("/srv/a\"b#c;d[e]").expect("a path");
        let branch = Branch { repo, branch: None };
        let check = GitCheck::new(root.path().join("check"), &branch, &|| false).expect("created");
        let text = check.configuration();
        assert!(text.contains(" url = \"/srv/a\\\"b#c;d[e]\"\n"), "{text}");
    }
}
