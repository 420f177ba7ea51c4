//! Validates a site: all documents and references, used or not.
//!
//! Secrets that could not be decrypted are unknown, not missing: nothing is concluded from them.

use std::collections::BTreeSet;

use crate::catalog::Catalog;
use crate::doc::spec::{SshKeyId, User};
use crate::doc::{Code, Diagnostic, Diagnostics, Severity, Span, Spanned};

use super::address::check_networks;
use super::manifest::{ResolveOptions, manifest};
use super::reference::dangling;
use super::spec::{check as check_spec, ssh_keys};

/// Validates a site.
pub fn validate(catalog: &Catalog) -> Diagnostics {
    let mut diagnostics = catalog.diagnostics.clone();
    check_site(catalog, &mut diagnostics);
    for name in catalog.specs.keys() {
        check_spec(catalog, name, &mut diagnostics);
    }
    let others = catalog
        .postures
        .values()
        .map(|document| &document.diagnostics)
        .chain(
            catalog
                .presets
                .values()
                .map(|document| &document.diagnostics),
        )
        .chain(
            catalog
                .images
                .values()
                .map(|document| &document.diagnostics),
        );
    for found in others {
        diagnostics.extend(found.clone());
    }
    notice_unpinned_images(catalog, &mut diagnostics);
    notice_unused(catalog, &mut diagnostics);
    let hosts: BTreeSet<&String> = catalog.hosts.keys().chain(catalog.nodes.keys()).collect();
    for name in hosts {
        check_host(catalog, name, &mut diagnostics);
    }
    for name in catalog.manifests.keys() {
        diagnostics.extend(manifest(catalog, name, &ResolveOptions::default()).1);
    }
    diagnostics
}

/// Reports images of the site without a checksum. For built-in images a warning is printed when one is
/// downloaded.
fn notice_unpinned_images(catalog: &Catalog, diagnostics: &mut Diagnostics) {
    for document in catalog.images.values() {
        let source = catalog.sources.source(document.file);
        let built_in = source.is_some_and(|source| source.path.starts_with("stock:"));
        let image = document.value.as_ref().filter(|_| !built_in);
        if let Some(notice) = image.and_then(|image| image.unpinned())
            && document.diagnostics.errors() == 0
        {
            diagnostics.push(notice);
        }
    }
}

/// Checks `site.yaml` and `secrets.yaml`.
pub fn check_site(catalog: &Catalog, diagnostics: &mut Diagnostics) {
    if let Some(site) = &catalog.site {
        diagnostics.extend(site.diagnostics.clone());
        if let Some(site) = &site.value {
            check_networks(site, diagnostics);
        }
    }
    if let Some(secrets) = &catalog.secrets {
        diagnostics.extend(secrets.diagnostics.clone());
    }
    let Some(defaults) = catalog.defaults() else {
        return;
    };
    if let Some(preset) = defaults
        .preset
        .as_ref()
        .filter(|preset| !catalog.presets.contains_key(preset.as_str()))
    {
        let known = catalog.presets.keys().map(String::as_str);
        diagnostics.push(dangling(
            Code::NoSuchPreset,
            preset.span,
            "preset",
            preset.as_str(),
            known,
        ));
    }
    if let Some(image) = defaults
        .image
        .as_ref()
        .filter(|image| catalog.image(image.as_str()).is_none())
    {
        diagnostics.push(dangling(
            Code::NoSuchImage,
            image.span,
            "image",
            image.as_str(),
            catalog.image_names(),
        ));
    }
    let template = defaults
        .template
        .as_ref()
        .filter(|template| !template.contains(':'));
    if let Some(template) = template.filter(|template| catalog.image(template).is_none()) {
        diagnostics.push(dangling(
            Code::NoSuchImage,
            template.span,
            "image",
            template,
            catalog.image_names(),
        ));
    }
}

/// Returns the diagnostic for a key without an effect.
pub(super) fn without_effect(key: &str, span: Span) -> Diagnostic {
    let message = format!("`{key}` has no effect in this version");
    Diagnostic::notice(Code::NoEffect, span, message).hint("it can be removed")
}

