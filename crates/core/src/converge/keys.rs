//! SSH keys of users: those of the spec, and others.
//!
//! In: keys that are wanted. Out: entries of the ledger.
//! Never: lines of somebody else's file; more fields than a person reads, whatever a user writes.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{KEY_FILES, user_of};
use super::change::{Danger, Handling};
use super::edit;
use super::facts::FileFact;
use super::ledger::Ledger;
use super::step::Step;

/// So many keys of a file that are in no spec are named, each by itself; further ones are counted.
const NAMED: usize = 64;
/// So much of a word that a user chose is shown.
const SHOWN: usize = 64;

/// Where keys of a user are.
pub(super) struct KeyFiles {
    pub(super) directory: String,
    pub(super) first: String,
    /// Read by sshd too, unless it is told otherwise.
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

    /// Returns why keys can be neither seen nor written.
    pub(super) fn refusal(&self, ledger: &Ledger<'_>) -> Option<String> {
        let facts = ledger.facts;
        let refused = [&self.directory, &self.first];
        if let Some(why) = refused.iter().find_map(|path| facts.refused.get(*path)) {
            return Some(why.clone());
        }
        if let Some(FileFact::Regular { .. } | FileFact::Link { .. } | FileFact::Other) =
            facts.files.get(&self.directory)
        {
            let path = &self.directory;
            return Some(format!(
                "`{path}` should be a directory and is something else"
            ));
        }
        match facts.files.get(&self.first) {
            Some(FileFact::Directory { .. } | FileFact::Other) => Some(format!(
                "`{}` should be a file and is something else",
                self.first
            )),
            Some(FileFact::Regular { .. } | FileFact::Link { .. }) | None => None,
        }
    }
}

/// Returns the text of a user's own file. One that belongs to somebody else and is not for everyone
/// is no business of theirs: lines of it would end up in a file that they can read.
pub(super) fn own_text<'a>(ledger: &'a Ledger<'_>, path: &str, user: &str) -> Option<&'a str> {
    if let Some(FileFact::Regular { owner, mode, .. }) = ledger.facts.files.get(path)
        && owner != user
        && mode & 0o004 == 0
    {
        return None;
    }
    ledger.text(path)
}

/// Keys that are wanted, and what is done about others.
struct Wish<'a> {
    id: &'a str,
    user: &'a str,
    ours: BTreeMap<String, &'a String>,
    /// Keys of an earlier spec.
    before: BTreeSet<String>,
    /// What is done about keys that are in no spec.
    usual: Handling,
}

/// What is left to say about keys of one file that are in no spec.
struct Foreign {
    n_named: usize,
    /// What is done about those that are only counted.
    further: Handling,
    /// Keys of the spec with options in front of them, and what is done about those.
    altered: BTreeMap<String, Handling>,
}

impl Wish<'_> {
    /// Counts the keys of a file that are in no spec, and notes those that are too many to name.
    fn count(&self, path: &str, text: &str, ledger: &mut Ledger<'_>) -> Foreign {
        let bodies = text.lines().filter_map(edit::key_body);
        let is_foreign =
            |body: &String| !self.ours.contains_key(body) && !self.before.contains(body);
        let n_further = bodies.filter(is_foreign).count().saturating_sub(NAMED);
        let mut further = self.usual;
        if n_further > 0 {
            let (field, found) = (format!("{path} further keys"), n_further.to_string());
            let danger = Some(Danger::Users);
            further = ledger.note(self.id, &field, "0", &found, danger, further);
        }
        Foreign {
            n_named: 0,
            further,
            altered: BTreeMap::new(),
        }
    }

    /// Notes a key that is in no spec, and returns what is done about it.
    fn foreign(
        &self,
        body: &str,
        line: &str,
        foreign: &mut Foreign,
        ledger: &mut Ledger<'_>,
    ) -> Handling {
        if self.ours.contains_key(body) {
            let (field, danger) = (format!("{} with options", key_field(body)), Danger::Users);
            let note = || {
                let usual = Handling::Enforce;
                ledger.note(self.id, &field, "absent", "present", Some(danger), usual)
            };
            return *foreign.altered.entry(body.to_owned()).or_insert_with(note);
        }
        let label = line.split_whitespace().last().unwrap_or_default();
        let usual = if self.before.contains(body) {
            Handling::Enforce
        } else if foreign.n_named == NAMED {
            return foreign.further;
        } else {
            foreign.n_named += 1;
            self.usual
        };
        let label: String = label.chars().take(SHOWN).collect();
        let found = format!("present ({label})");
        let danger = Some(Danger::Users);
        ledger.note(self.id, &key_field(body), "absent", &found, danger, usual)
    }

    /// Tells whether a line is a key of the spec, and nothing but that.
    fn has(&self, body: &str, line: &str) -> bool {
        self.ours.contains_key(body) && !edit::has_options(line)
    }

    /// Takes foreign keys out of the second file. Keys of the spec that are there do no harm.
    fn second(&self, path: &str, ledger: &mut Ledger<'_>) {
        if let Some(why) = ledger.facts.refused.get(path) {
            let why = why.clone();
            ledger.bar(self.id, path, &why, Some(Danger::Users));
            return;
        }
        if !matches!(
            ledger.facts.files.get(path),
            Some(FileFact::Regular { .. } | FileFact::Link { .. })
        ) {
            return;
        }
        let Some(text) = own_text(ledger, path, self.user).map(str::to_owned) else {
            let (danger, usual) = (Some(Danger::Users), self.usual);
            let found = "not a text of the user";
            if ledger.note(self.id, path, "absent", found, danger, usual) == Handling::Enforce {
                ledger.need(path);
                ledger.delete(self.id, path, Vec::new());
            }
            return;
        };
        let mut left = String::new();
        let mut mended = false;
        let mut foreign = self.count(path, &text, ledger);
        for line in text.lines() {
            let body = edit::key_body(line).filter(|body| !self.has(body, line));
            if let Some(body) = body
                && self.foreign(&body, line, &mut foreign, ledger) == Handling::Enforce
            {
                mended = true;
                continue;
            }
            left += &format!("{line}\n");
        }
        if !mended {
            return;
        }
        ledger.need(path);
        if edit::is_idle(&left) {
            ledger.delete(self.id, path, Vec::new());
        } else {
            ledger.edit(self.id, path, left, Vec::new());
        }
    }
}

