//! Records of nodes restored from the hosts, when the state directory was lost or is another.
//!
//! In: a site's manifests, its hosts. Out: what was recorded, what was refused and why.
//! Never: a record of a guest that does not prove to be the site's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{GuestId, GuestKind, GuestUuid, ObservedGuest};
use homestak_core::plan::{
    NodeLocation, NodePlan, NodeRecord, NodeStatus, Observation, OtherRecords, Plan, PlanInputs,
    PlanOptions, Reason, Records, Refusal, StepDurations, Verb, rebuild_plan, rebuild_records,
    unknown_manifest,
};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use homestak_engine::journal::{Ending, Entry, Happened, Scope};
use homestak_engine::look::look;
use homestak_engine::planning::records;
use homestak_engine::ports::{Class, Places as _, PortError, Provider, Reach};

use crate::driver::Driver;
use crate::error::DriverError;
use crate::hosts;
use crate::runs::{Which, lost_id};
use crate::session::require_sound;
use crate::settings::DriverSettings;

/// Restores records of the manifests and hosts that are meant. With `dry_run`, nothing is recorded.
pub async fn rebuild(
    driver: &Driver,
    settings: &DriverSettings,
    which: &Which,
    dry_run: bool,
) -> Result<Summary, DriverError> {
    let session = &driver.session;
    session.id()?;
    let manifests = session.catalog.manifests.keys();
    let manifests = chosen("manifest", which.manifest.as_ref(), manifests)?;
    let hosts = asked(driver, settings, which)?;
    let mut summary = Summary {
        // Whether there is a key before anybody needs one.
        had_key: driver.keyring.own_file().exists(),
        ..Summary::default()
    };
    for name in &manifests {
        for host in &hosts {
            if summary.lost.contains_key(host) {
                continue;
            }
            let notices = &session.notices;
            notices.detail(&format!("looking for nodes of {name} on {host}"));
            restore(driver, (name, host), (which, dry_run), &mut summary).await?;
        }
    }
    // What no manifest of the site names may be on a host that none of them is for.
    for host in &hosts {
        if !summary.asked.contains(host) && !summary.lost.contains_key(host) {
            let seen = async { driver.hosts.host(host).await?.observe().await };
            match seen.await {
                Ok(observed) => summary.see(&observed.guests),
                Err(error) => {
                    summary.lost.insert(host.clone(), error.to_string());
                }
            }
        }
    }
    let recorded = driver.journal().elsewhere(session.id()?, &[]).await?;
    summary.strangers(driver, &recorded, which)?;
    if !session.has_id {
        return Err(without_id(&summary));
    }
    Ok(summary)
}

/// Returns the hosts that are asked. Those without a document are when they have anything.
fn asked(
    driver: &Driver,
    settings: &DriverSettings,
    which: &Which,
) -> Result<Vec<String>, DriverError> {
    let catalog = &driver.session.catalog;
    let mut hosts: BTreeSet<String> = catalog.guest_hosts().cloned().collect();
    hosts.extend(hosts::kept(settings).map(str::to_owned));
    let named = which.host.as_ref();
    hosts.extend(
        named
            .filter(|host| catalog.built_in_hosts().any(|known| known == *host))
            .cloned(),
    );
    chosen("host", named, hosts.iter())
}

/// Refuses to record anything for a site without an id, with the ids that guests carry.
fn without_id(summary: &Summary) -> DriverError {
    let refused =
        DriverError::refused("The site has no id, so that no guest can be shown to be its own.");
    if summary.sites.is_empty() {
        return refused.hint(
            "guests carry it in the tag `homestak-s-ID`; homestak site new-id --id ID writes it",
        );
    }
    summary.other_sites().fold(refused, DriverError::hint)
}

/// Returns the one that is named, or all.
fn chosen<'k>(
    what: &'static str,
    named: Option<&String>,
    all: impl Iterator<Item = &'k String> + Clone,
) -> Result<Vec<String>, DriverError> {
    match named {
        None => Ok(all.cloned().collect()),
        Some(name) if all.clone().any(|known| known == name) => Ok(vec![name.clone()]),
        Some(name) => Err(DriverError::unknown(what, name, all.map(String::as_str))),
    }
}

/// What came of it.
#[derive(Default)]
pub struct Summary {
    /// Whether the driver had a key before.
    had_key: bool,
    /// Manifest, and what is recorded now.
    pub restored: Vec<(String, NodeRecord)>,
    /// How many nodes were known before.
    pub known: BTreeSet<(String, String, String)>,
    /// Those of them that have a guest.
    before: Vec<NodeRecord>,
    /// What was not recorded, and why, by manifest.
    pub refused: Vec<(String, Refusal)>,
    /// Hosts that could not be asked, and why.
    pub lost: BTreeMap<String, String>,
    /// Hosts that were looked at.
    asked: BTreeSet<String>,
    /// Guests that carry a site, by where they are.
    seen: BTreeMap<(String, GuestId), ObservedGuest>,
    /// Identities of nodes.
    claimed: BTreeSet<GuestUuid>,
    /// Other sites, and manifests of this one whose name their guests carry.
    pub sites: BTreeMap<SiteId, BTreeSet<String>>,
}

