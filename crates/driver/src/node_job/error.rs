//! Errors of jobs, with what to do about them.

use homestak_api::v1::node_job::JobKind;
use homestak_providers::push::NodeJobError;

use crate::error::{DriverError, ErrorKind};
use crate::nodes::{NodeConnection, RecordedNode};

/// Converts an error of a job over SSH.
pub(super) fn of_ssh(
    error: &NodeJobError,
    (node, connection): (&RecordedNode, &NodeConnection),
    (kind, id): (JobKind, &str),
) -> DriverError {
    let (name, options) = (node.name(), node.options());
    let apply = format!("homestak manifest apply {options} installs the agent of this version");
    match error {
        NodeJobError::Ssh(error) => connection.driver_error(error),
        NodeJobError::NoAgent => {
            DriverError::failed(format!("`{name}` has no agent, which runs jobs."))
                .hint(apply)
                .hint("a node without a spec has no agent; add one to the manifest")
        }
        NodeJobError::OldAgent => {
            DriverError::failed(format!("The agent of `{name}` is too old to run jobs."))
                .hint(apply)
        }
        NodeJobError::Agent(message) => DriverError::failed(format!(
            "The agent of `{name}` could not run the job: {}.",
            message.trim_end_matches('.')
        )),
        NodeJobError::NoLongerReachable { .. }
        | NodeJobError::TooLong { .. }
        | NodeJobError::Abandoned => {
            let again = format!(
                "homestak node job {name} {} {options} --ssh --id {id}",
                kind.name()
            );
            unknown(format!(
                "What the job did on `{name}` is not known: {error}."
            ))
            .hint(format!("{again} returns its outcome, or waits for it"))
        }
    }
}

/// Makes the error for a job that may have run.
pub(super) fn unknown(message: String) -> DriverError {
    DriverError {
        kind: ErrorKind::Stopped,
        ..DriverError::failed(message)
    }
}