/// Reports keys of the site and its hosts without an effect.
fn notice_unused(catalog: &Catalog, diagnostics: &mut Diagnostics) {
    let release = catalog
        .defaults()
        .and_then(|all| all.image_release.as_ref());
    let mut unused = vec![("image_release", release.map(|key| key.span))];
    for host in catalog
        .hosts
        .values()
        .filter_map(|document| document.value.as_ref())
    {
        let keys = host
            .access
            .as_ref()
            .and_then(|access| access.authorized_keys.as_ref());
        unused.push(("hardware", host.hardware.as_ref().map(|key| key.span)));
        unused.push(("access.authorized_keys", keys.map(|key| key.span)));
    }
    for (key, span) in unused {
        if let Some(span) = span {
            diagnostics.push(without_effect(key, span));
        }
    }
    let secrets = catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    let passwords = secrets.and_then(|secrets| secrets.passwords.as_ref());
    let root = passwords.and_then(|passwords| passwords.get("vm_root"));
    if let Some(root) = root.filter(|root| !root.expose().is_empty()) {
        let message = "`passwords.vm_root` is not set on nodes: only `resolve tofu` uses it";
        let hint = "log in with a key; root has no password on nodes";
        diagnostics.push(Diagnostic::notice(Code::NoEffect, root.span, message).hint(hint));
    }
}

/// Checks the documents of a host, `nodes/NAME.yaml` and `hosts/NAME.yaml`.
pub(super) fn check_host(catalog: &Catalog, name: &str, diagnostics: &mut Diagnostics) {
    if let Some(kind) = catalog.written_kind(name)
        && !catalog.document_kinds().any(|known| known == kind.as_str())
    {
        let known = catalog.document_kinds();
        let (code, what) = (Code::UnknownChoice, "kind of host");
        diagnostics.push(dangling(code, kind.span, what, kind.as_str(), known));
    }
    if let Some(document) = catalog.hosts.get(name) {
        diagnostics.extend(document.diagnostics.clone());
        let access = document
            .value
            .as_ref()
            .and_then(|host| host.access.as_ref());
        let keys = access.and_then(|access| access.authorized_keys.as_ref());
        check_ssh_keys(
            catalog,
            keys.into_iter().flat_map(|keys| &keys.value),
            diagnostics,
        );
    }
    let Some(document) = catalog.nodes.get(name) else {
        return;
    };
    diagnostics.extend(document.diagnostics.clone());
    let Some(node) = &document.value else { return };
    let stored = catalog.traits_of(name).has_storages;
    if let Some(datastore) = node.datastore.as_ref().filter(|_| !stored) {
        diagnostics.push(without_effect("datastore", datastore.span));
    }
    if let Some(host) = node
        .host
        .as_ref()
        .filter(|host| !catalog.hosts.contains_key(host.as_str()))
    {
        let known = catalog.hosts.keys().map(String::as_str);
        diagnostics.push(dangling(
            Code::NoSuchHost,
            host.span,
            "host",
            host.as_str(),
            known,
        ));
    }
    if let Some(parent) = node
        .parent_node
        .as_ref()
        .filter(|parent| !catalog.nodes.contains_key(parent.as_str()))
    {
        let known = catalog.nodes.keys().map(String::as_str);
        diagnostics.push(dangling(
            Code::NoSuchHost,
            parent.span,
            "node",
            parent.as_str(),
            known,
        ));
    }
    match &node.api_token {
        Some(token) => check_api_token(catalog, token, diagnostics),
        None if !node.invalid.contains(&"api_token") => {
            notice_default_token(catalog, name, document.span(), diagnostics);
        }
        None => {}
    }
}

/// Reports a missing default API token. The node may not need one.
fn notice_default_token(catalog: &Catalog, name: &str, whole: Span, diagnostics: &mut Diagnostics) {
    let secrets = catalog.secrets.as_ref();
    let tokens = secrets.and_then(|secrets| secrets.value.as_ref()?.api_tokens.as_ref());
    if secrets.is_none()
        || secrets_unknown(catalog)
        || tokens.is_some_and(|tokens| tokens.contains_key(name))
    {
        return;
    }
    let message = format!(
        "the node sets no API token, and there is none named `{name}`, so its API cannot be used"
    );
    diagnostics.push(
        Diagnostic::notice(Code::NoSuchApiToken, whole, message).hint(format!(
            "write `api_token: ID`, or add `{name}` under `api_tokens` in `secrets.yaml`"
        )),
    );
}

/// Reports that the site has no SSH keys.
pub(super) fn notice_no_keys(
    catalog: &Catalog,
    specs: &BTreeSet<&str>,
    diagnostics: &mut Diagnostics,
) {
    let Some(secrets) = &catalog.secrets else {
        notice_no_secrets(catalog, specs, diagnostics);
        return;
    };
    if secrets_unknown(catalog) || ssh_keys(catalog).is_some_and(|keys| !keys.is_empty()) {
        return;
    }
    let message =
        "the site has no SSH keys, so only homestak itself can log in to nodes, with its own key";
    diagnostics.push(
        Diagnostic::notice(Code::NoKeys, secrets.span(), message)
            .hint("add your public key under `ssh_keys`: `YOU@HOST: \"ssh-ed25519 ...\"`"),
    );
}

