//! Tests that every implementation of the journal must pass.

pub(crate) mod durations;
pub(crate) mod leases;
pub(crate) mod many;
pub(crate) mod outcomes;
pub(crate) mod processes;
pub(crate) mod random;
pub(crate) mod records;
pub(crate) mod runs;

use std::process::Child;
use std::sync::Arc;

use homestak_engine::journal::{Journal, Scope};
pub(crate) use homestak_test_support::sample;

/// A stored journal. Each test has its own.
pub(crate) trait JournalFixture {
    /// Opens the journal like another program: data on disk is shared, memory is not.
    fn open(&self) -> Arc<dyn Journal>;
    /// Makes the holder of a scope appear to be on another machine and expired.
    fn move_away(&self, scope: &Scope);
    /// Starts a process that opens the same journal and calls [`processes::run_role`] with the role.
    fn start(&self, role: &str) -> Child;
}

/// Runs a test on a runtime with several threads, as in the program.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test)
}

/// Instantiates every test of the suite in the calling file, with fixtures from a function.
macro_rules! suite {
    ($fixture:path) => {
        crate::suite::suite! { $fixture:
            runs {
                a_run_is_read_back_as_it_was_written,
                a_run_of_ten_thousand_nodes_is_read_back,
                runs_are_listed_newest_first,
                runs_are_listed_in_pages,
                a_run_is_followed_from_a_position,
                an_unknown_run_cannot_be_read_or_appended_to,
                every_step_event_is_read_back,
            }
            outcomes {
                a_run_that_did_not_end_has_no_outcome,
                every_outcome_is_read_back_and_the_last_counts,
                an_entry_after_the_end_reopens_the_run,
            }
            records {
                the_newest_record_of_each_node_counts,
                a_node_that_is_destroyed_is_not_listed,
                manifests_and_hosts_are_separate,
                a_forgotten_node_has_no_record_until_it_is_seen_again,
            }
            durations {
                the_median_of_each_kind_is_returned,
                only_steps_that_changed_something_count,
                old_durations_do_not_count,
            }
            leases {
                a_scope_is_locked_until_its_lease_is_dropped,
                all_scopes_are_taken_or_none,
                holders_of_different_scopes_do_not_wait,
                a_scope_named_twice_is_taken_once,
                a_lease_outlives_the_journal_it_was_taken_from,
                a_dropped_call_holds_no_lease,
                the_number_of_a_scope_grows_with_each_lease,
                a_run_that_lost_its_lease_writes_nothing_more,
            }
            many {
                entries_of_many_tasks_are_complete_and_in_order,
                a_reader_sees_a_prefix_of_the_written_entries,
                a_refused_request_does_not_affect_the_others,
            }
            processes {
                two_processes_write_at_once,
                acknowledged_entries_survive_a_kill,
                a_killed_holder_loses_its_lease,
                a_living_holder_keeps_its_lease,
                a_holder_that_was_stopped_has_lost_its_lease,
            }
            random {
                all_entries_are_read_back_in_order,
            }
        }
    };
    ($fixture:path: $($group:ident { $($name:ident,)* })*) => {
        $(mod $group {
            $(#[test]
            fn $name() {
                crate::suite::$group::$name(&$fixture());
            })*
        })*
    };
}
pub(crate) use suite;
