//! Locks of files that other processes have: waited for until a deadline, and no longer when a
//! person asks to stop. Whoever calls this may wait: never the runtime.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::limit::monotonic;
use crate::stop;

/// How often a lock is tried: often at first, since most are held for a moment.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// Nearly every lock is given up by then. After it a lock is tried less often, whoever waits says so,
/// and the wait ends when a person asks to stop.
const A_MOMENT: Duration = Duration::from_millis(500);

/// Takes the lock of a file. `waiting` is told once who has it, when that takes longer than a
/// moment.
pub fn lock(file: &File, within: Duration, waiting: impl FnOnce(&str)) -> Result<()> {
    wait(file, File::try_lock, within, waiting)
}

/// Takes a lock of a file that others may share.
pub fn lock_shared(file: &File, within: Duration) -> Result<()> {
    wait(file, File::try_lock_shared, within, |_| ())
}

fn wait(
    file: &File,
    take: impl Fn(&File) -> std::result::Result<(), TryLockError>,
    within: Duration,
    waiting: impl FnOnce(&str),
) -> Result<()> {
    let begun = monotonic();
    let mut waiting = Some(waiting);
    loop {
        match take(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        let waited = monotonic().saturating_sub(begun);
        if waited >= within {
            return Err(late(file, within));
        }
        if waited < A_MOMENT {
            std::thread::sleep(PAUSES[0]);
            continue;
        }
        if let Some(waiting) = waiting.take() {
            waiting(&format!("a lock held by {}", holder(file)));
        }
        stop::pause(PAUSES[1])?;
    }
}

/// Returns the error of a lock that was waited for in vain.
pub fn late(file: &File, within: Duration) -> Error {
    let text = format!("locked by {}; waited {} s", holder(file), within.as_secs());
    Error::new(ErrorKind::TimedOut, text)
}

/// Returns who has the lock of a file, as the kernel knows it.
pub fn holder(file: &File) -> String {
    let unknown = || "another process".to_owned();
    let Ok(inode) = file.metadata().map(|data| data.ino()) else {
        return unknown();
    };
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else {
            return None;
        };
        let found = place.rsplit(':').next()?.parse() == Ok(inode);
        found.then(|| pid.parse::<u32>().ok()).flatten()
    });
    let Some(pid) = holders.find(|pid| *pid > 0) else {
        return unknown();
    };
    match fs_err::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        // Programs that it started have the file open.
        Err(_) => format!("a program that process {pid} started, which has ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_lock_of_someone_else_is_waited_for_and_its_holder_is_named() {
        let held = tempfile::NamedTempFile::new().expect("a file");
        let again = || {
            fs_err::File::open(held.path())
                .expect("open")
                .into_parts()
                .0
        };
        lock(held.as_file(), Duration::ZERO, |_| ()).expect("free");
        let told = Mutex::new(Vec::new());
        let say = |who: &str| told.lock().expect("unpoisoned").push(who.to_owned());
        let within = A_MOMENT * 4;
        let error = lock(&again(), within, say).expect_err("held");
        let own = format!("process {} (", std::process::id());
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(
            text.contains(&own) && text.ends_with("; waited 2 s"),
            "{text}"
        );
        let told = told.into_inner().expect("unpoisoned");
        assert!(told.len() == 1 && told[0].contains(&own), "{told:?}");
        assert!(lock_shared(&again(), Duration::ZERO).is_err());
        held.as_file().unlock().expect("given up");
        lock_shared(&again(), Duration::ZERO).expect("free");
    }

    #[test]
    fn a_lock_that_is_given_up_is_taken() {
        let held = tempfile::NamedTempFile::new().expect("a file");
        let other = fs_err::File::open(held.path())
            .expect("open")
            .into_parts()
            .0;
        lock(held.as_file(), Duration::ZERO, |_| ()).expect("free");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&other, Duration::from_secs(60), |_| ()));
            held.as_file().unlock().expect("given up");
            waits.join().expect("no panic").expect("taken");
        });
    }
}