/// Reports that users get no keys because the site has no secrets. The built-in site never has any.
fn notice_no_secrets(catalog: &Catalog, specs: &BTreeSet<&str>, diagnostics: &mut Diagnostics) {
    let own = specs.iter().filter_map(|spec| catalog.specs.get(*spec));
    let own = own.filter(|document| {
        let source = catalog.sources.source(document.file);
        source.is_some_and(|source| !source.path.starts_with("stock:"))
    });
    let users = own
        .filter_map(|document| document.value.as_ref()?.access.as_ref()?.users.as_ref())
        .flat_map(|users| &users.value);
    // Missing keys that are listed are reported separately.
    let without = |user: &&Spanned<User>| user.ssh_keys.is_none();
    let Some(name) = users.filter(without).find_map(|user| user.name.as_ref()) else {
        return;
    };
    let message = format!(
        "the site has no `secrets.yaml`, so `{}` gets no SSH key, and keys of this site that are \
         on a node are removed",
        name.value
    );
    diagnostics.push(Diagnostic::notice(Code::NoKeys, name.span, message).hint(
        "copy the site's `secrets.yaml.enc` or `secrets.yaml` here if it has one elsewhere, or \
         create a `secrets.yaml` with your public key under `ssh_keys`",
    ));
}

/// Returns why the SSH keys of a spec's users are unknown: the secrets could not be decrypted or read in
/// full. `None` if they are known, or if no user gets any.
pub fn unknown_keys<'c>(catalog: &'c Catalog, spec: &str) -> Option<&'c Diagnostic> {
    let access = catalog.specs.get(spec)?.value.as_ref()?.access.as_ref()?;
    let users = &access.users.as_ref()?.value;
    let takes_keys = |user: &Spanned<User>| {
        let listed = user.ssh_keys.as_ref();
        listed.is_none_or(|keys| !keys.value.is_empty())
    };
    let unknown = secrets_unknown(catalog) && users.iter().any(takes_keys);
    let secrets = catalog.secrets.as_ref().filter(|_| unknown)?;
    secrets.diagnostics.iter().next()
}

/// Reports SSH keys that are not in the secrets.
pub(super) fn check_ssh_keys<'k>(
    catalog: &Catalog,
    listed: impl Iterator<Item = &'k Spanned<SshKeyId>>,
    diagnostics: &mut Diagnostics,
) {
    if secrets_unknown(catalog) {
        return;
    }
    let keys = ssh_keys(catalog);
    for id in listed.filter(|id| !keys.is_some_and(|keys| keys.contains_key(&id.0))) {
        let known = keys.into_iter().flatten().map(|(id, _)| id.as_str());
        let diagnostic = dangling(Code::NoSuchSshKey, id.span, "SSH key", &id.0, known);
        diagnostics.push(without_secrets(catalog, diagnostic, "ssh_keys"));
    }
}

/// Reports an API token that is not in the secrets.
pub(super) fn check_api_token(
    catalog: &Catalog,
    token: &Spanned<String>,
    diagnostics: &mut Diagnostics,
) {
    if secrets_unknown(catalog) {
        return;
    }
    let tokens = catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref()?.api_tokens.as_ref());
    if !tokens.is_some_and(|tokens| tokens.contains_key(token.as_str())) {
        let known = tokens
            .into_iter()
            .flat_map(|tokens| tokens.keys())
            .map(String::as_str);
        let diagnostic = dangling(Code::NoSuchApiToken, token.span, "API token", token, known);
        diagnostics.push(without_secrets(catalog, diagnostic, "api_tokens"));
    }
}

/// Replaces the hint if the site has no secrets at all.
fn without_secrets(catalog: &Catalog, diagnostic: Diagnostic, section: &str) -> Diagnostic {
    if catalog.secrets.is_some() {
        return diagnostic;
    }
    diagnostic.hint(format!(
        "the site has no `secrets.yaml`; create one with the id under `{section}`"
    ))
}

/// Returns whether the secrets could not be decrypted or read in full, so that a missing id may only be
/// unreadable. Malformed values still exist.
pub(super) fn secrets_unknown(catalog: &Catalog) -> bool {
    catalog.secrets.as_ref().is_some_and(|secrets| {
        secrets.value.is_none()
            || secrets.diagnostics.iter().any(|diagnostic| {
                diagnostic.severity == Severity::Error
                    && !matches!(
                        diagnostic.code,
                        Code::Malformed | Code::SigningKey | Code::WebhookSecret
                    )
            })
    })
}
