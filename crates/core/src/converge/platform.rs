//! Packages, services, files and kernel settings. Services and packages that existed before the
//! first spec are never stopped or removed for being absent from it.

use std::collections::{BTreeMap, BTreeSet};

use super::change::Danger;
use super::decision_builder::DecisionBuilder;
use super::facts::UnitFact;
use super::resource::Resource;
use super::step::ConvergeStep;

/// The unit of fail2ban.
pub(super) const FAIL2BAN: &str = "fail2ban.service";
/// The managed part of its configuration.
pub(super) const JAIL: &str = "/etc/fail2ban/jail.d/homestak.local";
/// The managed kernel settings.
pub(super) const SYSCTL: &str = "/etc/sysctl.d/90-homestak.conf";

/// The directory of local unit files.
const UNITS: &str = "/etc/systemd/system";

const ROOT_FILE: (u32, &str, &str) = (0o644, "root", "root");

pub(super) fn package(
    id: &str,
    name: &str,
    version: Option<&str>,
    builder: &mut DecisionBuilder<'_>,
) {
    let found = builder.facts.packages.get(name);
    let absent = found.is_none();
    let found = match (found, version) {
        (Some(package), Some(_)) => package.version.clone(),
        (Some(_), None) => "installed".to_owned(),
        (None, _) => "absent".to_owned(),
    };
    if builder.compare(id, "state", version.unwrap_or("installed"), &found, None) {
        let package =
            version.map_or_else(|| name.to_owned(), |version| format!("{name}={version}"));
        builder.install.insert(package);
    }
    let ours = absent && !builder.ignores(id, "state");
    if ours || builder.last.managed.packages.contains(name) {
        builder.managed.packages.insert(name.to_owned());
    }
}

pub(super) fn service(id: &str, unit: &str, enabled: bool, builder: &mut DecisionBuilder<'_>) {
    let found = builder.facts.units.get(unit).cloned();
    if !enabled {
        disable(id, unit, builder);
        return;
    }
    let corrected = enable(id, unit, found.as_ref(), builder);
    let written = builder
        .desired_files
        .contains_key(&format!("{UNITS}/{unit}"));
    if found.is_none() && corrected && !written && builder.install.is_empty() {
        builder.refuse(format!(
            "unit `{unit}` does not exist, and no package that could provide it is to be installed"
        ));
    }
}

/// States of units that are started automatically or cannot be enabled.
fn is_enabled(state: &str) -> bool {
    matches!(
        state,
        "enabled" | "static" | "generated" | "alias" | "indirect" | "transient" | "linked"
    )
}

/// Enables and starts a unit, and returns whether anything is corrected.
fn enable(
    id: &str,
    unit: &str,
    found: Option<&UnitFact>,
    builder: &mut DecisionBuilder<'_>,
) -> bool {
    let file = found.map_or("absent", |unit| unit.file_state.as_str());
    let active = found.map_or("absent", |unit| unit.active_state.as_str());
    let runs = matches!(active, "active" | "reloading");
    let name = unit.to_owned();
    let danger = Danger::of_unit(unit);
    let enabled = if is_enabled(file) { "enabled" } else { file };
    let enables = builder.compare(id, "enabled", "enabled", enabled, danger);
    if enables {
        let masked = file.starts_with("masked");
        builder.steps.insert(ConvergeStep::Enable {
            unit: name.clone(),
            masked,
        });
    }
    let active = if runs { "active" } else { active };
    let starts = builder.compare(id, "active", "active", active, danger);
    if starts {
        builder
            .steps
            .insert(ConvergeStep::Start { unit: name.clone() });
    }
    if enables || starts || builder.last.managed.services.contains(unit) {
        builder.managed.services.insert(name);
    }
    enables || starts
}

/// Disables and stops a unit and the units that activate it.
fn disable(id: &str, unit: &str, builder: &mut DecisionBuilder<'_>) {
    let Some(found) = builder.facts.units.get(unit).cloned() else {
        builder.compare(id, "enabled", "disabled", "disabled", None);
        builder.compare(id, "active", "inactive", "inactive", None);
        return;
    };
    let mut units = vec![(unit.to_owned(), found.clone())];
    for trigger in &found.triggered_by {
        if let Some(fact) = builder.facts.units.get(trigger) {
            units.push((trigger.clone(), fact.clone()));
        }
    }
    for (nth, (unit, fact)) in units.into_iter().enumerate() {
        let field = |field: &str| match nth {
            0 => field.to_owned(),
            _ => format!("{unit} {field}"),
        };
        let enabled = matches!(
            fact.file_state.as_str(),
            "enabled" | "enabled-runtime" | "linked"
        );
        let state = if enabled { "enabled" } else { "disabled" };
        let danger = Danger::of_unit(&unit);
        if builder.compare(id, &field("enabled"), "disabled", state, danger) {
            builder
                .steps
                .insert(ConvergeStep::Disable { unit: unit.clone() });
        }
        let runs = !matches!(fact.active_state.as_str(), "inactive" | "failed");
        let state = if runs {
            fact.active_state.as_str()
        } else {
            "inactive"
        };
        if builder.compare(id, &field("active"), "inactive", state, danger) {
            builder
                .steps
                .insert(ConvergeStep::Stop { unit: unit.clone() });
        }
    }
}

