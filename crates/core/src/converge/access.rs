//! User accounts and sudo rules. Removing a user's access never deletes the user's files.

use std::collections::BTreeSet;

use super::change::{Danger, Handling};
use super::decision_builder::DecisionBuilder;
use super::edit;
use super::facts::{FileFact, UserFact};
use super::keys::{KeyFiles, key_field, own_text};
use super::resource::{Resource, SudoRule};
use super::step::ConvergeStep;

/// The main sudoers file.
pub const SUDOERS: &str = "/etc/sudoers";
/// The directory of further sudoers files.
pub const SUDOERS_D: &str = "/etc/sudoers.d";

/// Paths in a home directory that are read.
pub const KEY_FILES: [&str; 3] = [".ssh", ".ssh/authorized_keys", ".ssh/authorized_keys2"];

const SHELL: &str = "/bin/bash";
const NOLOGIN_SHELLS: &[&str] = &[
    "/usr/sbin/nologin",
    "/sbin/nologin",
    "/bin/false",
    "/usr/bin/false",
];
/// Groups whose members may use sudo by default on Debian.
const ROOT_GROUPS: &[&str] = &["sudo", "admin", "wheel"];

pub(super) fn user(id: &str, name: &str, builder: &mut DecisionBuilder<'_>) {
    if builder.ignores(id, "account") && builder.ignores(id, "login") {
        let known = builder.last.managed.users.get_key_value(name);
        builder
            .managed
            .users
            .extend(known.map(|(name, created)| (name.clone(), *created)));
        return;
    }
    let found = builder.facts.users.get(name).cloned();
    let exists = if found.is_some() { "present" } else { "absent" };
    let state = match &found {
        Some(user) if user.expired => "closed",
        Some(user) if NOLOGIN_SHELLS.contains(&user.shell.as_str()) => "no shell",
        Some(_) | None => "open",
    };
    if name != "root" && found.as_ref().and_then(|user| user.id) == Some(0) {
        let why =
            "its user id is 0, so it is root under another name; change it with `usermod --uid`";
        builder.refuse_field(id, "number", why, Some(Danger::Users));
    }
    // A user who could not log in before the spec cannot log in once it is removed from the spec.
    let known = builder.last.managed.users.get(name).copied();
    let ours = known.unwrap_or(false) || found.is_none() || state != "open";
    builder.managed.users.insert(name.to_owned(), ours);
    let danger = Some(Danger::Users);
    let shell = SHELL.to_owned();
    if builder.compare(id, "account", "present", exists, danger) {
        let name = name.to_owned();
        builder
            .steps
            .insert(ConvergeStep::CreateUser { name, shell });
        builder.compare(id, "login", "open", "open", danger);
    } else if builder.compare(id, "login", "open", state, danger) {
        let name = name.to_owned();
        builder
            .steps
            .insert(ConvergeStep::EnableLogin { name, shell });
    }
}

/// Returns a user as found, or as it will be created.
pub(super) fn found_or_new(builder: &DecisionBuilder<'_>, name: &str) -> UserFact {
    let found = builder.facts.users.get(name).cloned();
    found.unwrap_or_else(|| UserFact {
        home: match name {
            "root" => "/root".to_owned(),
            _ => format!("/home/{name}"), // tidy: where `useradd` of every Debian puts it
        },
        group: name.to_owned(),
        ..UserFact::default()
    })
}

/// Returns the path of the managed sudoers file of a user.
fn rule_file(user: &str) -> String {
    format!("{SUDOERS_D}/homestak-{user}")
}

/// Returns the files that sudo reads.
fn sudo_files(builder: &DecisionBuilder<'_>) -> Vec<String> {
    let inside = |path: &&String| {
        path.strip_prefix(SUDOERS_D)
            .and_then(|rest| rest.strip_prefix('/'))
            // sudo skips these names.
            .is_some_and(|name| !name.contains(['.', '/']) && !name.ends_with('~'))
    };
    let more = builder.facts.files.keys().filter(inside).cloned();
    std::iter::once(SUDOERS.to_owned()).chain(more).collect()
}

