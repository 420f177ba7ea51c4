//! Reads all text files of the working tree, in order of their paths. Build output and version
//! control are left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Names of directories without source.
const NOT_SOURCE: &[&str] = &["target", "node_modules", "artifacts", "corpus", "out"];

/// Hidden directories with source; all others belong to tools.
const HIDDEN_SOURCE: &[&str] = &[".cargo", ".ci", ".github"];

/// A text file.
#[derive(Debug)]
pub struct File {
    /// Path from the root, with `/` between its parts.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl File {
    /// Creates a file from its path and text.
    pub fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns the last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns whether it has one of these extensions, given without the dot.
    pub fn ends_in(&self, extensions: &[&str]) -> bool {
        self.name()
            .rsplit_once('.')
            .is_some_and(|(_, extension)| extensions.contains(&extension))
    }

    /// Returns whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.ends_in(&["rs"])
    }

    /// Returns whether it is a Rust file in the `src` directory of a crate or of xtask.
    pub fn is_source(&self) -> bool {
        self.is_rust()
            && (self.path.starts_with("crates/") && self.path.contains("/src/")
                || self.path.starts_with("xtask/src/"))
    }

    /// Returns whether it exists for tests only: code, cases, fixtures and snapshots.
    pub fn is_test(&self) -> bool {
        let mut directories: Vec<&str> = self.path.split('/').collect();
        let name = directories.pop();
        name == Some("tests.rs")
            || directories
                .iter()
                .any(|part| ["tests", "test-support", "fuzz", "bench", "benches"].contains(part))
    }

    /// Returns whether it is test data.
    pub fn is_test_data(&self) -> bool {
        self.is_test() && !self.is_rust() && self.name() != "README.md"
    }
}

/// All files.
#[derive(Debug)]
pub struct Tree {
    /// The root directory.
    pub root: PathBuf,
    /// The text files.
    pub files: Vec<File>,
    /// Paths of all files and directories, text or not.
    pub paths: BTreeSet<String>,
}

impl Tree {
    /// Reads every file below a directory.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            files: Vec::new(),
            paths: BTreeSet::new(),
        };
        tree.read_directory("")?;
        tree.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    /// Creates a tree in memory, for tests.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut paths = BTreeSet::new();
        for (path, _) in files {
            let parts: Vec<&str> = path.split('/').collect();
            paths.extend((1..=parts.len()).map(|count| parts[..count].join("/")));
        }
        Self {
            root: PathBuf::new(),
            files: files
                .iter()
                .map(|(path, text)| File::new(path, text))
                .collect(),
            paths,
        }
    }

    /// Returns a file by its path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    fn read_directory(&mut self, directory: &str) -> Result<()> {
        for entry in fs_err::read_dir(self.root.join(directory))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name
                .to_str()
                .with_context(|| format!("{} is not UTF-8", entry.path().display()))?;
            let path = if directory.is_empty() {
                name.to_owned()
            } else {
                format!("{directory}/{name}")
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let hidden = name.starts_with('.') && !HIDDEN_SOURCE.contains(&name);
                if !hidden && !NOT_SOURCE.contains(&name) {
                    self.read_directory(&path)?;
                }
                self.paths.insert(path);
            } else if kind.is_file() {
                // Images and encrypted files are not text; only their paths are used.
                if let Ok(text) = String::from_utf8(fs_err::read(entry.path())?) {
                    self.files.push(File::new(&path, &text));
                }
                self.paths.insert(path);
            }
        }
        Ok(())
    }
}

/// Returns the root of the workspace this program was built from.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

#[cfg(test)]
mod tests {
    use super::File;

    fn file(path: &str) -> File {
        File::new(path, "")
    }

    #[test]
    fn source_and_tests_are_distinguished() {
        assert!(file("crates/core/src/doc/code.rs").is_source());
        assert!(file("xtask/src/main.rs").is_source());
        assert!(!file("crates/core/tests/props.rs").is_source());
        assert!(!file("docs/x.rs").is_source());
        assert!(file("crates/core/src/doc/tests.rs").is_test());
        assert!(!file("crates/core/src/doc/code.rs").is_test());
        assert!(file("crates/core/tests/cases/a.yaml").is_test_data());
        assert!(!file("crates/core/tests/props.rs").is_test_data());
    }
}
