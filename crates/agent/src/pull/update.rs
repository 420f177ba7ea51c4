//! Replaces this program by the one that the site publishes.
//!
//! Flow: the statement of the published program is requested in every pass; another program than this
//! one is downloaded, verified, run once to check that it works here, and then linked in place.
//! Guarantees: the program that runs stays until the other one has fetched the spec of this machine; it
//! is kept beside it. A server cannot bring back a program that was published earlier.
//! Assumptions: only programs in the directory of this module are replaced, not those of packages.
//! When it goes wrong: this program continues, and tries again later.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use homestak_api::durable::{self, Access};
use homestak_api::publication::{AgentStatement, sha256};
use homestak_api::signature::{Purpose, verify};
use homestak_core::converge::AGENT;

use super::session::{Session, VERSION};
use crate::error::{AgentError, PullError, UpdateError};
use crate::{clock, process, settings};

/// Where programs are, under names with their digests.
const DIRECTORY: &str = "/usr/local/lib/homestak";
/// The link to the program under its shorter name.
const SHORT_LINK: &str = "/usr/local/bin/homestak";
/// The largest program, in bytes. It is ten times as large as one of a release.
const MAX_SIZE: u64 = 128 << 20;
/// How long the check of a new program may take: it sends one request to each server.
const CHECK_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a program that failed is not tried again.
const RETRY_DELAY: Duration = Duration::from_secs(3600);

/// The programs of this machine.
pub(super) struct Programs {
    /// Where they are.
    pub(super) directory: PathBuf,
    /// The link that services and users start.
    pub(super) link: PathBuf,
    /// The link of the shorter name, which may be a program of another kind.
    pub(super) short_link: PathBuf,
    /// The program that runs.
    pub(super) running: PathBuf,
    /// Its digest, once it was calculated.
    digest: Option<String>,
    /// The digest of a program that failed, and when.
    failed: Option<(String, Instant)>,
}

impl Default for Programs {
    fn default() -> Self {
        let (link, short_link) = (AGENT.into(), SHORT_LINK.into());
        let running = settings::program().into();
        Self::new(DIRECTORY.into(), link, short_link, running)
    }
}

impl Programs {
    pub(super) fn new(
        directory: PathBuf,
        link: PathBuf,
        short_link: PathBuf,
        running: PathBuf,
    ) -> Self {
        Self {
            directory,
            link,
            short_link,
            running,
            digest: None,
            failed: None,
        }
    }

    /// Replaces the program if another one is published. Returns whether it was replaced. Failures are
    /// logged: they do not prevent the spec from being applied.
    pub(super) fn update(&mut self, session: &Session<'_>) -> bool {
        // A program of a package, or of an administrator, is not ours.
        if self.running.parent() != Some(&self.directory) {
            return false;
        }
        match self.try_update(session) {
            Ok(replaced) => replaced,
            Err(error) => {
                tracing::warn!("{}", error.message());
                false
            }
        }
    }

    fn try_update(&mut self, session: &Session<'_>) -> Result<bool, AgentError> {
        let Some(signed) = session.agent_statement()? else {
            return Ok(false);
        };
        let statement: AgentStatement =
            verify(Purpose::Agent, &signed, &session.registration.site_keys)
                .map_err(UpdateError::from)?;
        let digest = self.running_digest()?;
        if !replaces(&statement, &digest, self.generation())? || self.has_failed(&statement.sha256)
        {
            return Ok(false);
        }
        tracing::info!(version = statement.version, "another agent is published");
        let done = self.install(session, &statement);
        if done.is_err() {
            self.failed = Some((statement.sha256.clone(), clock::instant()));
        }
        done?;
        tracing::info!(version = statement.version, "the agent was replaced");
        Ok(true)
    }

    /// Returns the digest of the program that runs, also after its file was deleted.
    fn running_digest(&mut self) -> Result<String, AgentError> {
        if let Some(digest) = &self.digest {
            return Ok(digest.clone());
        }
        let bytes = fs_err::read(&self.running);
        let digest = sha256(&bytes.map_err(AgentError::observe("this program"))?);
        Ok(self.digest.insert(digest).clone())
    }

