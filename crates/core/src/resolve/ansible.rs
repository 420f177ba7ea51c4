//! Variables for Ansible, for people who keep their playbooks.
//!
//! In: a posture's name and the site. Out: JSON with the keys the playbooks expect.
//! Never: an unknown posture answered with defaults.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use crate::catalog::Catalog;

use super::reveal::Reveal;
use super::spec::{all_keys, secured, ssh_keys, texts};

/// Which set of keys an export has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// Today's keys.
    Current,
    /// The keys of the driver handbook, exactly.
    Seed,
}

/// Resolves the variables for a posture. `None` when there is no such posture.
pub fn variables(catalog: &Catalog, posture: &str, compat: Compat, reveal: Reveal) -> Option<Json> {
    let document = catalog.postures.get(posture)?;
    let secured = secured(document.value.as_ref());
    let site = catalog.defaults();
    let timezone = site
        .and_then(|site| site.timezone.as_ref())
        .map_or("UTC", |timezone| timezone.as_str());
    let nag = site
        .and_then(|site| site.pve_remove_subscription_nag.as_ref())
        .is_none_or(|nag| nag.value);
    let mut packages: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    for package in texts(site.and_then(|site| site.packages.as_ref()))
        .into_iter()
        .chain(secured.packages.value)
    {
        if known.insert(package.clone()) {
            packages.push(package);
        }
    }
    let keys: Vec<String> = all_keys(ssh_keys(catalog))
        .iter()
        .map(|key| key.render(reveal))
        .collect();
    let mut variables = json!({
        "timezone": timezone,
        "pve_remove_subscription_nag": nag,
        "packages": packages,
        "ssh_port": secured.port.value,
        "ssh_permit_root_login": secured.permit_root_login.value.word(),
        "ssh_password_authentication": secured.password_authentication.value.word(),
        "sudo_nopasswd": secured.nopasswd.value,
        "fail2ban_enabled": secured.fail2ban.value,
    });
    if compat == Compat::Seed {
        variables["env_name"] = posture.into();
    }
    variables["posture_name"] = posture.into();
    variables["ssh_authorized_keys"] = keys.into();
    Some(variables)
}
