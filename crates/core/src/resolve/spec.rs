//! A spec without references: what a node becomes, the same bytes whatever the mode.
//!
//! In: a spec's name, and the node it is for. Out: a [`Sheet`]: JSON beside origins.
//! Never: a posture left out, a host name other than the node's, an order that varies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use crate::catalog::Catalog;
use crate::doc::posture::{AuthMethod, PermitRootLogin, Posture, YesNo};
use crate::doc::scalar::Package;
use crate::doc::secrets::SecretMap;
use crate::doc::spec::{Spec, User};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::node::ResolvedNode;
use super::origin::{Origin, Valued, written_or};
use super::reference::dangling;
use super::reveal::{Reveal, SecretRef};
use super::sheet::Sheet;

/// Posture of specs that name none: the strict one, so that a node is only opened on purpose.
pub const DEFAULT_POSTURE: &str = "prod";

/// Resolves a spec, for a node or on its own. `None` when the spec could not be read.
pub fn spec(
    catalog: &Catalog,
    name: &str,
    node: Option<&ResolvedNode>,
    reveal: Reveal,
) -> Option<Sheet> {
    let document = catalog.specs.get(name)?;
    let spec = document.value.as_ref()?;
    let mut sheet = Sheet::default();
    sheet.set("schema_version", json!(1));
    identity(&mut sheet, catalog, spec, name, node);
    network(&mut sheet, spec, node);
    access(&mut sheet, catalog, spec, reveal);
    platform(&mut sheet, catalog, spec);
    config(&mut sheet, catalog, spec);
    run(&mut sheet, spec);
    Some(sheet)
}

fn identity(
    sheet: &mut Sheet,
    catalog: &Catalog,
    spec: &Spec,
    name: &str,
    node: Option<&ResolvedNode>,
) {
    let identity = spec.identity.as_ref();
    let own = identity.and_then(|identity| identity.hostname.as_ref());
    let hostname = match (node, own) {
        (Some(node), _) => {
            Valued::derived(node.name.to_string(), "the node's name", Some(node.span))
        }
        (None, Some(own)) => Valued::written(own.to_string(), own.span),
        (None, None) => Valued::derived(name.to_owned(), "the spec's name", None),
    };
    sheet.put_valued("identity.hostname", &hostname);
    let domain = identity.and_then(|identity| identity.domain.as_ref());
    if let Some(domain) = domain.or_else(|| catalog.defaults()?.domain.as_ref()) {
        sheet.put(
            "identity.domain",
            domain.to_string(),
            &Origin::Written(domain.span),
        );
    }
}

/// A fixed address only: a node on DHCP has no `network` section.
fn network(sheet: &mut Sheet, spec: &Spec, node: Option<&ResolvedNode>) {
    if let Some(node) = node {
        let net = &node.networking;
        let Some(address) = net.address.value else {
            return;
        };
        sheet.put("network.ip", address.to_string(), &net.address.origin);
        if let Some(gateway) = &net.gateway {
            sheet.put_text("network.gateway", gateway);
        }
        let dns: Vec<String> = net.dns.value.iter().map(ToString::to_string).collect();
        sheet.put("network.dns", dns, &net.dns.origin);
        return;
    }
    let Some(net) = &spec.network else { return };
    if let Some(crate::doc::address::Address::Static { ip, prefix }) =
        net.ip.as_ref().map(|ip| ip.value)
    {
        let text = prefix.map_or_else(|| ip.to_string(), |prefix| format!("{ip}/{prefix}"));
        sheet.put("network.ip", text, &Origin::Written(net.span));
    }
    if let Some(gateway) = &net.gateway {
        sheet.put(
            "network.gateway",
            gateway.to_string(),
            &Origin::Written(gateway.span),
        );
    }
    if let Some(dns) = &net.dns {
        let list: Vec<String> = dns.iter().map(|ip| ip.to_string()).collect();
        sheet.put("network.dns", list, &Origin::Written(dns.span));
    }
}

