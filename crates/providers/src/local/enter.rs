//! Access to a node without network: commands, the serial console and the journal.

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, openat};

use super::cgroup::Cgroup;
use super::{Local, Node, container, launch, tree};
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

/// Closes every file except the terminal, joins the node's groups and limits, then runs the command.
/// Inherited files must not be accessible in a node, and outside of the node's groups the command
/// could use all resources of the machine. Arguments: how many processes a user of the node may have
/// or -, the node's groups, the command.
const ENTER: &str = r#"for file in /proc/self/fd/*; do
    file=${file##*/}
    [ "$file" -le 2 ] || eval "exec $file>&-"
done 2>/dev/null
stop() { echo "cannot enter the node: its limits cannot be applied ($1)" >&2; exit 1; }
[ "$1" = - ] || ulimit -u "$1" || stop "processes of a user"
for group in $2; do
    echo 0 >"$group/cgroup.procs" || stop "$group"
done
shift 2
exec "$@""#;

/// What is needed to run something inside a container.
pub(super) struct ContainerEntry {
    /// Its first process.
    init: String,
    /// Its groups.
    groups: String,
    /// How many processes one of its users may have.
    tasks: String,
}

impl ContainerEntry {
    /// Returns the data to enter a container; `None` if it is not running.
    pub(super) fn of(node: &Node, group: &Cgroup) -> Option<Self> {
        let tasks = container::user_tasks(node);
        Some(Self {
            init: container::init(group)?.as_raw_nonzero().to_string(),
            groups: launch::joined(&group.groups_to_join()),
            tasks: tasks.map_or_else(|| "-".to_owned(), |tasks| tasks.to_string()),
        })
    }

    /// Returns the command that runs something as root inside, in a session of its own: the
    /// programs are the node's, and could type into the terminal of the session they are in.
    pub(super) fn in_own_session(&self, environment: &[String], words: &[&str]) -> Vec<String> {
        let mut all = ["setsid", "--wait"].map(str::to_owned).to_vec();
        all.extend(self.in_callers_session(environment, words));
        all
    }

    /// Returns the command that runs something with the namespaces, groups and capabilities of the
    /// container, in the caller's session.
    fn in_callers_session(&self, environment: &[String], words: &[&str]) -> Vec<String> {
        let bounds = bounds(&self.init);
        let mut all: Vec<&str> = vec!["bash", "-c", ENTER, "bash", &self.tasks, &self.groups];
        // Before: a container that has no users of its own would have root's on the machine.
        // An interrupt at our terminal does not reach another session, so that it ends with us.
        all.extend(["setpriv", "--pdeathsig", "TERM", "--bounding-set", &bounds]);
        all.extend(["--", "nsenter", "--target", &self.init]);
        all.extend(["--all", "--root", "--wd", "--"]);
        // And after: a user namespace begins with all of its own. Ends with us, however we end:
        // otherwise it would continue inside, and delay the shutdown.
        all.extend(["setpriv", "--pdeathsig", "TERM", "--bounding-set", &bounds]);
        all.extend(["--", "env", "-i"]);
        all.extend(ENVIRONMENT);
        all.extend(environment.iter().map(String::as_str));
        all.extend(words);
        all.into_iter().map(str::to_owned).collect()
    }
}

/// Returns the capabilities that a process can have, as `setpriv` writes them.
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
    /// Returns the command that runs something as root inside a container, with only these variables
    /// of the environment; `None` when the container is not running.
    pub fn enter(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let entry = ContainerEntry::of(node, &self.group(node.vmid))?;
        Some(entry.in_own_session(environment, words))
    }

    /// Returns the same for use at a terminal. The node gets a new terminal that ends with the command:
    /// with ours, it could insert input and read later input.
    pub fn enter_at_terminal(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let entry = ContainerEntry::of(node, &self.group(node.vmid))?;
        let line = format!(
            "exec {}",
            shell_line(&entry.in_callers_session(environment, words))
        );
        // It hands the line to the shell that is named there.
        let script = ["env", "SHELL=/bin/sh", "script", "--quiet", "--return"];
        let mut all = script.map(str::to_owned).to_vec();
        all.extend(["--command".to_owned(), line, "/dev/null".to_owned()]);
        Some(all)
    }

    /// Returns where the serial console of a virtual machine is.
    pub fn serial(&self, node: &Node) -> PathBuf {
        self.instance().node(&node.uuid).join("serial.sock")
    }

    /// Opens the newest files of the journal of a container that does not run. What a link leads
    /// to is not the node's.
    pub fn journal(&self, node: &Node) -> std::io::Result<Vec<File>> {
        let upper = self.instance().node(&node.uuid).join("upper");
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

#[cfg(test)]
mod tests {
    use super::ENTER;
    use crate::process::run;

    #[test]
    fn nothing_runs_if_a_group_of_the_node_cannot_be_joined() {
        let place = tempfile::tempdir().expect("a directory");
        let group = |name: &str| {
            let group = place.path().join(name);
            fs_err::create_dir(&group).expect("created");
            group
        };
        let (good, other) = (group("good"), group("other"));
        fs_err::write(good.join("cgroup.procs"), "").expect("written");
        let enter = |groups: String| {
            let words = ["-c", ENTER, "bash", "77", &groups, "bash", "-c"];
            run("bash", &[&words[..], &["ulimit -u; ulimit -Hu"]].concat())
        };
        assert_eq!(
            enter(good.display().to_string()).expect("it ran"),
            "77\n77\n"
        );
        let joined = fs_err::read_to_string(good.join("cgroup.procs")).expect("read");
        assert_eq!(joined, "0\n");
        fs_err::create_dir(other.join("cgroup.procs")).expect("created");
        let failed = enter(format!("{} {}", good.display(), other.display()));
        let message = failed.expect_err("it must not run").to_string();
        assert!(
            message.contains("its limits cannot be applied"),
            "{message}"
        );
    }
}
