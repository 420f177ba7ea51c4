//! Finds a guest by UUID anywhere in the cluster and verifies its identity.
//!
//! Neither its name nor its vmid is enough to identify it. A guest that could not be checked is not
//! reported as missing.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use homestak_engine::ports::{
    Bytes, ErrorClass, GuestKind, GuestRef, GuestUuid, Mib, ObservedGuest, PowerState,
};
use serde_json::Value;

use super::client::{Pve, by_kind, name_of};
use super::config::GuestConfig;
use super::error::{PveError, Reason};
use super::identity::{self, Ownership, id_tag, ownership};
use super::incomplete::is_being_created;
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
pub(super) enum SearchResult {
    /// The guest.
    Ours(Located),
    /// Several guests with this identity.
    Duplicates(Vec<Located>),
    /// Only a guest that has the tag but another identity otherwise.
    Conflicting(Located),
    /// A guest that is being created at the expected id and does not identify itself yet.
    Unidentified(Located),
    /// The guest without its tags, which were removed: it is no longer managed.
    Disowned(Located),
    /// Nothing.
    NotFound,
}

impl Located {
    /// Compares it with an identity.
    pub(super) fn ownership(&self, uuid: &GuestUuid) -> Ownership {
        ownership(self.kind, self.vmid, &self.config, uuid)
    }

    fn into_search_result(self, uuid: &GuestUuid) -> SearchResult {
        match self.ownership(uuid) {
            Ownership::Ours => SearchResult::Ours(self),
            Ownership::Conflicting => SearchResult::Conflicting(self),
            Ownership::Other if is_being_created(&self.config) => SearchResult::Unidentified(self),
            Ownership::Other if self.is_disowned(uuid) => SearchResult::Disowned(self),
            Ownership::Other => SearchResult::NotFound,
        }
    }

