//! Reads a repository: its references, and its working tree as a commit.
//!
//! The configuration of the repository is only read as text. Patterns of ignored files are collected
//! from where git would read them for the owner.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::RepoError;
use super::git::{Git, config_entries};
use super::source::{References, Source, account_of, read_owned};
use super::temporary_repo::{ObjectFormat, TemporaryRepo};
use super::working_tree::{WorkingTree, named};

/// The largest file with patterns of ignored files.
const PATTERNS_BYTES: u64 = 1 << 20;

/// A repository that was read.
pub(super) struct Snapshot {
    /// Runs in `temporary`.
    pub(super) git: Git,
    pub(super) temporary: TemporaryRepo,
    pub(super) format: ObjectFormat,
    pub(super) references: References,
    /// The commit with the working tree; that of `HEAD` if nothing differs.
    pub(super) working: Option<String>,
    /// What the user should know.
    pub(super) notices: Vec<String>,
}

/// What is read of the configuration of a repository.
#[derive(Default)]
struct Config {
    format: Option<ObjectFormat>,
    excludes: Option<PathBuf>,
}

impl Snapshot {
    /// Reads a repository.
    pub(super) fn take(source: &Source) -> Result<Self, RepoError> {
        let owner = source.owner.if_other();
        let home = account_of(source.owner.user).map(|(_, home)| home);
        let config = read_config(source, home.as_deref())?;
        let format = config.format.unwrap_or(ObjectFormat::Sha1);
        let temporary = TemporaryRepo::create(&source.common.join("objects"), format, owner)?;
        let git = Git::new(temporary.path(), owner);
        let mut references = source.references(format)?;
        let mut notices = Vec::new();
        if !references.conflicting.is_empty() {
            let named = named(&references.conflicting);
            notices.push(format!(
                "left out, since git cannot store them below another name: {named}"
            ));
        }
        let missing = drop_missing(&git, &mut references)?;
        if !missing.is_empty() {
            let named = named(&missing.into_iter().collect());
            notices.push(format!(
                "left out, since their objects are missing: {named}"
            ));
        }
        let mut snapshot = Self {
            working: references.head.clone(),
            git,
            temporary,
            format,
            references,
            notices,
        };
        if let Some(tree) = &source.tree {
            snapshot.git = snapshot.git.clone().with_tree(tree);
            snapshot.write_patterns(source, &config, home.as_deref())?;
            snapshot.add_working_tree(source, tree)?;
        }
        Ok(snapshot)
    }

    /// Returns what is committed: the objects of branches, tags and `HEAD`.
    pub(super) fn tips(&self) -> BTreeSet<String> {
        let refs = self.references.refs.values();
        refs.chain(&self.references.head).cloned().collect()
    }

    /// Collects the patterns of ignored files that git would use for the user.
    fn write_patterns(
        &mut self,
        source: &Source,
        config: &Config,
        home: Option<&Path>,
    ) -> Result<(), RepoError> {
        let mut patterns = Vec::new();
        let mut files = Vec::new();
        if let Some(home) = home {
            files.push(home.join(".config/git/ignore"));
            files.extend(user_excludes(source, home));
        }
        files.extend(config.excludes.clone());
        for file in files {
            match read_owned(&file, source.owner, PATTERNS_BYTES) {
                Ok(text) => patterns.push(text.unwrap_or_default()),
                Err(error) => {
                    let why = homestak_core::error::chain(&error);
                    self.notices.push(format!("patterns were not used: {why}"));
                }
            }
        }
        patterns.push(source.read("info/exclude")?.unwrap_or_default());
        self.temporary
            .write("info/exclude", &patterns.join(&b'\n'))?;
        Ok(())
    }

