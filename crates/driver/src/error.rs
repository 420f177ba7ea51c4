//! Errors of the driver: kind, message and hints.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use homestak_api::v1::FailureDetail;
use homestak_core::doc::Code;
use homestak_core::doc::decode::closest;
use homestak_core::error::chain;
use homestak_engine::ports::{ErrorClass, NextAction, PortError};

/// The kind of an error, which decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operation failed, or a document has errors.
    Failed,
    /// Invalid usage.
    Usage,
    /// Refused by a check.
    Refused,
    /// Interrupted half-way.
    Stopped,
}

/// An error with hints.
#[derive(Debug)]
pub struct DriverError {
    /// Its kind.
    pub kind: ErrorKind,
    /// The code of the diagnostic, if any.
    pub code: Option<Code>,
    /// The message: a sentence with a period, unless it ends in a value.
    pub message: String,
    /// Hints.
    pub hints: Vec<String>,
    /// The class of the underlying error of a host or node.
    pub class: Option<ErrorClass>,
    /// Diagnostics for JSON output; they were printed before.
    pub diagnostics: Option<Vec<FailureDetail>>,
}

impl DriverError {
    /// Makes a failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Failed,
            code: None,
            message: message.into(),
            hints: Vec::new(),
            class: None,
            diagnostics: None,
        }
    }

    /// Makes a usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Usage,
            ..Self::failed(message)
        }
    }

    /// Makes a refusal.
    pub fn refused(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Refused,
            ..Self::failed(message)
        }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Makes an error for an unknown name, with the closest known name.
    pub fn unknown<'k>(what: &str, name: &str, known: impl Iterator<Item = &'k str>) -> Self {
        let known: Vec<&str> = known.collect();
        let error = Self {
            code: code_of(what),
            ..Self::failed(format!("There is no {what} `{name}`."))
        };
        // File names are often given with their extension.
        let stem = name.strip_suffix(".yaml").unwrap_or(name);
        if let Some(now) = renamed(stem)
            && what == "manifest"
            && known.contains(&now)
        {
            return error.hint(format!("`{stem}` is now `{now}`"));
        }
        match closest(stem, known.iter().copied().filter(|known| *known != name)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None if known.is_empty() => {
                error.hint("there are none; `homestak site show` prints the search path")
            }
            None => error.hint(format!("available: {}", known.join(", "))),
        }
    }

    /// Makes an error for a retired name.
    pub fn retired(name: &str, replacement: &str) -> Self {
        Self::failed(format!(
            "The scenario `{name}` is retired; manifests replace it."
        ))
        .hint(replacement)
    }

    /// Makes an error for a file.
    pub fn file(doing: &str, path: &Path, error: &(dyn Error + 'static)) -> Self {
        let mut message = format!("Cannot {doing} `{}`", path.display());
        // The path is in the message already.
        let whole = error.source().map_or_else(|| error.to_string(), chain);
        let cause = whole.rsplit_once("`: ").map_or(&*whole, |(_, cause)| cause);
        _ = write!(message, ": {cause}.");
        Self::failed(message).hint_if_full(error)
    }

    /// Adds a hint if the cause of an error is a full disk.
    #[must_use]
    pub fn hint_if_full(self, error: &(dyn Error + 'static)) -> Self {
        match std::iter::successors(Some(error), |error| (*error).source()).any(is_full) {
            true => self.hint("the disk is full: free space and repeat the command"),
            false => self,
        }
    }

    /// Converts an error of a host.
    pub fn of_host(name: &str, error: &PortError) -> Self {
        let failed = Self::failed(format!(
            "Cannot {}: {}.",
            error.doing,
            error.detail.trim_end_matches('.')
        ));
        let made = Self {
            class: Some(error.class),
            ..failed
        };
        let log = error.log.iter().map(|line| format!("log: {line}"));
        let hint = Some(error.hint.clone()).filter(|hint| !hint.is_empty());
        let made = log.chain(hint).fold(made, Self::hint);
        if error.next == NextAction::Trust {
            return made.hint(format!(
                "homestak host trust {name} shows the fingerprint and records it"
            ));
        }
        match error.class {
            ErrorClass::Unreachable { .. } => made.hint(format!(
                "check that `{name}` is up and its certificate is trusted: homestak host trust {name}"
            )),
            ErrorClass::Refused
            | ErrorClass::Partly
            | ErrorClass::Missing
            | ErrorClass::Busy
            | ErrorClass::Broken
            | ErrorClass::Bug => made,
        }
    }

    /// Converts to an error of a port; without a class, it is a refusal.
    pub fn at_port(&self, doing: &str) -> PortError {
        let detail = self.message.trim_end_matches('.').to_owned();
        PortError {
            class: self.class.unwrap_or(ErrorClass::Refused),
            ..PortError::refused(doing, detail, self.hints.join("; "))
        }
    }
}

/// Returns whether an error is that of a full disk. Its causes are not searched.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    ) || homestak_store::is_disk_full(error)
}

