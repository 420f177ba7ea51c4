//! Checks whether a guest fits on its host and storage.
//!
//! Values that are not reported are not checked. Free space is what the storage reports as
//! available, not its size minus its usage. Memory used by other guests is ignored, because it can
//! be shared.

use homestak_engine::ports::{Bytes, ErrorClass, Inventory, NewGuest};
use serde_json::Value;

use super::client::{Pve, named};
use super::error::{PveError, Reason};
use super::quirks::{parse_bool, parse_u64};
use super::requests::{ApiCall, STORAGE_STATUS};

/// The state of a storage on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageState {
    /// Whether it is switched on.
    pub enabled: bool,
    /// Whether it can be used now.
    pub active: bool,
    /// What can be written, where it is reported.
    pub available: Option<Bytes>,
}

impl StorageState {
    /// Reads the answer about one storage.
    pub fn parse(data: &Value) -> Self {
        let flag = |field: &str| data.get(field).and_then(parse_bool).unwrap_or(false);
        let active = flag("active");
        let available = data.get("avail").and_then(parse_u64).map(Bytes);
        Self {
            enabled: flag("enabled"),
            active,
            // Zeros are reported for a storage that is not available.
            available: available.filter(|_| active),
        }
    }
}

impl Pve {
    /// Asks whether a storage can be used on a host, and how much is free.
    pub(super) async fn storage_state(
        &self,
        host: &str,
        storage: &str,
    ) -> Result<StorageState, PveError> {
        let call = ApiCall::to(&STORAGE_STATUS)
            .at("node", host)
            .at("storage", storage);
        Ok(StorageState::parse(&self.ask(&call).await?))
    }

    /// Refuses a guest that cannot fit.
    pub(super) async fn check_capacity(
        &self,
        guest: &NewGuest,
        seen: &Inventory,
    ) -> Result<(), PveError> {
        check_memory(guest, seen)?;
        let storage = named(guest.storage.as_deref())?;
        match self.storage_state(&guest.host, storage).await {
            Ok(state) => check_storage(guest, storage, state),
            // A missing privilege or storage is reported by the create call.
            Err(error) if matches!(error.reason, Reason::Permission | Reason::NoStorage) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn check_memory(guest: &NewGuest, seen: &Inventory) -> Result<(), PveError> {
    let host = &guest.host;
    let memory = seen
        .hosts
        .iter()
        .find(|row| row.name == *host)
        .and_then(|row| row.memory);
    match memory.and_then(|all| too_large_for_host(host, all, guest.memory.into())) {
        Some((detail, hint)) => Err(capacity_error(detail, hint)),
        None => Ok(()),
    }
}

/// Returns message and hint if a guest needs more memory than its host has.
pub(super) fn too_large_for_host(
    host: &str,
    all: Bytes,
    wanted: Bytes,
) -> Option<(String, &'static str)> {
    if all >= wanted {
        return None;
    }
    let (all, wanted) = (format_gib(all), format_gib(wanted));
    let detail = format!("{host} has {all} of memory, but the guest needs {wanted}");
    Some((detail, "reduce its memory, or choose another host"))
}

/// Returns message and hint for a disk that is larger than what is free in its storage.
pub(super) fn too_large_for_storage(
    at: &str,
    free: Bytes,
    wanted: Bytes,
) -> (String, &'static str) {
    let (free, wanted) = (format_gib(free), format_gib(wanted));
    let detail = format!("{at} has {free} free, but the guest's disk needs {wanted}");
    (detail, "free space in the storage, or choose another")
}

fn check_storage(guest: &NewGuest, storage: &str, state: StorageState) -> Result<(), PveError> {
    let host = &guest.host;
    if !state.active {
        let why = if state.enabled {
            "is not active"
        } else {
            "is disabled"
        };
        let detail = format!("{storage} on {host} {why}");
        return Err(
            PveError::new(ErrorClass::Refused, Reason::NoStorage, detail)
                .with_hint(inactive_fix(host, storage, state)),
        );
    }
    let wanted = Bytes::from(guest.disk);
    if let Some(free) = state.available.filter(|free| *free < wanted) {
        let at = format!("{storage} on {host}");
        let (detail, hint) = too_large_for_storage(&at, free, wanted);
        return Err(capacity_error(detail, hint));
    }
    Ok(())
}

/// Returns the command that activates a storage again.
pub(super) fn inactive_fix(host: &str, storage: &str, state: StorageState) -> String {
    if state.enabled {
        format!("pvesm status   # on {host}: is the file system or server of {storage} available?")
    } else {
        format!("pvesm set {storage} --disable 0")
    }
}

fn capacity_error(detail: String, hint: &str) -> PveError {
    PveError::new(ErrorClass::Refused, Reason::Full, detail).with_hint(hint)
}

/// Writes bytes as GiB with one digit, rounded down.
fn format_gib(size: Bytes) -> String {
    let tenths = (u128::from(size.0) * 10) >> 30;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn free_space_is_the_reported_available_space() {
        let seen = json!({"active": 1, "enabled": 1, "total": 2_040_373_248_u64,
            "used": 569_344, "avail": 1_915_654_144_u64});
        let available = StorageState::parse(&seen).available;
        assert_eq!(available, Some(Bytes(1_915_654_144)));
        let inactive = json!({"active": 0, "enabled": 1, "total": 0, "used": 0, "avail": 0});
        let inactive = StorageState::parse(&inactive);
        assert_eq!((inactive.active, inactive.available), (false, None));
    }

    #[test]
    fn sizes_are_rounded_down() {
        assert_eq!(format_gib(Bytes(8 << 30)), "8.0 GiB");
        assert_eq!(format_gib(Bytes((8 << 30) - 1)), "7.9 GiB");
        assert_eq!(format_gib(Bytes(0)), "0.0 GiB");
    }
}
