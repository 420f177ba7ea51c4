//! Resolves a spec for a node. The result has the same bytes in every mode. It always has a posture,
//! and the name of the node as host name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use crate::catalog::Catalog;
use crate::doc::posture::{AuthMethod, PermitRootLogin, Posture, YesNo};
use crate::doc::scalar::Package;
use crate::doc::secrets::SecretMap;
use crate::doc::spec::{Spec, User};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::node::ResolvedNode;
use super::origin::{Origin, WithOrigin, written_or};
use super::reference::dangling;
use super::resolved_json::ResolvedJson;
use super::secret_visibility::{SecretRef, SecretVisibility};

/// Posture of specs that set none: the strict one.
pub const DEFAULT_POSTURE: &str = "prod";

/// Resolves a spec, for a node or on its own. `None` if the spec could not be read.
pub fn spec(
    catalog: &Catalog,
    name: &str,
    node: Option<&ResolvedNode>,
    visibility: SecretVisibility,
) -> Option<ResolvedJson> {
    let document = catalog.specs.get(name)?;
    let spec = document.value.as_ref()?;
    let mut out = ResolvedJson::default();
    out.set("schema_version", json!(1));
    identity(&mut out, catalog, spec, name, node);
    network(&mut out, spec, node);
    access(&mut out, catalog, spec, visibility);
    platform(&mut out, catalog, spec);
    config(&mut out, catalog, spec);
    run(&mut out, spec);
    Some(out)
}

fn identity(
    out: &mut ResolvedJson,
    catalog: &Catalog,
    spec: &Spec,
    name: &str,
    node: Option<&ResolvedNode>,
) {
    let identity = spec.identity.as_ref();
    let own = identity.and_then(|identity| identity.hostname.as_ref());
    let hostname = match (node, own) {
        (Some(node), _) => {
            WithOrigin::derived(node.name.to_string(), "the node's name", Some(node.span))
        }
        (None, Some(own)) => WithOrigin::written(own.to_string(), own.span),
        (None, None) => WithOrigin::derived(name.to_owned(), "the spec's name", None),
    };
    out.put_value("identity.hostname", &hostname);
    let domain = identity.and_then(|identity| identity.domain.as_ref());
    if let Some(domain) = domain.or_else(|| catalog.defaults()?.domain.as_ref()) {
        out.put(
            "identity.domain",
            domain.to_string(),
            &Origin::Written(domain.span),
        );
    }
}

/// Only for static addresses: a node with DHCP has no `network` section.
fn network(out: &mut ResolvedJson, spec: &Spec, node: Option<&ResolvedNode>) {
    if let Some(node) = node {
        let net = &node.networking;
        let Some(address) = net.address.value else {
            return;
        };
        out.put("network.ip", address.to_string(), &net.address.origin);
        if let Some(gateway) = &net.gateway {
            out.put_text("network.gateway", gateway);
        }
        let dns: Vec<String> = net.dns.value.iter().map(ToString::to_string).collect();
        out.put("network.dns", dns, &net.dns.origin);
        return;
    }
    let Some(net) = &spec.network else { return };
    if let Some(crate::doc::address::Address::Static { ip, prefix }) =
        net.ip.as_ref().map(|ip| ip.value)
    {
        let text = prefix.map_or_else(|| ip.to_string(), |prefix| format!("{ip}/{prefix}"));
        out.put("network.ip", text, &Origin::Written(net.span));
    }
    if let Some(gateway) = &net.gateway {
        out.put(
            "network.gateway",
            gateway.to_string(),
            &Origin::Written(gateway.span),
        );
    }
    if let Some(dns) = &net.dns {
        let list: Vec<String> = dns.iter().map(|ip| ip.to_string()).collect();
        out.put("network.dns", list, &Origin::Written(dns.span));
    }
}