/// Renamed manifests.
const RENAMED: &[(&str, &str)] = &[
    ("n1-basic", "n1-push"),
    ("n2-quick", "n2-tiered"),
    ("n3-full", "n3-deep"),
];

/// Returns the name that a manifest has now.
fn renamed(manifest: &str) -> Option<&'static str> {
    let old = manifest.strip_suffix("-v2").unwrap_or(manifest);
    let found = RENAMED.iter().find(|(before, _)| *before == old);
    found.map(|(_, now)| *now)
}

/// Returns the code that documents use for the same error.
fn code_of(what: &str) -> Option<Code> {
    match what {
        "manifest" => Some(Code::NoSuchManifest),
        "spec" => Some(Code::NoSuchSpec),
        "posture" => Some(Code::NoSuchPosture),
        "host" => Some(Code::NoSuchHost),
        _ => None,
    }
}

/// Formats a number with its noun.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// Capitalizes the first letter.
pub fn capitalized(fragment: &str) -> String {
    let mut characters = fragment.chars();
    let first = characters.next().into_iter();
    first
        .flat_map(char::to_uppercase)
        .chain(characters)
        .collect()
}

impl From<homestak_site::find::FindError> for DriverError {
    fn from(error: homestak_site::find::FindError) -> Self {
        use homestak_site::find::{FindError, Untrusted};
        let message = capitalized(&error.to_string());
        match error {
            FindError::Missing { path, .. } => {
                Self::failed(message + ".").hint(format!("homestak site init {}", path.display()))
            }
            FindError::Untrusted { path, parts } => {
                let is_foreign = |part: &&Untrusted| matches!(part, Untrusted::Foreign { .. });
                let foreign = parts.iter().find(is_foreign).map(|_| {
                    format!(
                        "if you trust it, name it: homestak --site {}",
                        path.display()
                    )
                });
                let rights = parts.iter().filter_map(|part| match part {
                    Untrusted::Foreign { .. } => None,
                    Untrusted::Writable { part, mode } => {
                        Some(format!("chmod {mode} {}", part.display()))
                    }
                });
                let refused = Self::refused(message + ".");
                foreign.into_iter().chain(rights).fold(refused, Self::hint)
            }
        }
    }
}

impl From<homestak_site::InitError> for DriverError {
    fn from(error: homestak_site::InitError) -> Self {
        match error {
            homestak_site::InitError::NotEmpty(path) => Self::failed(format!(
                "`{}` is not empty, so no site is written there.",
                path.display()
            ))
            .hint("name a new or empty directory; nothing was changed"),
            error @ (homestak_site::InitError::Write(..) | homestak_site::InitError::Random(_)) => {
                Self::failed(format!("{}.", chain(&error)))
            }
            homestak_site::InitError::Id(error) => error.into(),
        }
    }
}

impl From<homestak_site::id::IdError> for DriverError {
    fn from(error: homestak_site::id::IdError) -> Self {
        Self::from(&error)
    }
}

impl From<&homestak_site::id::IdError> for DriverError {
    fn from(error: &homestak_site::id::IdError) -> Self {
        use homestak_site::id::IdError;
        let failed = Self::failed(format!("The site's id: {}.", chain(error)));
        let carried = "guests are tagged with the id; only guests with this tag belong to the site";
        match error {
            IdError::NotEditable {
                path,
                instead: Some(id),
                ..
            } => failed.hint(format!(
                "in {}, replace the value of `id` with {id}, and that of `schema_version` with 2",
                path.display()
            )),
            IdError::Write {
                path,
                lines,
                is_document: false,
                ..
            } => failed.hint(format!(
                "write to {}:\n{}",
                path.display(),
                lines.trim_end()
            )),
            IdError::Write { path, lines, .. } | IdError::NotEditable { path, lines, .. } => {
                let (path, lines) = (path.display(), lines.trim_end());
                failed.hint(format!(
                    "in {path}, replace the line `schema_version`, or add both:\n{lines}"
                ))
            }
            IdError::Conflict(_) => Self {
                kind: ErrorKind::Refused,
                ..failed
            }
            .hint("another command gave it one; repeat this one"),
            IdError::InvalidStock { path, content } => failed
                .hint(format!(
                    "it contains {content:?} instead of the id of the site"
                ))
                .hint(format!(
                    "guests carry it in the tag `homestak-s-ID`; once {} is moved away, \
                     homestak manifest plan -v lists guests with their sites",
                    path.display()
                ))
                .hint("homestak site new-id --id ID writes it"),
            IdError::Read { .. } | IdError::Invalid { .. } => {
                failed.hint(format!("correct it: {carried}"))
            }
            IdError::Random(_) => failed,
        }
    }
}

