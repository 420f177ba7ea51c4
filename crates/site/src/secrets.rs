//! Which file of secrets is read when there is a plain one and a sealed one: the sealed one.
//!
//! In: both files, opened. Out: the one that is read, or why none is.
//! Never: a plain file instead of a sealed one; a value that was removed from the sealed file would
//! stay in use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use homestak_core::catalog::LoadProblem;
use homestak_core::doc::{Code, Diagnostics, FileId, Severity, Source, Value, yaml};

use crate::load::Unseal;

/// The plain file's name; a sealed file may have it too.
pub const PLAIN: &str = "secrets.yaml";
/// The sealed file's name.
pub const SEALED: &str = "secrets.yaml.enc";

/// How many keys a message names.
const NAMED: usize = 8;

/// One file of secrets.
pub(crate) struct SecretsFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its plain text, or why there is none.
    pub(crate) text: Result<String, LoadProblem>,
    /// Whether it was sealed; so counts one that could not be read.
    pub(crate) sealed: bool,
}

impl SecretsFile {
    /// Opens a file's text.
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

/// What is read, and a problem beside it.
pub(crate) struct Choice {
    /// The file that is read.
    pub(crate) file: SecretsFile,
    /// Something worth knowing about the other file.
    pub(crate) notice: Option<(PathBuf, LoadProblem)>,
}

/// Chooses between the file with the plain name and the one with the sealed name.
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
                None => notice = Some((plain.path.clone(), superfluous(&plain.path))),
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
        message: format!("`{SEALED}` is not sealed: its secrets are plain text"),
        hint: format!("homestak secrets encrypt --in-place {path}; replace what was pushed"),
    }
}

fn superfluous(plain: &Path) -> LoadProblem {
    LoadProblem {
        code: Code::Shadowed,
        severity: Severity::Notice,
        message: format!("`{SEALED}` is read instead of this file, which has the same content"),
        hint: format!("rm {}", plain.display()),
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
        (Ok(_), Ok(_)) => return superfluous(&plain.path),
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
        "to keep the sealed file: rm {plain}; to keep the plain one: homestak secrets encrypt {plain} --out {sealed}, then rm {plain}"
    )
}

/// Says in what two documents differ; `None` when they are equal. One that is not valid equals only
/// the same text: what was skipped in it may be the difference.
fn differences(sealed: &str, plain: &str) -> Option<String> {
    if sealed == plain {
        return None;
    }
    let tree = |name, text| {
        let source = Source::secret(name, text);
        let mut faults = Diagnostics::default();
        let tree = yaml::parse(FileId(0), &source, &mut faults);
        let fault = faults
            .iter()
            .find(|fault| fault.severity == Severity::Error);
        match (tree, fault) {
            (Some(tree), None) => Ok(tree),
            (_, Some(fault)) => {
                let line = source.line_of(fault.span.start) + 1;
                Err(format!(
                    "`{name}` is not valid, line {line}: {}",
                    fault.message
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
    let said = [
        ("different values of", &found.values),
        (&*format!("only `{SEALED}` has"), &found.only_sealed),
        (&*format!("only `{PLAIN}` has"), &found.only_plain),
    ];
    let said = said.into_iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<String> = said
        .map(|(what, names)| format!("{what} {}", listed(names)))
        .collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// Names of keys, without their values.
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
        // A section that was emptied has no value at all.
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
