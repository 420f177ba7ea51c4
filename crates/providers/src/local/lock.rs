//! File locks shared with other processes. Dropping a [`Lock`], or exiting, releases it.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::lock::lock;
use homestak_engine::context::report_waiting;

use crate::private;

/// A held lock. Dropping it releases it.
pub(super) struct Lock {
    _file: fs_err::File,
}

impl Lock {
    /// Locks a file, waiting up to a time limit.
    pub(super) fn take(path: &Path, within: Duration) -> io::Result<Self> {
        loop {
            if let Some(directory) = path.parent() {
                private::directory(directory)?;
            }
            // Anyone who can open it can lock it.
            let file = fs_err::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(path)?;
            private::close(path, 0o600)?;
            lock(file.file(), within, report_waiting)?;
            // Lock files may be removed meanwhile: only the current file counts.
            if is_same(&file, path) {
                return Ok(Self { _file: file });
            }
        }
    }
}

fn is_same(file: &fs_err::File, path: &Path) -> bool {
    let id = |data: std::fs::Metadata| (data.dev(), data.ino());
    let (own, found) = (file.metadata().map(id), fs_err::metadata(path).map(id));
    matches!((own, found), (Ok(own), Ok(found)) if own == found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use homestak_api::runtime::stoppable;
    use homestak_engine::ports::{ErrorClass, GuestUuid, Provider as _};

    use super::*;
    use crate::local::{Instance, Local, LocalSettings};

    #[test]
    fn lock_files_are_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let locks = directory.path().join("locks");
        let mode =
            |path: &Path| fs_err::metadata(path).expect("there").permissions().mode() & 0o777;
        let path = locks.join("one");
        drop(Lock::take(&path, Duration::ZERO).expect("a lock"));
        assert_eq!((mode(&locks), mode(&path)), (0o700, 0o600));
        let open = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            fs_err::set_permissions(path, mode).expect("changed");
        };
        open(&locks, 0o755);
        open(&path, 0o644);
        drop(Lock::take(&path, Duration::ZERO).expect("a lock"));
        assert_eq!((mode(&locks), mode(&path)), (0o700, 0o600));
    }
    #[tokio::test]
    async fn waiting_for_a_lock_ends_at_a_deadline_or_an_interrupt() {
        let root = tempfile::tempdir().expect("a directory");
        let instance = |seconds| {
            let instance = Instance::at(root.path()).expect("a realm");
            instance.with_lock_timeout(Duration::from_secs(seconds))
        };
        instance(0).claim().expect("created");
        let held = instance(0).lock().expect("free");
        let guest = GuestUuid::new("5d1f2a3b-0000-4000-8000-000000000001").expect("a uuid");
        let lease = async |seconds| {
            let local = Local::open(instance(seconds), LocalSettings::default());
            local.lease(&guest, None).await
        };
        let error = lease(1).await.expect_err("held");
        assert_eq!(error.class, ErrorClass::Busy);
        let text = error.to_string();
        let own = format!("locked by process {} (", std::process::id());
        assert!(text.contains("realm.lock") && text.contains(&own), "{text}");

        let (ask, asked) = tokio::sync::watch::channel(false);
        let waits = stoppable(asked, lease(3_600));
        let asking = async {
            // The runtime continues while this waits for the lock.
            tokio::time::sleep(Duration::from_millis(20)).await;
            ask.send_replace(true);
        };
        let (left, ()) = tokio::join!(waits, asking);
        assert!(left.is_none());
        drop(held);
    }
}