pub(super) fn sudo(id: &str, user: &str, rule: SudoRule, builder: &mut DecisionBuilder<'_>) {
    let own = rule_file(user);
    if builder.ignores(id, "rule") || builder.skips_user(user) {
        builder.keep_file(&own);
        return;
    }
    let account = builder.facts.users.get(user).cloned().unwrap_or_default();
    let groups: Vec<String> = ROOT_GROUPS
        .iter()
        .filter(|group| account.groups.contains(**group))
        .map(|group| (*group).to_owned())
        .collect();
    let mut found = if groups.is_empty() {
        SudoRule::None
    } else {
        SudoRule::Password
    };
    if rule == SudoRule::None && ROOT_GROUPS.contains(&account.group.as_str()) {
        let why = format!(
            "the primary group of `{user}` is `{}`, whose members may use sudo; change it with `usermod --gid`",
            account.group
        );
        builder.refuse_field(id, "main group", &why, Some(Danger::Sudo));
    }
    let subjects = SudoSubjects::of(user, &account, builder);
    for path in sudo_files(builder) {
        let text = builder.facts.files.get(&path).and_then(FileFact::text);
        for line in edit::logical_lines(text.unwrap_or_default()) {
            let Some(line) = edit::rule(&line.replace("\\\n", " ")) else {
                continue;
            };
            if line
                .subjects
                .iter()
                .any(|subject| subjects.matches(subject))
            {
                let grants = if line.nopasswd {
                    SudoRule::NoPassword
                } else {
                    SudoRule::Password
                };
                found = found.max(grants);
            }
        }
    }
    let danger = Some(Danger::Sudo);
    let corrected = builder.compare(id, "rule", rule.name(), found.name(), danger);
    if rule != found && !corrected {
        builder.keep_file(&own);
        return;
    }
    let line = match rule {
        SudoRule::None => String::new(),
        SudoRule::Password => format!("{user} ALL=(ALL:ALL) ALL\n"),
        SudoRule::NoPassword => format!("{user} ALL=(ALL:ALL) NOPASSWD: ALL\n"),
    };
    if corrected {
        builder.require(&own);
    } else if rule != SudoRule::None && builder.keeps_difference(id, &own, &line) {
        // Whatever else grants the rule stays too.
        builder.put_file(id, &own, line, (0o440, "root", "root"), Vec::new());
        return;
    }
    remove_user_rules(id, &subjects, &own, corrected, builder);
    if rule == SudoRule::None {
        builder.delete_file(id, &own, Vec::new());
        for group in groups {
            let user = user.to_owned();
            builder
                .steps
                .insert(ConvergeStep::RemoveFromGroup { user, group });
        }
        return;
    }
    builder.put_file(id, &own, line, (0o440, "root", "root"), Vec::new());
}

/// Subjects of sudo rules that mean a user.
struct SudoSubjects {
    /// This user alone: name, user id, and the group of the same name.
    own: BTreeSet<String>,
    /// Aliases that include this user, and perhaps others.
    aliases: BTreeSet<String>,
    /// Aliases of this user alone.
    exclusive: BTreeSet<String>,
}

impl SudoSubjects {
    fn of(user: &str, account: &UserFact, builder: &DecisionBuilder<'_>) -> Self {
        let mut own = BTreeSet::from([user.to_owned()]);
        own.extend(account.id.map(|id| format!("#{id}")));
        if account.group == user {
            own.insert(format!("%{user}"));
            own.extend(account.group_id.map(|id| format!("%#{id}")));
        }
        let texts = sudo_files(builder);
        let texts = texts.iter().filter_map(|path| builder.text(path));
        let given: Vec<_> = texts.flat_map(edit::user_aliases).collect();
        let (mut aliases, mut exclusive) = (BTreeSet::new(), BTreeSet::new());
        // An alias may contain aliases.
        for _ in &given {
            for (name, members) in &given {
                let is_own = |one: &String| own.contains(&edit::normalized_subject(one));
                if members
                    .iter()
                    .any(|one| is_own(one) || aliases.contains(one))
                {
                    aliases.insert(name.clone());
                }
                if members
                    .iter()
                    .all(|one| is_own(one) || exclusive.contains(one))
                {
                    exclusive.insert(name.clone());
                }
            }
        }
        Self {
            own,
            aliases,
            exclusive,
        }
    }

