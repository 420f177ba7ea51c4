//! What `cargo xtask` prints.
//!
//! In: results. Out: text on stdout and stderr, and the exit code that belongs to it.
//! Never: deciding.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the one place of xtask that prints"
)]

use std::process::ExitCode;

/// Prints faults, one a line, or that there are none.
pub(crate) fn faults(lines: &[String], what: &str) -> ExitCode {
    for line in lines {
        println!("{line}");
    }
    match lines.len() {
        0 => {
            eprintln!("{what}: in order");
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
    // Printing fails only when nobody reads; then there is nobody to tell either.
    _ = error.print();
    if error.use_stderr() {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}
