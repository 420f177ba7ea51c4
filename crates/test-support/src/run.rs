//! What a run of a program printed, and how it ended.

use std::process::Output;

use serde_json::Value;

use crate::output;

/// What a run printed, and its exit code.
pub struct Run {
    /// The exit code; -1 when a signal ended it.
    pub code: i32,
    /// What it printed on stdout.
    pub out: String,
    /// What it printed on stderr.
    pub err: String,
}

impl From<Output> for Run {
    /// Takes what a program printed. Output of `--json-output` must be of the type of its kind.
    fn from(output: Output) -> Self {
        let run = Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        output::check(&run.out);
        run
    }
}

impl Run {
    /// Requires success and returns stdout.
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "{}\n{}", self.out, self.err);
        self.out
    }

    /// Requires success and returns stdout as JSON.
    pub fn json(self) -> Value {
        serde_json::from_str(&self.good()).unwrap()
    }

    /// Requires failure, and returns what was said.
    pub fn bad(self) -> String {
        assert_ne!(self.code, 0, "{}\n{}", self.out, self.err);
        self.err
    }
}
