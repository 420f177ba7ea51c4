//! Which file of which repository a path means: a list of allowed forms, and nothing else.
//!
//! Paths of git are compared as they were sent. Only the path of a raw file is decoded, once; what
//! could have another meaning for a file system, or after a second decoding, is refused.

use homestak_api::publication::is_repo_name;

/// The longest path of a raw file, decoded.
const PATH_BYTES: usize = 1024;
/// The longest part of it, as of Linux.
const PART_BYTES: usize = 255;

/// What is asked of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoRequest<'p> {
    pub(crate) repo: &'p str,
    pub(crate) what: RepoFile,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RepoFile {
    /// A file of the bare repository, relative to it.
    Git(String, GitKind),
    /// A file in a commit.
    Raw(String),
    /// A file of a git directory that is never sent.
    Hidden,
}

/// What a file of a bare repository is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitKind {
    /// `HEAD`, references and lists.
    Text,
    /// A loose object.
    Loose,
    /// A pack.
    Pack,
    /// The index of a pack.
    Index,
}

impl GitKind {
    /// Returns the content type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Loose => "application/x-git-loose-object",
            Self::Pack => "application/x-git-packed-objects",
            Self::Index => "application/x-git-packed-objects-toc",
        }
    }
}

/// Files of a git directory that git itself does not ask a server for.
const HIDDEN: &[&str] = &[
    "config",
    "config.worktree",
    "description",
    "index",
    "shallow",
    "commondir",
    "gitdir",
    "homestak.json",
    "ORIG_HEAD",
    "FETCH_HEAD",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "packed-refs.lock",
    "git-daemon-export-ok",
];
/// Directories of it. What git asks for in them is allowed before.
const HIDDEN_DIRECTORIES: &[&str] = &["objects", "info", "refs", "hooks", "logs", "worktrees"];

/// Returns the first part of a path that belongs to a repository, without `.git`, and the rest.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let (first, rest) = path.strip_prefix('/')?.split_once('/')?;
    Some((first.strip_suffix(".git")?, rest))
}

/// Returns what a path means; `None` when it is malformed.
pub(crate) fn parse(path: &str) -> Option<RepoRequest<'_>> {
    let (repo, rest) = split(path)?;
    if !is_repo_name(repo) {
        return None;
    }
    let what = match git_file(rest) {
        Some(kind) => RepoFile::Git(rest.to_owned(), kind),
        None => {
            let decoded = raw_path(rest)?;
            match is_hidden(&decoded) {
                true => RepoFile::Hidden,
                false => RepoFile::Raw(decoded),
            }
        }
    };
    Some(RepoRequest { repo, what })
}

/// Returns the kind of a file that git asks for.
fn git_file(path: &str) -> Option<GitKind> {
    match path {
        "HEAD" | "packed-refs" | "info/refs" | "objects/info/packs" => return Some(GitKind::Text),
        _ => {}
    }
    if let Some(reference) = path.strip_prefix("refs/") {
        return is_reference(reference).then_some(GitKind::Text);
    }
    let object = path.strip_prefix("objects/")?;
    let hex = |text: &str, lengths: &[usize]| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        lengths.contains(&text.len()) && text.bytes().all(is_digit)
    };
    if let Some(pack) = object.strip_prefix("pack/pack-") {
        let (name, ending) = pack.split_once('.')?;
        return match ending {
            _ if !hex(name, &[40, 64]) => None,
            "pack" => Some(GitKind::Pack),
            "idx" => Some(GitKind::Index),
            _ => None,
        };
    }
    let (directory, name) = object.split_once('/')?;
    (hex(directory, &[2]) && hex(name, &[38, 62])).then_some(GitKind::Loose)
}

/// Returns whether the name of a reference below `refs/` is a plain one.
fn is_reference(name: &str) -> bool {
    let is_plain = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        let starts = |c: char| c.is_ascii_alphanumeric() || c == '_';
        part.starts_with(starts)
            && part.chars().all(plain)
            && !part.contains("..")
            && !part.ends_with(".lock")
            && part.len() <= PART_BYTES
    };
    let (kind, rest) = name.split_once('/').unwrap_or((name, ""));
    matches!(kind, "heads" | "tags") && name.len() <= PATH_BYTES && rest.split('/').all(is_plain)
}

/// Decodes the path of a raw file; `None` if it is not a plain one.
fn raw_path(path: &str) -> Option<String> {
    // A dot or a slash has no reason to be encoded.
    let lower = path.to_ascii_lowercase();
    if ["%2e", "%2f", "%5c", "%00"]
        .iter()
        .any(|one| lower.contains(one))
    {
        return None;
    }
    let decoded = decode(path)?;
    // What is decoded once more would be another path.
    if decode(&decoded).as_ref() != Some(&decoded) {
        return None;
    }
    let is_fine = decoded.len() <= PATH_BYTES && decoded.split('/').all(is_part);
    is_fine.then_some(decoded)
}

/// Returns whether a part of a path is a plain name.
fn is_part(part: &str) -> bool {
    !matches!(part, "" | "." | "..")
        && part.len() <= PART_BYTES
        && !part.chars().any(|c| c == '\\' || c.is_control())
        && !is_git_directory(part)
}

/// Returns whether a file system may take a name for `.git`: in any case, with characters that are
/// ignored, or in the forms of NTFS.
fn is_git_directory(part: &str) -> bool {
    let ignored = |c: &char| matches!(*c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let name: String = part.chars().filter(|c| !ignored(c)).collect();
    let name = name.to_ascii_lowercase();
    let name = name.split(':').next().unwrap_or_default();
    let name = name.trim_end_matches([' ', '.']);
    matches!(name, ".git" | "git~1")
}

fn is_hidden(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    let is = |list: &[&str], name: &str| list.iter().any(|one| one.eq_ignore_ascii_case(name));
    is(HIDDEN, path) || is(HIDDEN_DIRECTORIES, first)
}

/// Decodes `%` and two hexadecimal digits; `None` if the result is not text. A `%` without digits
/// stays in a decoded path only.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let value = (first == b'%').then(|| after.get(..2)).flatten();
        let value = value.and_then(|digits| std::str::from_utf8(digits).ok());
        let value = value.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match value.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the content type of a raw file.
pub(crate) fn content_type(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("sh") => "text/x-shellscript",
        Some("py") => "text/x-python",
        Some("yaml" | "yml") => "text/yaml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests;
