//! Whose the guest is that has the id a node should get, in words.
//!
//! Wording only: whether a guest is a node's is decided in `owner`.

use crate::observed::ObservedGuest;

use super::Inputs;
use super::owner::is_identity_of;

/// Says whose a guest with the id of a node is, and what to do. The names of a host entry and of
/// a manifest are part of an identity, so that renaming either leaves guests under the old name.
pub(super) fn whose(
    inputs: &Inputs<'_>,
    holder: &ObservedGuest,
    (host, node): (&str, &str),
) -> (String, String) {
    let named = format!("`{}`", holder.name);
    let choose = "write another `vmid`, or leave it out to have one chosen".to_owned();
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
    let mut recorded = inputs.elsewhere.0.iter();
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
    let whose = format!("{named} of the manifest `{manifest}`{on}");
    if manifest != inputs.resolved.name {
        if inputs.catalog.manifests.contains_key(manifest) {
            return (whose, choose);
        }
        let hint = format!(
            "the site has no manifest `{manifest}`: if it was renamed, its guests stay those of `{manifest}`; \
             give it that name again (`manifests/{manifest}.yaml`), or remove them with homestak \
             manifest destroy --manifest-file FILE, where FILE says `name: {manifest}`"
        );
        return (whose, hint);
    }
    match of_host {
        Some(of) if of == host || inputs.catalog.guest_hosts().any(|one| one == of) => {
            (whose, choose)
        }
        Some(of) => {
            let hint = format!(
                "the site has no host `{of}`: if it was renamed, its guests stay those of `{of}`; \
                 give it that name again (`nodes/{of}.yaml`), or keep it beside the new one until \
                 homestak manifest destroy -M {manifest} -H {of} has removed them"
            );
            (whose, hint)
        }
        None => {
            let whose = format!(
                "{whose}, whose identity is of another host or node than any that this site names"
            );
            let hint = format!(
                "if `{host}` or `{node}` was renamed, its guests stay those of the old name: \
                 give it that name again"
            );
            (whose, hint)
        }
    }
}
