//! What a node should be, in the words of a provider.
//!
//! In: a resolved node and what its place offers. Out: [`Wanted`], and the images it needs.
//! Never: a secret.

use crate::catalog::Catalog;
use crate::doc::manifest::NodeType;
use crate::observed::{GuestId, GuestKind, GuestUuid};
use crate::resolve::ResolvedNode;
use crate::units::{Gib, Mib};

use super::place::Offer;
use super::types::{GuestPlan, ImageNeed, Nic, Place, Plan, Wanted};
use super::{Inputs, identity};

/// What every machine gets on first boot, so that its address can be asked for.
const AGENT: &str = "qemu-guest-agent";
/// The user that is made when the site names none.
pub const USER: &str = "homestak";

/// Turns a resolved node into what a provider makes. Images are added to the plan's.
pub(super) fn wanted(
    inputs: &Inputs<'_>,
    node: &ResolvedNode,
    (place, site_host): (&Place, &str),
    offer: &Offer,
    uuid: GuestUuid,
    images: &mut Vec<ImageNeed>,
) -> Wanted {
    let kind = kind(node.kind.value);
    let size = node.size.as_ref();
    let number = |value: Option<i64>| value.and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
    let named = match kind {
        GuestKind::Ct => node.template.as_ref(),
        GuestKind::Vm => node.image.as_ref(),
    };
    let source = named.map_or_else(String::new, |named| named.value.clone());
    let image = (!source.contains(':')).then(|| {
        let need = image(inputs, &source, kind, (place, site_host), offer);
        if let Some(at) = images.iter().position(|known| *known == need) {
            return at;
        }
        images.push(need);
        images.len() - 1
    });
    let net = &node.networking;
    let defaults = inputs.catalog.defaults();
    let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
    let mut packages = vec![AGENT.to_owned()];
    packages.extend(node.packages.iter().filter(|one| *one != AGENT).cloned());
    let bridged = offer.traits.has_bridges;
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
        host: offer.host.clone(),
        vmid: node
            .vmid
            .as_ref()
            .and_then(|vmid| u32::try_from(vmid.value.0).ok())
            .map(GuestId::from),
        cores: u32::try_from(number(size.map(|size| size.cores.value))).unwrap_or(1),
        memory: Mib(number(size.map(|size| size.memory.value))),
        disk: Gib(number(size.map(|size| size.disk.value))),
        storage: offer.storage.clone(),
        image_storage: offer.image_storage.clone(),
        unprivileged: node.unprivileged.as_ref().is_none_or(|value| value.value),
        hosts_guests: node.can_host,
    };
    Wanted {
        guest,
        source,
        image,
        dns: net.dns.value.clone(),
        user: user.map_or_else(|| USER.to_owned(), |user| user.to_string()),
        packages,
    }
}

/// Returns what a node is to a hypervisor.
pub(super) fn kind(kind: NodeType) -> GuestKind {
    match kind {
        NodeType::Ct => GuestKind::Ct,
        NodeType::Vm | NodeType::Pve | NodeType::K3s => GuestKind::Vm,
    }
}

fn image(
    inputs: &Inputs<'_>,
    name: &str,
    kind: GuestKind,
    (place, site_host): (&Place, &str),
    offer: &Offer,
) -> ImageNeed {
    let (url, checksum) = source(inputs.catalog, name).unwrap_or_default();
    let file = match kind {
        GuestKind::Vm => format!("{name}.qcow2"),
        GuestKind::Ct => format!("{name}.tar.zst"),
    };
    ImageNeed {
        name: name.to_owned(),
        place: place.clone(),
        site_host: site_host.to_owned(),
        host: offer.host.clone(),
        storage: offer.image_storage.clone(),
        kind,
        file,
        url,
        checksum,
    }
}

/// Reads where an image is fetched from and its checksum; nothing when no document describes it.
fn source(catalog: &Catalog, name: &str) -> Option<(Option<String>, Option<String>)> {
    let image = catalog.image(name)?.value.as_ref()?;
    let text = |value: Option<String>| value.filter(|value| !value.is_empty());
    Some((
        text(image.source.as_ref().map(ToString::to_string)),
        text(image.checksum.as_ref().map(ToString::to_string)),
    ))
}

/// Has images of a plan fetched from where the documents say now, so that a run that failed over a
/// wrong source can go on after it was corrected. Returns the names of images that changed.
pub fn correct_sources(plan: &mut Plan, catalog: &Catalog) -> Vec<String> {
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
