//! Where enrolment, registration and key are stored. Only root may read them.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::lock;
use homestak_api::node_key::NodeKey;
use homestak_core::firstboot::{ENROLMENT, Enrolment};

use super::registration::Registration;
use super::token;
use crate::error::{AgentError, PullError};
use crate::{process, state};

const REGISTRATION: &str = "registration.json";
const KEY: &str = "registration.key";
/// Locked during a pass.
const LOCK: &str = "pull.lock";
/// How long to wait for another pass, which may install packages.
const LOCK_TIMEOUT: Duration = Duration::from_secs(4000);
/// Where cloud-init stores copies of the first-boot data.
const COPIES: [&str; 2] = ["/var/lib/cloud", "/run/cloud-init"];

/// The files with enrolment, registration and key, and the directories with copies.
pub(super) struct Store {
    /// The directory of registration and key.
    pub(super) state: PathBuf,
    /// The file of the enrolment.
    pub(super) enrolment: PathBuf,
    /// Directories with copies of the token.
    pub(super) copies: Vec<PathBuf>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            state: state::file(""),
            enrolment: ENROLMENT.into(),
            copies: COPIES.map(PathBuf::from).to_vec(),
        }
    }
}

impl Store {
    /// Takes the lock that is held during a pass. Waits for it until the time limit.
    pub(super) fn lock(&self) -> Result<File, AgentError> {
        let path = self.state.join(LOCK);
        let failed = AgentError::state_file(path.clone());
        state::make_directory(&self.state).map_err(&failed)?;
        let file = state::open_lock(&path).map_err(&failed)?;
        let limit = process::time_left().map_or(LOCK_TIMEOUT, |left| left.min(LOCK_TIMEOUT));
        match lock::lock(&file, limit, |_| ()) {
            Ok(()) => Ok(file),
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(AgentError::Busy),
            Err(error) => Err(failed(error)),
        }
    }

