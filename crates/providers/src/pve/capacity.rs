//! Whether a guest can fit where it shall be made, by what was observed.
//!
//! In: the guest and a look. Out: nothing, or a refusal with figures.
//! Never: a guess: what the look does not say is no obstacle; memory that others use, for that
//! may be shared.

use homestak_engine::ports::{Class, NewGuest, Observed};

use super::fault::{Fault, Reason};

/// Refuses a guest that cannot fit.
pub(super) fn check(guest: &NewGuest, seen: &Observed) -> Result<(), Fault> {
    let (host, storage) = (&guest.host, &guest.storage);
    let memory = seen
        .hosts
        .iter()
        .find(|row| row.name == *host)
        .and_then(|row| row.memory);
    let wanted = guest.memory << 20;
    if let Some(all) = memory.filter(|all| *all < wanted) {
        let (all, wanted) = (gibibytes(all), gibibytes(wanted));
        let detail = format!("{host} has {all} of memory, and the guest wants {wanted}");
        return Err(full(detail, "give it less memory, or choose another host"));
    }
    let free = seen
        .storages
        .iter()
        .find(|row| row.name == *storage && (row.host == *host || row.shared))
        .and_then(|row| row.available);
    let wanted = guest.disk << 30;
    if let Some(free) = free.filter(|free| *free < wanted) {
        let (free, wanted) = (gibibytes(free), gibibytes(wanted));
        let detail =
            format!("{storage} on {host} has {free} free, and the guest's disk has {wanted}");
        return Err(full(detail, "make room in the storage, or choose another"));
    }
    Ok(())
}

fn full(detail: String, hint: &str) -> Fault {
    Fault::new(Class::Refused, Reason::Full, detail).with_hint(hint)
}

/// Writes bytes as GiB with one digit, rounded down.
fn gibibytes(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 30;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_down() {
        assert_eq!(gibibytes(8 << 30), "8.0 GiB");
        assert_eq!(gibibytes((8 << 30) - 1), "7.9 GiB");
        assert_eq!(gibibytes(0), "0.0 GiB");
    }
}