fn access(sheet: &mut Sheet, catalog: &Catalog, spec: &Spec, reveal: Reveal) {
    let name = posture_name(spec);
    sheet.put_valued("access.posture", &name);
    let keys = ssh_keys(catalog);
    let users = spec
        .access
        .as_ref()
        .and_then(|access| access.users.as_ref());
    let mut list = Vec::new();
    for user in users.iter().flat_map(|users| &users.value) {
        let Some(name) = &user.name else { continue };
        let sudo = written_or(user.sudo.as_ref(), false);
        let chosen: Vec<String> = user_keys(user, keys)
            .iter()
            .map(|key| key.render(reveal))
            .collect();
        let path = format!("access.users[{}]", list.len());
        sheet.note(format!("{path}.name"), Origin::Written(name.span));
        sheet.note(format!("{path}.sudo"), sudo.origin);
        sheet.note(
            format!("{path}.ssh_keys"),
            user.ssh_keys.as_ref().map_or_else(
                || Origin::Derived("every key of the site".into(), None),
                |keys| Origin::Written(keys.span),
            ),
        );
        list.push(json!({ "name": name.to_string(), "sudo": sudo.value, "ssh_keys": chosen }));
    }
    sheet.set("access.users", Json::Array(list));
    let posture = catalog
        .postures
        .get(&name.value)
        .and_then(|document| document.value.as_ref());
    posture_into(sheet, posture);
}

/// The keys that may log in as a user: those listed, or all.
fn user_keys(user: &User, keys: Option<&SecretMap>) -> Vec<SecretRef> {
    match &user.ssh_keys {
        Some(listed) => listed
            .iter()
            .filter_map(|id| SecretRef::find("ssh_keys", &id.0, keys))
            .collect(),
        None => all_keys(keys),
    }
}

/// Every SSH key of the site, by id.
pub(super) fn all_keys(keys: Option<&SecretMap>) -> Vec<SecretRef> {
    keys.into_iter()
        .flatten()
        .filter_map(|(id, _)| SecretRef::find("ssh_keys", id, keys))
        .collect()
}

/// Returns the posture a spec names, or the default one.
pub(super) fn posture_name(spec: &Spec) -> Valued<String> {
    let written = spec
        .access
        .as_ref()
        .and_then(|access| access.posture.as_ref());
    written.map_or_else(
        || Valued::built_in(DEFAULT_POSTURE.to_owned()),
        |posture| Valued::written(posture.to_string(), posture.span),
    )
}

/// What a posture says, with defaults. Shared with the Ansible export.
pub(super) struct Secured {
    pub(super) auth: Valued<AuthMethod>,
    pub(super) port: Valued<i64>,
    pub(super) permit_root_login: Valued<PermitRootLogin>,
    pub(super) password_authentication: Valued<YesNo>,
    pub(super) nopasswd: Valued<bool>,
    pub(super) fail2ban: Valued<bool>,
    pub(super) packages: Valued<Vec<String>>,
}

/// Applies the defaults to a posture; without one they alone hold, and root cannot log in at all.
pub(super) fn secured(posture: Option<&Posture>) -> Secured {
    let root = match posture {
        Some(_) => PermitRootLogin::ProhibitPassword,
        None => PermitRootLogin::No,
    };
    let auth = posture.and_then(|posture| posture.auth.as_ref());
    let ssh = posture.and_then(|posture| posture.ssh.as_ref());
    let sudo = posture.and_then(|posture| posture.sudo.as_ref());
    let fail2ban = posture.and_then(|posture| posture.fail2ban.as_ref());
    let packages = posture.and_then(|posture| posture.packages.as_ref());
    let port = ssh.and_then(|ssh| ssh.port.as_ref());
    Secured {
        auth: written_or(
            auth.and_then(|auth| auth.method.as_ref()),
            AuthMethod::Network,
        ),
        port: port.map_or_else(
            || Valued::built_in(22),
            |port| Valued::written(port.0, port.span),
        ),
        permit_root_login: written_or(ssh.and_then(|ssh| ssh.permit_root_login.as_ref()), root),
        password_authentication: written_or(
            ssh.and_then(|ssh| ssh.password_authentication.as_ref()),
            YesNo::No,
        ),
        nopasswd: written_or(sudo.and_then(|sudo| sudo.nopasswd.as_ref()), false),
        fail2ban: written_or(
            fail2ban.and_then(|fail2ban| fail2ban.enabled.as_ref()),
            false,
        ),
        packages: packages.map_or_else(
            || Valued::built_in(Vec::new()),
            |packages| Valued::written(texts(Some(packages)), packages.span),
        ),
    }
}

