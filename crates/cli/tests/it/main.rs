//! The real program, run as an operator runs it.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests create real files and processes, print what they ran, and fail by panicking"
)]

mod checks;
mod concurrent_runs;
mod crash;
mod damage;
mod exports;
mod failures;
mod faults;
mod first_contact;
mod flags;
mod guides;
mod hostile;
mod hosts;
mod images;
mod jobs;
mod kinds;
mod legacy;
mod locks;
mod logs;
mod lost_site_id;
mod nested_guests;
mod new_user;
mod nodes;
mod on_sim;
mod operate;
mod owner;
mod persistent_sim;
mod polls;
mod pull_on_sim;
mod rebuild;
mod renames;
mod repos;
mod results;
mod runs;
mod secrets;
mod server;
mod server_keys;
mod server_secrets;
mod server_sharing;
mod server_target;
mod show;
mod site;
mod site_id;
mod stale_list;
mod support;
mod terminal;
mod test_pve;
mod tokens;
mod untagged;
mod waits;

use homestak_test_support::guides as guide_commands;