pub(super) fn fail2ban(id: &str, enabled: bool, port: i64, builder: &mut DecisionBuilder<'_>) {
    let unit = FAIL2BAN.to_owned();
    if !enabled {
        disable(id, &unit, builder);
        builder.delete_file(id, JAIL, Vec::new());
        return;
    }
    let found = builder.facts.units.get(FAIL2BAN).cloned();
    enable(id, &unit, found.as_ref(), builder);
    if found.is_none() {
        // Its directories come with its package; facts are gathered again after the installation.
        builder.keep_file(JAIL);
        return;
    }
    let content = format!(
        "# Written by homestak.\n[sshd]\nenabled = true\nport = {port}\nbackend = systemd\nmaxretry = 5\nbantime = 3600\n"
    );
    builder.put_file(
        id,
        JAIL,
        content,
        ROOT_FILE,
        vec![ConvergeStep::Restart { unit }],
    );
}

pub(super) fn file(id: &str, resource: &Resource, builder: &mut DecisionBuilder<'_>) {
    let Resource::File {
        path,
        content,
        mode,
        owner,
        group,
        restart,
    } = resource
    else {
        return;
    };
    let units = restart.iter().cloned();
    let then = units.map(|unit| ConvergeStep::Restart { unit }).collect();
    builder.put_file(id, path, content.clone(), (*mode, owner, group), then);
}

pub(super) fn sysctl(
    id: &str,
    settings: &BTreeMap<String, String>,
    builder: &mut DecisionBuilder<'_>,
) {
    if settings.is_empty() {
        return;
    }
    let settings: BTreeMap<&String, &String> = settings
        .iter()
        .filter(|(key, _)| !builder.ignores(id, key))
        .collect();
    if settings.is_empty() {
        builder.keep_file(SYSCTL);
        return;
    }
    for (key, value) in &settings {
        let (key, value) = (*key, *value);
        let Some(found) = builder.facts.sysctl.get(key).cloned() else {
            builder.refuse(format!(
                "kernel setting `{key}` does not exist on this node"
            ));
            continue;
        };
        if builder.compare(id, key, value, &found, None) {
            if let Some(why) = builder.facts.readonly_sysctl.get(key) {
                builder.refuse(format!(
                    "kernel setting `{key}` cannot be changed on this node: {why}"
                ));
            }
            let (key, value) = (key.clone(), value.clone());
            builder.steps.insert(ConvergeStep::Sysctl { key, value });
        }
    }
    let lines = settings
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"));
    let content = format!("# Written by homestak.\n{}", lines.collect::<String>());
    builder.put_file(id, SYSCTL, content, ROOT_FILE, Vec::new());
}

/// Refuses files whose owner, group or units do not exist and are not created by the spec. Packages
/// may provide them, so nothing is refused while packages are to be installed.
pub(super) fn check_files(desired: &[Resource], builder: &mut DecisionBuilder<'_>) {
    if !builder.install.is_empty() {
        return;
    }
    let is_created = |name: &str| {
        desired.contains(&Resource::User {
            name: name.to_owned(),
        })
    };
    for resource in desired {
        let Resource::File {
            path,
            owner,
            group,
            restart,
            ..
        } = resource
        else {
            continue;
        };
        let id = resource.id();
        if builder.ignores(&id, "content") && builder.ignores(&id, "owner") {
            continue;
        }
        let missing = &builder.facts.missing_owners;
        let owners = [("user", owner), ("group", group)];
        let owners = owners
            .into_iter()
            .filter(|(kind, name)| missing.contains(&format!("{kind} {name}")) && !is_created(name))
            .map(|(kind, name)| format!("{kind} `{name}` does not exist (owner of `{path}`)"));
        let units = restart.iter().filter(|unit| {
            let written = builder
                .desired_files
                .contains_key(&format!("{UNITS}/{unit}"));
            !builder.facts.units.contains_key(*unit) && !written
        });
        let units =
            units.map(|unit| format!("unit `{unit}` does not exist (restarted for `{path}`)"));
        let refusals: Vec<String> = owners.chain(units).collect();
        builder.refusals.extend(refusals);
    }
}

/// Removes packages and disables services of an earlier spec that this one does not list.
pub(super) fn remove_unlisted(desired: &[Resource], builder: &mut DecisionBuilder<'_>) {
    let mut packages = BTreeSet::new();
    let mut units = BTreeSet::new();
    for resource in desired {
        if let Resource::Package { name, .. } = resource {
            packages.insert(name.as_str());
        }
        if let Resource::Service { unit, .. } = resource {
            units.insert(unit.as_str());
        }
    }
    units.insert(FAIL2BAN);
    let last = builder.last;
    for name in &last.managed.packages {
        if !packages.contains(name.as_str()) && builder.facts.packages.contains_key(name) {
            let id = format!("package:{name}");
            if builder.compare(&id, "state", "absent", "installed", None) {
                builder.remove.insert(name.clone());
            } else {
                builder.managed.packages.insert(name.clone());
            }
        }
    }
    for unit in &last.managed.services {
        if !units.contains(unit.as_str()) {
            let id = format!("service:{unit}");
            disable(&id, unit, builder);
            if builder.ignores(&id, "enabled") || builder.ignores(&id, "active") {
                builder.managed.services.insert(unit.clone());
            }
        }
    }
}