    fn matches(&self, subject: &str) -> bool {
        self.own.contains(&edit::normalized_subject(subject)) || self.aliases.contains(subject)
    }

    /// Returns whether a subject means this user alone.
    fn is_exclusive(&self, subject: &str) -> bool {
        self.own.contains(&edit::normalized_subject(subject)) || self.exclusive.contains(subject)
    }
}

/// Removes a user's rules from every file but the managed one.
fn remove_user_rules(
    id: &str,
    subjects: &SudoSubjects,
    own: &str,
    corrected: bool,
    builder: &mut DecisionBuilder<'_>,
) {
    for path in sudo_files(builder) {
        let text = builder.text(&path).unwrap_or_default();
        let rules = edit::without_rules(text, |subject, _| subjects.is_exclusive(subject));
        let members = edit::without_members(rules.as_deref().unwrap_or(text), |member| {
            subjects.is_exclusive(member)
        });
        if let Some(left) = members.or(rules).filter(|_| path != own) {
            drop_rules(id, &path, left, corrected, builder);
        }
    }
}

fn drop_rules(
    id: &str,
    path: &str,
    left: String,
    corrected: bool,
    builder: &mut DecisionBuilder<'_>,
) {
    if corrected {
        builder.require(path);
    }
    if path != SUDOERS && edit::is_blank(&left) {
        builder.delete_file(id, path, Vec::new());
    } else {
        builder.edit_file(id, path, left, Vec::new());
    }
}

/// Removes rules that allow a whole group, or everyone, sudo without a password.
pub(super) fn sudo_groups(id: &str, allowed: bool, builder: &mut DecisionBuilder<'_>) {
    remove_unsafe_rules(id, allowed, builder);
    if allowed {
        return;
    }
    let whole = |subject: &str, nopasswd: bool| {
        let subject = edit::normalized_subject(subject);
        nopasswd && (subject == "ALL" || subject.starts_with('%'))
    };
    let files = sudo_files(builder).into_iter();
    let edits: Vec<(String, String)> = files
        .filter_map(|path| {
            let left = edit::without_rules(builder.text(&path)?, whole)?;
            Some((path, left))
        })
        .collect();
    let found = if edits.is_empty() {
        "none".to_owned()
    } else {
        let names: Vec<&str> = edits.iter().map(|(path, _)| path.as_str()).collect();
        names.join(", ")
    };
    if builder.compare(id, "rules", "none", &found, Some(Danger::Sudo)) {
        for (path, left) in edits {
            drop_rules(id, &path, left, true, builder);
        }
    }
}

/// Removes what hides sudo rules from the comparison or disables the password of all of them: files
/// that are links, not text or too large, and lines that include other files or disable
/// authentication.
fn remove_unsafe_rules(id: &str, allowed: bool, builder: &mut DecisionBuilder<'_>) {
    let danger = Some(Danger::Sudo);
    let refused = builder.facts.refused_paths.iter();
    let refused = refused.filter(|(path, _)| Danger::of_path(path) == danger);
    for (path, why) in refused.map(|(path, why)| (path.clone(), why.clone())) {
        builder.refuse_field(id, &path, &why, danger);
    }
    let usual = match allowed {
        true => Handling::Report,
        false => Handling::Enforce,
    };
    for path in sudo_files(builder) {
        if builder.deletions.contains_key(&path) {
            continue;
        }
        let (found, left) = match builder.facts.files.get(&path) {
            Some(FileFact::Link { .. }) => ("a symbolic link", String::new()),
            Some(FileFact::Regular { content: None, .. }) => {
                ("not a readable text file", String::new())
            }
            Some(FileFact::Regular { .. }) => {
                let text = builder.text(&path).unwrap_or_default();
                match edit::without_unsafe_lines(text) {
                    Some(left) => ("includes other files or disables authentication", left),
                    None => continue,
                }
            }
            // sudo does not read these.
            Some(FileFact::Directory { .. } | FileFact::Other) | None => continue,
        };
        if path == SUDOERS && left.is_empty() {
            builder.refuse_field(id, &path, &format!("it is {found}"), danger);
            continue;
        }
        let (field, expected) = (format!("{path} rules"), "readable");
        if builder.report(id, &field, expected, found, danger, usual) == Handling::Enforce {
            drop_rules(id, &path, left, true, builder);
        }
    }
}

