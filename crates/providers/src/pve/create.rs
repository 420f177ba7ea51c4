//! Creates a guest: check for an existing one, choose an id, send the request, determine the
//! result, complete it. Lost, repeated or interrupted requests do not create a second guest with
//! the same UUID.

use std::collections::BTreeSet;
use std::time::Duration;

use homestak_engine::ports::{DiskSource, ErrorClass, GuestId, GuestKind, GuestRef, NewGuest};

use super::client::{Pve, name_of, named};
use super::concurrency::PermitOutcome;
use super::error::{PveError, Reason};
use super::finish::metadata;
use super::identity;
use super::locate::{Located, SearchResult, conflict_error, disowned_error, duplicates_error};
use super::outcome::CreateOutcome;
use super::property::Property;
use super::quirks;
use super::requests::{ApiCall, CT_CREATE, VM_CREATE};

/// How many ids are tried before creation fails.
const IDS: usize = 20;
/// How often one id is tried after locks or connection failures.
const TRIES: u32 = 6;
/// The first pause after a lock.
const PAUSE: Duration = Duration::from_secs(2);

impl Pve {
    /// Creates a guest, or completes an existing one.
    pub(super) async fn create_guest(&self, guest: &NewGuest) -> Result<GuestRef, PveError> {
        // One call per guest: a repeated call waits for the first and finds its guest.
        let _permit = self
            .limiter
            .exclusive(
                &format!("create {}", guest.uuid),
                "another call that creates the guest",
            )
            .await;
        // Listed before the search: a guest that a concurrent driver creates in between must not count
        // as foreign.
        let seen = self.observe_all().await?;
        let asked = guest.vmid.map(numeric_id).transpose()?;
        let mut taken: BTreeSet<u32> = match asked {
            Some(_) => BTreeSet::new(),
            None => {
                // Incomplete guests may be ours: `create_at` checks that.
                let whole = seen.guests.iter().filter(|row| row.lock.is_none());
                whole.filter_map(|row| row.vmid.number()).collect()
            }
        };
        match self.find_existing(guest).await? {
            SearchResult::Ours(located) => return self.complete(guest, located).await,
            SearchResult::Duplicates(guests) => return Err(duplicates_error(&guests)),
            SearchResult::Conflicting(located) => {
                return Err(conflict_error(&located, &guest.uuid));
            }
            // An existing guest at the id is checked by the create call.
            SearchResult::Unidentified(_) | SearchResult::Disowned(_) | SearchResult::NotFound => {}
        }
        self.check_capacity(guest, &seen).await?;
        self.upload_seed(guest).await?;
        for _ in 0..IDS {
            let vmid = match asked {
                Some(vmid) => vmid,
                None => self.choose_id(guest, &taken).await?,
            };
            let _permit = self.limiter.guest(vmid).await;
            match self.create_at(guest, vmid).await? {
                Some(located) => return self.complete(guest, located).await,
                None if asked.is_some() => return Err(self.id_taken_error(guest, vmid).await?),
                None => taken.insert(vmid),
            };
        }
        let detail = format!("{IDS} ids in a row were already in use");
        Err(PveError::new(
            ErrorClass::Busy,
            Reason::AlreadyExists,
            detail,
        ))
    }

    /// Returns the error for an id in use. A guest whose tags were removed is no longer managed.
    async fn id_taken_error(&self, guest: &NewGuest, vmid: u32) -> Result<PveError, PveError> {
        let there = self.fetch_at(guest, vmid).await?;
        let Some(located) = there.filter(|located| located.is_disowned(&guest.uuid)) else {
            let name = name_of(guest.kind, vmid, &guest.host);
            let detail = format!("the id of {name} belongs to another guest");
            let error = PveError::new(ErrorClass::Refused, Reason::AlreadyExists, detail);
            return Ok(error.with_hint("choose another vmid, or omit it"));
        };
        let tags = quirks::render_tags(&metadata(guest).tags(vmid));
        Ok(disowned_error(&located, &guest.uuid).with_hint(format!(
            "to manage it again, set its tags to {tags}; otherwise choose another vmid or delete it"
        )))
    }

    /// Finds the existing guest; if an id is given, only at this id.
    async fn find_existing(&self, guest: &NewGuest) -> Result<SearchResult, PveError> {
        let Some(vmid) = guest.vmid else {
            return self.search(&guest.uuid).await;
        };
        let reference = GuestRef {
            uuid: guest.uuid.clone(),
            kind: guest.kind,
            vmid: Some(vmid),
            host: guest.host.clone(),
        };
        let found = self.find(&reference).await?;
        if !matches!(
            found,
            SearchResult::NotFound | SearchResult::Unidentified(_) | SearchResult::Disowned(_)
        ) {
            return Ok(found);
        }
        Ok(match self.search(&guest.uuid).await? {
            SearchResult::Ours(other) if vmid != other.vmid.into() => {
                let name = name_of(other.kind, other.vmid, &other.node);
                let detail = format!("{name} already has this identity; it was not changed");
                return Err(
                    PveError::new(ErrorClass::Refused, Reason::AlreadyExists, detail)
                        .with_hint("if it is a copy, remove its tags `homestak*`"),
                );
            }
            SearchResult::NotFound => found,
            elsewhere => elsewhere,
        })
    }