    fn add_working_tree(&mut self, source: &Source, tree: &Path) -> Result<(), RepoError> {
        let index = source.index()?;
        if index.is_none() && self.references.head.is_some() {
            // A clone that was not checked out.
            return Ok(());
        }
        let start = index.as_ref();
        let start = start.map(|(content, written)| (content.as_slice(), *written));
        self.temporary.start_index(start)?;
        if let Some((content, _)) = &index {
            for (name, content) in source.shared_indexes(content.len())? {
                self.temporary.write(&name, &content)?;
            }
        }
        self.commit(source, tree)
    }

    fn commit(&mut self, source: &Source, tree: &Path) -> Result<(), RepoError> {
        let writing = self.git.writing_to(self.temporary.new_objects());
        let working = WorkingTree {
            git: &self.git,
            writing: &writing,
            source,
            tree,
            format: self.format,
        };
        let head = self.references.head.as_deref();
        if let Some(commit) = working.commit(head, &mut self.notices)? {
            self.working = Some(commit);
        }
        Ok(())
    }
}

/// Removes references whose objects are missing, and returns their names. A missing `HEAD` is an
/// error.
fn drop_missing(git: &Git, references: &mut References) -> Result<Vec<String>, RepoError> {
    let mut input = String::new();
    let objects: BTreeSet<&String> = references.refs.values().chain(&references.head).collect();
    for object in objects {
        input += &format!("{object}\n");
    }
    let words = ["cat-file", "--batch-check=%(objectname) %(objecttype)"];
    let printed = git.run(&words, input.as_bytes())?;
    let printed = String::from_utf8_lossy(&printed);
    let missing: BTreeSet<&str> = printed
        .lines()
        .filter_map(|line| line.strip_suffix(" missing"))
        .collect();
    if references
        .head
        .as_deref()
        .is_some_and(|head| missing.contains(head))
    {
        return Err(RepoError::unusable("the commit of its `HEAD` is missing"));
    }
    let names = references.refs.iter();
    let names: Vec<String> = names
        .filter(|(_, object)| missing.contains(object.as_str()))
        .map(|(name, _)| name.clone())
        .collect();
    references.refs.retain(|name, _| !names.contains(name));
    Ok(names)
}

/// Reads the configuration of a repository as text: git never works with it.
fn read_config(source: &Source, home: Option<&Path>) -> Result<Config, RepoError> {
    let text = source.read("config")?.unwrap_or_default();
    let mut config = Config::default();
    for (key, value) in config_entries(&text, source.owner)? {
        match key.as_str() {
            "extensions.objectformat" => {
                config.format = Some(match value.as_str() {
                    "sha1" => ObjectFormat::Sha1,
                    "sha256" => ObjectFormat::Sha256,
                    _ => return Err(RepoError::unusable("its hash function is not supported")),
                });
            }
            "extensions.refstorage" if value != "files" => {
                return Err(RepoError::unusable(
                    "its references are not stored as files; `git refs migrate --ref-format=files` \
                     changes that",
                ));
            }
            "extensions.partialclone" => {
                return Err(RepoError::unusable(
                    "it is a partial clone; clone it again without `--filter`",
                ));
            }
            "core.excludesfile" => config.excludes = expanded(&value, home),
            _ => {}
        }
    }
    Ok(config)
}

/// Returns the files with patterns that the configuration of a user names.
fn user_excludes(source: &Source, home: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in [".config/git/config", ".gitconfig"] {
        let text = read_owned(&home.join(name), source.owner, PATTERNS_BYTES);
        let text = text.ok().flatten().unwrap_or_default();
        let entries = config_entries(&text, source.owner).unwrap_or_default();
        let named = entries.iter().filter(|(key, _)| key == "core.excludesfile");
        files.extend(named.filter_map(|(_, value)| expanded(value, Some(home))));
    }
    files
}

fn expanded(value: &str, home: Option<&Path>) -> Option<PathBuf> {
    match value.strip_prefix("~/") {
        Some(rest) => Some(home?.join(rest)),
        None => Path::new(value).is_absolute().then(|| value.into()),
    }
}
