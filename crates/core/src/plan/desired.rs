//! Turns a resolved node into the [`DesiredGuest`] that a provider creates, and the images it needs.

use crate::catalog::Catalog;
use crate::doc::manifest::NodeType;
use crate::observed::{GuestId, GuestKind, GuestUuid};
use crate::resolve::ResolvedNode;
use crate::units::{Gib, Mib};

use super::guest::{DesiredGuest, GuestPlan, Nic, RequiredImage};
use super::host_profile::HostProfile;
use super::types::{NodeLocation, Plan};
use super::{PlanInputs, identity};

/// Installed on every machine on first boot: the hypervisor gets the address of the guest from it.
const GUEST_AGENT: &str = "qemu-guest-agent";
/// The user created on first boot when the site sets none.
pub const DEFAULT_USER: &str = "homestak";

/// Returns the desired guest of a node, and adds the image it needs to `images`.
pub(super) fn desired_guest(
    inputs: &PlanInputs<'_>,
    node: &ResolvedNode,
    (location, site_host): (&NodeLocation, &str),
    profile: &HostProfile,
    uuid: GuestUuid,
    images: &mut Vec<RequiredImage>,
) -> DesiredGuest {
    let kind = kind(node.kind.value);
    let size = node.size.as_ref();
    let number = |value: Option<i64>| value.and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
    let named = match kind {
        GuestKind::Ct => node.template.as_ref(),
        GuestKind::Vm => node.image.as_ref(),
    };
    let source = named.map_or_else(String::new, |named| named.value.clone());
    let image = (!source.contains(':')).then(|| {
        let need = image(inputs, &source, kind, (location, site_host), profile);
        if let Some(at) = images.iter().position(|known| *known == need) {
            return at;
        }
        images.push(need);
        images.len() - 1
    });
    let net = &node.networking;
    let defaults = inputs.catalog.defaults();
    let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
    let mut packages = vec![GUEST_AGENT.to_owned()];
    packages.extend(
        node.packages
            .iter()
            .filter(|one| *one != GUEST_AGENT)
            .cloned(),
    );
    let bridged = profile.traits.has_bridges;
    let guest = GuestPlan {
        nic: Nic {
            mac: identity::mac(&uuid),
            bridge: bridged.then(|| net.bridge.value.clone()),
            vlan: net
                .vlan
                .as_ref()
                .and_then(|vlan| u16::try_from(vlan.value).ok()),
            address: net.address.value.map(|cidr| (cidr.ip, cidr.prefix)),
            gateway: net.gateway.as_ref().map(|gateway| gateway.value),
        },
        uuid,
        kind,
        host: profile.host.clone(),
        vmid: node
            .vmid
            .as_ref()
            .and_then(|vmid| u32::try_from(vmid.value.0).ok())
            .map(GuestId::from),
        cores: u32::try_from(number(size.map(|size| size.cores.value))).unwrap_or(1),
        memory: Mib(number(size.map(|size| size.memory.value))),
        disk: Gib(number(size.map(|size| size.disk.value))),
        storage: profile.storage.clone(),
        image_storage: profile.image_storage.clone(),
        unprivileged: node.unprivileged.as_ref().is_none_or(|value| value.value),
        hosts_guests: node.can_host,
    };
    DesiredGuest {
        guest,
        source,
        image,
        dns: net.dns.value.clone(),
        user: user.map_or_else(|| DEFAULT_USER.to_owned(), |user| user.to_string()),
        packages,
    }
}

/// Returns the kind of guest for a type of node.
pub(super) fn kind(kind: NodeType) -> GuestKind {
    match kind {
        NodeType::Ct => GuestKind::Ct,
        NodeType::Vm | NodeType::Pve | NodeType::K3s => GuestKind::Vm,
    }
}

fn image(
    inputs: &PlanInputs<'_>,
    name: &str,
    kind: GuestKind,
    (location, site_host): (&NodeLocation, &str),
    profile: &HostProfile,
) -> RequiredImage {
    let (url, checksum) = source(inputs.catalog, name).unwrap_or_default();
    let file = match kind {
        GuestKind::Vm => format!("{name}.qcow2"),
        GuestKind::Ct => format!("{name}.tar.zst"),
    };
    RequiredImage {
        name: name.to_owned(),
        location: location.clone(),
        site_host: site_host.to_owned(),
        host: profile.host.clone(),
        storage: profile.image_storage.clone(),
        kind,
        file,
        url,
        checksum,
    }
}

/// Returns URL and checksum of an image; `None` if no document describes it.
fn source(catalog: &Catalog, name: &str) -> Option<(Option<String>, Option<String>)> {
    let image = catalog.image(name)?.value.as_ref()?;
    let text = |value: Option<String>| value.filter(|value| !value.is_empty());
    Some((
        text(image.source.as_ref().map(ToString::to_string)),
        text(image.checksum.as_ref().map(ToString::to_string)),
    ))
}

/// Updates URLs and checksums of a plan's images from the documents, so that a run that failed because
/// of a wrong one can be resumed after it was corrected. Returns the names of changed images.
pub fn update_image_sources(plan: &mut Plan, catalog: &Catalog) -> Vec<String> {
    let mut changed = Vec::new();
    for need in &mut plan.images {
        if let Some((url, checksum)) = source(catalog, &need.name)
            && (&url, &checksum) != (&need.url, &need.checksum)
        {
            (need.url, need.checksum) = (url, checksum);
            changed.push(need.name.clone());
        }
    }
    changed.dedup();
    changed
}
