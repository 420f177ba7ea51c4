//! Files of secrets in a working tree: which they are, and which version of them is served.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::error::RepoError;
use super::source::open_regular;
use super::working_tree::{Paths, WorkingTree, named};

/// How much of a new file is searched for a key.
const SEARCHED_BYTES: u64 = 16 << 10;
/// How much of a file of secrets is searched for a sealed value: the first values need not be sealed.
const SEALED_BYTES: u64 = 1 << 20;
/// What private keys contain.
const KEYS: &[&[u8]] = &[b"PRIVATE KEY-----", b"AGE-SECRET-KEY-1"];
/// What names of files of secrets contain, those of editors' copies too.
const SECRETS: &str = "secrets.y";
/// How names of files without real secrets end.
const EXAMPLE: &str = ".example";
/// What SOPS writes for each sealed value.
const SEALED: &[u8] = b"ENC[AES256_GCM";

/// Returns whether a new file is one of secrets that is not sealed, or has a private key.
pub(super) fn is_secret(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    (is_secrets_name(name) && is_unsealed(path))
        || start_of(path, SEARCHED_BYTES)
            .is_some_and(|start| KEYS.iter().any(|key| contains(&start, key)))
}

fn is_secrets_name(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).to_lowercase();
    name.contains(SECRETS) && !name.ends_with(EXAMPLE)
}

fn is_unsealed(path: &Path) -> bool {
    start_of(path, SEALED_BYTES).is_some_and(|start| !contains(&start, SEALED))
}

/// Returns the start of a regular file; `None` for a link, and for a file that git cannot read either.
fn start_of(path: &Path, most: u64) -> Option<Vec<u8>> {
    let file = open_regular(path).ok().flatten()?;
    let mut start = Vec::new();
    file.take(most).read_to_end(&mut start).ok()?;
    Some(start)
}

fn contains(all: &[u8], text: &[u8]) -> bool {
    all.windows(text.len()).any(|window| window == text)
}

/// Returns the regular files of secrets among entries of an index or of a tree: mode and object by
/// path.
fn secrets_in(listed: &[Vec<u8>]) -> BTreeMap<Vec<u8>, (String, String)> {
    let mut found = BTreeMap::new();
    for entry in listed {
        let Some(at) = entry.iter().position(|byte| *byte == b'\t') else {
            continue;
        };
        let fields = String::from_utf8_lossy(&entry[..at]);
        let fields: Vec<&str> = fields.split(' ').collect();
        let ([mode, object, "0"] | [mode, "blob", object]) = fields[..] else {
            continue;
        };
        let path = &entry[at + 1..];
        if mode.starts_with("100") && is_secrets_name(path) {
            found.insert(path.to_vec(), (mode.to_owned(), object.to_owned()));
        }
    }
    found
}

impl WorkingTree<'_> {
    /// Finds files of secrets that were sealed and are not now, as while they are edited. Their last
    /// sealed versions are put into the index, and they are removed from the changed files.
    pub(super) fn keep_sealed(
        &self,
        head: Option<&str>,
        changed: &mut Paths,
        notices: &mut Vec<String>,
    ) -> Result<(), RepoError> {
        let staged = secrets_in(&self.git.list(&["ls-files", "-z", "--stage"])?);
        let committed = match head {
            Some(head) => secrets_in(&self.git.list(&["ls-tree", "-r", "-z", head])?),
            None => BTreeMap::new(),
        };
        let paths: BTreeSet<&Vec<u8>> = staged.keys().chain(committed.keys()).collect();
        let (mut lines, mut names) = (Vec::new(), BTreeSet::new());
        for path in paths {
            let versions = [staged.get(path), committed.get(path)];
            let at = Path::new(OsStr::from_bytes(path));
            let is_plain = match versions {
                _ if changed.contains(path) => is_unsealed(&self.tree.join(at)),
                [Some(staged), committed] if committed != Some(staged) => {
                    !self.is_sealed(&staged.1)?
                }
                _ => false,
            };
            if !is_plain {
                continue;
            }
            for (mode, object) in versions.into_iter().flatten() {
                if self.is_sealed(object)? {
                    lines.extend_from_slice(format!("{mode} {object}\t").as_bytes());
                    lines.extend_from_slice(path);
                    lines.push(0);
                    changed.remove(path);
                    names.insert(at.to_string_lossy().into_owned());
                    break;
                }
            }
        }
        if !names.is_empty() {
            let named = named(&names);
            notices.push(format!(
                "served as they were sealed, since they are not sealed now: {named}"
            ));
        }
        self.put(&lines)
    }

    /// Returns whether a version of a file of secrets is sealed; one that is too large to be searched
    /// counts as sealed.
    fn is_sealed(&self, object: &str) -> Result<bool, RepoError> {
        let size = self.git.line(&["cat-file", "-s", object], b"")?;
        if size.parse::<u64>().is_ok_and(|size| size > SEALED_BYTES) {
            return Ok(true);
        }
        let content = self.git.run(&["cat-file", "blob", object], b"")?;
        Ok(contains(&content, SEALED))
    }
}