    async fn choose_id(&self, guest: &NewGuest, taken: &BTreeSet<u32>) -> Result<u32, PveError> {
        let range = self.vmid_range().await?;
        super::vmid::choose(&guest.uuid, range, taken).ok_or_else(|| {
            let (start, end) = (range.start(), range.end());
            let detail = format!("every id from {start} to {end} is in use");
            PveError::new(ErrorClass::Refused, Reason::AlreadyExists, detail)
        })
    }

    /// Creates the guest at an id; `None` if the id belongs to another guest.
    async fn create_at(&self, guest: &NewGuest, vmid: u32) -> Result<Option<Located>, PveError> {
        let mut pause = PAUSE;
        let mut tried = 0;
        loop {
            tried += 1;
            let result = self.request(guest, vmid).await;
            let lost = match &result {
                Ok(()) => None,
                Err(error) if error.reason == Reason::AlreadyExists => None,
                Err(error) if error.reason == Reason::Locked => None,
                Err(error) if error.may_have_acted() => Some(error),
                Err(_) => return result.map(|()| None),
            };
            match (self.settle(guest, vmid, lost).await?, result) {
                (CreateOutcome::Created(located), _) => return Ok(Some(located)),
                (CreateOutcome::Taken, _) => return Ok(None),
                (CreateOutcome::Absent, Err(error)) if tried >= TRIES => return Err(error),
                // The guest at this id was deleted meanwhile, or the request never arrived.
                (CreateOutcome::Absent, Err(_)) => {}
                (CreateOutcome::Absent, Ok(())) => {
                    let name = name_of(guest.kind, vmid, &guest.host);
                    let detail = format!("{name} was created but does not exist");
                    return Err(PveError::new(ErrorClass::Missing, Reason::NoConfig, detail)
                        .with_hint("it was deleted by someone else; try again"));
                }
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE * 8);
        }
    }

    /// Sends the create call and follows its task.
    async fn request(&self, guest: &NewGuest, vmid: u32) -> Result<(), PveError> {
        let turn = self
            .limiter
            .storage(&guest.host, named(guest.storage.as_deref())?);
        let turn = turn.await;
        let result = self.run(&create_call(guest, vmid)?).await;
        let result = result.map_err(|error| {
            error.with_required_privileges(&format!("VM.Allocate on /vms/{vmid}"))
        });
        turn.report(match &result {
            Err(error) if error.reason == Reason::Locked => PermitOutcome::Congested,
            _ => PermitOutcome::Succeeded,
        });
        result
    }
}

/// Converts a requested id to a number.
fn numeric_id(id: GuestId) -> Result<u32, PveError> {
    id.number().ok_or_else(|| {
        let detail = format!("`{id}` is not a number; guests of Proxmox VE have numeric ids");
        PveError::new(ErrorClass::Refused, Reason::Other, detail)
    })
}

/// Builds the create call of a VM from an image, or of a container from a template.
fn create_call(guest: &NewGuest, vmid: u32) -> Result<ApiCall, PveError> {
    match (guest.kind, &guest.source) {
        (GuestKind::Vm, DiskSource::Image(image)) => vm_call(guest, vmid, image),
        (GuestKind::Ct, DiskSource::Template(template)) => ct_call(guest, vmid, template),
        (GuestKind::Vm, _) => Err(PveError::bug("a VM is created from an image")),
        (GuestKind::Ct, _) => Err(PveError::bug("a container is created from a template")),
    }
}

fn vm_call(guest: &NewGuest, vmid: u32, image: &str) -> Result<ApiCall, PveError> {
    let (storage, images) = storages(guest)?;
    let from = volume(images, "import", image);
    let disk = Property::of(&format!("{storage}:0")).with("import-from", from);
    let call = ApiCall::to(&VM_CREATE)
        .at("node", &guest.host)
        .param("vmid", vmid)
        .param("name", &guest.name)
        .param("memory", guest.memory.0)
        .param("cores", guest.cores)
        .param("cpu", cpu(guest))
        .param("ostype", "l26")
        .param("scsihw", "virtio-scsi-single")
        .param("scsi0", disk.render())
        .param("boot", "order=scsi0")
        .param("net0", network_card(guest)?)
        .param("smbios1", format!("uuid={}", guest.uuid))
        .param("agent", 1)
        // Cloud images panic on growing their disk without a serial console.
        .param("serial0", "socket")
        .param("vga", "serial0")
        .param("tags", quirks::render_tags(&metadata(guest).tags(vmid)))
        .param("description", metadata(guest).notes())
        .optional_param("ide2", seed_drive(guest, images));
    Ok(call)
}

