//! Turns desired files into changes and steps. Owner or mode are never set on content that differs
//! from the desired one and is only reported.

use sha2::{Digest as _, Sha256};

use super::change::{ChangeCause, Danger, Handling};
use super::decision_builder::{DecisionBuilder, DesiredFile, Difference, id_of};
use super::facts::{Facts, FileFact};
use super::step::ConvergeStep;
use crate::hex;

impl DecisionBuilder<'_> {
    /// Compares all desired files with the node. Files of an earlier spec that are no longer
    /// desired are deleted.
    pub(super) fn plan_files(&mut self) {
        for path in &self.last.managed.files {
            let desired =
                self.desired_files.contains_key(path) || self.deletions.contains_key(path);
            if !desired && self.kept_files.contains(path) {
                self.managed.files.insert(path.clone());
            } else if !desired {
                let follow_up = follow_up_steps(path, self.facts);
                self.deletions
                    .insert(path.clone(), (format!("file:{path}"), follow_up));
            }
        }
        for (path, file) in std::mem::take(&mut self.desired_files) {
            if !self.refuses_path(&path, &file.resource) {
                self.plan_write(&path, file);
            }
        }
        for (path, (resource, follow_up)) in std::mem::take(&mut self.deletions) {
            if self.refuses_path(&path, &resource) {
                continue;
            }
            if self.facts.files.contains_key(&path) {
                self.plan_deletion(path, &resource, follow_up);
            }
        }
    }

    /// Refuses a file whose path was not read. It stays managed if it was.
    fn refuses_path(&mut self, path: &str, resource: &str) -> bool {
        let Some(why) = self.facts.refused_paths.get(path) else {
            return false;
        };
        let danger = Danger::of_path(path);
        // Keys of a disabled account grant no access.
        if resource.starts_with("user:") {
            let found = format!("unknown: {why}");
            self.report(resource, path, "absent", &found, danger, Handling::Report);
            return true;
        }
        self.refuse_field(resource, &field(resource, path, "content"), why, danger);
        if self.last.managed.files.contains(path) {
            self.managed.files.insert(path.to_owned());
        }
        true
    }

    fn plan_deletion(&mut self, path: String, resource: &str, follow_up: Vec<ConvergeStep>) {
        let ours = self.last.managed.files.contains(&path);
        let field = if is_own(resource, &path) {
            "state"
        } else {
            path.as_str()
        };
        let id = id_of(resource, field);
        let cause = if ours {
            ChangeCause::Spec
        } else {
            self.cause(&id, "absent")
        };
        let difference = Difference {
            resource,
            field,
            expected: "absent",
            found: "present",
            danger: Danger::of_path(&path),
        };
        let handling = self.handling(&path, &id, cause);
        if self.push_change(&difference, cause, handling) == Handling::Enforce {
            self.steps.insert(ConvergeStep::Delete { path });
            self.steps.extend(follow_up);
        } else if ours {
            self.managed.files.insert(path);
        }
    }

    fn handling(&self, path: &str, id: &str, cause: ChangeCause) -> Handling {
        if self.required.contains(path) {
            Handling::Enforce
        } else {
            self.policy.handling(id, cause)
        }
    }

    fn plan_write(&mut self, path: &str, mut file: DesiredFile) {
        let ours = self.last.managed.files.contains(path);
        if ours && file.owned {
            self.managed.files.insert(path.to_owned());
        }
        let found = self.facts.files.get(path).cloned();
        let Some(content) = self.plan_content(path, &file, found.as_ref()) else {
            return;
        };
        let mut differs = content.is_some();
        if let Some(content) = content {
            file.content = content;
        } else if found.as_ref().and_then(FileFact::text) != Some(file.content.as_str()) {
            // The found content stays although it is not the desired one: with the desired owner or
            // mode it could gain rights (setuid) or be disclosed.
            if file.owned {
                self.report_owner(path, &file, found.as_ref());
            }
            return;
        }
        if file.owned {
            differs |= self.plan_owner(path, &mut file, found.as_ref());
            if found.is_none() {
                self.managed.files.insert(path.to_owned());
            }
        }
        if differs {
            self.steps.insert(ConvergeStep::Write {
                path: path.to_owned(),
                content: file.content,
                mode: file.mode,
                owner: file.owner,
                group: file.group,
            });
            self.steps.extend(file.follow_up);
            self.steps.extend(follow_up_steps(path, self.facts));
        }
    }

    /// Returns the content to write: `Some(None)` if it matches or stays as found, `None` if the
    /// file cannot be written.
    fn plan_content(
        &mut self,
        path: &str,
        file: &DesiredFile,
        found: Option<&FileFact>,
    ) -> Option<Option<String>> {
        let resource = file.resource.as_str();
        let field = field(resource, path, "content");
        let id = id_of(resource, &field);
        let hidden = match self.facts.private_paths.contains(path) {
            true => Some("not shown: its directory is private".to_owned()),
            false => hidden(file.mode, found),
        };
        let shown = |text: &str| hidden.clone().unwrap_or_else(|| text.to_owned());
        let same = found.and_then(FileFact::text) == Some(file.content.as_str());
        let text = match found {
            Some(FileFact::Regular { content, .. }) => {
                shown(content.as_deref().unwrap_or("not a text file"))
            }
            Some(FileFact::Link { target }) => format!("symbolic link to {target}"),
            Some(FileFact::Directory { .. } | FileFact::Other) => "not a regular file".to_owned(),
            None => "absent".to_owned(),
        };
        let expected = shown(&file.content);
        let content = || Some(file.content.clone());
        if self.policy.ignores(&id) {
            let written = !same && self.required.contains(path);
            return Some(content().filter(|_| written));
        }
        if file.owned {
            // Stored as a digest: content may be long or secret.
            self.fields.insert(id.clone(), digest(&file.content));
        }
        if same {
            return Some(None);
        }
        let cause = if file.owned {
            self.cause_of_owned(&id, &file.content)
        } else {
            self.cause_of_edit(&id, file)
        };
        let handling = self.handling(path, &id, cause);
        let is_file = !matches!(found, Some(FileFact::Directory { .. } | FileFact::Other));
        if handling == Handling::Enforce && !is_file {
            let why = format!("`{path}` exists and is not a regular file");
            self.refuse_field(resource, &field, &why, Danger::of_path(path));
            return None;
        }
        let difference = Difference {
            resource,
            field: &field,
            expected: &expected,
            found: &text,
            danger: Danger::of_path(path),
        };
        let corrected = self.push_change(&difference, cause, handling) == Handling::Enforce;
        Some(content().filter(|_| corrected))
    }

    fn cause_of_owned(&self, id: &str, content: &str) -> ChangeCause {
        match self.last.fields.get(id) {
            Some(before) if *before == digest(content) => ChangeCause::Node,
            Some(_) => ChangeCause::Spec,
            None if self.last.fields.is_empty() => ChangeCause::FirstRun,
            None => ChangeCause::Spec,
        }
    }

    /// The rest of the file is not managed, so the causes of its fields decide.
    fn cause_of_edit(&self, id: &str, file: &DesiredFile) -> ChangeCause {
        let by_spec = self
            .changes
            .iter()
            .any(|change| change.resource == file.resource && change.cause == ChangeCause::Spec);
        if by_spec {
            ChangeCause::Spec
        } else {
            self.cause(id, &file.content)
        }
    }

    /// Returns whether a managed file differs and is not corrected.
    pub(super) fn keeps_difference(&self, resource: &str, path: &str, content: &str) -> bool {
        let found = self.facts.files.get(path).and_then(FileFact::text);
        let id = id_of(resource, &field(resource, path, "content"));
        let cause = self.cause_of_owned(&id, content);
        found != Some(content) && self.policy.handling(&id, cause) != Handling::Enforce
    }

    /// Reports mode and owner of a file whose content differs and stays.
    fn report_owner(&mut self, path: &str, file: &DesiredFile, found: Option<&FileFact>) {
        let Some(FileFact::Regular {
            mode, owner, group, ..
        }) = found
        else {
            return;
        };
        let mode = (format!("{:04o}", file.mode), self.mode(path, *mode));
        let owner = (
            format!("{}:{}", file.owner, file.group),
            format!("{owner}:{group}"),
        );
        for (part, (desired, found)) in [("mode", mode), ("owner", owner)] {
            let field = field(&file.resource, path, part);
            if self.ignores(&file.resource, &field) {
                continue;
            }
            // The earlier desired value stays stored until it is applied.
            let id = id_of(&file.resource, &field);
            let before = self.last.fields.get(&id).cloned();
            self.fields
                .insert(id, before.unwrap_or_else(|| desired.clone()));
            if desired != found {
                let (danger, handling) = (Danger::of_path(path), Handling::Report);
                self.report(&file.resource, &field, &desired, &found, danger, handling);
            }
        }
    }

    /// Formats the mode of a file. One with an access control list differs from every desired mode,
    /// because more users have access.
    fn mode(&self, path: &str, mode: u32) -> String {
        match self.facts.acl_paths.contains(path) {
            true => format!("{mode:04o} with an access control list"),
            false => format!("{mode:04o}"),
        }
    }

    /// Compares mode and owner of an existing file, and keeps the values that are not corrected.
    fn plan_owner(&mut self, path: &str, file: &mut DesiredFile, found: Option<&FileFact>) -> bool {
        let danger = Danger::of_path(path);
        let resource = file.resource.clone();
        let desired_owner = format!("{}:{}", file.owner, file.group);
        let desired_mode = format!("{:04o}", file.mode);
        let field = |part: &str| field(&resource, path, part);
        let Some(FileFact::Regular {
            mode, owner, group, ..
        }) = found
        else {
            // A missing file is one difference, not three.
            for (part, desired) in [("mode", &desired_mode), ("owner", &desired_owner)] {
                self.compare(&resource, &field(part), desired, desired, danger);
            }
            return false;
        };
        let mut differs = false;
        let found = self.mode(path, *mode);
        if self.compare(&resource, &field("mode"), &desired_mode, &found, danger) {
            differs = true;
        } else {
            file.mode = *mode;
        }
        let found = format!("{owner}:{group}");
        if self.compare(&resource, &field("owner"), &desired_owner, &found, danger) {
            differs = true;
        } else {
            file.owner.clone_from(owner);
            file.group.clone_from(group);
        }
        differs
    }
}

