//! What holds for every journal, whatever it is written with.
//!
//! In: [`Ground`], which opens journals and starts processes. Out: nothing.
//! Never: anything about one implementation.

pub(crate) mod endings;
pub(crate) mod leases;
pub(crate) mod many;
pub(crate) mod paces;
pub(crate) mod processes;
pub(crate) mod random;
pub(crate) mod records;
pub(crate) mod runs;

use std::process::Child;
use std::sync::Arc;

use homestak_engine::journal::{Journal, Scope};
pub(crate) use homestak_test_support::sample;

/// One place where a journal is kept. Each test has its own.
pub(crate) trait Ground {
    /// Opens the journal, as another program would: what is written is shared, memory is not.
    fn open(&self) -> Arc<dyn Journal>;
    /// Makes the holder of a scope look as if it were on another machine, and silent for long.
    fn move_away(&self, scope: &Scope);
    /// Starts a process that opens the same journal and calls [`processes::play`] with the role.
    fn start(&self, role: &str) -> Child;
}

/// Waits for a test. Several threads, as in the program.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test)
}

/// Makes every test of the suite a test of the file that names it, on grounds made by a function.
macro_rules! suite {
    ($ground:path) => {
        crate::suite::suite! { $ground:
            runs {
                a_run_is_read_back_as_it_was_written,
                a_run_of_ten_thousand_nodes_is_read_back,
                runs_are_listed_newest_first,
                runs_are_listed_in_pages,
                what_nobody_began_is_not_there_and_takes_no_entries,
                everything_that_can_happen_is_read_back,
            }
            endings {
                a_run_without_an_end_has_none,
                every_ending_is_read_back_and_the_last_counts,
                an_entry_after_the_end_makes_the_run_go_on,
            }
            records {
                the_newest_record_of_each_node_counts,
                a_node_that_is_destroyed_is_not_listed,
                manifests_and_hosts_are_apart,
                a_forgotten_node_is_gone_until_it_is_seen_again,
            }
            paces {
                the_median_of_each_kind_is_told,
                only_steps_that_changed_something_count,
                what_is_long_ago_does_not_count,
            }
            leases {
                a_scope_is_held_until_its_lease_is_dropped,
                all_scopes_are_taken_or_none,
                holders_of_different_scopes_do_not_wait,
                a_scope_named_twice_is_taken_once,
                a_lease_outlives_the_journal_it_was_taken_from,
                a_call_that_is_given_up_holds_nothing,
                the_number_of_a_scope_grows_each_time_it_is_taken,
                a_run_that_lost_its_lease_writes_nothing_more,
            }
            many {
                entries_of_many_tasks_are_all_there_in_order,
                a_reader_sees_a_beginning_of_what_is_written,
                one_that_is_refused_does_not_spoil_the_others,
            }
            processes {
                two_processes_write_at_once,
                what_was_acknowledged_survives_a_kill,
                a_killed_holder_loses_its_lease,
                a_living_holder_keeps_its_lease,
                a_holder_that_was_stopped_finds_its_lease_taken,
            }
            random {
                whatever_is_written_is_read_back_in_order,
            }
        }
    };
    ($ground:path: $($group:ident { $($name:ident,)* })*) => {
        $(mod $group {
            $(#[test]
            fn $name() {
                crate::suite::$group::$name(&$ground());
            })*
        })*
    };
}
pub(crate) use suite;
