//! Signs jobs with the key of the site.

use homestak_api::job_statement::JobStatement;
use homestak_api::signature::Purpose;

use super::request::{JobRequest, new_id};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::nodes::RecordedNode;
use crate::server::ServerLease;

/// Signs a job for a node. Returns it, and the statement that the server passes on.
pub(super) async fn sign(
    lease: &ServerLease,
    node: &RecordedNode,
    request: &JobRequest,
) -> Result<(JobStatement, String), DriverError> {
    let site = lease.site().await?;
    let issued = lease.settings().time.now().as_second();
    let lifetime = i64::try_from(request.expires).unwrap_or(i64::MAX);
    let statement = JobStatement {
        site: site.publisher.site.to_string(),
        node: node.name().to_owned(),
        uuid: node.record.guest.uuid.clone(),
        id: new_id(),
        kind: request.kind,
        options: request.options.clone(),
        issued,
        expires: issued.saturating_add(lifetime),
        time_limit: request.time_limit,
        operator: operator(),
    };
    // Cancel safety: nothing is stored.
    run_blocking(move || {
        let key = &site.publisher.keys.site_key;
        let signed = key.sign(Purpose::Job, &statement);
        let signed = signed.map_err(|error| {
            DriverError::failed(format!("The job could not be signed: {error}."))
        })?;
        Ok((statement, signed))
    })
    .await
}

/// Returns who asks for a job, for logs: the user and the machine.
pub(super) fn operator() -> String {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy().into_owned();
    let user = rustix::process::getuid().as_raw();
    format!("uid {user} on {machine}")
}
