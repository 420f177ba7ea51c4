//! File locks with a deadline. A wait also ends when the user interrupts the run. These functions
//! block: never call them on the runtime.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::limit::monotonic;
use crate::stop;

/// Pauses between attempts: short at first, since most locks are held briefly.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// Nearly every lock is released within this time. Afterwards it is tried less often, the wait is
/// reported, and the user can interrupt it.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// Locks a file. `on_wait` is called once with the holder if that takes longer than 500 ms.
pub fn lock(file: &File, within: Duration, on_wait: impl FnOnce(&str)) -> Result<()> {
    wait(file, File::try_lock, within, on_wait)
}

/// Locks a file for shared use.
pub fn lock_shared(file: &File, within: Duration) -> Result<()> {
    wait(file, File::try_lock_shared, within, |_| ())
}

fn wait(
    file: &File,
    take: impl Fn(&File) -> std::result::Result<(), TryLockError>,
    within: Duration,
    on_wait: impl FnOnce(&str),
) -> Result<()> {
    let begun = monotonic();
    let mut on_wait = Some(on_wait);
    loop {
        match take(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        let waited = monotonic().saturating_sub(begun);
        if waited >= within {
            return Err(timeout_error(file, within));
        }
        if waited < SHORT_WAIT {
            std::thread::sleep(PAUSES[0]);
            continue;
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait(&format!("a lock held by {}", holder(file)));
        }
        stop::pause(PAUSES[1])?;
    }
}

/// Returns the error for a lock that was not released in time.
pub fn timeout_error(file: &File, within: Duration) -> Error {
    let text = format!("locked by {}; waited {} s", holder(file), within.as_secs());
    Error::new(ErrorKind::TimedOut, text)
}

/// Returns the process that holds the lock of a file, from `/proc/locks`.
pub fn holder(file: &File) -> String {
    let unknown = || "another process".to_owned();
    let Ok(inode) = file.metadata().map(|data| data.ino()) else {
        return unknown();
    };
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, device_and_inode, ..] = words[..] else {
            return None;
        };
        let found = device_and_inode.rsplit(':').next()?.parse() == Ok(inode);
        found.then(|| pid.parse::<u32>().ok()).flatten()
    });
    let Some(pid) = holders.find(|pid| *pid > 0) else {
        return unknown();
    };
    match fs_err::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        // Child processes of it still have the file open.
        Err(_) => format!("a program that process {pid} started, which has ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn waiting_for_a_lock_reports_its_holder() {
        let held = tempfile::NamedTempFile::new().expect("a file");
        let again = || {
            fs_err::File::open(held.path())
                .expect("open")
                .into_parts()
                .0
        };
        lock(held.as_file(), Duration::ZERO, |_| ()).expect("free");
        let reported = Mutex::new(Vec::new());
        let report = |holder: &str| reported.lock().expect("unpoisoned").push(holder.to_owned());
        let within = SHORT_WAIT * 4;
        let error = lock(&again(), within, report).expect_err("held");
        let own = format!("process {} (", std::process::id());
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(
            text.contains(&own) && text.ends_with("; waited 2 s"),
            "{text}"
        );
        let reported = reported.into_inner().expect("unpoisoned");
        assert!(
            reported.len() == 1 && reported[0].contains(&own),
            "{reported:?}"
        );
        assert!(lock_shared(&again(), Duration::ZERO).is_err());
        held.as_file().unlock().expect("released");
        lock_shared(&again(), Duration::ZERO).expect("free");
    }

    #[test]
    fn a_lock_is_taken_once_it_is_released() {
        let held = tempfile::NamedTempFile::new().expect("a file");
        let other = fs_err::File::open(held.path())
            .expect("open")
            .into_parts()
            .0;
        lock(held.as_file(), Duration::ZERO, |_| ()).expect("free");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&other, Duration::from_secs(60), |_| ()));
            held.as_file().unlock().expect("released");
            waits.join().expect("no panic").expect("taken");
        });
    }
}