    /// Returns whether a guest without the tag of an identity carries it in its SMBIOS or notes, and
    /// no other in its tags.
    pub(super) fn is_disowned(&self, uuid: &GuestUuid) -> bool {
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
    ) -> Result<Option<GuestConfig>, PveError> {
        let call = by_kind(kind, &VM_CONFIG, &CT_CONFIG)
            .at("node", node)
            .at("vmid", vmid);
        match self.ask(&call).await {
            Ok(data) if data.is_object() => Ok(Some(GuestConfig::new(data))),
            Ok(_) => Err(PveError::invalid_response(
                "the configuration is not an object",
            )),
            Err(error) if matches!(error.reason, Reason::NoConfig | Reason::NoHost) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds a guest: the one with its id, wherever in the cluster it is; without an id, the only
    /// one that carries its identity.
    pub(super) async fn find(&self, guest: &GuestRef) -> Result<SearchResult, PveError> {
        match guest.vmid {
            Some(id) => match id.number() {
                Some(vmid) => self.find_at(guest, vmid).await,
                None => Ok(SearchResult::NotFound),
            },
            None => self.search(&guest.uuid).await,
        }
    }

    async fn find_at(&self, guest: &GuestRef, vmid: u32) -> Result<SearchResult, PveError> {
        let mut at = (guest.kind, guest.host.clone());
        let mut found = SearchResult::NotFound;
        // Three times: a guest that migrates between the two requests is found on its new host.
        for _ in 0..3 {
            if !at.1.is_empty() {
                let config = self.config_at(at.0, &at.1, vmid).await?;
                let located = config.map(|config| Located {
                    kind: at.0,
                    vmid,
                    node: at.1.clone(),
                    config,
                });
                found = located.map_or(SearchResult::NotFound, |located| {
                    located.into_search_result(&guest.uuid)
                });
                if !matches!(found, SearchResult::NotFound) {
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
    pub(super) async fn search(&self, uuid: &GuestUuid) -> Result<SearchResult, PveError> {
        let mut ours: Vec<Located> = Vec::new();
        let mut second = SearchResult::NotFound;
        let range = self.vmid_range().await?;
        // Twice: a guest that migrates between the two requests is found on its new host.
        for _ in 0..2 {
            let mut moved = false;
            let tag = id_tag(uuid);
            let rows = self.guests().await?;
            // A guest being created has no tag yet, but has one of the ids that are chosen first.
            let ids: BTreeSet<u32> = rows.iter().filter_map(|row| row.vmid.number()).collect();
            let making = candidate_ids(uuid, range, &ids);
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
                match located.into_search_result(uuid) {
                    SearchResult::Ours(located) => ours.push(located),
                    found @ SearchResult::Conflicting(_)
                        if matches!(
                            second,
                            SearchResult::NotFound | SearchResult::Unidentified(_)
                        ) =>
                    {
                        second = found;
                    }
                    found @ SearchResult::Unidentified(_)
                        if matches!(second, SearchResult::NotFound) =>
                    {
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
            return Ok(SearchResult::Duplicates(ours));
        }
        Ok(ours.pop().map_or(second, SearchResult::Ours))
    }

    /// Finds a guest to be changed, verifies its identity and waits until it is not locked. `None` if
    /// it does not exist.
    pub(super) async fn find_for_change(
        &self,
        guest: &GuestRef,
    ) -> Result<Option<Located>, PveError> {
        for _ in 0..3 {
            let located = match self.find(guest).await? {
                SearchResult::Ours(located) => located,
                SearchResult::Duplicates(guests) => return Err(duplicates_error(&guests)),
                SearchResult::Conflicting(located) => {
                    return Err(conflict_error(&located, &guest.uuid));
                }
                SearchResult::Unidentified(located) if located.kind == guest.kind => {
                    self.wait_for_unlock(located).await?;
                    continue;
                }
                SearchResult::Disowned(located) => {
                    return Err(disowned_error(&located, &guest.uuid));
                }
                SearchResult::Unidentified(_) | SearchResult::NotFound => return Ok(None),
            };
            if located.config.lock().is_none() {
                return Ok(Some(located));
            }
            // It may have been moved or deleted meanwhile, so it is checked again.
            if let Some(located) = self.wait_for_unlock(located).await?
                && located.ownership(&guest.uuid) == Ownership::Ours
            {
                return Ok(Some(located));
            }
        }
        Err(PveError::new(
            ErrorClass::Busy,
            Reason::Locked,
            "the guest keeps being changed by others",
        ))
    }

    /// Finds a guest to be changed, which must exist.
    pub(super) async fn require_for_change(&self, guest: &GuestRef) -> Result<Located, PveError> {
        self.find_for_change(guest).await?.ok_or_else(|| {
            let id = guest
                .vmid
                .map_or_else(String::new, |id| format!(" and the id {id}"));
            let detail = format!("no guest has the identity {}{id}", guest.uuid);
            PveError::new(ErrorClass::Missing, Reason::NoConfig, detail)
        })
    }

    /// Queries whether a guest runs; the list may be ten seconds old.
    pub(super) async fn fetch_power(&self, located: &Located) -> Result<PowerState, PveError> {
        Ok(power(&text_of(
            &self.fetch_status(located).await?,
            "status",
        )))
    }

    async fn fetch_status(&self, located: &Located) -> Result<Value, PveError> {
        let call = by_kind(located.kind, &VM_STATUS, &CT_STATUS)
            .at("node", &located.node)
            .at("vmid", located.vmid);
        self.ask(&call).await
    }

    /// Inspects one guest.
    pub(super) async fn inspect_guest(
        &self,
        guest: &GuestRef,
    ) -> Result<Option<ObservedGuest>, PveError> {
        let mut uuid = Some(guest.uuid.clone());
        let located = match self.find(guest).await? {
            SearchResult::Ours(located) => located,
            SearchResult::Disowned(located) => {
                uuid = None;
                located
            }
            SearchResult::Duplicates(guests) => return Err(duplicates_error(&guests)),
            // Another guest at this id: the guest is neither present nor missing.
            SearchResult::Conflicting(located) if guest.vmid.is_some() => {
                return Err(conflict_error(&located, &guest.uuid));
            }
            SearchResult::Conflicting(_)
            | SearchResult::Unidentified(_)
            | SearchResult::NotFound => return Ok(None),
        };
        let status = match self.fetch_status(&located).await {
            Ok(status) => status,
            Err(error) if error.reason == Reason::NoConfig => return Ok(None),
            Err(error) => return Err(error),
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

/// Limit of ids that are checked for a guest without a tag.
const CHOICES: usize = 16;

/// Returns the ids in use that a guest may have been given.
fn candidate_ids(
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

/// Returns the error for several guests with one identity.
pub(super) fn duplicates_error(guests: &[Located]) -> PveError {
    let names: Vec<String> = guests
        .iter()
        .map(|located| name_of(located.kind, located.vmid, &located.node))
        .collect();
    let detail = format!(
        "{} have the same identity; none was changed",
        names.join(", ")
    );
    PveError::new(ErrorClass::Refused, Reason::Other, detail)
        .with_hint("remove the homestak tags from each copy")
}

/// Returns the error for a guest whose tags were removed.
pub(super) fn disowned_error(located: &Located, uuid: &GuestUuid) -> PveError {
    let name = name_of(located.kind, located.vmid, &located.node);
    let detail = format!(
        "{name} has the identity {uuid} in its notes or SMBIOS, but its tags were removed; it was not changed"
    );
    PveError::new(ErrorClass::Refused, Reason::AlreadyExists, detail)
}

/// Returns the error for a guest with a conflicting identity.
pub(super) fn conflict_error(located: &Located, uuid: &GuestUuid) -> PveError {
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
    let error = PveError::new(
        ErrorClass::Refused,
        Reason::Other,
        format!("{name} {why}; it was not changed"),
    );
    let copy = "if it is a copy, remove its tags `homestak*`";
    error.with_hint(match line {
        Some(line) => format!("{copy}; if it is the original, {line}"),
        None => copy.to_owned(),
    })
}
