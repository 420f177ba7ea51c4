//! The SSH server: settings in a file of ours, and nowhere else.
//!
//! In: settings that are wanted. Out: entries of the ledger.
//! Never: a setting touched that stays as it is.

use std::collections::BTreeMap;

use super::change::{Danger, Handling};
use super::edit;
use super::facts::FileFact;
use super::ledger::Ledger;

/// Configuration of the SSH server.
pub const SSHD: &str = "/etc/ssh/sshd_config";
/// More configuration of the SSH server.
pub const SSHD_D: &str = "/etc/ssh/sshd_config.d";
/// Our part of it. The first value of a setting counts, so it is read first.
pub const SSHD_OWN: &str = "/etc/ssh/sshd_config.d/00-homestak.conf";

pub(super) fn sshd(id: &str, settings: &BTreeMap<String, String>, ledger: &mut Ledger<'_>) {
    let mut ours = settings.clone();
    let mut mended = false;
    for (name, wanted) in settings {
        let effective = effective(name, ledger);
        let found = if edit::same_setting(&effective, wanted) {
            wanted
        } else {
            &effective
        };
        let mend = ledger.compare(id, name, wanted, &found.clone(), Some(Danger::Sshd));
        mended |= mend;
        if ledger.ignores(id, name) || found != wanted && !mend {
            ours.remove(name);
        }
    }
    if ledger.facts.sshd.is_none() {
        // Not installed yet; everything is looked at again once it is.
        ledger.keep(SSHD_OWN);
        return;
    }
    if mended {
        ledger.need(SSHD_OWN);
    }
    let content = own_file(settings, &ours, ledger);
    ledger.put(id, SSHD_OWN, content, (0o644, "root", "root"), Vec::new());
    let others: Vec<String> = ledger
        .facts
        .files
        .keys()
        .filter(|path| {
            path.as_str() == SSHD
                || path.starts_with(SSHD_D) && path.ends_with(".conf") && *path != SSHD_OWN
        })
        .cloned()
        .collect();
    let refused = ledger.facts.refused.iter();
    let refused = refused.filter(|(path, _)| path.starts_with(SSHD_D));
    for (path, why) in refused.map(|(path, why)| (path.clone(), why.clone())) {
        ledger.bar(id, &path, &why, Some(Danger::Sshd));
    }
    for path in others {
        let Some(text) = ledger.text(&path).map(str::to_owned) else {
            unreadable(id, &path, ledger);
            continue;
        };
        let mut right = edit::sshd(&text, &ours);
        let (left, exceptions) = edit::sshd_exceptions(&right, settings);
        if !exceptions.is_empty() {
            let (found, danger) = (exceptions.join("\n"), Some(Danger::Sshd));
            let usual = Handling::Enforce;
            let field = format!("{path} exceptions");
            if ledger.note(id, &field, "none", &found, danger, usual) == usual {
                ledger.need(&path);
                right = left;
            }
        }
        if path == SSHD && !ours.is_empty() {
            right = edit::sshd_include(&right);
        }
        if right != text {
            if mended {
                ledger.need(&path);
            }
            ledger.edit(id, &path, right, Vec::new());
        }
    }
}

/// Removes a file of the server's directory in which settings could be hidden: a link, or no text.
fn unreadable(id: &str, path: &str, ledger: &mut Ledger<'_>) {
    let danger = Some(Danger::Sshd);
    let found = match ledger.facts.files.get(path) {
        Some(FileFact::Link { .. }) => "a link",
        Some(FileFact::Regular { .. }) => "not a text that can be read",
        Some(FileFact::Directory { .. } | FileFact::Other) | None => return,
    };
    if path == SSHD {
        ledger.bar(id, path, &format!("it is {found}"), danger);
        return;
    }
    let usual = Handling::Enforce;
    let field = format!("{path} settings");
    if ledger.note(id, &field, "can be read", found, danger, usual) == usual {
        ledger.need(path);
        ledger.delete(id, path, Vec::new());
    }
}

/// Returns the value that counts.
fn effective(name: &str, ledger: &Ledger<'_>) -> String {
    let settings = ledger.facts.sshd.as_ref();
    let values = settings.and_then(|sshd| sshd.get(&name.to_ascii_lowercase()));
    values.map_or_else(
        || match ledger.facts.sshd_fault.as_str() {
            "" => "absent".to_owned(),
            fault => format!("unreadable ({fault})"),
        },
        |values| values.join(", "),
    )
}

/// Returns our file: settings that are ours, and the lines that it has for those which stay as
/// they are.
fn own_file(
    settings: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    ledger: &Ledger<'_>,
) -> String {
    let found = ledger.facts.files.get(SSHD_OWN).and_then(FileFact::text);
    let mut text = "# Written by homestak; other settings belong into other files.\n".to_owned();
    for name in settings.keys() {
        if let Some(value) = ours.get(name) {
            text += &format!("{name} {value}\n");
            continue;
        }
        for line in found.unwrap_or_default().lines() {
            let word = line.split_whitespace().next().unwrap_or_default();
            if word.eq_ignore_ascii_case(name) {
                text += &format!("{line}\n");
            }
        }
    }
    text
}
