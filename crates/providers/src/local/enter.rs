//! Ways into a node that need no network: for when SSH does not work, or there is none yet.
//!
//! In: a node. Out: arguments and paths for those who want to look inside.
//! Never: a change to the node by itself.

use std::path::PathBuf;

use super::{Local, Node};

/// What a login of root has in its environment.
const ENVIRONMENT: [&str; 6] = [
    "HOME=/root",
    "USER=root",
    "LOGNAME=root",
    "SHELL=/bin/bash",
    "LANG=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
];

impl Local {
    /// Returns the arguments of `nsenter` that run something as root inside a container, with
    /// nothing of our environment but what is named; `None` when it does not run.
    pub fn enter(
        &self,
        node: &Node,
        environment: &[String],
        words: &[&str],
    ) -> Option<Vec<String>> {
        let init = self.init(node)?.to_string();
        // Ends with us, however we end: otherwise it would go on inside, and hold up its shutdown.
        let ours = ["setpriv", "--pdeathsig", "TERM", "--", "env", "-i"];
        let mut all: Vec<String> = ["--target", &init, "--all", "--root", "--wd", "--"]
            .map(str::to_owned)
            .into();
        all.extend(ours.map(str::to_owned));
        all.extend(ENVIRONMENT.map(str::to_owned));
        all.extend(environment.iter().cloned());
        all.extend(words.iter().map(|&word| word.to_owned()));
        Some(all)
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
