//! Packages, services, files, kernel settings.
//!
//! In: what is wanted. Out: entries of the ledger.
//! Never: a service stopped or a package removed that was there before any spec.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::UnitFact;
use super::ledger::Ledger;
use super::resource::Resource;
use super::step::Step;

/// The unit that bans.
pub(super) const FAIL2BAN: &str = "fail2ban.service";
/// Our part of its configuration.
pub(super) const JAIL: &str = "/etc/fail2ban/jail.d/homestak.local";
/// Our kernel settings.
pub(super) const SYSCTL: &str = "/etc/sysctl.d/90-homestak.conf";

/// Where units of this machine are.
const UNITS: &str = "/etc/systemd/system";

const ROOTS: (u32, &str, &str) = (0o644, "root", "root");

pub(super) fn package(id: &str, name: &str, version: Option<&str>, ledger: &mut Ledger<'_>) {
    let found = ledger.facts.packages.get(name);
    let absent = found.is_none();
    let found = match (found, version) {
        (Some(package), Some(_)) => package.version.clone(),
        (Some(_), None) => "installed".to_owned(),
        (None, _) => "absent".to_owned(),
    };
    if ledger.compare(id, "state", version.unwrap_or("installed"), &found, None) {
        let wish = version.map_or_else(|| name.to_owned(), |version| format!("{name}={version}"));
        ledger.install.insert(wish);
    }
    let ours = absent && !ledger.ignores(id, "state");
    if ours || ledger.last.managed.packages.contains(name) {
        ledger.managed.packages.insert(name.to_owned());
    }
}

pub(super) fn service(id: &str, unit: &str, enabled: bool, ledger: &mut Ledger<'_>) {
    let found = ledger.facts.units.get(unit).cloned();
    if !enabled {
        off(id, unit, ledger);
        return;
    }
    let mended = on(id, unit, found.as_ref(), ledger);
    let written = ledger.drafts.contains_key(&format!("{UNITS}/{unit}"));
    if found.is_none() && mended && !written && ledger.install.is_empty() {
        ledger.refuse(format!(
            "there is no unit `{unit}`, and no package that could bring it is missing"
        ));
    }
}

/// States of units that start by themselves, or that need no starting.
fn is_enabled(state: &str) -> bool {
    matches!(
        state,
        "enabled" | "static" | "generated" | "alias" | "indirect" | "transient" | "linked"
    )
}

/// Tells whether anything is mended.
fn on(id: &str, unit: &str, found: Option<&UnitFact>, ledger: &mut Ledger<'_>) -> bool {
    let file = found.map_or("absent", |unit| unit.file_state.as_str());
    let active = found.map_or("absent", |unit| unit.active_state.as_str());
    let runs = matches!(active, "active" | "reloading");
    let name = unit.to_owned();
    let enabled = if is_enabled(file) { "enabled" } else { file };
    let enables = ledger.compare(id, "enabled", "enabled", enabled, None);
    if enables {
        let masked = file.starts_with("masked");
        ledger.steps.insert(Step::Enable {
            unit: name.clone(),
            masked,
        });
    }
    let active = if runs { "active" } else { active };
    let starts = ledger.compare(id, "active", "active", active, None);
    if starts {
        ledger.steps.insert(Step::Start { unit: name.clone() });
    }
    if enables || starts || ledger.last.managed.services.contains(unit) {
        ledger.managed.services.insert(name);
    }
    enables || starts
}

