//! Calls of `systemctl` that may be repeated: systemd answers late or not at all while the machine is
//! busy, and `systemctl` gives up after 25 seconds.

use crate::clock;
use crate::process::{self, Output, ProcessError};

/// How often systemd is called until it answers.
const MAX_CALLS: usize = 4;
/// The pause between two calls, in milliseconds.
const PAUSE: u64 = 2_000;

/// How the message of `systemctl` ends when it received no answer, as opposed to a refusal.
const NO_ANSWER: [&str; 6] = [
    "Transport endpoint is not connected",
    "Connection timed out",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Message recipient disconnected from message bus without replying",
];

/// Runs `systemctl` with words that lead to the same state when they are repeated. Calls it again
/// while systemd does not answer.
pub(crate) fn run(words: &[&str]) -> Result<Output, ProcessError> {
    let words = [&["systemctl"], words].concat();
    repeat(|| process::run(&words), || clock::sleep(PAUSE))
}

/// The same for a call that must succeed. Returns what it printed.
pub(crate) fn run_ok(words: &[&str]) -> Result<String, ProcessError> {
    let output = run(words)?;
    output.require_success(&[&["systemctl"], words].concat())
}

fn repeat(
    mut call: impl FnMut() -> Result<Output, ProcessError>,
    mut pause: impl FnMut(),
) -> Result<Output, ProcessError> {
    for n in 1..MAX_CALLS {
        let output = call()?;
        if !is_unanswered(&output) {
            return Ok(output);
        }
        tracing::warn!(n, reason = output.reason(), "systemd does not answer");
        pause();
    }
    call()
}

fn is_unanswered(output: &Output) -> bool {
    let mut lines = output.err.lines().map(str::trim_end);
    output.code != Some(0)
        && lines.any(|line| {
            line.starts_with("Failed to ") && NO_ANSWER.iter().any(|end| line.ends_with(end))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(code: i32, err: &str) -> Output {
        Output {
            code: Some(code),
            err: err.to_owned(),
            ..Output::default()
        }
    }

    /// Calls until an answer is accepted; returns the number of calls, and the last exit code.
    fn calls(answers: &[(i32, &str)]) -> (usize, Option<i32>) {
        let (mut n_calls, mut n_pauses) = (0, 0);
        let done = repeat(
            || {
                let (code, err) = answers[n_calls.min(answers.len() - 1)];
                n_calls += 1;
                Ok(output(code, err))
            },
            || n_pauses += 1,
        );
        assert_eq!(n_pauses + 1, n_calls);
        (n_calls, done.expect("it ran").code)
    }

    #[test]
    fn systemd_is_asked_again_while_it_does_not_answer() {
        let lost = "Failed to get properties: Transport endpoint is not connected\n";
        let timed_out = "Failed to get properties: Connection timed out\n";
        let no_bus = "Failed to connect to bus: Connection refused\n";
        assert_eq!(calls(&[(1, lost), (1, timed_out), (0, "")]), (3, Some(0)));
        assert_eq!(calls(&[(1, no_bus), (0, "")]), (2, Some(0)));
        assert_eq!(calls(&[(1, timed_out)]), (MAX_CALLS, Some(1)));
    }

    #[test]
    fn any_answer_of_systemd_ends_the_retries() {
        for (code, err) in [
            (0, ""),
            (0, "Failed to get properties: Connection timed out"),
            (3, ""),
            (1, "Unit x.service could not be found."),
            (
                1,
                "Job for x.service failed because a timeout was exceeded.",
            ),
            (
                1,
                "Failed to enable unit: Unit file x.service does not exist.",
            ),
            (1, "x.service: Connection timed out"),
        ] {
            assert_eq!(calls(&[(code, err)]), (1, Some(code)), "{err}");
        }
    }
}