fn posture_into(sheet: &mut Sheet, posture: Option<&Posture>) {
    let secured = secured(posture);
    sheet.put_text("access._posture.auth.method", &secured.auth);
    sheet.put_valued("access._posture.ssh.port", &secured.port);
    sheet.put_text(
        "access._posture.ssh.permit_root_login",
        &secured.permit_root_login,
    );
    sheet.put_text(
        "access._posture.ssh.password_authentication",
        &secured.password_authentication,
    );
    sheet.put_valued("access._posture.sudo.nopasswd", &secured.nopasswd);
    sheet.put_valued("access._posture.fail2ban.enabled", &secured.fail2ban);
    sheet.put_valued("access._posture.packages", &secured.packages);
}

/// Packages of site, spec and posture, each once, in that order.
fn platform(sheet: &mut Sheet, catalog: &Catalog, spec: &Spec) {
    let platform = spec.platform.as_ref();
    let own = platform.and_then(|platform| platform.packages.as_ref());
    let posture = catalog
        .postures
        .get(&posture_name(spec).value)
        .and_then(|document| document.value.as_ref());
    let site = catalog
        .defaults()
        .and_then(|defaults| defaults.packages.as_ref());
    let mut merged: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    for list in [
        site,
        own,
        posture.and_then(|posture| posture.packages.as_ref()),
    ]
    .into_iter()
    .flatten()
    {
        for package in &list.value {
            if known.insert(package.as_str()) {
                sheet.note(
                    format!("platform.packages[{}]", merged.len()),
                    Origin::Written(package.span),
                );
                merged.push(package.to_string());
            }
        }
    }
    sheet.set("platform.packages", merged.into());
    let services = platform.and_then(|platform| platform.services.as_ref());
    for (path, units) in [
        (
            "platform.services.enable",
            services.and_then(|services| services.enable.as_ref()),
        ),
        (
            "platform.services.disable",
            services.and_then(|services| services.disable.as_ref()),
        ),
    ] {
        let list: Vec<String> = units
            .iter()
            .flat_map(|units| &units.value)
            .map(|unit| unit.to_string())
            .collect();
        let origin = units.map_or(Origin::BuiltIn, |units| Origin::Written(units.span));
        sheet.put(path, list, &origin);
    }
}

fn config(sheet: &mut Sheet, catalog: &Catalog, spec: &Spec) {
    let config = spec.config.as_ref();
    let timezone = config.and_then(|config| config.timezone.as_ref());
    if let Some(timezone) = timezone.or_else(|| catalog.defaults()?.timezone.as_ref()) {
        sheet.put(
            "config.timezone",
            timezone.to_string(),
            &Origin::Written(timezone.span),
        );
    }
    if let Some(pve) = config.and_then(|config| config.pve.as_ref()) {
        let site = catalog
            .defaults()
            .and_then(|defaults| defaults.pve_remove_subscription_nag.as_ref());
        let nag = written_or(pve.remove_subscription_nag.as_ref().or(site), true);
        sheet.put_valued("config.pve.remove_subscription_nag", &nag);
    }
    // Sorted, so that the order of keys in the file does not change the bytes.
    let mut more: Vec<_> = config.iter().flat_map(|config| &config.more).collect();
    more.sort_by(|one, other| one.0.cmp(&other.0));
    let mut extra = serde_json::Map::new();
    for (key, value) in more {
        extra.insert(key.clone(), sorted(value.to_json()));
        sheet.note(format!("config.{key}"), Origin::Written(value.span));
    }
    if let Json::Object(mut whole) = sheet
        .json()
        .get("config")
        .cloned()
        .unwrap_or_else(|| json!({}))
    {
        whole.extend(extra);
        sheet.set("config", whole.into());
    }
}

