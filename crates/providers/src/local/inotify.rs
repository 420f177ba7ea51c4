//! The number of inotify instances on this machine. A container uses eight of them (systemd, D-Bus,
//! the agent), and all containers share the 128 that the kernel allows root by default: with sixteen
//! containers, the next one does not boot ("Too many open files").

use std::io;
use std::path::Path;

/// The sysctl `fs.inotify.max_user_instances`.
pub(super) const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
/// What Proxmox VE sets for its containers.
const WANTED: u64 = 65536;

/// Raises the limit if it is lower than what many containers need. It stays when they are deleted:
/// others may rely on it by then.
pub(super) fn raise(limit: &Path) -> io::Result<()> {
    let text = fs_err::read_to_string(limit)?;
    match text.trim().parse::<u64>() {
        Ok(current) if current < WANTED => fs_err::write(limit, WANTED.to_string()),
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_limit_is_raised_and_a_higher_one_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let limit = directory.path().join("max_user_instances");
        for (before, after) in [
            ("128\n", "65536"),
            ("65536\n", "65536\n"),
            ("99999\n", "99999\n"),
        ] {
            fs_err::write(&limit, before).expect("it is written");
            raise(&limit).expect("it is raised");
            assert_eq!(fs_err::read_to_string(&limit).expect("a file"), after);
        }
    }

    #[test]
    fn a_limit_that_cannot_be_read_or_understood_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let limit = directory.path().join("max_user_instances");
        assert!(raise(&limit).is_err());
        fs_err::write(&limit, "many\n").expect("it is written");
        assert!(raise(&limit).is_err());
        assert_eq!(fs_err::read_to_string(&limit).expect("a file"), "many\n");
    }
}