    /// Returns the generation of the program that runs, if it was installed with its statement.
    fn generation(&self) -> Option<u64> {
        let text = fs_err::read_to_string(statement_path(&self.running)).ok()?;
        let statement: AgentStatement = serde_json::from_str(&text).ok()?;
        let is_this = self.digest.as_ref() == Some(&statement.sha256);
        is_this.then_some(statement.generation)
    }

    fn has_failed(&self, digest: &str) -> bool {
        let failed = self.failed.as_ref();
        failed.is_some_and(|(one, when)| one == digest && when.elapsed() < RETRY_DELAY)
    }

    fn install(&self, session: &Session<'_>, statement: &AgentStatement) -> Result<(), AgentError> {
        let size = statement.size;
        let program = session.agent(size)?;
        if program.len() as u64 != size || sha256(&program) != statement.sha256 {
            return Err(UpdateError::Altered.into());
        }
        // The same place as when a driver or the first boot installs it.
        let place = self.directory.join(format!("agent-{}", name(statement)?));
        let write = |path: &Path, content: &[u8], mode| {
            durable::write(path, content, Access::mode(mode))
                .map_err(AgentError::write(path.display()))
        };
        write(&place, &program, 0o755)?;
        drop(program);
        if let Err(error) = check(&place) {
            // It may be the program that runs, published under another statement.
            if place != self.running {
                _ = fs_err::remove_file(&place);
            }
            return Err(error);
        }
        let text = serde_json::to_string(statement).unwrap_or_default();
        write(&statement_path(&place), text.as_bytes(), 0o644)?;
        let is_ours = fs_err::symlink_metadata(&self.short_link)
            .map_or(true, |found| found.file_type().is_symlink());
        if is_ours {
            link(&place, &self.short_link)?;
        }
        link(&place, &self.link)?;
        self.remove_others(&place);
        Ok(())
    }

    /// Deletes programs other than the new one and the one that runs.
    fn remove_others(&self, place: &Path) {
        let kept = [place, &self.running].map(|path| (path.to_owned(), statement_path(path)));
        let entries = fs_err::read_dir(&self.directory).into_iter().flatten();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str());
            let is_program = name.is_some_and(|name| name.starts_with("agent-"));
            let is_kept = kept
                .iter()
                .any(|(program, statement)| path == *program || path == *statement);
            if is_program && !is_kept {
                _ = fs_err::remove_file(path);
            }
        }
    }
}

/// Returns the path of a program's statement.
fn statement_path(program: &Path) -> PathBuf {
    program.with_extension("json")
}

/// Returns the part of a digest that is in a program's name.
fn name(statement: &AgentStatement) -> Result<&str, UpdateError> {
    let digest = statement.sha256.get(..16);
    let is_hex = |digest: &&str| digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    digest.filter(is_hex).ok_or(UpdateError::Altered)
}

/// Decides whether a published program replaces the one that runs, which has a digest and, if it was
/// installed with its statement, a generation.
fn replaces(
    statement: &AgentStatement,
    digest: &str,
    generation: Option<u64>,
) -> Result<bool, UpdateError> {
    if statement.sha256 == digest {
        return Ok(false);
    }
    if statement.architecture != std::env::consts::ARCH {
        return Err(UpdateError::Architecture(statement.architecture.clone()));
    }
    if statement.size > MAX_SIZE {
        return Err(UpdateError::TooLarge);
    }
    let found = statement.generation;
    match generation {
        // The site signed it later, so it may also be an older version.
        Some(last) if found > last => Ok(true),
        Some(last) => Err(UpdateError::Older { found, last }),
        // Which of the two was published first is not known: the versions are compared.
        None => match numbers(&statement.version).cmp(&numbers(VERSION)) {
            std::cmp::Ordering::Less => Err(UpdateError::OlderVersion(statement.version.clone())),
            std::cmp::Ordering::Equal => Ok(found > 0),
            std::cmp::Ordering::Greater => Ok(true),
        },
    }
}

