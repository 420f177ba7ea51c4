//! Numbers with units: documents and plans use MiB for memory, GiB for disks and seconds for time;
//! hosts use bytes.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Declares a number with a unit, serialized as the plain number.
macro_rules! unit {
    ($(#[doc = $doc:literal])+ $name:ident, $word:literal) => {
        $(#[doc = $doc])+
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            schemars::JsonSchema,
        )]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $word), self.0)
            }
        }
    };
}

unit! {
    /// Bytes.
    Bytes, "bytes"
}

unit! {
    /// Mebibytes: 2^20 bytes each.
    Mib, "MiB"
}

unit! {
    /// Gibibytes: 2^30 bytes each.
    Gib, "GiB"
}

unit! {
    /// Seconds.
    Seconds, "s"
}

impl From<Seconds> for Duration {
    fn from(time: Seconds) -> Self {
        Self::from_secs(time.0)
    }
}

impl Bytes {
    /// Returns the whole mebibytes.
    pub fn whole_mib(self) -> Mib {
        Mib(self.0 >> 20)
    }

    /// Returns the whole gibibytes.
    pub fn whole_gib(self) -> Gib {
        Gib(self.0 >> 30)
    }
}

impl From<Mib> for Bytes {
    fn from(size: Mib) -> Self {
        Self(size.0.saturating_mul(1 << 20))
    }
}

impl From<Gib> for Bytes {
    fn from(size: Gib) -> Self {
        Self(size.0.saturating_mul(1 << 30))
    }
}
