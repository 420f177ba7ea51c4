//! Describes the guest that already has the vmid of a node. Whether a guest is the node's own is
//! decided in `guest_index`.

use crate::observed::ObservedGuest;

use super::PlanInputs;
use super::guest_index::is_identity_of;

/// Returns to whom a guest with the vmid of a node belongs, and a hint. The names of the host entry and
/// of the manifest are part of an identity, so guests keep the old name when either is renamed.
pub(super) fn describe_holder(
    inputs: &PlanInputs<'_>,
    holder: &ObservedGuest,
    (host, node): (&str, &str),
) -> (String, String) {
    let named = format!("`{}`", holder.name);
    let choose = "set another `vmid`, or remove it to have one assigned".to_owned();
    let ours = holder.site.as_ref() == Some(inputs.site);
    let (Some(manifest), Some(uuid)) = (&holder.manifest, &holder.uuid) else {
        return (named, choose);
    };
    if !ours {
        let site = holder.site.as_ref();
        let site = site.map_or_else(String::new, |site| format!(" of the site `{site}`"));
        return (
            format!("{named} of the manifest `{manifest}`{site}"),
            choose,
        );
    }
    let mut recorded = inputs.other_records.0.iter();
    let recorded = recorded.find(|(_, record)| record.guest.uuid == *uuid);
    let mut hosts = inputs.catalog.guest_hosts().map(String::as_str);
    let (manifest, of_host) = match recorded {
        Some((of, record)) => (of.as_str(), Some(record.host.as_str())),
        None => {
            let names = [holder.name.as_str(), node];
            let is = |host: &&str| {
                let mut names = names.iter();
                names.any(|name| is_identity_of((inputs.site, manifest), host, name, uuid))
            };
            (manifest.as_str(), hosts.find(is))
        }
    };
    let on = of_host.map_or_else(String::new, |host| format!(" on the host `{host}`"));
    let owner = format!("{named} of the manifest `{manifest}`{on}");
    if manifest != inputs.resolved.name {
        if inputs.catalog.manifests.contains_key(manifest) {
            return (owner, choose);
        }
        let hint = format!(
            "the site has no manifest `{manifest}`: if it was renamed, its guests still belong to `{manifest}`; \
             rename it back (`manifests/{manifest}.yaml`), or delete them with homestak manifest \
             destroy --manifest-file FILE, where FILE contains `name: {manifest}`"
        );
        return (owner, hint);
    }
    match of_host {
        Some(of) if of == host || inputs.catalog.guest_hosts().any(|one| one == of) => {
            (owner, choose)
        }
        Some(of) => {
            let hint = format!(
                "the site has no host `{of}`: if it was renamed, its guests still belong to `{of}`; \
                 rename it back (`nodes/{of}.yaml`), or keep both until homestak manifest destroy \
                 -M {manifest} -H {of} has deleted them"
            );
            (owner, hint)
        }
        None => {
            let owner = format!("{owner}, whose identity matches no host or node of this site");
            let hint = format!(
                "if `{host}` or `{node}` was renamed, its guests still belong to the old name: \
                 rename it back"
            );
            (owner, hint)
        }
    }
}
