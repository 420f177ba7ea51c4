//! Which files of a site are tracked by git.

use std::path::Path;

/// Returns those of `files` (relative to `directory`) that git tracks; none without a repository or
/// without git.
pub fn tracked(directory: &Path, files: &[String]) -> Vec<String> {
    // Without names git would list all files.
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
