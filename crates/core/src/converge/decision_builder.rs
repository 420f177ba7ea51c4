//! Collects what the comparison of each resource finds: changes, steps, and what is managed. A file
//! is written once; two resources that define the same file differently are refused.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, ChangeCause, Danger, Handling};
use super::facts::{Facts, FileFact};
use super::policy::Policy;
use super::state::{Managed, State};
use super::step::ConvergeStep;
use crate::foreign::ForeignText;

/// The desired content of a file.
pub(super) struct DesiredFile {
    pub(super) resource: String,
    pub(super) content: String,
    pub(super) mode: u32,
    pub(super) owner: String,
    pub(super) group: String,
    /// Whether the whole file is managed; otherwise only parts of it are.
    pub(super) owned: bool,
    /// Steps that follow a change of the file.
    pub(super) follow_up: Vec<ConvergeStep>,
}

/// A difference of a field.
pub(super) struct Difference<'f> {
    pub(super) resource: &'f str,
    pub(super) field: &'f str,
    pub(super) expected: &'f str,
    pub(super) found: &'f str,
    pub(super) danger: Option<Danger>,
}

/// Collects the parts of a decision.
pub(super) struct DecisionBuilder<'a> {
    pub(super) facts: &'a Facts,
    pub(super) last: &'a State,
    pub(super) policy: &'a Policy,
    pub(super) changes: Vec<Change>,
    pub(super) fields: BTreeMap<String, String>,
    pub(super) steps: BTreeSet<ConvergeStep>,
    pub(super) managed: Managed,
    pub(super) refusals: BTreeSet<String>,
    /// Refused fields: the reason, by id of the change.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) install: BTreeSet<String>,
    pub(super) remove: BTreeSet<String>,
    pub(super) desired_files: BTreeMap<String, DesiredFile>,
    pub(super) deletions: BTreeMap<String, (String, Vec<ConvergeStep>)>,
    /// Files that contain a corrected setting.
    pub(super) required: BTreeSet<String>,
    /// Files that stay as they are, and stay managed.
    pub(super) kept_files: BTreeSet<String>,
}