/// Returns the numbers of a version, such as 0, 1 and 0.
fn numbers(version: &str) -> Vec<u64> {
    let (version, _) = version.split_once(['-', '+']).unwrap_or((version, ""));
    let parts = version.split('.');
    parts.map(|part| part.parse().unwrap_or(0)).collect()
}

/// Has a program fetch the spec of this machine: it must start here, read the registration and reach a
/// server before it replaces this one.
fn check(program: &Path) -> Result<(), AgentError> {
    let program = program.to_string_lossy();
    let words = [&*program, "pull", "--check"];
    let unusable = |why: String| AgentError::from(UpdateError::Unusable(why));
    let output = process::run_for(&words, CHECK_TIMEOUT);
    let output = output.map_err(|error| unusable(homestak_core::error::chain(&error)))?;
    match output.code {
        Some(0) => Ok(()),
        _ => Err(unusable(output.reason())),
    }
}

/// Puts a link in place of what is there, in one step.
fn link(target: &Path, path: &Path) -> Result<(), AgentError> {
    let temporary = path.with_extension("new");
    let done = match fs_err::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => fs_err::os::unix::fs::symlink(target, &temporary)
            .and_then(|()| durable::rename(&temporary, path)),
    };
    done.map_err(AgentError::write(path.display()))
}

impl From<UpdateError> for AgentError {
    fn from(why: UpdateError) -> Self {
        PullError::Update(why).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(version: &str, generation: u64) -> AgentStatement {
        AgentStatement {
            architecture: std::env::consts::ARCH.to_owned(),
            version: version.to_owned(),
            sha256: sha256(b"other"),
            size: 5,
            generation,
        }
    }

    #[test]
    fn a_program_that_was_published_later_replaces_this_one_whatever_its_version() {
        let this = sha256(b"this");
        for version in ["0.0.1", VERSION, "99.0.0"] {
            assert_eq!(replaces(&statement(version, 8), &this, Some(7)), Ok(true));
        }
        for generation in [0, 6, 7] {
            let older = UpdateError::Older {
                found: generation,
                last: 7,
            };
            let refused = replaces(&statement("99.0.0", generation), &this, Some(7));
            assert_eq!(refused, Err(older));
        }
        // Regardless of the statement, this program is not replaced by itself.
        assert_eq!(
            replaces(&statement("0.0.1", 1), &sha256(b"other"), Some(7)),
            Ok(false)
        );
    }

    #[test]
    fn without_a_generation_an_older_version_is_refused() {
        let this = sha256(b"this");
        let older = UpdateError::OlderVersion("0.0.9".to_owned());
        assert_eq!(replaces(&statement("0.0.9", 9), &this, None), Err(older));
        assert_eq!(replaces(&statement(VERSION, 9), &this, None), Ok(true));
        assert_eq!(replaces(&statement(VERSION, 0), &this, None), Ok(false));
        assert_eq!(replaces(&statement("0.10.0", 0), &this, None), Ok(true));
    }

    #[test]
    fn a_program_for_another_processor_or_of_any_size_is_refused() {
        let this = sha256(b"this");
        let mut other = statement("99.0.0", 9);
        other.architecture = "vax".to_owned();
        let refused = replaces(&other, &this, None);
        assert_eq!(refused, Err(UpdateError::Architecture("vax".to_owned())));
        let mut huge = statement("99.0.0", 9);
        huge.size = MAX_SIZE + 1;
        assert_eq!(replaces(&huge, &this, None), Err(UpdateError::TooLarge));
    }

    #[test]
    fn a_digest_that_is_a_path_names_no_program() {
        let mut hostile = statement("99.0.0", 9);
        for digest in ["", "../../../../../etc/passwd", "ääääääääääääääää"] {
            hostile.sha256 = digest.to_owned();
            assert_eq!(name(&hostile), Err(UpdateError::Altered), "{digest}");
        }
    }
}
