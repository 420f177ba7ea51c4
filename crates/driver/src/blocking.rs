//! Blocking work (a program, a lock, a disk) on a thread of its own.

use homestak_api::runtime;

use crate::error::DriverError;

/// Runs blocking work off the runtime. Dropping the future does not stop it.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> Result<T, DriverError> {
    let done = runtime::run_blocking(work).await;
    done.map_err(|error| DriverError::failed(format!("This is a bug of homestak: {error}.")))?
}