fn access(out: &mut ResolvedJson, catalog: &Catalog, spec: &Spec, visibility: SecretVisibility) {
    let name = posture_name(spec);
    out.put_value("access.posture", &name);
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
            .map(|key| key.render(visibility))
            .collect();
        let path = format!("access.users[{}]", list.len());
        out.add_origin(format!("{path}.name"), Origin::Written(name.span));
        out.add_origin(format!("{path}.sudo"), sudo.origin);
        out.add_origin(
            format!("{path}.ssh_keys"),
            user.ssh_keys.as_ref().map_or_else(
                || Origin::Derived("every key of the site".into(), None),
                |keys| Origin::Written(keys.span),
            ),
        );
        list.push(json!({ "name": name.to_string(), "sudo": sudo.value, "ssh_keys": chosen }));
    }
    out.set("access.users", Json::Array(list));
    let posture = catalog
        .postures
        .get(&name.value)
        .and_then(|document| document.value.as_ref());
    render_posture(out, posture);
}

/// Returns the authorized keys of a user: those listed, or all.
fn user_keys(user: &User, keys: Option<&SecretMap>) -> Vec<SecretRef> {
    match &user.ssh_keys {
        Some(listed) => listed
            .iter()
            .filter_map(|id| SecretRef::find("ssh_keys", &id.0, keys))
            .collect(),
        None => all_keys(keys),
    }
}

/// Returns all SSH keys of the site, by id.
pub(super) fn all_keys(keys: Option<&SecretMap>) -> Vec<SecretRef> {
    keys.into_iter()
        .flatten()
        .filter_map(|(id, _)| SecretRef::find("ssh_keys", id, keys))
        .collect()
}

/// Returns the name of the posture of a spec, or the default.
pub(super) fn posture_name(spec: &Spec) -> WithOrigin<String> {
    let written = spec
        .access
        .as_ref()
        .and_then(|access| access.posture.as_ref());
    written.map_or_else(
        || WithOrigin::built_in(DEFAULT_POSTURE.to_owned()),
        |posture| WithOrigin::written(posture.to_string(), posture.span),
    )
}

/// The settings of a posture, with defaults. Shared with the Ansible export.
pub(super) struct PostureSettings {
    pub(super) auth: WithOrigin<AuthMethod>,
    pub(super) port: WithOrigin<i64>,
    pub(super) permit_root_login: WithOrigin<PermitRootLogin>,
    pub(super) password_authentication: WithOrigin<YesNo>,
    pub(super) nopasswd: WithOrigin<bool>,
    pub(super) fail2ban: WithOrigin<bool>,
    pub(super) packages: WithOrigin<Vec<String>>,
}

/// Applies the defaults to a posture. Without a posture, root cannot log in at all.
pub(super) fn posture_settings(posture: Option<&Posture>) -> PostureSettings {
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
    PostureSettings {
        auth: written_or(
            auth.and_then(|auth| auth.method.as_ref()),
            AuthMethod::Network,
        ),
        port: port.map_or_else(
            || WithOrigin::built_in(22),
            |port| WithOrigin::written(port.0, port.span),
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
            || WithOrigin::built_in(Vec::new()),
            |packages| WithOrigin::written(texts(Some(packages)), packages.span),
        ),
    }
}

fn render_posture(out: &mut ResolvedJson, posture: Option<&Posture>) {
    let posture_settings = posture_settings(posture);
    out.put_text("access._posture.auth.method", &posture_settings.auth);
    out.put_value("access._posture.ssh.port", &posture_settings.port);
    out.put_text(
        "access._posture.ssh.permit_root_login",
        &posture_settings.permit_root_login,
    );
    out.put_text(
        "access._posture.ssh.password_authentication",
        &posture_settings.password_authentication,
    );
    out.put_value("access._posture.sudo.nopasswd", &posture_settings.nopasswd);
    out.put_value(
        "access._posture.fail2ban.enabled",
        &posture_settings.fail2ban,
    );
    out.put_value("access._posture.packages", &posture_settings.packages);
}

