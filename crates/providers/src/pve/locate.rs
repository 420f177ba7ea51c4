//! Finding a guest by its UUID, wherever it went, and proving that it is the one.
//!
//! In: a UUID and where it was last seen. Out: [`Found`], with the configuration that proves it.
//! Never: a guest taken for ours by its name or vmid; "gone" when it could not be seen.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use homestak_engine::ports::{
    Bytes, Class, GuestKind, GuestRef, GuestUuid, Mib, ObservedGuest, PowerState,
};
use serde_json::Value;

use super::client::{Pve, by_kind, name_of};
use super::config::GuestConfig;
use super::fault::{Fault, Reason};
use super::half::being_made;
use super::identity::{self, Claim, id_tag, judge};
use super::observe::power;
use super::quirks::{self, text_of};
use super::requests::{CT_CONFIG, CT_STATUS, VM_CONFIG, VM_STATUS};

/// A guest whose configuration was just read.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) kind: GuestKind,
    pub(super) vmid: u32,
    pub(super) node: String,
    pub(super) config: GuestConfig,
}

/// What a search for a UUID found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// The guest.
    Ours(Located),
    /// Several guests with every sign of it.
    Several(Vec<Located>),
    /// Only something that carries its tag and is another.
    Impostor(Located),
    /// Something in the making where the guest would be, which does not say whose it is.
    Anonymous(Located),
    /// The guest without its tags: whoever removed them made it a guest of its own.
    GivenUp(Located),
    /// Nothing.
    Nowhere,
}

impl Located {
    /// Judges it against an identity.
    pub(super) fn claim(&self, uuid: &GuestUuid) -> Claim {
        judge(self.kind, self.vmid, &self.config, uuid)
    }

    fn judged(self, uuid: &GuestUuid) -> Found {
        match self.claim(uuid) {
            Claim::Ours => Found::Ours(self),
            Claim::Impostor => Found::Impostor(self),
            Claim::Other if being_made(&self.config) => Found::Anonymous(self),
            Claim::Other if self.is_given_up(uuid) => Found::GivenUp(self),
            Claim::Other => Found::Nowhere,
        }
    }

    /// Tells whether a guest without the tag of an identity carries it in its SMBIOS or notes, and
    /// no other in its tags.
    pub(super) fn is_given_up(&self, uuid: &GuestUuid) -> bool {
        let noted = self.config.notes().and_then(identity::uuid_in_notes);
        let carried = [noted, self.config.smbios_uuid()];
        identity::ids_in_tags(&self.config.tags()).is_empty()
            && carried.iter().flatten().any(|one| one == uuid)
    }
}

