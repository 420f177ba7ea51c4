//! Settings of the SSH server, in one managed file. Settings that are not corrected stay where they
//! are.

use std::collections::BTreeMap;

use super::change::{Danger, Handling};
use super::decision_builder::DecisionBuilder;
use super::edit;
use super::facts::FileFact;

/// The main configuration file of the SSH server.
pub const SSHD: &str = "/etc/ssh/sshd_config";
/// The directory of further configuration files.
pub const SSHD_D: &str = "/etc/ssh/sshd_config.d";
/// The managed file. sshd uses the first value of a setting, so the file sorts first.
pub const SSHD_OWN: &str = "/etc/ssh/sshd_config.d/00-homestak.conf";

pub(super) fn sshd(
    id: &str,
    settings: &BTreeMap<String, String>,
    builder: &mut DecisionBuilder<'_>,
) {
    let mut ours = settings.clone();
    let mut corrected = false;
    for (name, desired) in settings {
        let effective = effective(name, builder);
        let found = if edit::same_setting(&effective, desired) {
            desired
        } else {
            &effective
        };
        let is_corrected = builder.compare(id, name, desired, &found.clone(), Some(Danger::Sshd));
        corrected |= is_corrected;
        if builder.ignores(id, name) || found != desired && !is_corrected {
            ours.remove(name);
        }
    }
    if builder.facts.sshd.is_none() {
        // Not installed yet; facts are gathered again after the installation.
        builder.keep_file(SSHD_OWN);
        return;
    }
    if corrected {
        builder.require(SSHD_OWN);
    }
    let content = own_file(settings, &ours, builder);
    builder.put_file(id, SSHD_OWN, content, (0o644, "root", "root"), Vec::new());
    let others: Vec<String> = builder
        .facts
        .files
        .keys()
        .filter(|path| {
            path.as_str() == SSHD
                || path.starts_with(SSHD_D) && path.ends_with(".conf") && *path != SSHD_OWN
        })
        .cloned()
        .collect();
    let refused = builder.facts.refused_paths.iter();
    let refused = refused.filter(|(path, _)| path.starts_with(SSHD_D));
    for (path, why) in refused.map(|(path, why)| (path.clone(), why.clone())) {
        builder.refuse_field(id, &path, &why, Some(Danger::Sshd));
    }
    for path in others {
        let Some(text) = builder.text(&path).map(str::to_owned) else {
            delete_unreadable(id, &path, builder);
            continue;
        };
        let mut right = edit::sshd(&text, &ours);
        let (left, exceptions) = edit::sshd_exceptions(&right, settings);
        if !exceptions.is_empty() {
            let (found, danger) = (exceptions.join("\n"), Some(Danger::Sshd));
            let usual = Handling::Enforce;
            let field = format!("{path} exceptions");
            if builder.report(id, &field, "none", &found, danger, usual) == usual {
                builder.require(&path);
                right = left;
            }
        }
        if path == SSHD && !ours.is_empty() {
            right = edit::sshd_include(&right);
        }
        if right != text {
            if corrected {
                builder.require(&path);
            }
            builder.edit_file(id, &path, right, Vec::new());
        }
    }
}

/// Deletes a configuration file that cannot be checked: a link, or not text.
fn delete_unreadable(id: &str, path: &str, builder: &mut DecisionBuilder<'_>) {
    let danger = Some(Danger::Sshd);
    let found = match builder.facts.files.get(path) {
        Some(FileFact::Link { .. }) => "a symbolic link",
        Some(FileFact::Regular { .. }) => "not a readable text file",
        Some(FileFact::Directory { .. } | FileFact::Other) | None => return,
    };
    if path == SSHD {
        builder.refuse_field(id, path, &format!("it is {found}"), danger);
        return;
    }
    let usual = Handling::Enforce;
    let field = format!("{path} settings");
    if builder.report(id, &field, "readable", found, danger, usual) == usual {
        builder.require(path);
        builder.delete_file(id, path, Vec::new());
    }
}

/// Returns the effective value of a setting.
fn effective(name: &str, builder: &DecisionBuilder<'_>) -> String {
    let settings = builder.facts.sshd.as_ref();
    let values = settings.and_then(|sshd| sshd.get(&name.to_ascii_lowercase()));
    values.map_or_else(
        || match builder.facts.sshd_error.as_str() {
            "" => "absent".to_owned(),
            error => format!("unknown ({error})"),
        },
        |values| values.join(", "),
    )
}

/// Returns the content of the managed file: corrected settings, and the existing lines of those
/// that are not corrected.
fn own_file(
    settings: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    builder: &DecisionBuilder<'_>,
) -> String {
    let found = builder.facts.files.get(SSHD_OWN).and_then(FileFact::text);
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
