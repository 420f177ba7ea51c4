//! The book that resources write their findings into.
//!
//! In: comparisons, files as they should be, steps. Out: changes, steps, what is ours.
//! Never: a file written twice; two resources that want one file differently are a refusal.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::change::{Change, Danger, Handling, Since};
use super::facts::{Facts, FileFact};
use super::state::{Managed, State};
use super::step::Step;

/// A file as it should be.
struct Draft {
    resource: String,
    content: String,
    mode: u32,
    owner: String,
    group: String,
    /// Whether every byte is ours, or others write into it too.
    whole: bool,
    /// Steps that follow when it changes.
    then: Vec<Step>,
}

/// The book.
pub(super) struct Ledger<'a> {
    pub(super) facts: &'a Facts,
    pub(super) last: &'a State,
    pub(super) changes: Vec<Change>,
    pub(super) fields: BTreeMap<String, String>,
    pub(super) steps: BTreeSet<Step>,
    pub(super) managed: Managed,
    pub(super) refusals: BTreeSet<String>,
    pub(super) install: BTreeSet<String>,
    pub(super) remove: BTreeSet<String>,
    drafts: BTreeMap<String, Draft>,
    gone: BTreeMap<String, (String, Vec<Step>)>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(facts: &'a Facts, last: &'a State) -> Self {
        Self {
            facts,
            last,
            changes: Vec::new(),
            fields: BTreeMap::new(),
            steps: BTreeSet::new(),
            managed: Managed::default(),
            refusals: BTreeSet::new(),
            install: BTreeSet::new(),
            remove: BTreeSet::new(),
            drafts: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Compares a field, and tells whether it differs.
    pub(super) fn compare(
        &mut self,
        resource: &str,
        field: &str,
        expected: &str,
        found: &str,
        danger: Option<Danger>,
    ) -> bool {
        let id = format!("{resource}/{field}");
        self.fields.insert(id, expected.to_owned());
        if expected == found {
            return false;
        }
        self.note(resource, field, expected, found, danger, Handling::Enforce);
        true
    }

    /// Writes a difference down.
    pub(super) fn note(
        &mut self,
        resource: &str,
        field: &str,
        expected: &str,
        found: &str,
        danger: Option<Danger>,
        handling: Handling,
    ) {
        let id = format!("{resource}/{field}");
        let since = match self.last.fields.get(&id) {
            Some(before) if before == expected => Since::Node,
            Some(_) => Since::Spec,
            None if self.last.fields.is_empty() => Since::First,
            // What is only named when it differs was as it should be the last time, unless the
            // spec began to ask for it.
            None if self.fields.contains_key(&id) => Since::Spec,
            None => Since::Node,
        };
        self.changes.push(Change {
            id,
            resource: resource.to_owned(),
            field: field.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
            since,
            danger,
            handling,
        });
    }

    pub(super) fn refuse(&mut self, why: impl Into<String>) {
        self.refusals.insert(why.into());
    }

    /// Returns a file's text as it will be, or as it is.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        if self.gone.contains_key(path) {
            return None;
        }
        let draft = self.drafts.get(path).map(|draft| draft.content.as_str());
        draft.or_else(|| self.facts.files.get(path)?.text())
    }

    /// Wants a file to be ours, every byte of it.
    pub(super) fn put(
        &mut self,
        resource: &str,
        path: &str,
        content: String,
        (mode, owner, group): (u32, &str, &str),
        then: Vec<Step>,
    ) {
        let draft = Draft {
            resource: resource.to_owned(),
            content,
            mode,
            owner: owner.to_owned(),
            group: group.to_owned(),
            whole: true,
            then,
        };
        if let Some(other) = self.drafts.insert(path.to_owned(), draft)
            && other.resource != resource
        {
            self.refuse(format!(
                "`{path}` is wanted by {} and by {resource}",
                other.resource
            ));
        }
    }

    /// Wants a file that others write into too to have another text. Owner and mode stay.
    pub(super) fn edit(&mut self, resource: &str, path: &str, content: String, then: Vec<Step>) {
        if let Some(draft) = self.drafts.get_mut(path) {
            draft.content = content;
            draft.then.extend(then);
            return;
        }
        let Some(FileFact::Regular {
            mode, owner, group, ..
        }) = self.facts.files.get(path)
        else {
            return;
        };
        let draft = Draft {
            resource: resource.to_owned(),
            content,
            mode: *mode,
            owner: owner.clone(),
            group: group.clone(),
            whole: false,
            then,
        };
        self.drafts.insert(path.to_owned(), draft);
    }

    /// Wants a file not to be there.
    pub(super) fn delete(&mut self, resource: &str, path: &str, then: Vec<Step>) {
        self.drafts.remove(path);
        self.gone
            .insert(path.to_owned(), (resource.to_owned(), then));
    }

    /// Turns files as they should be into changes and steps. What an earlier spec brought and none
    /// wants now goes.
    pub(super) fn settle(&mut self) {
        for path in &self.last.managed.files {
            if !self.drafts.contains_key(path) && !self.gone.contains_key(path) {
                let then = follows(path, self.facts);
                self.gone
                    .insert(path.clone(), (format!("file:{path}"), then));
            }
        }
        for (path, draft) in std::mem::take(&mut self.drafts) {
            self.settle_draft(&path, draft);
        }
        for (path, (resource, then)) in std::mem::take(&mut self.gone) {
            if self.facts.files.contains_key(&path) {
                let danger = Danger::of_path(&path);
                let handling = Handling::Enforce;
                self.note(&resource, &path, "absent", "present", danger, handling);
                if let Some(change) = self.changes.last_mut()
                    && self.last.managed.files.contains(&path)
                {
                    change.since = Since::Spec;
                }
                self.steps.insert(Step::Delete { path });
                self.steps.extend(then);
            }
        }
    }

    fn settle_draft(&mut self, path: &str, draft: Draft) {
        let danger = Danger::of_path(path);
        let resource = draft.resource.as_str();
        let found = self.facts.files.get(path).cloned();
        let secret = draft.mode & 0o044 == 0;
        let field = |part: &str| format!("{path} {part}");
        let wanted_text = shown(&draft.content, secret);
        let mut differs = false;
        let (text, mode, owner) = match &found {
            Some(FileFact::Regular {
                content,
                mode,
                owner,
                group,
            }) => {
                let text = content.as_ref();
                let text = text.map_or_else(|| "not text".to_owned(), |text| shown(text, secret));
                (text, format!("{mode:04o}"), format!("{owner}:{group}"))
            }
            Some(FileFact::Link { target }) => {
                (format!("a link to {target}"), String::new(), String::new())
            }
            Some(FileFact::Directory { .. } | FileFact::Other) => {
                self.refuse(format!("`{path}` should be a file and is something else"));
                return;
            }
            None => ("absent".to_owned(), String::new(), String::new()),
        };
        if draft.whole {
            // Remembered by its digest: content may be long, and may be secret.
            let id = format!("{resource}/{}", field("content"));
            self.fields.insert(id.clone(), digest(&draft.content));
            if wanted_text != text {
                differs = true;
                self.note(
                    resource,
                    &field("content"),
                    &wanted_text,
                    &text,
                    danger,
                    Handling::Enforce,
                );
                if let Some(change) = self.changes.last_mut() {
                    change.since = match self.last.fields.get(&id) {
                        Some(before) if *before == digest(&draft.content) => Since::Node,
                        Some(_) => Since::Spec,
                        None if self.last.fields.is_empty() => Since::First,
                        None => Since::Spec,
                    };
                }
            }
            if !self.facts.files.contains_key(path) || self.last.managed.files.contains(path) {
                self.managed.files.insert(path.to_owned());
            }
        } else if wanted_text != text {
            differs = true;
            let handling = Handling::Enforce;
            let field = field("content");
            // What the file says besides is not ours, so its fields tell who changed it.
            let by_spec = self
                .changes
                .iter()
                .any(|change| change.resource == resource && change.since == Since::Spec);
            self.note(resource, &field, &wanted_text, &text, danger, handling);
            if let Some(change) = self.changes.last_mut().filter(|_| by_spec) {
                change.since = Since::Spec;
            }
        }
        if draft.whole {
            let there = matches!(found, Some(FileFact::Regular { .. }));
            let wanted_owner = format!("{}:{}", draft.owner, draft.group);
            let wanted_mode = format!("{:04o}", draft.mode);
            for (part, wanted, found) in [
                ("mode", &wanted_mode, &mode),
                ("owner", &wanted_owner, &owner),
            ] {
                // A file that is not there has one difference, not three.
                let found = if there { found } else { wanted };
                differs |= self.compare(resource, &field(part), wanted, found, danger);
            }
        }
        if differs {
            self.steps.insert(Step::Write {
                path: path.to_owned(),
                content: draft.content,
                mode: draft.mode,
                owner: draft.owner,
                group: draft.group,
            });
            self.steps.extend(draft.then);
            self.steps.extend(follows(path, self.facts));
        }
    }
}

/// Returns what follows from a change of a file, whoever wants it.
fn follows(path: &str, facts: &Facts) -> Vec<Step> {
    if path.starts_with("/etc/ssh/sshd_config") {
        let unit = "ssh.service".to_owned();
        vec![Step::Reload { unit }]
    } else if path.starts_with("/etc/systemd/network/") {
        let interface = facts.network.interface.clone();
        vec![Step::Network { interface }]
    } else if path.starts_with("/etc/systemd/system/") {
        vec![Step::ReadUnits]
    } else {
        Vec::new()
    }
}

/// Returns what is shown of a text: files that are not for everyone by digest only.
fn shown(text: &str, secret: bool) -> String {
    if secret {
        digest(text)
    } else {
        text.to_owned()
    }
}

fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    let mut hex = String::from("sha256:");
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