impl Pve {
    /// Reads a guest's configuration; `None` when there is no such guest on that host.
    pub(super) async fn config_at(
        &self,
        kind: GuestKind,
        node: &str,
        vmid: u32,
    ) -> Result<Option<GuestConfig>, Fault> {
        let call = by_kind(kind, &VM_CONFIG, &CT_CONFIG)
            .at("node", node)
            .at("vmid", vmid);
        match self.ask(&call).await {
            Ok(data) if data.is_object() => Ok(Some(GuestConfig::new(data))),
            Ok(_) => Err(Fault::garbage("a configuration is no object")),
            Err(fault) if matches!(fault.reason, Reason::NoConfig | Reason::NoHost) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Finds a guest: the one with its id, wherever in the cluster it is; without an id, the only
    /// one that carries its identity.
    pub(super) async fn find(&self, guest: &GuestRef) -> Result<Found, Fault> {
        match guest.vmid {
            Some(id) => match id.number() {
                Some(vmid) => self.find_at(guest, vmid).await,
                None => Ok(Found::Nowhere),
            },
            None => self.search(&guest.uuid).await,
        }
    }

    async fn find_at(&self, guest: &GuestRef, vmid: u32) -> Result<Found, Fault> {
        let mut at = (guest.kind, guest.host.clone());
        let mut found = Found::Nowhere;
        // Three times: a guest that moves between the list and the look is found where it went.
        for _ in 0..3 {
            if !at.1.is_empty() {
                let config = self.config_at(at.0, &at.1, vmid).await?;
                let located = config.map(|config| Located {
                    kind: at.0,
                    vmid,
                    node: at.1.clone(),
                    config,
                });
                found = located.map_or(Found::Nowhere, |located| located.judged(&guest.uuid));
                if !matches!(found, Found::Nowhere) {
                    break;
                }
            }
            let rows = self.guests().await?;
            let row = rows.into_iter().find(|row| row.vmid == vmid.into());
            let Some(row) = row.filter(|row| (row.kind, &row.host) != (at.0, &at.1)) else {
                break;
            };
            at = (row.kind, row.host);
        }
        Ok(found)
    }

    /// Searches for everything that carries an identity.
    pub(super) async fn search(&self, uuid: &GuestUuid) -> Result<Found, Fault> {
        let mut ours: Vec<Located> = Vec::new();
        let mut second = Found::Nowhere;
        let range = self.vmid_range().await?;
        // Twice: a guest that moves between the list and the look is found where it went.
        for _ in 0..2 {
            let mut moved = false;
            let tag = id_tag(uuid);
            let rows = self.guests().await?;
            // A guest being created has no tag yet; it is where its id was chosen from.
            let ids: BTreeSet<u32> = rows.iter().filter_map(|row| row.vmid.number()).collect();
            let making = first_choices(uuid, range, &ids);
            ours.clear();
            for row in &rows {
                let candidate = |vmid: &u32| row.tags.contains(&tag) || making.contains(vmid);
                let Some(vmid) = row.vmid.number().filter(candidate) else {
                    continue;
                };
                let Some(config) = self.config_at(row.kind, &row.host, vmid).await? else {
                    moved = true;
                    continue;
                };
                let located = Located {
                    kind: row.kind,
                    vmid,
                    node: row.host.clone(),
                    config,
                };
                match located.judged(uuid) {
                    Found::Ours(located) => ours.push(located),
                    found @ Found::Impostor(_)
                        if matches!(second, Found::Nowhere | Found::Anonymous(_)) =>
                    {
                        second = found;
                    }
                    found @ Found::Anonymous(_) if matches!(second, Found::Nowhere) => {
                        second = found;
                    }
                    _ => {}
                }
            }
            if !moved {
                break;
            }
        }
        if ours.len() > 1 {
            return Ok(Found::Several(ours));
        }
        Ok(ours.pop().map_or(second, Found::Ours))
    }

    /// Finds a guest that is about to be changed, proves its identity and waits until nothing
    /// holds it. `None` when it is nowhere.
    pub(super) async fn prove(&self, guest: &GuestRef) -> Result<Option<Located>, Fault> {
        for _ in 0..3 {
            let located = match self.find(guest).await? {
                Found::Ours(located) => located,
                Found::Several(guests) => return Err(several(&guests)),
                Found::Impostor(located) => {
                    return Err(contested(&located, &guest.uuid));
                }
                Found::Anonymous(located) if located.kind == guest.kind => {
                    self.wait_for_unlock(located).await?;
                    continue;
                }
                Found::GivenUp(located) => return Err(given_up(&located, &guest.uuid)),
                Found::Anonymous(_) | Found::Nowhere => return Ok(None),
            };
            if located.config.lock().is_none() {
                return Ok(Some(located));
            }
            // Whoever held it may have moved or removed it, so it is judged again.
            if let Some(located) = self.wait_for_unlock(located).await?
                && located.claim(&guest.uuid) == Claim::Ours
            {
                return Ok(Some(located));
            }
        }
        Err(Fault::new(
            Class::Busy,
            Reason::Locked,
            "others keep changing the guest",
        ))
    }

    /// Finds a guest that must be there.
    pub(super) async fn require(&self, guest: &GuestRef) -> Result<Located, Fault> {
        self.prove(guest).await?.ok_or_else(|| {
            let id = guest
                .vmid
                .map_or_else(String::new, |id| format!(" and the id {id}"));
            let detail = format!("no guest has the identity {}{id}", guest.uuid);
            Fault::new(Class::Missing, Reason::NoConfig, detail)
        })
    }

    /// Asks whether a guest runs; the list is up to ten seconds late.
    pub(super) async fn power_of(&self, located: &Located) -> Result<PowerState, Fault> {
        Ok(power(&text_of(&self.status_of(located).await?, "status")))
    }

    async fn status_of(&self, located: &Located) -> Result<Value, Fault> {
        let call = by_kind(located.kind, &VM_STATUS, &CT_STATUS)
            .at("node", &located.node)
            .at("vmid", located.vmid);
        self.ask(&call).await
    }

    /// Looks at one guest, for the port.
    pub(super) async fn look_at(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, Fault> {
        let mut uuid = Some(guest.uuid.clone());
        let located = match self.find(guest).await? {
            Found::Ours(located) => located,
            Found::GivenUp(located) => {
                uuid = None;
                located
            }
            Found::Several(guests) => return Err(several(&guests)),
            // At the id of the guest: neither the guest nor its absence.
            Found::Impostor(located) if guest.vmid.is_some() => {
                return Err(contested(&located, &guest.uuid));
            }
            Found::Impostor(_) | Found::Anonymous(_) | Found::Nowhere => return Ok(None),
        };
        let status = match self.status_of(&located).await {
            Ok(status) => status,
            Err(fault) if fault.reason == Reason::NoConfig => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let power = power(&text_of(&status, "status"));
        let config = &located.config;
        let tags = config.tags();
        // The configuration shows changes that wait for a restart; a guest that runs has the sizes
        // it was started with.
        let running = |field: &str| {
            let value = status.get(field).filter(|_| power == PowerState::Running);
            value.and_then(quirks::parse_u64).filter(|size| *size > 0)
        };
        let cores = running("cpus").or_else(|| config.number("cores"));
        let configured = || config.number("memory").map(|size| Mib(size).into());
        let memory = running("maxmem").map(Bytes).or_else(configured);
        Ok(Some(ObservedGuest {
            kind: located.kind,
            vmid: located.vmid.into(),
            host: located.node.clone(),
            name: config.name(located.kind),
            uuid,
            site: identity::site_in_tags(&tags),
            manifest: identity::manifest_in_tags(&tags),
            created_as: identity::created_as(&tags, located.vmid).map(Into::into),
            run: config.notes().and_then(identity::run_in_notes),
            contested: None,
            is_unrelated: false,
            power,
            template: config.flag("template"),
            lock: config.lock(),
            cores: cores.and_then(|cores| u32::try_from(cores).ok()),
            memory,
            disk: config
                .first_disk(located.kind)
                .and_then(|disk| disk.size)
                .map(Bytes),
            tags: tags.into_iter().collect(),
        }))
    }
}

/// The most ids that are looked at for a guest being created, without a tag.
const CHOICES: usize = 16;

/// Returns the ids in use that a guest may have been given.
fn first_choices(
    uuid: &GuestUuid,
    range: &RangeInclusive<u32>,
    ids: &BTreeSet<u32>,
) -> BTreeSet<u32> {
    let mut choices = BTreeSet::new();
    while choices.len() < CHOICES
        && let Some(vmid) = super::vmid::choose(uuid, range, &choices)
        && ids.contains(&vmid)
    {
        choices.insert(vmid);
    }
    choices
}

/// Refuses to choose between guests that carry one identity.
pub(super) fn several(guests: &[Located]) -> Fault {
    let names: Vec<String> = guests
        .iter()
        .map(|located| name_of(located.kind, located.vmid, &located.node))
        .collect();
    let detail = format!(
        "{} carry the same identity; none is touched",
        names.join(", ")
    );
    Fault::new(Class::Refused, Reason::Other, detail)
        .with_hint("remove the homestak tags from each copy")
}

/// Refuses to change a guest that was given up.
pub(super) fn given_up(located: &Located, uuid: &GuestUuid) -> Fault {
    let name = name_of(located.kind, located.vmid, &located.node);
    let detail = format!(
        "{name} carries the identity {uuid} in its notes or SMBIOS, but its tags were removed; it is not changed"
    );
    Fault::new(Class::Refused, Reason::AlreadyExists, detail)
}

/// Refuses to change a guest whose identity is in doubt, and says what contradicts it.
pub(super) fn contested(located: &Located, uuid: &GuestUuid) -> Fault {
    let config = &located.config;
    let tags = config.tags();
    let created_as = identity::created_as(&tags, located.vmid);
    let created_as = created_as.filter(|id| *id != located.vmid);
    let (why, line) = match (created_as, located.kind) {
        _ if identity::sites_in_tags(&tags).len() > 1 => {
            let why = "has the tags of several sites".to_owned();
            (why, Some("remove the tag of the other site".to_owned()))
        }
        _ if identity::ids_in_tags(&tags).len() > 1 => {
            let why = "has the tags of several guests".to_owned();
            let keep = identity::id_tag(uuid);
            (
                why,
                Some(format!("remove each tag `homestak-id-*` but `{keep}`")),
            )
        }
        (Some(id), _) => (format!("was created as guest {id}, so it is a copy"), None),
        (None, GuestKind::Vm) => {
            let found = config.smbios_uuid();
            let found = found.map_or_else(|| "none".to_owned(), |uuid| uuid.to_string());
            let why = format!("has the tag of another guest: its SMBIOS uuid is {found}");
            (why, Some(format!("set its SMBIOS uuid to {uuid}")))
        }
        (None, GuestKind::Ct) => (
            "has the tag of a guest that its notes do not name".to_owned(),
            Some(format!("add the line `homestak-id: {uuid}` to its notes")),
        ),
    };
    let name = name_of(located.kind, located.vmid, &located.node);
    let fault = Fault::new(
        Class::Refused,
        Reason::Other,
        format!("{name} {why}; it is not changed"),
    );
    let copy = "if someone copied it, remove its tags `homestak*`";
    fault.with_hint(match line {
        Some(line) => format!("{copy}; if it is the original, {line}"),
        None => copy.to_owned(),
    })
}
