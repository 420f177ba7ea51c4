//! Files as they should be, turned into changes and steps.
//!
//! In: drafts and files that are to go. Out: changes of content, mode and owner, one write each.
//! Never: a part of a file changed that is only named: it is written as it was found; owner or mode
//! given to content that is not the wanted one.

use sha2::{Digest as _, Sha256};

use super::change::{Danger, Handling, Since};
use super::facts::{Facts, FileFact};
use super::ledger::{Draft, Finding, Ledger, id_of};
use super::step::Step;

impl Ledger<'_> {
    /// Turns files as they should be into changes and steps. What an earlier spec brought and none
    /// wants now goes.
    pub(super) fn settle(&mut self) {
        for path in &self.last.managed.files {
            let wanted = self.drafts.contains_key(path) || self.gone.contains_key(path);
            if !wanted && self.kept.contains(path) {
                self.managed.files.insert(path.clone());
            } else if !wanted {
                let then = follows(path, self.facts);
                self.gone
                    .insert(path.clone(), (format!("file:{path}"), then));
            }
        }
        for (path, draft) in std::mem::take(&mut self.drafts) {
            if !self.is_barred(&path, &draft.resource) {
                self.settle_draft(&path, draft);
            }
        }
        for (path, (resource, then)) in std::mem::take(&mut self.gone) {
            if self.is_barred(&path, &resource) {
                continue;
            }
            if self.facts.files.contains_key(&path) {
                self.settle_gone(path, &resource, then);
            }
        }
    }

    /// Refuses a file whose path was not looked at. It stays ours if it was.
    fn is_barred(&mut self, path: &str, resource: &str) -> bool {
        let Some(why) = self.facts.refused.get(path) else {
            return false;
        };
        let danger = Danger::of_path(path);
        // An account that is closed lets nobody in, whatever keys there are.
        if resource.starts_with("user:") {
            let found = format!("unknown: {why}");
            self.note(resource, path, "absent", &found, danger, Handling::Report);
            return true;
        }
        self.bar(resource, &field(resource, path, "content"), why, danger);
        if self.last.managed.files.contains(path) {
            self.managed.files.insert(path.to_owned());
        }
        true
    }

    fn settle_gone(&mut self, path: String, resource: &str, then: Vec<Step>) {
        let ours = self.last.managed.files.contains(&path);
        let field = if is_own(resource, &path) {
            "state"
        } else {
            path.as_str()
        };
        let id = id_of(resource, field);
        let since = if ours {
            Since::Spec
        } else {
            self.since(&id, "absent")
        };
        let finding = Finding {
            resource,
            field,
            expected: "absent",
            found: "present",
            danger: Danger::of_path(&path),
        };
        let handling = self.handling(&path, &id, since);
        if self.record(&finding, since, handling) == Handling::Enforce {
            self.steps.insert(Step::Delete { path });
            self.steps.extend(then);
        } else if ours {
            self.managed.files.insert(path);
        }
    }

    fn handling(&self, path: &str, id: &str, since: Since) -> Handling {
        if self.needed.contains(path) {
            Handling::Enforce
        } else {
            self.policy.handle(id, since)
        }
    }

    fn settle_draft(&mut self, path: &str, mut draft: Draft) {
        let ours = self.last.managed.files.contains(path);
        if ours && draft.whole {
            self.managed.files.insert(path.to_owned());
        }
        let found = self.facts.files.get(path).cloned();
        let Some(content) = self.settle_content(path, &draft, found.as_ref()) else {
            return;
        };
        let mut differs = content.is_some();
        if let Some(content) = content {
            draft.content = content;
        } else if found.as_ref().and_then(FileFact::text) != Some(draft.content.as_str()) {
            // What is there stays, and nobody wanted it: with another owner or mode it could do
            // what its author may not, or be read by whoever may not.
            if draft.whole {
                self.name_owner(path, &draft, found.as_ref());
            }
            return;
        }
        if draft.whole {
            differs |= self.settle_owner(path, &mut draft, found.as_ref());
            if found.is_none() {
                self.managed.files.insert(path.to_owned());
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

    /// Returns what is written: `Some(None)` when the content is right, or stays as it is; `None`
    /// when nothing can be done about the file.
    fn settle_content(
        &mut self,
        path: &str,
        draft: &Draft,
        found: Option<&FileFact>,
    ) -> Option<Option<String>> {
        let resource = draft.resource.as_str();
        let field = field(resource, path, "content");
        let id = id_of(resource, &field);
        let hidden = match self.facts.closed.contains(path) {
            true => Some("not shown: not everyone may enter its directory".to_owned()),
            false => hidden(draft.mode, found),
        };
        let shown = |text: &str| hidden.clone().unwrap_or_else(|| text.to_owned());
        let same = found.and_then(FileFact::text) == Some(draft.content.as_str());
        let text = match found {
            Some(FileFact::Regular { content, .. }) => {
                shown(content.as_deref().unwrap_or("not text"))
            }
            Some(FileFact::Link { target }) => format!("a link to {target}"),
            Some(FileFact::Directory { .. } | FileFact::Other) => "no file".to_owned(),
            None => "absent".to_owned(),
        };
        let expected = shown(&draft.content);
        let content = || Some(draft.content.clone());
        if self.policy.ignores(&id) {
            let written = !same && self.needed.contains(path);
            return Some(content().filter(|_| written));
        }
        if draft.whole {
            // Remembered by its digest: content may be long, and may be secret.
            self.fields.insert(id.clone(), digest(&draft.content));
        }
        if same {
            return Some(None);
        }
        let since = if draft.whole {
            self.since_of_whole(&id, &draft.content)
        } else {
            self.since_of_edit(&id, draft)
        };
        let handling = self.handling(path, &id, since);
        let is_file = !matches!(found, Some(FileFact::Directory { .. } | FileFact::Other));
        if handling == Handling::Enforce && !is_file {
            let why = format!("`{path}` should be a file and is something else");
            self.bar(resource, &field, &why, Danger::of_path(path));
            return None;
        }
        let finding = Finding {
            resource,
            field: &field,
            expected: &expected,
            found: &text,
            danger: Danger::of_path(path),
        };
        let mended = self.record(&finding, since, handling) == Handling::Enforce;
        Some(content().filter(|_| mended))
    }

    fn since_of_whole(&self, id: &str, content: &str) -> Since {
        match self.last.fields.get(id) {
            Some(before) if *before == digest(content) => Since::Node,
            Some(_) => Since::Spec,
            None if self.last.fields.is_empty() => Since::First,
            None => Since::Spec,
        }
    }

    /// What the file says besides is not ours, so its fields tell who changed it.
    fn since_of_edit(&self, id: &str, draft: &Draft) -> Since {
        let by_spec = self
            .changes
            .iter()
            .any(|change| change.resource == draft.resource && change.since == Since::Spec);
        if by_spec {
            Since::Spec
        } else {
            self.since(id, &draft.content)
        }
    }

    /// Tells whether a file of ours differs and stays so.
    pub(super) fn is_left(&self, resource: &str, path: &str, content: &str) -> bool {
        let found = self.facts.files.get(path).and_then(FileFact::text);
        let id = id_of(resource, &field(resource, path, "content"));
        let since = self.since_of_whole(&id, content);
        found != Some(content) && self.policy.handle(&id, since) != Handling::Enforce
    }

    /// Names mode and owner of a file whose content stays as it is and is not the wanted one.
    fn name_owner(&mut self, path: &str, draft: &Draft, found: Option<&FileFact>) {
        let Some(FileFact::Regular {
            mode, owner, group, ..
        }) = found
        else {
            return;
        };
        let mode = (format!("{:04o}", draft.mode), self.mode(path, *mode));
        let owner = (
            format!("{}:{}", draft.owner, draft.group),
            format!("{owner}:{group}"),
        );
        for (part, (wanted, found)) in [("mode", mode), ("owner", owner)] {
            let field = field(&draft.resource, path, part);
            if self.ignores(&draft.resource, &field) {
                continue;
            }
            // What was wanted before counts until it is done.
            let id = id_of(&draft.resource, &field);
            let before = self.last.fields.get(&id).cloned();
            self.fields
                .insert(id, before.unwrap_or_else(|| wanted.clone()));
            if wanted != found {
                let (danger, handling) = (Danger::of_path(path), Handling::Report);
                self.note(&draft.resource, &field, &wanted, &found, danger, handling);
            }
        }
    }

    /// Returns the mode of a file that is there. One with an access control list differs from every
    /// mode that a spec wants: more users have access than it says.
    fn mode(&self, path: &str, mode: u32) -> String {
        match self.facts.listed.contains(path) {
            true => format!("{mode:04o} with an access control list"),
            false => format!("{mode:04o}"),
        }
    }

    /// Compares mode and owner of a file that is there, and takes over what stays as it is.
    fn settle_owner(&mut self, path: &str, draft: &mut Draft, found: Option<&FileFact>) -> bool {
        let danger = Danger::of_path(path);
        let resource = draft.resource.clone();
        let wanted_owner = format!("{}:{}", draft.owner, draft.group);
        let wanted_mode = format!("{:04o}", draft.mode);
        let field = |part: &str| field(&resource, path, part);
        let Some(FileFact::Regular {
            mode, owner, group, ..
        }) = found
        else {
            // A file that is not there has one difference, not three.
            for (part, wanted) in [("mode", &wanted_mode), ("owner", &wanted_owner)] {
                self.compare(&resource, &field(part), wanted, wanted, danger);
            }
            return false;
        };
        let mut differs = false;
        let found = self.mode(path, *mode);
        if self.compare(&resource, &field("mode"), &wanted_mode, &found, danger) {
            differs = true;
        } else {
            draft.mode = *mode;
        }
        let found = format!("{owner}:{group}");
        if self.compare(&resource, &field("owner"), &wanted_owner, &found, danger) {
            differs = true;
        } else {
            draft.owner.clone_from(owner);
            draft.group.clone_from(group);
        }
        differs
    }
}

fn is_own(resource: &str, path: &str) -> bool {
    resource.strip_prefix("file:") == Some(path)
}

/// Names a part of a file: a resource that is the file itself need not say which.
fn field(resource: &str, path: &str, part: &str) -> String {
    if is_own(resource, path) {
        part.to_owned()
    } else {
        format!("{path} {part}")
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

/// Returns why content of a file is not shown: somebody on the node may not read it, now or
/// afterwards. Not even a digest is: short secrets can be guessed from it.
fn hidden(wanted: u32, found: Option<&FileFact>) -> Option<String> {
    let now = if let Some(FileFact::Regular { mode, .. }) = found {
        *mode
    } else {
        wanted
    };
    let mode = [wanted, now].into_iter().find(|mode| mode & 0o004 == 0)?;
    Some(format!("not shown: mode {mode:04o}"))
}

fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    let mut hex = String::from("sha256:");
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
