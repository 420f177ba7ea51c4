//! The highest number under which each scope was changed here: a driver that lost its lease to
//! another is refused. The file is deleted with the root directory, once nothing else is in it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;

use homestak_api::durable::{self, Access};
use homestak_engine::journal::Fence;
use homestak_engine::ports::PortError;

use super::error;
use super::instance::Instance;

/// The file, in the root directory.
pub(super) const FILE: &str = "fences.json";

/// Returns whether a file of the root directory is this one, or what a killed writer of it left.
pub(super) fn is_own(name: &OsStr) -> bool {
    let left = |name: &str| {
        let rest = name.strip_prefix('.')?.strip_prefix(FILE)?;
        Some(rest.contains(durable::TEMPORARY))
    };
    name == FILE || name.to_str().and_then(left) == Some(true)
}

impl Instance {
    /// Refuses a change under an older number than the highest that was seen of its scope.
    pub(super) fn admit(&self, fence: &Fence) -> Result<(), PortError> {
        // Without the directory there is nothing to change, and none is created.
        // The file is replaced as a whole, so it can be read at any time.
        if !self.root().exists() || self.is_newest(fence, &self.fences()?)? {
            return Ok(());
        }
        let _turn = self.lock()?;
        let mut seen = self.fences()?;
        if !self.is_newest(fence, &seen)? {
            seen.insert(fence.scope.clone(), fence.number);
            self.remove_leftovers();
            let text = serde_json::to_vec(&seen);
            let text = text.map_err(|error| PortError::bug("write a number", &error))?;
            let path = self.root().join(FILE);
            durable::write(&path, &text, Access::PRIVATE)
                .map_err(|error| error::io(&format!("write {}", path.display()), &error))?;
        }
        Ok(())
    }

    /// Removes what killed writers left. The caller holds the lock, so no other process is writing.
    fn remove_leftovers(&self) {
        let entries = fs_err::read_dir(self.root())
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name());
        for name in names.filter(|name| is_own(name) && name != FILE) {
            let _ = fs_err::remove_file(self.root().join(name));
        }
    }

    /// Returns whether a number is the highest that was seen; refuses one that is lower.
    fn is_newest(&self, fence: &Fence, seen: &BTreeMap<String, i64>) -> Result<bool, PortError> {
        match seen.get(&fence.scope) {
            Some(highest) if *highest > fence.number => Err(PortError::refused(
                &format!("use {}", self.root().display()),
                format!(
                    "this run lost its lease: its fencing number is {}, but {highest} was used since",
                    fence.number
                ),
                "homestak manifest status shows the current run",
            )),
            highest => Ok(highest == Some(&fence.number)),
        }
    }

    fn fences(&self) -> Result<BTreeMap<String, i64>, PortError> {
        let path = self.root().join(FILE);
        let failed = |error| error::io(&format!("read {}", path.display()), &error);
        match fs_err::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use homestak_engine::context::with_fence;
    use homestak_engine::ports::{ErrorClass, GuestKind, GuestRef, GuestUuid, Provider as _};

    use super::*;
    use crate::local::{Local, LocalSettings};

    fn fence(scope: &str, number: i64) -> Fence {
        Fence {
            scope: scope.to_owned(),
            number,
        }
    }

    #[test]
    fn an_older_number_than_the_highest_of_its_scope_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let instance = || Instance::at(&root.path().join("local")).expect("a realm");
        instance()
            .admit(&fence("a", 9))
            .expect("nothing to protect");
        assert!(!root.path().join("local").exists());
        instance().claim().expect("created");
        for (scope, number, good) in [
            ("a", 5, true),
            ("a", 5, true),
            ("b", 2, true),
            ("a", 4, false),
            ("a", 9, true),
            ("a", 5, false),
            ("b", 2, true),
            ("b", 1, false),
        ] {
            // Another process reads the same number.
            let admitted = instance().admit(&fence(scope, number));
            assert_eq!(admitted.is_ok(), good, "{scope} {number}");
            let class = admitted.err().map(|error| error.class);
            assert!(class.is_none_or(|class| class == ErrorClass::Refused));
        }
        // The directory is still ours, and goes when nothing else is in it.
        fs_err::remove_file(root.path().join("local/.homestak-local")).expect("there");
        instance().claim().expect("ours");
        fs_err::remove_file(root.path().join("local/realm.lock")).expect("there");
        // A writer that was killed left this.
        let left = durable::temporary(OsStr::new(FILE), "8946-0");
        fs_err::write(root.path().join("local").join(left), "{").expect("written");
        instance().remove_if_empty();
        assert!(!root.path().join("local").exists());
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_by_the_next() {
        let root = tempfile::tempdir().expect("a directory");
        let instance = Instance::at(&root.path().join("local")).expect("a realm");
        instance.claim().expect("created");
        let left = instance
            .root()
            .join(durable::temporary(OsStr::new(FILE), "8946-0"));
        fs_err::write(&left, "{").expect("written");
        instance.admit(&fence("a", 1)).expect("the first");
        assert!(!left.exists());
    }

    #[tokio::test]
    async fn a_driver_that_lost_its_lease_can_only_read() {
        let root = tempfile::tempdir().expect("a directory");
        let instance = Instance::at(root.path()).expect("a realm");
        let local = Local::open(instance, LocalSettings::default());
        let guest = GuestRef {
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-000000000001").expect("a uuid"),
            kind: GuestKind::Ct,
            vmid: Some(100.into()),
            host: "local".to_owned(),
        };
        let lost = |error: Option<PortError>| {
            error.is_some_and(|error| error.detail.contains("lost its lease"))
        };
        // Nothing is there, so nothing happens; only the number is seen.
        let newer = with_fence(Some(fence("a", 7)), local.start(&guest)).await;
        assert!(!lost(newer.err()));
        let old = || Some(fence("a", 6));
        assert!(lost(with_fence(old(), local.start(&guest)).await.err()));
        assert!(lost(with_fence(old(), local.destroy(&guest)).await.err()));
        assert!(lost(
            with_fence(old(), local.lease(&guest.uuid, None))
                .await
                .err()
        ));
        with_fence(old(), local.observe()).await.expect("observed");
        // A host inside a node receives the number.
        let call = crate::local::RemoteCall {
            fence: old(),
            request: crate::local::RemoteRequest::Destroy(guest.clone()),
        };
        let text = serde_json::to_string(&call).expect("a call");
        let call = serde_json::from_str(&text).expect("a call");
        let crate::local::RemoteReply::Failed(error) = local.handle(call).await else {
            panic!("it was done");
        };
        assert!(lost(Some(error)));
    }
}