fn ct_call(guest: &NewGuest, vmid: u32, template: &str) -> Result<ApiCall, PveError> {
    let (storage, images) = storages(guest)?;
    let call = ApiCall::to(&CT_CREATE)
        .at("node", &guest.host)
        .param("vmid", vmid)
        .param("hostname", &guest.name)
        .param("ostemplate", volume(images, "vztmpl", template))
        .param("rootfs", format!("{storage}:{}", guest.disk.0))
        .param("memory", guest.memory.0)
        .param("swap", 0)
        .param("cores", guest.cores)
        .param("unprivileged", u8::from(guest.unprivileged))
        // All other features require a login as root.
        .optional_param("features", guest.unprivileged.then_some("nesting=1"))
        .param("net0", network_card(guest)?)
        .optional_param(
            "ssh-public-keys",
            Some(guest.ssh_keys.join("\n")).filter(|keys| !keys.is_empty()),
        )
        .param("tags", quirks::render_tags(&metadata(guest).tags(vmid)))
        .param("description", metadata(guest).notes());
    Ok(call)
}

/// Returns the storages of the guest's disk and of images.
fn storages(guest: &NewGuest) -> Result<(&str, &str), PveError> {
    let images = named(guest.image_storage.as_deref())?;
    Ok((named(guest.storage.as_deref())?, images))
}

/// Refuses a guest with the identity but without the site. Guests that were created before sites had
/// an id have neither tag; the plan lists them.
pub(super) fn check_site(located: Located, guest: &NewGuest) -> Result<Located, PveError> {
    let tags = located.config.tags();
    let is_of_site = match identity::sites_in_tags(&tags).as_slice() {
        [site] => *site == guest.site.as_str(),
        [] => guest.first_form && identity::created_as(&tags, located.vmid).is_none(),
        _ => false,
    };
    if is_of_site {
        return Ok(located);
    }
    let name = name_of(located.kind, located.vmid, &located.node);
    let detail = format!("{name} has this identity but not the site {}", guest.site);
    let tags = quirks::render_tags(&metadata(guest).tags(located.vmid));
    let error = PveError::new(ErrorClass::Refused, Reason::Other, detail);
    Err(error.with_hint(format!("if it is the original, set its tags to {tags}")))
}

/// Returns the volume id of a file of a storage; a complete volume id is unchanged.
pub(super) fn volume(storage: &str, content: &str, file: &str) -> String {
    if file.contains(':') {
        file.to_owned()
    } else {
        format!("{storage}:{content}/{file}")
    }
}

/// Hosts of other guests need the CPU type `host`; others get a common type, so that they can be
/// migrated.
fn cpu(guest: &NewGuest) -> &'static str {
    if guest.hosts_guests {
        "host"
    } else {
        "x86-64-v2-AES"
    }
}

/// Returns the drive with the seed.
fn seed_drive(guest: &NewGuest, storage: &str) -> Option<String> {
    guest.seed.as_ref()?;
    let file = super::seed::file_name(&guest.uuid);
    let volume = format!("{storage}:iso/{file}");
    Some(Property::of(&volume).with("media", "cdrom").render())
}

/// Returns the network card.
fn network_card(guest: &NewGuest) -> Result<String, PveError> {
    let nic = &guest.nic;
    let bridge = named(nic.bridge.as_deref())?;
    let mac = nic.mac.to_ascii_uppercase();
    let mut card = match guest.kind {
        GuestKind::Vm => Property::default()
            .with("virtio", mac)
            .with("bridge", bridge),
        GuestKind::Ct => {
            let mut card = Property::default()
                .with("name", "eth0")
                .with("bridge", bridge)
                .with("hwaddr", mac)
                .with("type", "veth");
            card = match nic.address {
                Some((address, prefix)) if address.is_ipv4() => {
                    card.with("ip", format!("{address}/{prefix}"))
                }
                Some((address, prefix)) => card.with("ip6", format!("{address}/{prefix}")),
                None => card.with("ip", "dhcp"),
            };
            match nic.gateway {
                Some(gateway) if gateway.is_ipv4() => card.with("gw", gateway.to_string()),
                Some(gateway) => card.with("gw6", gateway.to_string()),
                None => card,
            }
        }
    };
    if let Some(vlan) = nic.vlan {
        card = card.with("tag", vlan.to_string());
    }
    Ok(card.render())
}