    fn read(path: &Path) -> Result<Option<String>, AgentError> {
        match fs_err::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(AgentError::state_file(path.to_owned())(error)),
        }
    }

    fn write(path: &Path, text: &str) -> Result<(), AgentError> {
        let made = path.parent().map_or(Ok(()), state::make_directory);
        made.and_then(|()| durable::write(path, text.as_bytes(), Access::PRIVATE))
            .map_err(AgentError::state_file(path.to_owned()))
    }

    /// Returns the enrolment; `None` after the machine has enrolled.
    pub(super) fn enrolment(&self) -> Result<Option<Enrolment>, AgentError> {
        let text = Self::read(&self.enrolment)?;
        text.as_deref().map(parse).transpose()
    }

    /// Stores an enrolment.
    pub(super) fn put_enrolment(&self, text: &str) -> Result<(), AgentError> {
        // An invalid enrolment must not replace one that may be valid.
        parse(text)?;
        Self::write(&self.enrolment, text)
    }

    /// Deletes the enrolment, and every copy of its token.
    pub(super) fn remove_enrolment(&self, enrolment: &Enrolment) -> Result<(), AgentError> {
        for directory in &self.copies {
            let shown = directory.display();
            token::remove(directory, &enrolment.token).map_err(AgentError::write(shown))?;
        }
        for path in self.unfinished_enrolments() {
            Self::remove(&path)?;
        }
        // Last: if this is interrupted, the next attempt finds the file and searches the copies again.
        Self::remove(&self.enrolment)
    }

    /// Returns the temporary files of processes that were killed while they stored an enrolment.
    fn unfinished_enrolments(&self) -> Vec<PathBuf> {
        let is_unfinished = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with('.') && name.ends_with(durable::TEMPORARY)
        };
        let entries = self.enrolment.parent().map(fs_err::read_dir);
        let entries = entries.into_iter().flatten().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(is_unfinished).collect()
    }

    fn remove(path: &Path) -> Result<(), AgentError> {
        match fs_err::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(AgentError::state_file(path.to_owned())(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the registration, if the machine has enrolled.
    pub(super) fn registration(&self) -> Result<Option<Registration>, AgentError> {
        let path = self.state.join(REGISTRATION);
        let Some(text) = Self::read(&path)? else {
            return Ok(None);
        };
        let read = serde_json::from_str(&text).map_err(|_| PullError::Damaged {
            path: path.display().to_string(),
        });
        Ok(Some(read?))
    }

    /// Stores the registration.
    pub(super) fn put_registration(&self, registration: &Registration) -> Result<(), AgentError> {
        let path = self.state.join(REGISTRATION);
        let text = serde_json::to_string_pretty(registration);
        let text = text.map_err(|error| AgentError::state_file(path.clone())(error.into()))?;
        Self::write(&path, &format!("{text}\n"))
    }

    /// Returns what changes when a driver lets this machine enrol again: the registration, and when
    /// an enrolment was issued.
    pub(super) fn credentials(&self) -> (Option<Registration>, Option<i64>) {
        let registration = self.registration().ok().flatten();
        let enrolment = self.enrolment().ok().flatten();
        (registration, enrolment.map(|enrolment| enrolment.issued))
    }

    /// Deletes key and registration. They belong to another guest, whose disk was copied to this one.
    pub(super) fn forget(&self) -> Result<(), AgentError> {
        // The key first: a key without a registration would be used as the key of this guest.
        Self::remove(&self.state.join(KEY))?;
        Self::remove(&self.state.join(REGISTRATION))
    }

    /// Deletes the key if it is damaged.
    pub(super) fn remove_damaged_key(&self) -> Result<(), AgentError> {
        match self.key() {
            Err(error) if error.is_permanent() => Self::remove(&self.state.join(KEY)),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// Returns the key; generates and stores it if it does not exist.
    pub(super) fn key(&self) -> Result<NodeKey, AgentError> {
        let path = self.state.join(KEY);
        if let Some(pem) = Self::read(&path)? {
            let read = NodeKey::from_pem(&pem).map_err(|_| PullError::Damaged {
                path: path.display().to_string(),
            });
            return Ok(read?);
        }
        let key = NodeKey::generate().map_err(PullError::Key)?;
        Self::write(&path, &key.pem())?;
        Ok(key)
    }
}

fn parse(text: &str) -> Result<Enrolment, AgentError> {
    let read = serde_json::from_str(text).map_err(|error| PullError::WrongEnrolment {
        line: error.line(),
        column: error.column(),
    });
    Ok(read?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::tests::{fake_node, sample};
    use super::*;

    #[test]
    fn the_key_stays_the_same_and_only_its_owner_reads_it() {
        let root = tempfile::tempdir().expect("a directory");
        let store = fake_node::store(root.path());
        let first = store.key().expect("a key").public();
        assert_eq!(store.key().expect("the same").public(), first);
        let file = fs_err::metadata(store.state.join(KEY)).expect("a file");
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        store.forget().expect("forgotten");
        assert_ne!(store.key().expect("another").public(), first);
        fs_err::write(store.state.join(KEY), "x").expect("written");
        let damaged = store.key().map(drop);
        assert!(damaged.is_err_and(|error| error.is_permanent()));
    }

    #[test]
    fn a_key_of_another_guest_is_not_left_without_its_registration() {
        let root = tempfile::tempdir().expect("a directory");
        let store = fake_node::store(root.path());
        let (enrolment, _) = sample::enrolment();
        let registration = Registration::new(&enrolment, None).expect("valid");
        store.put_registration(&registration).expect("stored");
        // A directory, which `forget` cannot delete: as if the process was killed before the deletion.
        fs_err::create_dir_all(store.state.join(KEY)).expect("created");
        store.forget().expect_err("not removed");
        assert!(store.registration().expect("read").is_some());
    }

    #[test]
    fn what_a_killed_process_left_of_an_enrolment_is_deleted_with_it() {
        let root = tempfile::tempdir().expect("a directory");
        let store = fake_node::store(root.path());
        let (enrolment, _) = sample::enrolment();
        let text = serde_json::to_string(&enrolment).expect("JSON");
        store.put_enrolment(&text).expect("stored");
        let name = store.enrolment.file_name().expect("a name");
        let left = durable::temporary(name, ".1234-0");
        let left = store.enrolment.with_file_name(left);
        fs_err::write(&left, &text).expect("written");
        let other = store.enrolment.with_file_name("other");
        fs_err::write(&other, "").expect("written");
        store.remove_enrolment(&enrolment).expect("removed");
        assert!(!left.exists() && !store.enrolment.exists() && other.exists());
    }

    #[test]
    fn an_invalid_enrolment_is_not_stored_and_its_content_not_quoted() {
        let root = tempfile::tempdir().expect("a directory");
        let store = fake_node::store(root.path());
        let (enrolment, _) = sample::enrolment();
        let text = serde_json::to_string(&enrolment).expect("JSON");
        store.put_enrolment(&text).expect("stored");
        for wrong in [
            text.replacen('{', "{\"more\": 1,", 1),
            text.replace("\"issued\":0", "\"issued\":\"secret\""),
            "secret".to_owned(),
        ] {
            let error = store.put_enrolment(&wrong).expect_err("invalid");
            assert!(!error.message().contains("secret"), "{}", error.message());
        }
        let stored = store.enrolment().expect("read").expect("an enrolment");
        assert!(stored == enrolment);
        store.remove_enrolment(&stored).expect("removed");
        store.remove_enrolment(&stored).expect("nothing to do");
        assert!(store.enrolment().expect("read").is_none());
    }
}
