//! Exports a posture and site settings as variables for existing Ansible playbooks.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use crate::catalog::Catalog;

use super::secret_visibility::SecretVisibility;
use super::spec::{all_keys, posture_settings, ssh_keys, texts};

/// Which set of keys an export has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// The current keys.
    Current,
    /// Exactly the keys that earlier homestak tools expect.
    Legacy,
}

/// Resolves the variables for a posture. `None` if the posture does not exist.
pub fn variables(
    catalog: &Catalog,
    posture: &str,
    compat: Compat,
    visibility: SecretVisibility,
) -> Option<Json> {
    let document = catalog.postures.get(posture)?;
    let posture_settings = posture_settings(document.value.as_ref());
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
        .chain(posture_settings.packages.value)
    {
        if known.insert(package.clone()) {
            packages.push(package);
        }
    }
    let keys: Vec<String> = all_keys(ssh_keys(catalog))
        .iter()
        .map(|key| key.render(visibility))
        .collect();
    let mut variables = json!({
        "timezone": timezone,
        "pve_remove_subscription_nag": nag,
        "packages": packages,
        "ssh_port": posture_settings.port.value,
        "ssh_permit_root_login": posture_settings.permit_root_login.value.name(),
        "ssh_password_authentication": posture_settings.password_authentication.value.name(),
        "sudo_nopasswd": posture_settings.nopasswd.value,
        "fail2ban_enabled": posture_settings.fail2ban.value,
    });
    if compat == Compat::Legacy {
        variables["env_name"] = posture.into();
    }
    variables["posture_name"] = posture.into();
    variables["ssh_authorized_keys"] = keys.into();
    Some(variables)
}
