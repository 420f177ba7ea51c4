//! Output and exit code of a program run.

use std::process::{Command, Output};

use serde_json::Value;

use crate::output;

/// Output and exit code of a program run.
pub struct Run {
    /// The exit code; -1 when a signal ended it.
    pub code: i32,
    /// What it printed on stdout.
    pub out: String,
    /// What it printed on stderr.
    pub err: String,
}

impl From<Output> for Run {
    /// Takes the output of a program. Documents of `--json-output` must match the schema of their kind.
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
    /// Runs a program. With `--json-output`, it must print an output of a kind.
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self::of_output(command, output)
    }

    /// Takes the output of a command that was run. With `--json-output`, it must have printed an output
    /// of a kind.
    pub fn of_output(command: &Command, output: Output) -> Self {
        let arguments: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        let run = Self::from(output);
        output::check_run(&arguments, &run.out, run.code == 0);
        run
    }

    /// Requires success and returns stdout.
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "{}\n{}", self.out, self.err);
        self.out
    }

    /// Requires success and returns stdout as JSON.
    pub fn json(self) -> Value {
        serde_json::from_str(&self.good()).unwrap()
    }

    /// Requires failure, and returns stderr.
    pub fn bad(self) -> String {
        assert_ne!(self.code, 0, "{}\n{}", self.out, self.err);
        self.err
    }
}
