//! The book that resources write their findings into.
//!
//! In: comparisons, files as they should be, steps. Out: changes, steps, what is ours.
//! Never: a file written twice; two resources that want one file differently are a refusal; a
//! field compared that is none of ours.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Danger, Handling, Since};
use super::facts::{Facts, FileFact};
use super::policy::Policy;
use super::state::{Managed, State};
use super::step::Step;
use crate::foreign::ForeignText;

/// A file as it should be.
pub(super) struct Draft {
    pub(super) resource: String,
    pub(super) content: String,
    pub(super) mode: u32,
    pub(super) owner: String,
    pub(super) group: String,
    /// Whether every byte is ours, or others write into it too.
    pub(super) whole: bool,
    /// Steps that follow when it changes.
    pub(super) then: Vec<Step>,
}

/// A difference that was found.
pub(super) struct Finding<'f> {
    pub(super) resource: &'f str,
    pub(super) field: &'f str,
    pub(super) expected: &'f str,
    pub(super) found: &'f str,
    pub(super) danger: Option<Danger>,
}

/// The book.
pub(super) struct Ledger<'a> {
    pub(super) facts: &'a Facts,
    pub(super) last: &'a State,
    pub(super) policy: &'a Policy,
    pub(super) changes: Vec<Change>,
    pub(super) fields: BTreeMap<String, String>,
    pub(super) steps: BTreeSet<Step>,
    pub(super) managed: Managed,
    pub(super) refusals: BTreeSet<String>,
    /// What is refused by itself while everything else is done: why, by the id of a change.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) install: BTreeSet<String>,
    pub(super) remove: BTreeSet<String>,
    pub(super) drafts: BTreeMap<String, Draft>,
    pub(super) gone: BTreeMap<String, (String, Vec<Step>)>,
    /// Files that something which is mended lives in.
    pub(super) needed: BTreeSet<String>,
    /// Files that stay as they are, and stay ours.
    pub(super) kept: BTreeSet<String>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(facts: &'a Facts, last: &'a State, policy: &'a Policy) -> Self {
        Self {
            facts,
            last,
            policy,
            changes: Vec::new(),
            fields: BTreeMap::new(),
            steps: BTreeSet::new(),
            managed: Managed::default(),
            refusals: BTreeSet::new(),
            refused: BTreeMap::new(),
            install: BTreeSet::new(),
            remove: BTreeSet::new(),
            drafts: BTreeMap::new(),
            gone: BTreeMap::new(),
            needed: BTreeSet::new(),
            kept: BTreeSet::new(),
        }
    }

    /// Tells whether a field is none of ours.
    pub(super) fn ignores(&self, resource: &str, field: &str) -> bool {
        self.policy.ignores(&id_of(resource, field))
    }

    /// Compares a field, and tells whether it differs and is mended.
    pub(super) fn compare(
        &mut self,
        resource: &str,
        field: &str,
        expected: &str,
        found: &str,
        danger: Option<Danger>,
    ) -> bool {
        if self.ignores(resource, field) {
            return false;
        }
        self.fields
            .insert(id_of(resource, field), expected.to_owned());
        if expected == found {
            return false;
        }
        let handling = self.note(resource, field, expected, found, danger, Handling::Enforce);
        handling == Handling::Enforce
    }

    /// Writes a difference down, and returns what is done about it.
    pub(super) fn note(
        &mut self,
        resource: &str,
        field: &str,
        expected: &str,
        found: &str,
        danger: Option<Danger>,
        handling: Handling,
    ) -> Handling {
        let id = id_of(resource, field);
        let since = self.since(&id, expected);
        let finding = Finding {
            resource,
            field,
            expected,
            found,
            danger,
        };
        let handling = handling.max(self.policy.handle(&id, since));
        self.record(&finding, since, handling)
    }

    /// Returns who changed a field.
    pub(super) fn since(&self, id: &str, expected: &str) -> Since {
        match self.last.fields.get(id) {
            Some(before) if before == expected => Since::Node,
            Some(_) => Since::Spec,
            None if self.last.fields.is_empty() => Since::First,
            // What is only named when it differs was as it should be the last time, unless the
            // spec began to ask for it.
            None if self.fields.contains_key(id) => Since::Spec,
            None => Since::Node,
        }
    }

    pub(super) fn record(
        &mut self,
        finding: &Finding<'_>,
        since: Since,
        handling: Handling,
    ) -> Handling {
        if handling != Handling::Ignore {
            self.changes.push(Change {
                id: id_of(finding.resource, finding.field),
                resource: ForeignText::line(finding.resource).into(),
                field: ForeignText::line(finding.field).into(),
                expected: ForeignText::lines(finding.expected),
                found: ForeignText::lines(finding.found),
                since,
                danger: finding.danger,
                handling,
            });
        }
        handling
    }

    pub(super) fn refuse(&mut self, why: impl Into<String>) {
        self.refusals.insert(why.into());
    }

    /// Refuses one field, and leaves everything else as it would be. What is remembered of its
    /// resource stays.
    pub(super) fn bar(&mut self, resource: &str, field: &str, why: &str, danger: Option<Danger>) {
        let id = format!("{resource}/{field}");
        if self.policy.ignores(&id) {
            return;
        }
        for (id, value) in &self.last.fields {
            if id
                .strip_prefix(resource)
                .is_some_and(|rest| rest.starts_with('/'))
            {
                let known = self.fields.entry(id.clone());
                known.or_insert_with(|| value.clone());
            }
        }
        let found = format!("refused: {why}");
        let finding = Finding {
            resource,
            field,
            expected: "as the spec says",
            found: &found,
            danger,
        };
        self.record(&finding, Since::Node, Handling::Report);
        self.refused.insert(id, why.to_owned());
    }

    /// Says that something which is mended lives in a file: whatever is done about the rest of the
    /// file, it is written.
    pub(super) fn need(&mut self, path: &str) {
        self.needed.insert(path.to_owned());
    }

    /// Leaves a file as it is, and ours if it was.
    pub(super) fn keep(&mut self, path: &str) {
        self.kept.insert(path.to_owned());
    }

    /// Tells whether a user is not there and is not made either.
    pub(super) fn is_left_out(&self, user: &str) -> bool {
        let id = format!("user:{user}/account");
        let handling = || match self.last.fields.get(&id) {
            Some(_) => self.policy.handle(&id, Since::Node),
            None => self.policy.handle(&id, Since::Spec),
        };
        !self.facts.users.contains_key(user) && handling() != Handling::Enforce
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

    /// Wants a file that others write into too to have another text. Owner and mode stay. One that is
    /// not there is made, and is nobody's.
    pub(super) fn edit(&mut self, resource: &str, path: &str, content: String, then: Vec<Step>) {
        if let Some(draft) = self.drafts.get_mut(path) {
            draft.content = content;
            draft.then.extend(then);
            return;
        }
        let (mode, owner, group) = match self.facts.files.get(path) {
            Some(FileFact::Regular {
                mode, owner, group, ..
            }) => (*mode, owner.as_str(), group.as_str()),
            None => (0o644, "root", "root"),
            Some(_) => return,
        };
        let draft = Draft {
            resource: resource.to_owned(),
            content,
            mode,
            owner: owner.to_owned(),
            group: group.to_owned(),
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
}

/// Returns the id of a field. Names of files and kinds of keys are in it, which anyone may choose.
pub(super) fn id_of(resource: &str, field: &str) -> String {
    ForeignText::line(&format!("{resource}/{field}")).into()
}
