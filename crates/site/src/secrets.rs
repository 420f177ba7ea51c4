//! Chooses between the plain and the encrypted secrets file. The encrypted one is used; if both exist
//! they must have the same content, because a plain file could bring back a secret that was
//! removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use homestak_core::catalog::LoadProblem;
use homestak_core::doc::{Code, Diagnostics, FileId, Severity, Source, Value, yaml};

use crate::load::Unseal;

/// Name of the plain file; an encrypted file may have it too.
pub const PLAIN: &str = "secrets.yaml";
/// Name of the encrypted file.
pub const SEALED: &str = "secrets.yaml.enc";

/// How many keys are listed in a message.
const MAX_LISTED: usize = 8;

/// A secrets file.
pub(crate) struct SecretsFile {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The decrypted text, or the problem.
    pub(crate) text: Result<String, LoadProblem>,
    /// Whether it is encrypted; true also if it could not be read.
    pub(crate) sealed: bool,
}

impl SecretsFile {
    /// Decrypts the text of a file.
    pub(crate) fn open(
        path: PathBuf,
        text: Result<String, LoadProblem>,
        unseal: Unseal<'_>,
    ) -> Self {
        let opened = text.clone().and_then(|text| unseal(&text));
        let sealed = match (&text, &opened) {
            (Ok(text), Ok(opened)) => text != opened,
            _ => true,
        };
        Self {
            path,
            text: opened,
            sealed,
        }
    }
}

/// The chosen file.
pub(crate) struct Choice {
    /// The file.
    pub(crate) file: SecretsFile,
    /// A notice about the other file.
    pub(crate) notice: Option<(PathBuf, LoadProblem)>,
}

/// Chooses between the file with the plain name and the one with the encrypted name.
pub(crate) fn choose(plain: Option<SecretsFile>, sealed: Option<SecretsFile>) -> Option<Choice> {
    let Some(mut file) = sealed else {
        let notice = None;
        return plain.map(|file| Choice { file, notice });
    };
    let mut notice = None;
    if !file.sealed {
        file.text = Err(not_sealed(&file.path));
    } else if let Some(plain) = plain {
        match (&file.text, &plain.text) {
            (Ok(one), Ok(other)) => match differences(one, other) {
                Some(what) => file.text = Err(differ(&file.path, &plain.path, &what)),
                None => notice = Some((plain.path.clone(), duplicate(&plain.path))),
            },
            _ => file.text = Err(not_compared(&file, &plain)),
        }
    }
    Some(Choice { file, notice })
}

fn not_sealed(path: &Path) -> LoadProblem {
    let path = path.display();
    LoadProblem {
        code: Code::NotSealed,
        severity: Severity::Error,
        message: format!("`{SEALED}` is not encrypted: its secrets are plain text"),
        hint: format!(
            "run `homestak secrets encrypt --in-place {path}`, and replace secrets that were pushed"
        ),
    }
}

fn duplicate(plain: &Path) -> LoadProblem {
    LoadProblem {
        code: Code::Shadowed,
        severity: Severity::Notice,
        message: format!("ignored, because `{SEALED}` has the same content and is used"),
        hint: format!("delete it: `rm {}`", plain.display()),
    }
}

fn differ(sealed: &Path, plain: &Path, what: &str) -> LoadProblem {
    LoadProblem {
        code: Code::SecretsDiffer,
        severity: Severity::Error,
        message: format!("`{PLAIN}` and `{SEALED}` differ, so neither is used: {what}"),
        hint: keep_one(sealed, plain),
    }
}

fn not_compared(sealed: &SecretsFile, plain: &SecretsFile) -> LoadProblem {
    let (name, problem) = match (&sealed.text, &plain.text) {
        (Err(problem), _) => (SEALED, problem),
        (Ok(_), Err(problem)) => (PLAIN, problem),
        (Ok(_), Ok(_)) => return duplicate(&plain.path),
    };
    let why = &problem.message;
    LoadProblem {
        code: Code::SecretsDiffer,
        severity: Severity::Error,
        message: format!(
            "`{PLAIN}` and `{SEALED}` cannot be compared, so neither is used; `{name}`: {why}"
        ),
        hint: format!(
            "{}, or {}",
            problem.hint,
            keep_one(&sealed.path, &plain.path)
        ),
    }
}

fn keep_one(sealed: &Path, plain: &Path) -> String {
    let (sealed, plain) = (sealed.display(), plain.display());
    format!(
        "to keep the encrypted file, run `rm {plain}`; to keep the plain one, run `homestak secrets encrypt {plain} --out {sealed}`, then `rm {plain}`"
    )
}

/// Describes how two documents differ; `None` if they are equal. An invalid document is equal only
/// to the same text.
fn differences(sealed: &str, plain: &str) -> Option<String> {
    if sealed == plain {
        return None;
    }
    let tree = |name, text| {
        let source = Source::secret(name, text);
        let mut diagnostics = Diagnostics::default();
        let tree = yaml::parse(FileId(0), &source, &mut diagnostics);
        let error = diagnostics
            .iter()
            .find(|one| one.severity == Severity::Error);
        match (tree, error) {
            (Some(tree), None) => Ok(tree),
            (_, Some(error)) => {
                let line = source.line_of(error.span.start) + 1;
                Err(format!(
                    "`{name}` is not valid, line {line}: {}",
                    error.message
                ))
            }
            (None, None) => Err(format!("`{name}` is empty")),
        }
    };
    let (sealed, plain) = match (tree(SEALED, sealed), tree(PLAIN, plain)) {
        (Ok(sealed), Ok(plain)) => (sealed, plain),
        (Err(one), Err(other)) => return Some(format!("{one}; {other}")),
        (Err(one), Ok(_)) | (Ok(_), Err(one)) => return Some(one),
    };
    let mut found = Differences::default();
    found.compare(&sealed, &plain, "");
    let parts = [
        ("different values of", &found.values),
        (&*format!("only `{SEALED}` has"), &found.only_sealed),
        (&*format!("only `{PLAIN}` has"), &found.only_plain),
    ];
    let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts
        .map(|(what, names)| format!("{what} {}", listed(names)))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(MAX_LISTED)
        .map(|n| format!("`{n}`"))
        .collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// Names of differing keys, without values.
#[derive(Default)]
struct Differences {
    values: BTreeSet<String>,
    only_sealed: BTreeSet<String>,
    only_plain: BTreeSet<String>,
}

impl Differences {
    fn compare(&mut self, sealed: &Value, plain: &Value, path: &str) {
        let below = |key: &str| match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        // An empty section may have no value.
        let entries = |value: &'_ Value| match value.is_null() {
            true => Some(Vec::new()),
            false => value.entries().map(<[_]>::to_vec),
        };
        if let (Some(own), Some(others)) = (entries(sealed), entries(plain)) {
            for entry in &own {
                match plain.field(&entry.key.text) {
                    Some(value) => self.compare(&entry.value, value, &below(&entry.key.text)),
                    None => _ = self.only_sealed.insert(below(&entry.key.text)),
                }
            }
            let only = others
                .iter()
                .filter(|entry| sealed.field(&entry.key.text).is_none());
            self.only_plain
                .extend(only.map(|entry| below(&entry.key.text)));
        } else if sealed != plain {
            let name = match path {
                "" => "the document",
                path => path,
            };
            self.values.insert(name.to_owned());
        }
    }
}