/// Removes the access of users that an earlier spec had and this one does not list.
pub(super) fn remove_unlisted_users(desired: &[Resource], builder: &mut DecisionBuilder<'_>) {
    let named: BTreeSet<&str> = desired
        .iter()
        .filter_map(|resource| {
            if let Resource::User { name } = resource {
                Some(name.as_str())
            } else {
                None
            }
        })
        .collect();
    let last = builder.last;
    for (user, created) in &last.managed.users {
        if named.contains(user.as_str()) || user == "root" {
            continue;
        }
        let Some(account) = builder.facts.users.get(user).cloned() else {
            continue;
        };
        let id = format!("user:{user}");
        let files = KeyFiles::of(&account.home);
        let path = files.first.clone();
        if builder.ignores(&id, "login") {
            builder.managed.users.insert(user.clone(), *created);
            let keys = last.managed.keys.get(user);
            let keys = keys.map(|keys| (user.clone(), keys.clone()));
            builder.managed.keys.extend(keys);
            builder.keep_file(&path);
            builder.keep_file(&rule_file(user));
            continue;
        }
        sudo(&format!("sudo:{user}"), user, SudoRule::None, builder);
        if *created {
            let state = if account.expired { "closed" } else { "open" };
            if builder.compare(&id, "login", "closed", state, Some(Danger::Users)) {
                let name = user.clone();
                builder.steps.insert(ConvergeStep::DisableLogin { name });
            }
            builder.delete_file(&id, &path, Vec::new());
            builder.delete_file(&id, &files.second, Vec::new());
            continue;
        }
        let before = last.managed.keys.get(user).cloned().unwrap_or_default();
        let id = format!("keys:{user}");
        if let Some(why) = files.refusal(builder) {
            builder.refuse_field(&id, &files.directory, &why, Some(Danger::Users));
            builder.managed.users.insert(user.clone(), false);
            builder.managed.keys.insert(user.clone(), before);
            builder.keep_file(&path);
            continue;
        }
        if let Some(why) = builder.facts.refused_paths.get(&files.second).cloned() {
            builder.refuse_field(&id, &files.second, &why, Some(Danger::Users));
            builder.managed.users.insert(user.clone(), false);
            builder.managed.keys.insert(user.clone(), before.clone());
        }
        for path in [&files.first, &files.second] {
            let Some(text) = own_text(builder, path, user).map(str::to_owned) else {
                // A link, or a file of another user: its keys are unknown.
                if let Some(FileFact::Regular { .. } | FileFact::Link { .. }) =
                    builder.facts.files.get(path)
                {
                    builder.delete_file(&id, path, Vec::new());
                }
                continue;
            };
            let mut left = String::new();
            for line in text.lines() {
                match edit::key_body(line).filter(|body| before.contains(body)) {
                    Some(body) => {
                        let field = key_field(&body);
                        builder.compare(&id, &field, "absent", "present", Some(Danger::Users));
                    }
                    None => left += &format!("{line}\n"),
                }
            }
            // Also when nothing changes: a file with keys of others must not be deleted.
            if left.is_empty() {
                builder.delete_file(&id, path, Vec::new());
            } else {
                builder.edit_file(&id, path, left, Vec::new());
            }
        }
    }
}
