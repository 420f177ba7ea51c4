//! SSH keys of users: those of the spec, and foreign ones. The number and length of reported fields
//! is limited, whatever users write into their key files.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{KEY_FILES, found_or_new};
use super::change::{Danger, Handling};
use super::decision_builder::DecisionBuilder;
use super::edit;
use super::facts::FileFact;
use super::step::ConvergeStep;

/// How many foreign keys of a file are reported one by one; further ones are counted.
const MAX_REPORTED: usize = 64;
/// How many characters of a text that a user chose are shown.
const MAX_SHOWN: usize = 64;

/// Paths of the key files of a user.
pub(super) struct KeyFiles {
    pub(super) directory: String,
    pub(super) first: String,
    /// Also read by sshd by default.
    pub(super) second: String,
}

impl KeyFiles {
    pub(super) fn of(home: &str) -> Self {
        let [directory, first, second] = KEY_FILES.map(|name| format!("{home}/{name}"));
        Self {
            directory,
            first,
            second,
        }
    }

    /// Returns why keys can be neither read nor written.
    pub(super) fn refusal(&self, builder: &DecisionBuilder<'_>) -> Option<String> {
        let facts = builder.facts;
        let refused = [&self.directory, &self.first];
        if let Some(why) = refused
            .iter()
            .find_map(|path| facts.refused_paths.get(*path))
        {
            return Some(why.clone());
        }
        if let Some(FileFact::Regular { .. } | FileFact::Link { .. } | FileFact::Other) =
            facts.files.get(&self.directory)
        {
            let path = &self.directory;
            return Some(format!("`{path}` exists and is not a directory"));
        }
        match facts.files.get(&self.first) {
            Some(FileFact::Directory { .. } | FileFact::Other) => {
                Some(format!("`{}` exists and is not a regular file", self.first))
            }
            Some(FileFact::Regular { .. } | FileFact::Link { .. }) | None => None,
        }
    }
}

/// Returns the text of a key file. One that belongs to another user and is not world-readable
/// counts as unreadable: its lines would be copied to a file that this user can read.
pub(super) fn own_text<'a>(
    builder: &'a DecisionBuilder<'_>,
    path: &str,
    user: &str,
) -> Option<&'a str> {
    if let Some(FileFact::Regular { owner, mode, .. }) = builder.facts.files.get(path)
        && owner != user
        && mode & 0o004 == 0
    {
        return None;
    }
    builder.text(path)
}

/// The keys of a spec, and what is done about others.
struct DesiredKeys<'a> {
    id: &'a str,
    user: &'a str,
    ours: BTreeMap<String, &'a String>,
    /// Keys of an earlier spec.
    previous: BTreeSet<String>,
    /// What is done about foreign keys.
    foreign: Handling,
}

/// What was reported about the foreign keys of one file.
struct ForeignKeyReport {
    n_reported: usize,
    /// What is done about keys that are only counted.
    further: Handling,
    /// Keys of the spec that have options, and what is done about those.
    altered: BTreeMap<String, Handling>,
}

impl DesiredKeys<'_> {
    /// Counts the foreign keys of a file, and reports how many are not listed one by one.
    fn count(&self, path: &str, text: &str, builder: &mut DecisionBuilder<'_>) -> ForeignKeyReport {
        let bodies = text.lines().filter_map(edit::key_body);
        let is_foreign =
            |body: &String| !self.ours.contains_key(body) && !self.previous.contains(body);
        let n_further = bodies
            .filter(is_foreign)
            .count()
            .saturating_sub(MAX_REPORTED);
        let mut further = self.foreign;
        if n_further > 0 {
            let (field, found) = (format!("{path} further keys"), n_further.to_string());
            let danger = Some(Danger::Users);
            further = builder.report(self.id, &field, "0", &found, danger, further);
        }
        ForeignKeyReport {
            n_reported: 0,
            further,
            altered: BTreeMap::new(),
        }
    }

    /// Reports a foreign key, and returns what is done about it.
    fn foreign(
        &self,
        body: &str,
        line: &str,
        foreign: &mut ForeignKeyReport,
        builder: &mut DecisionBuilder<'_>,
    ) -> Handling {
        if self.ours.contains_key(body) {
            let (field, danger) = (format!("{} with options", key_field(body)), Danger::Users);
            let note = || {
                let usual = Handling::Enforce;
                builder.report(self.id, &field, "absent", "present", Some(danger), usual)
            };
            return *foreign.altered.entry(body.to_owned()).or_insert_with(note);
        }
        let label = line.split_whitespace().last().unwrap_or_default();
        let usual = if self.previous.contains(body) {
            Handling::Enforce
        } else if foreign.n_reported == MAX_REPORTED {
            return foreign.further;
        } else {
            foreign.n_reported += 1;
            self.foreign
        };
        let label: String = label.chars().take(MAX_SHOWN).collect();
        let found = format!("present ({label})");
        let danger = Some(Danger::Users);
        builder.report(self.id, &key_field(body), "absent", &found, danger, usual)
    }

    /// Returns whether a line is a key of the spec without options.
    fn has(&self, body: &str, line: &str) -> bool {
        self.ours.contains_key(body) && !edit::has_options(line)
    }

    /// Removes foreign keys from the second file. Keys of the spec may stay there.
    fn second(&self, path: &str, builder: &mut DecisionBuilder<'_>) {
        if let Some(why) = builder.facts.refused_paths.get(path) {
            let why = why.clone();
            builder.refuse_field(self.id, path, &why, Some(Danger::Users));
            return;
        }
        if !matches!(
            builder.facts.files.get(path),
            Some(FileFact::Regular { .. } | FileFact::Link { .. })
        ) {
            return;
        }
        let Some(text) = own_text(builder, path, self.user).map(str::to_owned) else {
            let (danger, usual) = (Some(Danger::Users), self.foreign);
            let found = "not a readable text file of the user";
            if builder.report(self.id, path, "absent", found, danger, usual) == Handling::Enforce {
                builder.require(path);
                builder.delete_file(self.id, path, Vec::new());
            }
            return;
        };
        let mut left = String::new();
        let mut corrected = false;
        let mut foreign = self.count(path, &text, builder);
        for line in text.lines() {
            let body = edit::key_body(line).filter(|body| !self.has(body, line));
            if let Some(body) = body
                && self.foreign(&body, line, &mut foreign, builder) == Handling::Enforce
            {
                corrected = true;
                continue;
            }
            left += &format!("{line}\n");
        }
        if !corrected {
            return;
        }
        builder.require(path);
        if edit::is_blank(&left) {
            builder.delete_file(self.id, path, Vec::new());
        } else {
            builder.edit_file(self.id, path, left, Vec::new());
        }
    }
}