fn sorted(mut json: Json) -> Json {
    json.sort_all_objects();
    json
}

fn run(sheet: &mut Sheet, spec: &Spec) {
    use crate::doc::spec::Trigger;
    let run = spec
        .run
        .as_ref()
        .map(|run| run.value.clone())
        .unwrap_or_default();
    sheet.put_text(
        "run.trigger",
        &written_or(run.trigger.as_ref(), Trigger::Manual),
    );
    let texts = [
        ("run.interval", run.interval.as_ref()),
        ("run.poll_interval", run.poll_interval.as_ref()),
    ];
    for (path, duration) in texts {
        if let Some(duration) = duration {
            sheet.put(path, duration.to_string(), &Origin::Written(duration.span));
        }
    }
    if let Some(port) = &run.port {
        sheet.put("run.port", port.0, &Origin::Written(port.span));
    }
    for (path, text) in [
        ("run.path", &run.path),
        ("run.repo", &run.repo),
        ("run.branch", &run.branch),
    ] {
        if let Some(text) = text {
            sheet.put(path, text.value.clone(), &Origin::Written(text.span));
        }
    }
}

/// Reports what is wrong with a spec and with what it names.
pub fn check(catalog: &Catalog, name: &str, faults: &mut Diagnostics) {
    let Some(document) = catalog.specs.get(name) else {
        return;
    };
    faults.extend(document.faults.clone());
    let Some(spec) = &document.value else { return };
    // What could not be read may have named a posture.
    let whole = (document.faults.errors() == 0).then(|| document.span());
    check_posture(catalog, spec, whole, faults);
    check_keys(catalog, spec, faults);
    check_services(spec, faults);
    check_trigger(spec, faults);
}

/// Only a schedule makes a node act by itself.
fn check_trigger(spec: &Spec, faults: &mut Diagnostics) {
    use crate::doc::spec::Trigger;
    let trigger = spec.run.as_ref().and_then(|run| run.trigger.as_ref());
    let Some(trigger) = trigger else { return };
    match trigger.value {
        Trigger::Schedule | Trigger::Manual => {}
        Trigger::Webhook | Trigger::Git => faults.push(
            Diagnostic::notice(
                Code::NoEffect,
                trigger.span,
                format!(
                    "`trigger: {}` is not implemented yet: it acts like `manual`",
                    trigger.value
                ),
            )
            .hint("write `trigger: schedule` to have the node watched"),
        ),
    }
}

/// A unit cannot be both on and off.
fn check_services(spec: &Spec, faults: &mut Diagnostics) {
    let platform = spec.platform.as_ref();
    let Some(services) = platform.and_then(|platform| platform.services.as_ref()) else {
        return;
    };
    let mut disabled = BTreeMap::new();
    for unit in services.disable.iter().flat_map(|units| &units.value) {
        disabled.entry(&unit.value).or_insert(unit);
    }
    let enabled = services.enable.iter().flat_map(|units| &units.value);
    for unit in enabled {
        if let Some(other) = disabled.get(&unit.value) {
            faults.push(
                Diagnostic::error(
                    Code::Repeated,
                    other.span,
                    format!("`{}` is enabled and disabled", unit.value),
                )
                .label(unit.span, "enabled here")
                .hint("remove it from one of the two lists"),
            );
        }
    }
}

fn check_posture(catalog: &Catalog, spec: &Spec, whole: Option<Span>, faults: &mut Diagnostics) {
    let name = posture_name(spec);
    let posture = catalog.postures.get(&name.value);
    if let Some(document) = posture {
        faults.extend(document.faults.clone());
    }
    match (&name.origin, posture) {
        (Origin::Written(_), Some(_)) => {}
        (Origin::Written(span), None) => {
            let known = catalog.postures.keys().map(String::as_str);
            faults.push(dangling(
                Code::NoSuchPosture,
                *span,
                "posture",
                &name.value,
                known,
            ));
            return;
        }
        (_, found) => {
            let Some(whole) = whole else { return };
            let used = match found {
                Some(_) => format!("`{DEFAULT_POSTURE}` is used"),
                None => format!(
                    "strict built-in settings are used, for the site has no `{DEFAULT_POSTURE}`"
                ),
            };
            faults.push(
                Diagnostic::notice(
                    Code::BuiltInDefault,
                    whole,
                    format!("the spec names no posture, so {used}"),
                )
                .hint("write `access: {posture: NAME}`"),
            );
        }
    }
    check_sudo(
        catalog,
        spec,
        posture.and_then(|posture| posture.value.as_ref()),
        faults,
    );
}

