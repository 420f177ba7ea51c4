//! Who may log in, and who may become root: given, and taken away.
//!
//! In: users, rules and settings that are wanted. Out: entries of the ledger.
//! Never: a user's files removed; a rule that is left because something else wrote it.

use std::collections::BTreeSet;

use super::change::{Danger, Handling};
use super::edit;
use super::facts::{FileFact, UserFact};
use super::keys::{KeyFiles, key_field, own_text};
use super::ledger::Ledger;
use super::resource::{Resource, SudoRule};
use super::step::Step;

/// Rules of sudo.
pub const SUDOERS: &str = "/etc/sudoers";
/// More rules of sudo.
pub const SUDOERS_D: &str = "/etc/sudoers.d";

/// What is looked at in the home of a user.
pub const KEY_FILES: [&str; 3] = [".ssh", ".ssh/authorized_keys", ".ssh/authorized_keys2"];

const SHELL: &str = "/bin/bash";
const CLOSED: &[&str] = &[
    "/usr/sbin/nologin",
    "/sbin/nologin",
    "/bin/false",
    "/usr/bin/false",
];
/// Groups whose members may become root by Debian's own rules.
const ROOT_GROUPS: &[&str] = &["sudo", "admin", "wheel"];

pub(super) fn user(id: &str, name: &str, ledger: &mut Ledger<'_>) {
    if ledger.ignores(id, "account") && ledger.ignores(id, "login") {
        let known = ledger.last.managed.users.get_key_value(name);
        ledger
            .managed
            .users
            .extend(known.map(|(name, made)| (name.clone(), *made)));
        return;
    }
    let found = ledger.facts.users.get(name).cloned();
    let exists = if found.is_some() { "present" } else { "absent" };
    let state = match &found {
        Some(user) if user.expired => "closed",
        Some(user) if CLOSED.contains(&user.shell.as_str()) => "no shell",
        Some(_) | None => "open",
    };
    if name != "root" && found.as_ref().and_then(|user| user.id) == Some(0) {
        let why =
            "its number is 0, so that it is root under another name; `usermod --uid` gives another";
        ledger.bar(id, "number", why, Some(Danger::Users));
    }
    // Whoever could not log in before a spec said so cannot when it no longer does.
    let known = ledger.last.managed.users.get(name).copied();
    let ours = known.unwrap_or(false) || found.is_none() || state != "open";
    ledger.managed.users.insert(name.to_owned(), ours);
    let danger = Some(Danger::Users);
    let shell = SHELL.to_owned();
    if ledger.compare(id, "account", "present", exists, danger) {
        let name = name.to_owned();
        ledger.steps.insert(Step::CreateUser { name, shell });
        ledger.compare(id, "login", "open", "open", danger);
    } else if ledger.compare(id, "login", "open", state, danger) {
        let name = name.to_owned();
        ledger.steps.insert(Step::OpenUser { name, shell });
    }
}

/// Returns a user as it is, or as it will be made.
pub(super) fn user_of(ledger: &Ledger<'_>, name: &str) -> UserFact {
    let found = ledger.facts.users.get(name).cloned();
    found.unwrap_or_else(|| UserFact {
        home: match name {
            "root" => "/root".to_owned(),
            _ => format!("/home/{name}"), // tidy: where `useradd` of every Debian puts it
        },
        group: name.to_owned(),
        ..UserFact::default()
    })
}

/// Returns the file with our rule for a user.
fn rule_file(user: &str) -> String {
    format!("{SUDOERS_D}/homestak-{user}")
}

/// Every file that sudo reads.
fn sudo_files(ledger: &Ledger<'_>) -> Vec<String> {
    let inside = |path: &&String| {
        path.strip_prefix(SUDOERS_D)
            .and_then(|rest| rest.strip_prefix('/'))
            // Sudo itself skips names like these.
            .is_some_and(|name| !name.contains(['.', '/']) && !name.ends_with('~'))
    };
    let more = ledger.facts.files.keys().filter(inside).cloned();
    std::iter::once(SUDOERS.to_owned()).chain(more).collect()
}