pub(super) fn keys(
    id: &str,
    user: &str,
    desired: &[String],
    foreign_handling: Handling,
    builder: &mut DecisionBuilder<'_>,
) {
    let account = found_or_new(builder, user);
    let files = KeyFiles::of(&account.home);
    let path = files.first.clone();
    let previous = builder.last.managed.keys.get(user);
    let previous = previous.cloned().unwrap_or_default();
    if builder.skips_user(user) {
        builder.keep_file(&path);
        builder.managed.keys.insert(user.to_owned(), previous);
        return;
    }
    if let Some(why) = files.refusal(builder) {
        builder.refuse_field(id, &files.directory, &why, Some(Danger::Users));
        builder.keep_file(&path);
        builder.managed.keys.insert(user.to_owned(), previous);
        return;
    }
    let text = own_text(builder, &path, user)
        .unwrap_or_default()
        .to_owned();
    let ours = desired.iter();
    let desired = DesiredKeys {
        id,
        user,
        ours: ours
            .filter_map(|line| Some((edit::key_body(line)?, line)))
            .collect(),
        previous,
        foreign: foreign_handling,
    };
    let (ours, previous) = (&desired.ours, &desired.previous);
    let danger = Some(Danger::Users);
    let mut corrected = false;
    let mut kept: Vec<&str> = Vec::new();
    // Foreign keys that stay, and those of an earlier spec among them.
    let mut foreign: Vec<&str> = Vec::new();
    let mut managed: BTreeSet<String> = BTreeSet::new();
    let mut present = BTreeSet::new();
    let mut counted = desired.count(&path, &text, builder);
    for line in text.lines() {
        let Some(body) = edit::key_body(line) else {
            kept.push(line);
            continue;
        };
        if desired.has(&body, line) {
            if present.insert(body) {
                kept.push(line);
            }
            continue;
        }
        if desired.foreign(&body, line, &mut counted, builder) == Handling::Enforce {
            corrected = true;
            continue;
        }
        kept.push(line);
        foreign.push(line);
        if previous.contains(&body) {
            managed.insert(body);
        }
    }
    desired.second(&files.second, builder);
    let mut missing = Vec::new();
    for (body, line) in ours {
        let found = if present.contains(body) {
            "present"
        } else {
            "absent"
        };
        if builder.compare(id, &key_field(body), "present", found, danger) {
            corrected = true;
            missing.push(line.as_str());
        } else if !builder.ignores(id, &key_field(body)) || previous.contains(body) {
            managed.insert(body.clone());
        }
    }
    let lines: Vec<&str> = if foreign_handling == Handling::Enforce {
        let is_present = |body: &str, line: &str| present.contains(body) || missing.contains(&line);
        let own = ours.iter().filter(|(body, line)| is_present(body, line));
        own.map(|(_, line)| line.as_str()).chain(foreign).collect()
    } else {
        kept.into_iter().chain(missing.iter().copied()).collect()
    };
    let content: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let added = ours
        .iter()
        .filter(|(_, line)| missing.contains(&line.as_str()));
    managed.extend(added.map(|(body, _)| body.clone()));
    builder.managed.keys.insert(user.to_owned(), managed);
    if corrected {
        builder.require(&path);
    }
    if content.is_empty() {
        builder.delete_file(id, &path, Vec::new());
        return;
    }
    own_directory(id, &files.directory, user, &account.group, builder);
    let access = (0o600, user, account.group.as_str());
    builder.put_file(id, &path, content, access, Vec::new());
}

/// Returns a short and stable name of a key.
pub(super) fn key_field(body: &str) -> String {
    let kind = body.split(' ').next().unwrap_or_default();
    let kind: String = kind.chars().take(MAX_SHOWN).collect();
    let end: String = body.chars().rev().take(16).collect();
    format!("{kind} ...{}", end.chars().rev().collect::<String>())
}

fn own_directory(id: &str, path: &str, user: &str, group: &str, builder: &mut DecisionBuilder<'_>) {
    if builder.ignores(id, path) {
        return;
    }
    let found = match builder.facts.files.get(path) {
        Some(FileFact::Directory { mode, owner, group }) => format!("{mode:04o} {owner}:{group}"),
        // Already refused.
        Some(FileFact::Regular { .. } | FileFact::Link { .. } | FileFact::Other) => return,
        None => "absent".to_owned(),
    };
    let expected = format!("0700 {user}:{group}");
    if builder.compare(id, path, &expected, &found, Some(Danger::Users)) {
        builder.steps.insert(ConvergeStep::Directory {
            path: path.to_owned(),
            mode: 0o700,
            owner: user.to_owned(),
            group: group.to_owned(),
        });
    }
}
