//! Permits for work of which only some is done at a time, and less for one address: who has a token
//! cannot keep out all others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::listen::counted_address;
use crate::refusal::Refusal;

/// What the permits are for.
pub(crate) struct Shares {
    all: Arc<Semaphore>,
    of_each: usize,
    addresses: Mutex<BTreeMap<IpAddr, Weak<Semaphore>>>,
}

/// The part of one address in a work, until it is dropped.
pub(crate) struct Share<'a> {
    shares: &'a Shares,
    own: OwnedSemaphorePermit,
}

/// A permit, until it is dropped.
pub(crate) struct Permit {
    _own: OwnedSemaphorePermit,
    _any: OwnedSemaphorePermit,
}

impl Shares {
    /// Allows work `most` times at a time, and `of_each` times for one address.
    pub(crate) fn new(most: usize, of_each: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(most)),
            of_each,
            addresses: Mutex::default(),
        }
    }

    /// Waits until the address may do more, without keeping others from it.
    pub(crate) async fn of(&self, address: IpAddr) -> Result<Share<'_>, Refusal> {
        let of_address = self.semaphore(counted_address(address));
        // Cancel safety: waiting for a permit is cancel-safe, and the request has a time limit.
        let own = of_address.acquire_owned().await;
        let own = own.map_err(|_| Refusal::internal())?;
        Ok(Share { shares: self, own })
    }

    fn semaphore(&self, address: IpAddr) -> Arc<Semaphore> {
        let addresses = self.addresses.lock();
        let mut addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = addresses.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        // Those whose permits were all returned.
        addresses.retain(|_, semaphore| semaphore.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.of_each));
        addresses.insert(address, Arc::downgrade(&new));
        new
    }
}

impl Share<'_> {
    /// Waits for a permit.
    pub(crate) async fn permit(self) -> Result<Permit, Refusal> {
        // Cancel safety: as above.
        let any = self.shares.all.clone().acquire_owned().await;
        Ok(Permit {
            _own: self.own,
            _any: any.map_err(|_| Refusal::internal())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn permit(shares: &Shares, address: &str) -> Option<Permit> {
        let address = address.parse().expect("an address");
        let permit = async { shares.of(address).await?.permit().await };
        let within = timeout(Duration::from_millis(1), permit).await.ok()?;
        Some(within.unwrap_or_else(|_| panic!("a permit")))
    }

    #[tokio::test]
    async fn one_address_cannot_have_all_permits() {
        let shares = Shares::new(3, 2);
        let first = permit(&shares, "2001:db8::1").await;
        let _second = permit(&shares, "2001:db8::2").await.expect("two");
        assert!(
            permit(&shares, "2001:db8::3").await.is_none(),
            "one network"
        );
        let _other = permit(&shares, "192.0.2.1").await.expect("three");
        assert!(permit(&shares, "192.0.2.2").await.is_none(), "all in use");
        drop(first);
        let _free = permit(&shares, "192.0.2.2").await.expect("free");
        assert_eq!(shares.addresses.lock().expect("a table").len(), 3);
    }

    #[tokio::test]
    async fn the_share_of_an_address_is_no_permit_and_is_forgotten_after_use() {
        let shares = Shares::new(1, 1);
        let address = "192.0.2.1".parse().expect("an address");
        let share = shares.of(address).await.unwrap_or_else(|_| panic!("free"));
        let other = permit(&shares, "192.0.2.2").await.expect("not taken");
        drop((share, other));
        let _new = permit(&shares, "192.0.2.3").await.expect("free");
        assert_eq!(shares.addresses.lock().expect("a table").len(), 1);
    }
}