pub(super) fn keys(
    id: &str,
    user: &str,
    wanted: &[String],
    usual: Handling,
    ledger: &mut Ledger<'_>,
) {
    let account = user_of(ledger, user);
    let files = KeyFiles::of(&account.home);
    let path = files.first.clone();
    let before = ledger.last.managed.keys.get(user);
    let before = before.cloned().unwrap_or_default();
    if ledger.is_left_out(user) {
        ledger.keep(&path);
        ledger.managed.keys.insert(user.to_owned(), before);
        return;
    }
    if let Some(why) = files.refusal(ledger) {
        ledger.bar(id, &files.directory, &why, Some(Danger::Users));
        ledger.keep(&path);
        ledger.managed.keys.insert(user.to_owned(), before);
        return;
    }
    let text = own_text(ledger, &path, user).unwrap_or_default().to_owned();
    let ours = wanted.iter();
    let wish = Wish {
        id,
        user,
        ours: ours
            .filter_map(|line| Some((edit::key_body(line)?, line)))
            .collect(),
        before,
        usual,
    };
    let (ours, before) = (&wish.ours, &wish.before);
    let danger = Some(Danger::Users);
    let mut mended = false;
    let mut kept: Vec<&str> = Vec::new();
    // Keys of others that stay, and those of an earlier spec among them.
    let mut foreign: Vec<&str> = Vec::new();
    let mut still: BTreeSet<String> = BTreeSet::new();
    let mut present = BTreeSet::new();
    let mut counted = wish.count(&path, &text, ledger);
    for line in text.lines() {
        let Some(body) = edit::key_body(line) else {
            kept.push(line);
            continue;
        };
        if wish.has(&body, line) {
            if present.insert(body) {
                kept.push(line);
            }
            continue;
        }
        if wish.foreign(&body, line, &mut counted, ledger) == Handling::Enforce {
            mended = true;
            continue;
        }
        kept.push(line);
        foreign.push(line);
        if before.contains(&body) {
            still.insert(body);
        }
    }
    wish.second(&files.second, ledger);
    let mut missing = Vec::new();
    for (body, line) in ours {
        let found = if present.contains(body) {
            "present"
        } else {
            "absent"
        };
        if ledger.compare(id, &key_field(body), "present", found, danger) {
            mended = true;
            missing.push(line.as_str());
        } else if !ledger.ignores(id, &key_field(body)) || before.contains(body) {
            still.insert(body.clone());
        }
    }
    let lines: Vec<&str> = if usual == Handling::Enforce {
        let here = |body: &str, line: &str| present.contains(body) || missing.contains(&line);
        let own = ours.iter().filter(|(body, line)| here(body, line));
        own.map(|(_, line)| line.as_str()).chain(foreign).collect()
    } else {
        kept.into_iter().chain(missing.iter().copied()).collect()
    };
    let content: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let given = ours
        .iter()
        .filter(|(_, line)| missing.contains(&line.as_str()));
    still.extend(given.map(|(body, _)| body.clone()));
    ledger.managed.keys.insert(user.to_owned(), still);
    if mended {
        ledger.need(&path);
    }
    if content.is_empty() {
        ledger.delete(id, &path, Vec::new());
        return;
    }
    own_directory(id, &files.directory, user, &account.group, ledger);
    let who = (0o600, user, account.group.as_str());
    ledger.put(id, &path, content, who, Vec::new());
}

/// A name for a key that is short and stays the same.
pub(super) fn key_field(body: &str) -> String {
    let kind = body.split(' ').next().unwrap_or_default();
    let kind: String = kind.chars().take(SHOWN).collect();
    let end: String = body.chars().rev().take(16).collect();
    format!("{kind} ...{}", end.chars().rev().collect::<String>())
}

fn own_directory(id: &str, path: &str, user: &str, group: &str, ledger: &mut Ledger<'_>) {
    if ledger.ignores(id, path) {
        return;
    }
    let found = match ledger.facts.files.get(path) {
        Some(FileFact::Directory { mode, owner, group }) => format!("{mode:04o} {owner}:{group}"),
        // Refused before.
        Some(FileFact::Regular { .. } | FileFact::Link { .. } | FileFact::Other) => return,
        None => "absent".to_owned(),
    };
    let expected = format!("0700 {user}:{group}");
    if ledger.compare(id, path, &expected, &found, Some(Danger::Users)) {
        ledger.steps.insert(Step::Directory {
            path: path.to_owned(),
            mode: 0o700,
            owner: user.to_owned(),
            group: group.to_owned(),
        });
    }
}
