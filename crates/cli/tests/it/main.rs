//! The real program, run as a person would run it.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests make real files and processes, say what they tried, and fail by panicking"
)]

mod bystanders;
mod checks;
mod crash;
mod damage;
mod exports;
mod failures;
mod father;
mod faults;
mod flags;
mod guides;
mod hostile;
mod hosts;
mod images;
mod kept;
mod late;
mod legacy;
mod locks;
mod logs;
mod look;
mod nodes;
mod on_sim;
mod operate;
mod owner;
mod polls;
mod rebuild;
mod renames;
mod results;
mod runs;
mod secrets;
mod site;
mod site_id;
mod site_lost;
mod support;
mod terminal;
mod tokens;
mod two;
mod untagged;
mod waits;

use homestak_test_support::guides as guides_of;
