//! The real program, run as a person would run it.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make real files and processes"
)]

mod exports;
mod flags;
mod look;
mod secrets;
mod support;
mod tokens;
mod words;
