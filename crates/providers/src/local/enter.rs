//! Ways into a node that need no network: for when SSH does not work, or there is none yet.
//!
//! In: a node. Out: arguments and paths for those who want to look inside.
//! Never: a change to the node by itself.

use std::path::PathBuf;

use rustix::process::Pid;

use super::{Local, Node, container};

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

/// Returns the command that runs something as root inside a container, with the namespaces and
/// capabilities of its first process.
pub(super) fn words(init: Pid, environment: &[String], words: &[&str]) -> Vec<String> {
    let init = init.as_raw_nonzero().to_string();
    let bounds = bounds(&init);
    let mut all: Vec<&str> = vec!["bash", "-c", CLOSE, "bash"];
    // Before: a container that has no users of its own would have root's on the machine.
    all.extend(["setpriv", "--bounding-set", &bounds, "--"]);
    all.extend([
        "nsenter", "--target", &init, "--all", "--root", "--wd", "--",
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
    /// the terminal and what is named of the environment; `None` when it does not run.
    pub fn enter(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let init = container::init(&self.group(node.vmid))?;
        Some(self::words(init, environment, words))
    }

    /// Returns where the serial console of a virtual machine is.
    pub fn serial(&self, node: &Node) -> PathBuf {
        self.realm().node(&node.uuid).join("serial.sock")
    }

    /// Returns where the journal of a container that does not run is, when it kept one.
    pub fn journal(&self, node: &Node) -> Option<PathBuf> {
        let upper = self.realm().node(&node.uuid).join("upper");
        Some(upper.join("var/log/journal")).filter(|path| path.is_dir())
    }
}
