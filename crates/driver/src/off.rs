//! Work that waits by itself, for a program, a lock or a disk, done on a thread that may wait.

use homestak_api::runtime;

use crate::error::DriverError;

/// Does work off the runtime. A caller that is dropped does not stop it.
pub async fn off<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> Result<T, DriverError> {
    let done = runtime::off(work).await;
    done.map_err(|error| DriverError::failed(format!("This is a bug of homestak: {error}.")))?
}