impl Summary {
    fn see(&mut self, guests: &[ObservedGuest]) {
        for guest in guests.iter().filter(|guest| guest.site.is_some()) {
            let at = (guest.host.clone(), guest.vmid);
            self.seen.insert(at, guest.clone());
        }
    }

    /// Finds guests of manifests that the site does not have, and guests of other sites with names
    /// of manifests that nothing was found of: the site may have lost its id.
    fn strangers(
        &mut self,
        driver: &Driver,
        recorded: &OtherRecords,
        which: &Which,
    ) -> Result<(), DriverError> {
        let (site, catalog) = (driver.session.id()?, &driver.session.catalog);
        let asked = |name: &str| which.manifest.as_ref().is_none_or(|one| one == name);
        let found: BTreeSet<String> = self.known.iter().map(|(name, ..)| name.clone()).collect();
        for guest in std::mem::take(&mut self.seen).into_values() {
            // Of a manifest that is no document of the site, the journal may know all guests.
            let claims = |uuid| self.claimed.contains(uuid) || recorded.has(uuid, guest.vmid);
            let known = |name: &str| catalog.manifests.contains_key(name);
            let stranger = unknown_manifest(site, &guest, known)
                .filter(|_| which.manifest.is_none() && !guest.uuid.as_ref().is_some_and(claims));
            if let Some((manifest, refusal)) = stranger {
                self.refuse(&manifest, refusal);
            }
            if let (Some(other), Some(name)) = (&guest.site, &guest.manifest)
                && other != site
                && known(name)
                && asked(name)
                && !found.contains(name)
            {
                let names = self.sites.entry(other.clone()).or_default();
                names.insert(name.clone());
            }
        }
        Ok(())
    }

    /// Says which other sites have guests with names of manifests that nothing was found of.
    pub fn other_sites(&self) -> impl Iterator<Item = String> {
        self.sites.iter().map(|(id, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            lost_id(&names.join("`, `"), id)
        })
    }

    fn refuse(&mut self, manifest: &str, refusal: Refusal) {
        let new = (manifest.to_owned(), refusal);
        if !self.refused.contains(&new) {
            self.refused.push(new);
        }
    }
}

/// Restores what is known of the nodes of a manifest on a host.
async fn restore(
    driver: &Driver,
    (name, host): (&str, &str),
    (which, dry_run): (&Which, bool),
    summary: &mut Summary,
) -> Result<(), DriverError> {
    let request = ResolveOptions {
        host: Some(host.to_owned()),
        ..ResolveOptions::default()
    };
    let catalog = &driver.session.catalog;
    let (resolved, faults) = manifest(catalog, name, &request);
    if faults.errors() > 0 && which.manifest.is_some() {
        require_sound(driver.session.notices.as_ref(), &faults, &catalog.sources)?;
    }
    let Some(resolved) = resolved.filter(|_| faults.errors() == 0) else {
        driver.session.notices.notice(&format!(
            "notice: `{name}` has faults and is left out; homestak manifest validate -M {name} lists them"
        ));
        return Ok(());
    };
    let scopes = Scope::of_manifest(driver.session.id()?, &resolved);
    if !scopes.iter().any(|scope| scope.host == host) {
        return Ok(());
    }
    let _lease = driver.journal().hold(&scopes).await?;
    summary.asked.insert(host.to_owned());
    let mut records = records(driver.journal().as_ref(), &scopes).await?;
    for record in records.values() {
        let key = (name.to_owned(), record.host.clone(), record.name.clone());
        if summary.known.insert(key) && record.status != NodeStatus::Destroyed {
            summary.before.push(record.clone());
        }
    }
    let elsewhere = driver
        .journal()
        .elsewhere(driver.session.id()?, &scopes)
        .await?;
    let found = find(driver, (&resolved, &elsewhere), &mut records, summary).await;
    let (plan, new) = match found {
        Ok(found) => found,
        Err(error) => {
            summary.lost.insert(host.to_owned(), error.to_string());
            return Ok(());
        }
    };
    let key = |record: &NodeRecord| (name.to_owned(), record.host.clone(), record.name.clone());
    let new: Vec<NodeRecord> = new
        .into_iter()
        .filter(|record| summary.known.insert(key(record)))
        .collect();
    if !dry_run && !new.is_empty() {
        let operator = &driver.operator;
        let now = operator.clock.now();
        let journal = driver.journal();
        let run = journal
            .begin("rebuild", &plan, &(operator.mark)(), now)
            .await?;
        for record in &new {
            let entry = Entry {
                step: None,
                happened: Happened::Settled,
                at: now,
                record: Some(record.clone()),
            };
            journal.append(run, &entry).await?;
        }
        journal.end(run, Ending::Done, operator.clock.now()).await?;
    }
    let restored = new.into_iter().map(|record| (name.to_owned(), record));
    summary.restored.extend(restored);
    Ok(())
}

