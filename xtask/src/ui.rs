//! Prints results and errors of `cargo xtask`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the one place of xtask that prints"
)]

use std::process::ExitCode;

/// Prints faults, one per line, or that there are none.
pub(crate) fn faults(lines: &[String], what: &str) -> ExitCode {
    for line in lines {
        println!("{line}");
    }
    match lines.len() {
        0 => {
            eprintln!("{what}: no faults");
            ExitCode::SUCCESS
        }
        1 => {
            eprintln!("{what}: 1 fault");
            ExitCode::FAILURE
        }
        more => {
            eprintln!("{what}: {more} faults");
            ExitCode::FAILURE
        }
    }
}

/// Prints which files were written.
pub(crate) fn written(paths: &[String]) -> ExitCode {
    for path in paths {
        println!("wrote {path}");
    }
    if paths.is_empty() {
        eprintln!("generated files: nothing to do");
    }
    ExitCode::SUCCESS
}

/// Prints an error with its causes.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

/// Prints help or a usage error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // If stdout is closed, there is nowhere to report that.
    _ = error.print();
    if error.use_stderr() {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}