/// Merges the packages of site, spec and posture in that order, without duplicates.
fn platform(out: &mut ResolvedJson, catalog: &Catalog, spec: &Spec) {
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
                out.add_origin(
                    format!("platform.packages[{}]", merged.len()),
                    Origin::Written(package.span),
                );
                merged.push(package.to_string());
            }
        }
    }
    out.set("platform.packages", merged.into());
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
        out.put(path, list, &origin);
    }
}

fn config(out: &mut ResolvedJson, catalog: &Catalog, spec: &Spec) {
    let config = spec.config.as_ref();
    let timezone = config.and_then(|config| config.timezone.as_ref());
    if let Some(timezone) = timezone.or_else(|| catalog.defaults()?.timezone.as_ref()) {
        out.put(
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
        out.put_value("config.pve.remove_subscription_nag", &nag);
    }
    // Sorted, so that the order of keys in the file does not change the bytes.
    let mut more: Vec<_> = config.iter().flat_map(|config| &config.more).collect();
    more.sort_by(|one, other| one.0.cmp(&other.0));
    let mut extra = serde_json::Map::new();
    for (key, value) in more {
        extra.insert(key.clone(), sorted(value.to_json()));
        out.add_origin(format!("config.{key}"), Origin::Written(value.span));
    }
    if let Json::Object(mut whole) = out
        .json()
        .get("config")
        .cloned()
        .unwrap_or_else(|| json!({}))
    {
        whole.extend(extra);
        out.set("config", whole.into());
    }
}

fn sorted(mut json: Json) -> Json {
    json.sort_all_objects();
    json
}

fn run(out: &mut ResolvedJson, spec: &Spec) {
    use crate::doc::spec::Trigger;
    let run = spec
        .run
        .as_ref()
        .map(|run| run.value.clone())
        .unwrap_or_default();
    out.put_text(
        "run.trigger",
        &written_or(run.trigger.as_ref(), Trigger::Manual),
    );
    let texts = [
        ("run.interval", run.interval.as_ref()),
        ("run.poll_interval", run.poll_interval.as_ref()),
    ];
    for (path, duration) in texts {
        if let Some(duration) = duration {
            out.put(path, duration.to_string(), &Origin::Written(duration.span));
        }
    }
    let texts = [
        ("run.webhook", run.webhook.as_ref().map(spanned_text)),
        ("run.repo", run.repo.as_ref().map(spanned_text)),
        ("run.branch", run.branch.as_ref().map(spanned_text)),
        ("run.updates", run.updates.as_ref().map(spanned_text)),
    ];
    for (path, text) in texts {
        if let Some((text, span)) = text {
            out.put(path, text, &Origin::Written(span));
        }
    }
    if let Some(signers) = &run.signed_by {
        let list: Vec<String> = signers.iter().map(ToString::to_string).collect();
        out.put("run.signed_by", list, &Origin::Written(signers.span));
    }
    if let Some(windows) = &run.window {
        out.put(
            "run.window",
            windows.texts(),
            &Origin::Written(windows.span),
        );
    }
}

fn spanned_text<T: std::fmt::Display>(value: &Spanned<T>) -> (String, Span) {
    (value.to_string(), value.span)
}

/// Reports diagnostics of a spec and of the documents it references.
pub fn check(catalog: &Catalog, name: &str, diagnostics: &mut Diagnostics) {
    let Some(document) = catalog.specs.get(name) else {
        return;
    };
    diagnostics.extend(document.diagnostics.clone());
    let Some(spec) = &document.value else { return };
    // A part that could not be read may have set a posture.
    let whole = (document.diagnostics.errors() == 0).then(|| document.span());
    check_posture(catalog, spec, whole, diagnostics);
    check_keys(catalog, spec, diagnostics);
    check_services(spec, diagnostics);
    super::trigger::check(catalog, spec, diagnostics);
}

/// Reports units that are both enabled and disabled.
fn check_services(spec: &Spec, diagnostics: &mut Diagnostics) {
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
            diagnostics.push(
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

fn check_posture(
    catalog: &Catalog,
    spec: &Spec,
    whole: Option<Span>,
    diagnostics: &mut Diagnostics,
) {
    let name = posture_name(spec);
    let posture = catalog.postures.get(&name.value);
    if let Some(document) = posture {
        diagnostics.extend(document.diagnostics.clone());
    }
    match (&name.origin, posture) {
        (Origin::Written(_), Some(_)) => {}
        (Origin::Written(span), None) => {
            let known = catalog.postures.keys().map(String::as_str);
            diagnostics.push(dangling(
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
                    "strict built-in settings are used, because the site has no `{DEFAULT_POSTURE}`"
                ),
            };
            diagnostics.push(
                Diagnostic::notice(
                    Code::BuiltInDefault,
                    whole,
                    format!("the spec sets no posture, so {used}"),
                )
                .hint("write `access: {posture: NAME}`"),
            );
        }
    }
    check_sudo(
        catalog,
        spec,
        posture.and_then(|posture| posture.value.as_ref()),
        diagnostics,
    );
}

/// Reports users who could not use sudo: it asks for a password, and users have none. The user of the
/// driver is exempt from the password, and root needs no sudo.
fn check_sudo(
    catalog: &Catalog,
    spec: &Spec,
    posture: Option<&Posture>,
    diagnostics: &mut Diagnostics,
) {
    let nopasswd = posture_settings(posture).nopasswd;
    if nopasswd.value {
        return;
    }
    let driver = catalog
        .defaults()
        .and_then(|defaults| defaults.vm_user.as_ref());
    let driver = driver.map_or(crate::plan::DEFAULT_USER, |user| user.as_str());
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
        let mut diagnostic = Diagnostic::error(
            Code::SudoNeedsPassword,
            sudo.span,
            format!(
                "`{}` cannot use sudo: {asking} asks for a password, and users have none",
                name.value
            ),
        );
        if let Origin::Written(span) = nopasswd.origin {
            diagnostic = diagnostic.label(span, "asks for a password");
        }
        diagnostics.push(
            diagnostic.hint("remove `sudo: true`, or use a posture with `sudo: {nopasswd: true}`"),
        );
    }
}

fn check_keys(catalog: &Catalog, spec: &Spec, diagnostics: &mut Diagnostics) {
    let users = spec
        .access
        .as_ref()
        .and_then(|access| access.users.as_ref());
    let mut names = BTreeMap::new();
    for user in users.iter().flat_map(|users| &users.value) {
        if let Some(name) = &user.name
            && let Some(first) = names.insert(name.as_str(), name.span)
        {
            diagnostics.push(
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
        super::site::check_ssh_keys(catalog, listed, diagnostics);
    }
}

/// Reports a host name in a spec, which nodes do not use.
pub(super) fn notice_hostname(catalog: &Catalog, name: &str, diagnostics: &mut Diagnostics) {
    let spec = catalog
        .specs
        .get(name)
        .and_then(|document| document.value.as_ref());
    let identity = spec.and_then(|spec| spec.identity.as_ref());
    if let Some(hostname) = identity.and_then(|identity| identity.hostname.as_ref()) {
        diagnostics.push(
            Diagnostic::notice(
                Code::HostnameUnused,
                hostname.span,
                format!(
                    "nodes use their own name as host name, not `{}`",
                    hostname.value
                ),
            )
            .hint("remove `hostname`: it is only used for machines without a manifest"),
        );
    }
}

/// Returns the site's SSH keys, if they could be read.
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

/// Returns the names of packages.
pub(super) fn texts(packages: Option<&Spanned<Vec<Spanned<Package>>>>) -> Vec<String> {
    packages
        .into_iter()
        .flat_map(|list| &list.value)
        .map(|package| package.to_string())
        .collect()
}