/// Finds guests level by level: those inside a node are seen once the node itself is known.
async fn find(
    driver: &Driver,
    (resolved, elsewhere): (&ResolvedManifest, &OtherRecords),
    records: &mut Records,
    summary: &mut Summary,
) -> Result<(Plan, Vec<NodeRecord>), PortError> {
    let site = driver
        .session
        .id()
        .map_err(|error| PortError::refused("read the site's id", error.message.clone(), ""))?;
    let options = PlanOptions::new(Verb::Apply);
    let (mut nodes, mut new): (Vec<NodePlan>, Vec<NodeRecord>) = (Vec::new(), Vec::new());
    loop {
        let observations = look(driver.places(), resolved, records).await?;
        let inputs = PlanInputs {
            site,
            catalog: &driver.session.catalog,
            resolved,
            observations: &observations,
            records,
            other_records: elsewhere,
            configs: &BTreeMap::new(),
            options: &options,
            step_durations: &StepDurations::default(),
        };
        let rebuilt = rebuild_records(&inputs);
        summary.claimed.extend(rebuilt.claimed);
        for look in observations.values() {
            if let Observation::Available(observed) = look {
                summary.see(&observed.guests);
            }
        }
        for refusal in rebuilt.refusals {
            summary.refuse(&resolved.name, refusal);
        }
        let mut level = Vec::new();
        for (node, mut record) in rebuilt.nodes {
            let there = async {
                let provider = provider(driver, &record, records).await?;
                let there = provider.inspect(&record.guest).await?;
                Ok::<_, PortError>((provider, there))
            };
            let provider = match there.await {
                Ok((provider, Some(there))) if there.uuid.is_some() => provider,
                // Gone, or someone removed its tags, since the list was read.
                Ok(_) => continue,
                // It does not answer, or something about it contradicts its identity. Others do not.
                Err(error) => {
                    let hint = match error.hint.is_empty() {
                        true => "homestak state rebuild records it once it answers".to_owned(),
                        false => error.hint.clone(),
                    };
                    let reason = Reason {
                        text: match error.class {
                            Class::Refused => error.detail.to_string(),
                            _ => error.to_string(),
                        },
                        ..Reason::default()
                    };
                    let refusal = Refusal {
                        node: Some(node.name),
                        reason,
                        hint,
                    };
                    summary.refuse(&resolved.name, refusal);
                    continue;
                }
            };
            // An address that is not known now is found by the next apply.
            let reach = provider.address(&record.guest).await;
            record.address = reach.ok().and_then(Reach::address);
            level.push((node, record));
        }
        if level.is_empty() {
            return Ok((rebuild_plan(&inputs, nodes), new));
        }
        for (node, record) in level {
            records.insert(record.clone());
            nodes.push(node);
            new.push(record);
        }
    }
}

async fn provider(
    driver: &Driver,
    record: &NodeRecord,
    records: &Records,
) -> Result<Arc<dyn Provider>, PortError> {
    match &record.location {
        NodeLocation::Host(host) => driver.hosts.host(host).await,
        NodeLocation::Inside(parent) => {
            let node = records
                .of(parent, &record.host)
                .ok_or_else(|| PortError::bug("look inside a node", &"the node is not recorded"))?;
            let address = match node.address {
                Some(address) => Some(address),
                None => {
                    let outer = Box::pin(provider(driver, node, records)).await?;
                    outer.address(&node.guest).await?.address()
                }
            };
            let address = address.ok_or_else(|| {
                PortError::unreachable("look inside a node", "its address is not known", "")
            })?;
            driver.hosts.inside(&record.host, parent, address).await
        }
    }
}

/// Returns nodes that this driver has no keys for, each with the commands that let it in.
pub fn locked_out<'s>(
    summary: &'s Summary,
    driver: &Driver,
) -> Result<Vec<(&'s NodeRecord, Vec<String>)>, DriverError> {
    let keyring = &driver.keyring;
    let mut locked = Vec::new();
    let new = summary.restored.iter().map(|(_, record)| (record, true));
    let before = summary.before.iter().map(|record| (record, false));
    for (record, is_new) in new.chain(before) {
        let traits = driver.session.catalog.traits_of(&record.host);
        if traits.is_simulated {
            continue;
        }
        let word = |error: PortError| DriverError::of_host(&record.host, &error);
        let uuid = &record.guest.uuid;
        // A container of Proxmox VE creates its own host key, and a person says whether it is that.
        let foreign = record.guest.kind == GuestKind::Ct && !traits.seeds_containers;
        let known = foreign || keyring.is_pinned(uuid).map_err(word)?;
        let mut lines = Vec::new();
        if is_new && !summary.had_key || !known {
            let key = keyring.driver_key().map_err(word)?;
            let user = match foreign {
                true => "root",
                false => record.user.as_deref().unwrap_or_default(),
            };
            lines.push(format!("echo '{key}' >> ~{user}/.ssh/authorized_keys"));
        }
        if !known {
            lines.push(format!(
                "sed 's/^/{uuid} /' /etc/ssh/ssh_host_ed25519_key.pub # add what this prints to {} here",
                keyring.known_hosts().display()
            ));
        }
        if !lines.is_empty() {
            locked.push((record, lines));
        }
    }
    Ok(locked)
}