fn is_own(resource: &str, path: &str) -> bool {
    resource.strip_prefix("file:") == Some(path)
}

/// Returns the name of a field of a file; resources that are the file itself omit the path.
fn field(resource: &str, path: &str, part: &str) -> String {
    if is_own(resource, path) {
        part.to_owned()
    } else {
        format!("{path} {part}")
    }
}

/// Returns the steps that follow every change of a file.
fn follow_up_steps(path: &str, facts: &Facts) -> Vec<ConvergeStep> {
    if path.starts_with("/etc/ssh/sshd_config") {
        let unit = "ssh.service".to_owned();
        vec![ConvergeStep::Reload { unit }]
    } else if path.starts_with("/etc/systemd/network/") {
        let interface = facts.network.interface.clone();
        vec![ConvergeStep::Network { interface }]
    } else if path.starts_with("/etc/systemd/system/") {
        vec![ConvergeStep::DaemonReload]
    } else {
        Vec::new()
    }
}

/// Returns why the content of a file is not shown: it is not world-readable before or after the
/// change. A digest is not shown either, because short secrets can be guessed from it.
fn hidden(desired: u32, found: Option<&FileFact>) -> Option<String> {
    let now = if let Some(FileFact::Regular { mode, .. }) = found {
        *mode
    } else {
        desired
    };
    let mode = [desired, now].into_iter().find(|mode| mode & 0o004 == 0)?;
    Some(format!("not shown: mode {mode:04o}"))
}

fn digest(text: &str) -> String {
    format!("sha256:{}", hex::encode(&Sha256::digest(text.as_bytes())))
}