/// Off, with whatever would start it again.
fn off(id: &str, unit: &str, ledger: &mut Ledger<'_>) {
    let Some(found) = ledger.facts.units.get(unit).cloned() else {
        ledger.compare(id, "enabled", "disabled", "disabled", None);
        ledger.compare(id, "active", "inactive", "inactive", None);
        return;
    };
    let mut units = vec![(unit.to_owned(), found.clone())];
    for trigger in &found.triggered_by {
        if let Some(fact) = ledger.facts.units.get(trigger) {
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
        if ledger.compare(id, &field("enabled"), "disabled", state, None) {
            ledger.steps.insert(Step::Disable { unit: unit.clone() });
        }
        let runs = !matches!(fact.active_state.as_str(), "inactive" | "failed");
        let state = if runs {
            fact.active_state.as_str()
        } else {
            "inactive"
        };
        if ledger.compare(id, &field("active"), "inactive", state, None) {
            ledger.steps.insert(Step::Stop { unit: unit.clone() });
        }
    }
}

pub(super) fn fail2ban(id: &str, enabled: bool, port: i64, ledger: &mut Ledger<'_>) {
    let unit = FAIL2BAN.to_owned();
    if !enabled {
        off(id, &unit, ledger);
        ledger.delete(id, JAIL, Vec::new());
        return;
    }
    let found = ledger.facts.units.get(FAIL2BAN).cloned();
    on(id, &unit, found.as_ref(), ledger);
    if found.is_none() {
        // Its files come with its package; everything is looked at again then.
        ledger.keep(JAIL);
        return;
    }
    let content = format!(
        "# Written by homestak.\n[sshd]\nenabled = true\nport = {port}\nbackend = systemd\nmaxretry = 5\nbantime = 3600\n"
    );
    ledger.put(id, JAIL, content, ROOTS, vec![Step::Restart { unit }]);
}

pub(super) fn file(id: &str, resource: &Resource, ledger: &mut Ledger<'_>) {
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
    let then = units.map(|unit| Step::Restart { unit }).collect();
    ledger.put(id, path, content.clone(), (*mode, owner, group), then);
}

pub(super) fn sysctl(id: &str, settings: &BTreeMap<String, String>, ledger: &mut Ledger<'_>) {
    if settings.is_empty() {
        return;
    }
    let settings: BTreeMap<&String, &String> = settings
        .iter()
        .filter(|(key, _)| !ledger.ignores(id, key))
        .collect();
    if settings.is_empty() {
        ledger.keep(SYSCTL);
        return;
    }
    for (key, value) in &settings {
        let (key, value) = (*key, *value);
        let Some(found) = ledger.facts.sysctl.get(key).cloned() else {
            ledger.refuse(format!("the kernel of this node has no setting `{key}`"));
            continue;
        };
        if ledger.compare(id, key, value, &found, None) {
            if let Some(why) = ledger.facts.fixed_sysctl.get(key) {
                ledger.refuse(format!(
                    "the setting `{key}` cannot be changed on this node: {why}"
                ));
            }
            let (key, value) = (key.clone(), value.clone());
            ledger.steps.insert(Step::Sysctl { key, value });
        }
    }
    let lines = settings
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"));
    let content = format!("# Written by homestak.\n{}", lines.collect::<String>());
    ledger.put(id, SYSCTL, content, ROOTS, Vec::new());
}

/// Refuses files whose owner, or whose units, are not here and do not come with this spec. Packages
/// may bring both, so that nothing is known while some are to be installed.
pub(super) fn files(wanted: &[Resource], ledger: &mut Ledger<'_>) {
    if !ledger.install.is_empty() {
        return;
    }
    let comes = |name: &str| {
        wanted.contains(&Resource::User {
            name: name.to_owned(),
        })
    };
    for resource in wanted {
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
        if ledger.ignores(&id, "content") && ledger.ignores(&id, "owner") {
            continue;
        }
        let missing = &ledger.facts.missing_owners;
        let owners = [("user", owner), ("group", group)];
        let owners = owners
            .into_iter()
            .filter(|(kind, name)| missing.contains(&format!("{kind} {name}")) && !comes(name))
            .map(|(kind, name)| format!("there is no {kind} `{name}` to own `{path}`"));
        let units = restart.iter().filter(|unit| {
            let written = ledger.drafts.contains_key(&format!("{UNITS}/{unit}"));
            !ledger.facts.units.contains_key(*unit) && !written
        });
        let units = units.map(|unit| format!("there is no unit `{unit}` to restart for `{path}`"));
        let refusals: Vec<String> = owners.chain(units).collect();
        ledger.refusals.extend(refusals);
    }
}

/// Takes away what an earlier spec brought and this one does not want.
pub(super) fn take_away(wanted: &[Resource], ledger: &mut Ledger<'_>) {
    let mut packages = BTreeSet::new();
    let mut units = BTreeSet::new();
    for resource in wanted {
        if let Resource::Package { name, .. } = resource {
            packages.insert(name.as_str());
        }
        if let Resource::Service { unit, .. } = resource {
            units.insert(unit.as_str());
        }
    }
    units.insert(FAIL2BAN);
    let last = ledger.last;
    for name in &last.managed.packages {
        if !packages.contains(name.as_str()) && ledger.facts.packages.contains_key(name) {
            let id = format!("package:{name}");
            if ledger.compare(&id, "state", "absent", "installed", None) {
                ledger.remove.insert(name.clone());
            } else {
                ledger.managed.packages.insert(name.clone());
            }
        }
    }
    for unit in &last.managed.services {
        if !units.contains(unit.as_str()) {
            let id = format!("service:{unit}");
            off(&id, unit, ledger);
            if ledger.ignores(&id, "enabled") || ledger.ignores(&id, "active") {
                ledger.managed.services.insert(unit.clone());
            }
        }
    }
}
