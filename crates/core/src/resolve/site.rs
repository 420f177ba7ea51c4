//! The site as a whole: every document, every reference, used or not.
//!
//! In: a catalog. Out: every fault in it.
//! Never: conclusions from secrets that could not be opened; unknown is not absent.

use std::collections::BTreeSet;

use crate::catalog::Catalog;
use crate::doc::spec::SshKeyId;
use crate::doc::{Code, Faults, Spanned};

use super::address::check_networks;
use super::manifest::{Request, manifest};
use super::reference::dangling;
use super::spec::{check as check_spec, defaults, ssh_keys};

/// Checks everything in a site.
pub fn validate(catalog: &Catalog) -> Faults {
    let mut faults = catalog.faults.clone();
    check_site(catalog, &mut faults);
    for name in catalog.specs.keys() {
        check_spec(catalog, name, &mut faults);
    }
    let others = catalog
        .postures
        .values()
        .map(|document| &document.faults)
        .chain(catalog.presets.values().map(|document| &document.faults))
        .chain(catalog.images.values().map(|document| &document.faults));
    for found in others {
        faults.extend(found.clone());
    }
    let hosts: BTreeSet<&String> = catalog.hosts.keys().chain(catalog.nodes.keys()).collect();
    for name in hosts {
        check_host(catalog, name, &mut faults);
    }
    for name in catalog.manifests.keys() {
        faults.extend(manifest(catalog, name, &Request::default()).1);
    }
    faults
}

/// Checks `site.yaml` and `secrets.yaml`, which every command uses.
pub fn check_site(catalog: &Catalog, faults: &mut Faults) {
    if let Some(site) = &catalog.site {
        faults.extend(site.faults.clone());
        if let Some(site) = &site.value {
            check_networks(site, faults);
        }
    }
    if let Some(secrets) = &catalog.secrets {
        faults.extend(secrets.faults.clone());
    }
    let Some(defaults) = defaults(catalog) else {
        return;
    };
    if let Some(preset) = defaults
        .preset
        .as_ref()
        .filter(|preset| !catalog.presets.contains_key(preset.as_str()))
    {
        let known = catalog.presets.keys().map(String::as_str);
        faults.push(dangling(
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
        faults.push(dangling(
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
        faults.push(dangling(
            Code::NoSuchImage,
            template.span,
            "image",
            template,
            catalog.image_names(),
        ));
    }
}

/// Checks what is known of a host: `nodes/NAME.yaml` and `hosts/NAME.yaml`.
pub(super) fn check_host(catalog: &Catalog, name: &str, faults: &mut Faults) {
    if let Some(document) = catalog.hosts.get(name) {
        faults.extend(document.faults.clone());
        let access = document
            .value
            .as_ref()
            .and_then(|host| host.access.as_ref());
        let keys = access.and_then(|access| access.authorized_keys.as_ref());
        check_ssh_keys(
            catalog,
            keys.into_iter().flat_map(|keys| &keys.value),
            faults,
        );
    }
    let Some(document) = catalog.nodes.get(name) else {
        return;
    };
    faults.extend(document.faults.clone());
    let Some(node) = &document.value else { return };
    if let Some(host) = node
        .host
        .as_ref()
        .filter(|host| !catalog.hosts.contains_key(host.as_str()))
    {
        let known = catalog.hosts.keys().map(String::as_str);
        faults.push(dangling(
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
        faults.push(dangling(
            Code::NoSuchHost,
            parent.span,
            "node",
            parent.as_str(),
            known,
        ));
    }
    if let Some(token) = &node.api_token {
        check_api_token(catalog, token, faults);
    }
}

/// Reports ids of SSH keys that the secrets do not have.
pub(super) fn check_ssh_keys<'k>(
    catalog: &Catalog,
    listed: impl Iterator<Item = &'k Spanned<SshKeyId>>,
    faults: &mut Faults,
) {
    if sealed(catalog) {
        return;
    }
    let keys = ssh_keys(catalog);
    for id in listed.filter(|id| !keys.is_some_and(|keys| keys.contains_key(&id.0))) {
        let known = keys.into_iter().flatten().map(|(id, _)| id.as_str());
        faults.push(dangling(
            Code::NoSuchSshKey,
            id.span,
            "SSH key",
            &id.0,
            known,
        ));
    }
}

/// Reports an id of an API token that the secrets do not have.
pub(super) fn check_api_token(catalog: &Catalog, token: &Spanned<String>, faults: &mut Faults) {
    if sealed(catalog) {
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
        faults.push(dangling(
            Code::NoSuchApiToken,
            token.span,
            "API token",
            token,
            known,
        ));
    }
}

/// Tells whether there are secrets that could not be opened, so that nothing is known of them.
fn sealed(catalog: &Catalog) -> bool {
    catalog
        .secrets
        .as_ref()
        .is_some_and(|secrets| secrets.value.is_none())
}