/// Users have no passwords, so sudo that asks for one is of no use to them. The user of the driver
/// is never asked, and root needs no sudo.
fn check_sudo(catalog: &Catalog, spec: &Spec, posture: Option<&Posture>, faults: &mut Diagnostics) {
    let nopasswd = secured(posture).nopasswd;
    if nopasswd.value {
        return;
    }
    let driver = catalog
        .defaults()
        .and_then(|defaults| defaults.vm_user.as_ref());
    let driver = driver.map_or(crate::plan::USER, |user| user.as_str());
    let users = spec
        .access
        .as_ref()
        .and_then(|access| access.users.as_ref());
    for user in users.iter().flat_map(|users| &users.value) {
        let (Some(name), Some(sudo)) = (&user.name, &user.sudo) else {
            continue;
        };
        if !sudo.value || [driver, "root"].contains(&name.as_str()) {
            continue;
        }
        let asking = match posture {
            Some(_) => format!("the posture `{}`", posture_name(spec).value),
            None => "sudo without a posture".to_owned(),
        };
        let mut fault = Diagnostic::error(
            Code::SudoNeedsPassword,
            sudo.span,
            format!(
                "`{}` could not use sudo: {asking} asks for a password, and users have none",
                name.value
            ),
        );
        if let Origin::Written(span) = nopasswd.origin {
            fault = fault.label(span, "asks for a password");
        }
        faults.push(
            fault.hint("remove `sudo: true`, or name a posture with `sudo: {nopasswd: true}`"),
        );
    }
}

fn check_keys(catalog: &Catalog, spec: &Spec, faults: &mut Diagnostics) {
    let users = spec
        .access
        .as_ref()
        .and_then(|access| access.users.as_ref());
    let mut names = BTreeMap::new();
    for user in users.iter().flat_map(|users| &users.value) {
        if let Some(name) = &user.name
            && let Some(first) = names.insert(name.as_str(), name.span)
        {
            faults.push(
                Diagnostic::error(
                    Code::Repeated,
                    name.span,
                    format!("the user `{}` is listed twice", name.value),
                )
                .label(first, "first listed here")
                .hint("keep one of them"),
            );
        }
        let listed = user.ssh_keys.iter().flat_map(|keys| &keys.value);
        super::site::check_ssh_keys(catalog, listed, faults);
    }
}

/// Says once that a spec's own host name is not used by nodes.
pub(super) fn notice_hostname(catalog: &Catalog, name: &str, faults: &mut Diagnostics) {
    let spec = catalog
        .specs
        .get(name)
        .and_then(|document| document.value.as_ref());
    let identity = spec.and_then(|spec| spec.identity.as_ref());
    if let Some(hostname) = identity.and_then(|identity| identity.hostname.as_ref()) {
        faults.push(
            Diagnostic::notice(
                Code::HostnameUnused,
                hostname.span,
                format!(
                    "nodes are called by their own names, not `{}`",
                    hostname.value
                ),
            )
            .hint("remove `hostname`: it only holds for machines without a manifest"),
        );
    }
}

/// The site's SSH keys, when they could be read.
pub(super) fn ssh_keys(catalog: &Catalog) -> Option<&SecretMap> {
    catalog
        .secrets
        .as_ref()?
        .value
        .as_ref()?
        .ssh_keys
        .as_ref()
        .map(|keys| &keys.value)
}

/// Turns a list of packages into text.
pub(super) fn texts(packages: Option<&Spanned<Vec<Spanned<Package>>>>) -> Vec<String> {
    packages
        .into_iter()
        .flat_map(|list| &list.value)
        .map(|package| package.to_string())
        .collect()
}