impl From<homestak_core::resolve::tofu::TofuError> for DriverError {
    fn from(error: homestak_core::resolve::tofu::TofuError) -> Self {
        use homestak_core::resolve::tofu::TofuError;
        let made = Self::failed(format!("Cannot export: {}.", chain(&error)));
        match error {
            TofuError::NoApi(host) => made.hint(format!("write `nodes/{host}.yaml` with `api_endpoint` and `datastore`")),
            TofuError::NoDatastore(_) => made.hint("write `datastore: NAME` there, as `pvesm status` lists it"),
            TofuError::NoNodes(_) => made.hint("name the host the nodes run on with `-H`"),
            TofuError::NoSigningKey(_) | TofuError::SigningKey(_) => {
                made.hint("put 64 hexadecimal digits under `auth.signing_key`; `openssl rand -hex 32` makes them")
            }
        }
    }
}

impl From<homestak_engine::journal::JournalError> for DriverError {
    fn from(error: homestak_engine::journal::JournalError) -> Self {
        use homestak_engine::journal::JournalError;
        match error {
            JournalError::Held { ref scope, .. } => {
                Self::refused(capitalized(&format!("{error}.")))
                    .hint(
                        "wait until it has finished; `homestak manifest status` shows its progress",
                    )
                    .hint(format!(
                        "if it is no longer running: homestak manifest unlock -M {} -H {}",
                        scope.manifest, scope.host
                    ))
            }
            JournalError::Lost { .. } => Self {
                kind: ErrorKind::Stopped,
                ..Self::failed(format!("Stopped: {error}."))
            }
            .hint("nothing was undone; `homestak manifest status` shows its state"),
            JournalError::Broken {
                doing,
                detail,
                hint,
            } => {
                let made = Self::failed(format!(
                    "The journal cannot be used: {doing}: {}.",
                    detail.trim_end_matches('.')
                ));
                if hint.is_empty() {
                    made
                } else {
                    made.hint(hint)
                }
            }
        }
    }
}

impl From<homestak_core::token::TokenError> for DriverError {
    fn from(error: homestak_core::token::TokenError) -> Self {
        use homestak_core::token::TokenError;
        let made = Self::failed(format!("{}: {error}.", error.code()));
        match error {
            TokenError::Key | TokenError::NoKey => {
                made.hint("put 64 hexadecimal digits under `auth.signing_key`")
            }
            TokenError::Malformed(_) => {
                made.hint("a token is `payload.signature`; check that it was copied completely")
            }
            TokenError::Signature | TokenError::Expired(_) | TokenError::Audience => {
                made.hint("mint a new one: homestak token mint NODE SPEC")
            }
            TokenError::Identity { found, .. } => made.hint(format!(
                "a node can only use its own token; this one is for `{found}`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_a_hint() {
        let hints = |number| {
            let error = std::io::Error::from_raw_os_error(number);
            DriverError::file("write", Path::new("/x"), &error).hints
        };
        assert_eq!(hints(28).len(), 1);
        assert_eq!(hints(122).len(), 1);
        assert!(hints(2).is_empty());
        // Such as from `fs_err`.
        let wrapped = |kind, text: &str| {
            let error = io::Error::new(kind, text);
            let error = homestak_site::InitError::Write("/x".into(), error);
            DriverError::failed("Cannot write.")
                .hint_if_full(&error)
                .hints
        };
        assert_eq!(wrapped(io::ErrorKind::StorageFull, "full").len(), 1);
        assert!(wrapped(io::ErrorKind::Other, "(os error 28)").is_empty());
    }

    #[test]
    fn host_trust_is_suggested_for_certificate_errors_only() {
        let hints = |next| {
            let error = PortError {
                next,
                ..PortError::refused("observe", "the image of the certificate authority", "")
            };
            DriverError::of_host("father", &error).hints.join("\n")
        };
        assert!(hints(NextAction::Trust).contains("homestak host trust father"));
        assert_eq!(hints(NextAction::Repeat), "");
    }
}