impl<'a> DecisionBuilder<'a> {
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
            desired_files: BTreeMap::new(),
            deletions: BTreeMap::new(),
            required: BTreeSet::new(),
            kept_files: BTreeSet::new(),
        }
    }

    /// Returns whether a field is ignored.
    pub(super) fn ignores(&self, resource: &str, field: &str) -> bool {
        self.policy.ignores(&id_of(resource, field))
    }

    /// Compares a field, and returns whether it differs and is corrected.
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
        let handling = self.report(resource, field, expected, found, danger, Handling::Enforce);
        handling == Handling::Enforce
    }

    /// Reports a difference, and returns what is done about it.
    pub(super) fn report(
        &mut self,
        resource: &str,
        field: &str,
        expected: &str,
        found: &str,
        danger: Option<Danger>,
        handling: Handling,
    ) -> Handling {
        let id = id_of(resource, field);
        let cause = self.cause(&id, expected);
        let difference = Difference {
            resource,
            field,
            expected,
            found,
            danger,
        };
        let handling = handling.max(self.policy.handling(&id, cause));
        self.push_change(&difference, cause, handling)
    }

    /// Returns what caused a difference.
    pub(super) fn cause(&self, id: &str, expected: &str) -> ChangeCause {
        match self.last.fields.get(id) {
            Some(before) if before == expected => ChangeCause::Node,
            Some(_) => ChangeCause::Spec,
            None if self.last.fields.is_empty() => ChangeCause::FirstRun,
            // Fields that are stored only when they differ matched in the last run, unless they are
            // new in the spec.
            None if self.fields.contains_key(id) => ChangeCause::Spec,
            None => ChangeCause::Node,
        }
    }

    pub(super) fn push_change(
        &mut self,
        difference: &Difference<'_>,
        cause: ChangeCause,
        handling: Handling,
    ) -> Handling {
        if handling != Handling::Ignore {
            self.changes.push(Change {
                id: id_of(difference.resource, difference.field),
                resource: ForeignText::line(difference.resource).into(),
                field: ForeignText::line(difference.field).into(),
                expected: ForeignText::lines(difference.expected),
                found: ForeignText::lines(difference.found),
                cause,
                danger: difference.danger,
                handling,
            });
        }
        handling
    }

    pub(super) fn refuse(&mut self, why: impl Into<String>) {
        self.refusals.insert(why.into());
    }

    /// Refuses one field; the others are applied. The stored values of its resource are kept.
    pub(super) fn refuse_field(
        &mut self,
        resource: &str,
        field: &str,
        why: &str,
        danger: Option<Danger>,
    ) {
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
        let difference = Difference {
            resource,
            field,
            expected: "value of the spec",
            found: &found,
            danger,
        };
        self.push_change(&difference, ChangeCause::Node, Handling::Report);
        self.refused.insert(id, why.to_owned());
    }

    /// Marks a file that contains a corrected setting: it is written whatever is done about the
    /// rest of it.
    pub(super) fn require(&mut self, path: &str) {
        self.required.insert(path.to_owned());
    }

    /// Leaves a file unchanged, and managed if it was.
    pub(super) fn keep_file(&mut self, path: &str) {
        self.kept_files.insert(path.to_owned());
    }

    /// Returns whether a user does not exist and is not created.
    pub(super) fn skips_user(&self, user: &str) -> bool {
        let id = format!("user:{user}/account");
        let handling = || match self.last.fields.get(&id) {
            Some(_) => self.policy.handling(&id, ChangeCause::Node),
            None => self.policy.handling(&id, ChangeCause::Spec),
        };
        !self.facts.users.contains_key(user) && handling() != Handling::Enforce
    }

    /// Returns a file's text after the changes so far.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        if self.deletions.contains_key(path) {
            return None;
        }
        let file = self
            .desired_files
            .get(path)
            .map(|file| file.content.as_str());
        file.or_else(|| self.facts.files.get(path)?.text())
    }

    /// Sets the content of a file that is managed as a whole.
    pub(super) fn put_file(
        &mut self,
        resource: &str,
        path: &str,
        content: String,
        (mode, owner, group): (u32, &str, &str),
        follow_up: Vec<ConvergeStep>,
    ) {
        let file = DesiredFile {
            resource: resource.to_owned(),
            content,
            mode,
            owner: owner.to_owned(),
            group: group.to_owned(),
            owned: true,
            follow_up,
        };
        if let Some(other) = self.desired_files.insert(path.to_owned(), file)
            && other.resource != resource
        {
            self.refuse(format!(
                "`{path}` is defined by both {} and {resource}",
                other.resource
            ));
        }
    }

    /// Sets the text of a file that is managed in part. Owner and mode stay. A missing one is
    /// created and does not become managed.
    pub(super) fn edit_file(
        &mut self,
        resource: &str,
        path: &str,
        content: String,
        follow_up: Vec<ConvergeStep>,
    ) {
        if let Some(file) = self.desired_files.get_mut(path) {
            file.content = content;
            file.follow_up.extend(follow_up);
            return;
        }
        let (mode, owner, group) = match self.facts.files.get(path) {
            Some(FileFact::Regular {
                mode, owner, group, ..
            }) => (*mode, owner.as_str(), group.as_str()),
            None => (0o644, "root", "root"),
            Some(_) => return,
        };
        let file = DesiredFile {
            resource: resource.to_owned(),
            content,
            mode,
            owner: owner.to_owned(),
            group: group.to_owned(),
            owned: false,
            follow_up,
        };
        self.desired_files.insert(path.to_owned(), file);
    }

    /// Deletes a file.
    pub(super) fn delete_file(&mut self, resource: &str, path: &str, follow_up: Vec<ConvergeStep>) {
        self.desired_files.remove(path);
        self.deletions
            .insert(path.to_owned(), (resource.to_owned(), follow_up));
    }
}

/// Returns the id of a field, escaped: it may contain names that users chose.
pub(super) fn id_of(resource: &str, field: &str) -> String {
    ForeignText::line(&format!("{resource}/{field}")).into()
}
