//! Ways into a node that need no network: for when SSH does not work, or there is none yet.
//!
//! In: a node. Out: arguments and paths for those who want to look inside.
//! Never: a change to the node by itself.

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::process::Pid;

use super::{Local, Node, container, tree};
use crate::ssh::shell_line;

/// How many files of a journal are read at most: journald keeps 100, a node may make more.
const NEWEST: usize = 128;

/// What a login of root has in its environment.
const ENVIRONMENT: [&str; 6] = [
    "HOME=/root",
    "USER=root",
    "LOGNAME=root",
    "SHELL=/bin/bash",
    "LANG=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
];

/// Closes every file but the terminal's, then becomes its arguments. What whoever started us had
/// open is nobody's business in a node.
const CLOSE: &str = r#"for file in /proc/self/fd/*; do
    file=${file##*/}
    [ "$file" -le 2 ] || eval "exec $file>&-"
done 2>/dev/null
exec "$@""#;

/// Returns the command that runs something as root inside a container, in a session of its own:
/// the programs are the node's, and could type into the terminal of the session they are in.
pub(super) fn words(init: Pid, environment: &[String], words: &[&str]) -> Vec<String> {
    let mut all = ["setsid", "--wait"].map(str::to_owned).to_vec();
    all.extend(inside(init, environment, words));
    all
}

/// Returns the command that runs something with the namespaces and capabilities of a container's
/// first process, in the session of whoever starts it.
fn inside(init: Pid, environment: &[String], words: &[&str]) -> Vec<String> {
    let init = init.as_raw_nonzero().to_string();
    let bounds = bounds(&init);
    let mut all: Vec<&str> = vec!["bash", "-c", CLOSE, "bash"];
    // Before: a container that has no users of its own would have root's on the machine.
    // An interrupt at our terminal does not reach another session, so that it ends with us.
    all.extend(["setpriv", "--pdeathsig", "TERM", "--bounding-set", &bounds]);
    all.extend([
        "--", "nsenter", "--target", &init, "--all", "--root", "--wd", "--",
    ]);
    // And after: a user namespace begins with all of its own. Ends with us, however we end:
    // otherwise it would go on inside, and hold up its shutdown.
    all.extend(["setpriv", "--pdeathsig", "TERM", "--bounding-set", &bounds]);
    all.extend(["--", "env", "-i"]);
    all.extend(ENVIRONMENT);
    all.extend(environment.iter().map(String::as_str));
    all.extend(words);
    all.into_iter().map(str::to_owned).collect()
}

/// Returns the capabilities that a process can have, in the words of `setpriv`.
fn bounds(pid: &str) -> String {
    let status = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let set = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let set = set.unwrap_or_default();
    let had = (0..64).filter(|number| set & (1 << number) != 0);
    had.fold("-all".to_owned(), |text, number| {
        format!("{text},+cap_{number}")
    })
}

impl Local {
    /// Returns the command that runs something as root inside a container, with nothing of ours but
    /// what is named of the environment; `None` when it does not run.
    pub fn enter(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let init = container::init(&self.group(node.vmid))?;
        Some(self::words(init, environment, words))
    }

    /// Returns the same for someone at a terminal. The node gets one that is made for it and ends
    /// with the command: who has ours could type into it, and read what is typed later.
    pub fn enter_at_terminal(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let init = container::init(&self.group(node.vmid))?;
        let line = format!("exec {}", shell_line(&inside(init, environment, words)));
        // It hands the line to the shell that is named there.
        let script = ["env", "SHELL=/bin/sh", "script", "--quiet", "--return"];
        let mut all = script.map(str::to_owned).to_vec();
        all.extend(["--command".to_owned(), line, "/dev/null".to_owned()]);
        Some(all)
    }

    /// Returns where the serial console of a virtual machine is.
    pub fn serial(&self, node: &Node) -> PathBuf {
        self.realm().node(&node.uuid).join("serial.sock")
    }

    /// Opens the newest files of the journal of a container that does not run. What a link leads
    /// to is not the node's.
    pub fn journal(&self, node: &Node) -> std::io::Result<Vec<File>> {
        let upper = self.realm().node(&node.uuid).join("upper");
        let journal = match tree::open(&upper, "var/log/journal") {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for (name, kind) in tree::entries(&journal)? {
            if kind == FileType::Directory {
                let machine = tree::enter(&journal, &*name)?;
                for (name, kind) in tree::entries(&machine)? {
                    if kind == FileType::RegularFile && name.to_bytes().ends_with(b".journal") {
                        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let file = File::from(openat(&machine, &*name, how, Mode::empty())?);
                        found.push((file.metadata()?.modified()?, file));
                        found.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
                        found.truncate(NEWEST);
                    }
                }
            }
        }
        Ok(found.into_iter().map(|(_, file)| file).collect())
    }
}
