//! Whether git keeps files that it must not keep.
//!
//! In: a site directory. Out: which of the files named are tracked.
//! Never: changing the repository.

use std::path::Path;

/// Returns those of `files` (relative to `directory`) that git tracks. Without a repository, or
/// without git, that is none.
pub fn tracked(directory: &Path, files: &[String]) -> Vec<String> {
    // Without names git would list everything it has.
    if files.is_empty() {
        return Vec::new();
    }
    let mut arguments = vec!["ls-files", "-z", "--"];
    arguments.extend(files.iter().map(String::as_str));
    let listed = crate::process::git(directory, &arguments).unwrap_or_default();
    String::from_utf8_lossy(&listed)
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}