pub(super) fn sudo(id: &str, user: &str, rule: SudoRule, ledger: &mut Ledger<'_>) {
    let own = rule_file(user);
    if ledger.ignores(id, "rule") || ledger.is_left_out(user) {
        ledger.keep(&own);
        return;
    }
    let account = ledger.facts.users.get(user).cloned().unwrap_or_default();
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
            "the main group of `{user}` is `{}`, whose members may become root; `usermod --gid` gives another",
            account.group
        );
        ledger.bar(id, "main group", &why, Some(Danger::Sudo));
    }
    let names = SudoNames::of(user, &account, ledger);
    for path in sudo_files(ledger) {
        let text = ledger.facts.files.get(&path).and_then(FileFact::text);
        for line in edit::logical_lines(text.unwrap_or_default()) {
            let Some(line) = edit::rule(&line.replace("\\\n", " ")) else {
                continue;
            };
            if line.subjects.iter().any(|subject| names.has(subject)) {
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
    let mended = ledger.compare(id, "rule", rule.word(), found.word(), danger);
    if rule != found && !mended {
        ledger.keep(&own);
        return;
    }
    let line = match rule {
        SudoRule::None => String::new(),
        SudoRule::Password => format!("{user} ALL=(ALL:ALL) ALL\n"),
        SudoRule::NoPassword => format!("{user} ALL=(ALL:ALL) NOPASSWD: ALL\n"),
    };
    if mended {
        ledger.need(&own);
    } else if rule != SudoRule::None && ledger.is_left(id, &own, &line) {
        // What gives the rule in its place stays as well.
        ledger.put(id, &own, line, (0o440, "root", "root"), Vec::new());
        return;
    }
    take_rules(id, &names, &own, mended, ledger);
    if rule == SudoRule::None {
        ledger.delete(id, &own, Vec::new());
        for group in groups {
            let user = user.to_owned();
            ledger.steps.insert(Step::LeaveGroup { user, group });
        }
        return;
    }
    ledger.put(id, &own, line, (0o440, "root", "root"), Vec::new());
}

/// What stands for a user in rules of sudo.
struct SudoNames {
    /// For this user alone: name, number, and the group that has the user's name.
    own: BTreeSet<String>,
    /// Names that a sudoers file gives to this user, and maybe to others.
    aliases: BTreeSet<String>,
    /// Those that stand for nobody else.
    only: BTreeSet<String>,
}

impl SudoNames {
    fn of(user: &str, account: &UserFact, ledger: &Ledger<'_>) -> Self {
        let mut own = BTreeSet::from([user.to_owned()]);
        own.extend(account.id.map(|id| format!("#{id}")));
        if account.group == user {
            own.insert(format!("%{user}"));
            own.extend(account.group_id.map(|id| format!("%#{id}")));
        }
        let texts = sudo_files(ledger);
        let texts = texts.iter().filter_map(|path| ledger.text(path));
        let given: Vec<_> = texts.flat_map(edit::user_aliases).collect();
        let (mut aliases, mut only) = (BTreeSet::new(), BTreeSet::new());
        // A name may stand for other names.
        for _ in &given {
            for (name, members) in &given {
                let is_own = |one: &String| own.contains(&edit::plain(one));
                if members
                    .iter()
                    .any(|one| is_own(one) || aliases.contains(one))
                {
                    aliases.insert(name.clone());
                }
                if members.iter().all(|one| is_own(one) || only.contains(one)) {
                    only.insert(name.clone());
                }
            }
        }
        Self { own, aliases, only }
    }

    fn has(&self, subject: &str) -> bool {
        self.own.contains(&edit::plain(subject)) || self.aliases.contains(subject)
    }

    /// Tells whether a name stands for this user alone.
    fn is_only(&self, subject: &str) -> bool {
        self.own.contains(&edit::plain(subject)) || self.only.contains(subject)
    }
}

/// Takes a user's rules out of every file but our own.
fn take_rules(id: &str, names: &SudoNames, own: &str, mended: bool, ledger: &mut Ledger<'_>) {
    for path in sudo_files(ledger) {
        let text = ledger.text(&path).unwrap_or_default();
        let rules = edit::without_rules(text, |subject, _| names.is_only(subject));
        let members = edit::without_members(rules.as_deref().unwrap_or(text), |member| {
            names.is_only(member)
        });
        if let Some(left) = members.or(rules).filter(|_| path != own) {
            drop_rules(id, &path, left, mended, ledger);
        }
    }
}

fn drop_rules(id: &str, path: &str, left: String, mended: bool, ledger: &mut Ledger<'_>) {
    if mended {
        ledger.need(path);
    }
    if path != SUDOERS && edit::is_idle(&left) {
        ledger.delete(id, path, Vec::new());
    } else {
        ledger.edit(id, path, left, Vec::new());
    }
}

/// Takes rules out that let a whole group, or everyone, become root without a password.
pub(super) fn sudo_groups(id: &str, allowed: bool, ledger: &mut Ledger<'_>) {
    hidden_rules(id, allowed, ledger);
    if allowed {
        return;
    }
    let whole = |subject: &str, nopasswd: bool| {
        let subject = edit::plain(subject);
        nopasswd && (subject == "ALL" || subject.starts_with('%'))
    };
    let files = sudo_files(ledger).into_iter();
    let lefts: Vec<(String, String)> = files
        .filter_map(|path| {
            let left = edit::without_rules(ledger.text(&path)?, whole)?;
            Some((path, left))
        })
        .collect();
    let found = if lefts.is_empty() {
        "none".to_owned()
    } else {
        let names: Vec<&str> = lefts.iter().map(|(path, _)| path.as_str()).collect();
        names.join(", ")
    };
    if ledger.compare(id, "rules", "none", &found, Some(Danger::Sudo)) {
        for (path, left) in lefts {
            drop_rules(id, &path, left, true, ledger);
        }
    }
}

/// Takes away what hides rules of sudo from us, or makes every rule one that asks for no password:
/// files that are links, no text or too large, and lines that read further files or turn passwords
/// off.
fn hidden_rules(id: &str, allowed: bool, ledger: &mut Ledger<'_>) {
    let danger = Some(Danger::Sudo);
    let refused = ledger.facts.refused.iter();
    let refused = refused.filter(|(path, _)| Danger::of_path(path) == danger);
    for (path, why) in refused.map(|(path, why)| (path.clone(), why.clone())) {
        ledger.bar(id, &path, &why, danger);
    }
    let usual = match allowed {
        true => Handling::Report,
        false => Handling::Enforce,
    };
    for path in sudo_files(ledger) {
        if ledger.gone.contains_key(&path) {
            continue;
        }
        let (found, left) = match ledger.facts.files.get(&path) {
            Some(FileFact::Link { .. }) => ("a link", String::new()),
            Some(FileFact::Regular { content: None, .. }) => {
                ("not a text that can be read", String::new())
            }
            Some(FileFact::Regular { .. }) => {
                let text = ledger.text(&path).unwrap_or_default();
                match edit::without_loose_lines(text) {
                    Some(left) => ("reads further files, or asks for no password", left),
                    None => continue,
                }
            }
            // What is no file is not read by sudo either.
            Some(FileFact::Directory { .. } | FileFact::Other) | None => continue,
        };
        if path == SUDOERS && left.is_empty() {
            ledger.bar(id, &path, &format!("it is {found}"), danger);
            continue;
        }
        let (field, expected) = (format!("{path} rules"), "can be read");
        if ledger.note(id, &field, expected, found, danger, usual) == Handling::Enforce {
            drop_rules(id, &path, left, true, ledger);
        }
    }
}

/// Takes away what an earlier spec gave to users that this one does not name.
pub(super) fn take_away(wanted: &[Resource], ledger: &mut Ledger<'_>) {
    let named: BTreeSet<&str> = wanted
        .iter()
        .filter_map(|resource| {
            if let Resource::User { name } = resource {
                Some(name.as_str())
            } else {
                None
            }
        })
        .collect();
    let last = ledger.last;
    for (user, made) in &last.managed.users {
        if named.contains(user.as_str()) || user == "root" {
            continue;
        }
        let Some(account) = ledger.facts.users.get(user).cloned() else {
            continue;
        };
        let id = format!("user:{user}");
        let files = KeyFiles::of(&account.home);
        let path = files.first.clone();
        if ledger.ignores(&id, "login") {
            ledger.managed.users.insert(user.clone(), *made);
            let keys = last.managed.keys.get(user);
            let keys = keys.map(|keys| (user.clone(), keys.clone()));
            ledger.managed.keys.extend(keys);
            ledger.keep(&path);
            ledger.keep(&rule_file(user));
            continue;
        }
        sudo(&format!("sudo:{user}"), user, SudoRule::None, ledger);
        if *made {
            let state = if account.expired { "closed" } else { "open" };
            if ledger.compare(&id, "login", "closed", state, Some(Danger::Users)) {
                let name = user.clone();
                ledger.steps.insert(Step::CloseUser { name });
            }
            ledger.delete(&id, &path, Vec::new());
            ledger.delete(&id, &files.second, Vec::new());
            continue;
        }
        let before = last.managed.keys.get(user).cloned().unwrap_or_default();
        let id = format!("keys:{user}");
        if let Some(why) = files.refusal(ledger) {
            ledger.bar(&id, &files.directory, &why, Some(Danger::Users));
            ledger.managed.users.insert(user.clone(), false);
            ledger.managed.keys.insert(user.clone(), before);
            ledger.keep(&path);
            continue;
        }
        if let Some(why) = ledger.facts.refused.get(&files.second).cloned() {
            ledger.bar(&id, &files.second, &why, Some(Danger::Users));
            ledger.managed.users.insert(user.clone(), false);
            ledger.managed.keys.insert(user.clone(), before.clone());
        }
        for path in [&files.first, &files.second] {
            let Some(text) = own_text(ledger, path, user).map(str::to_owned) else {
                // A link, or a file of someone else: which keys it holds is not known.
                if let Some(FileFact::Regular { .. } | FileFact::Link { .. }) =
                    ledger.facts.files.get(path)
                {
                    ledger.delete(&id, path, Vec::new());
                }
                continue;
            };
            let mut left = String::new();
            for line in text.lines() {
                match edit::key_body(line).filter(|body| before.contains(body)) {
                    Some(body) => {
                        let field = key_field(&body);
                        ledger.compare(&id, &field, "absent", "present", Some(Danger::Users));
                    }
                    None => left += &format!("{line}\n"),
                }
            }
            // Also when it is right as it is: a file with keys of others in it is not ours to
            // remove.
            if left.is_empty() {
                ledger.delete(&id, path, Vec::new());
            } else {
                ledger.edit(&id, path, left, Vec::new());
            }
        }
    }
}
