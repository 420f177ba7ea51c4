//! Rebuilds the records of nodes from the hosts, when the state directory was lost or is a new one.
//!
//! Only guests that prove to belong to the site are recorded.

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
use homestak_engine::journal::{Entry, RunOutcome, Scope, StepEvent};
use homestak_engine::observe::observe;
use homestak_engine::planning::records;
use homestak_engine::ports::{ErrorClass, GuestAddress, HostConnector as _, PortError, Provider};

use crate::driver::Driver;
use crate::error::DriverError;
use crate::hosts;
use crate::runs::{RunSelector, lost_id_hint};
use crate::select::unknown_host;
use crate::session::require_sound;
use crate::settings::DriverSettings;

/// Rebuilds the records of the selected manifests and hosts. With `dry_run`, nothing is recorded.
pub async fn rebuild(
    driver: &Driver,
    settings: &DriverSettings,
    which: &RunSelector,
    dry_run: bool,
) -> Result<RebuildReport, DriverError> {
    let session = &driver.session;
    session.id()?;
    let manifests = session.catalog.manifests.keys();
    let manifests = chosen("manifest", which.manifest.as_ref(), manifests)?;
    let hosts = asked(driver, settings, which)?;
    let mut summary = RebuildReport {
        // Checked before a key is created.
        had_key: driver.keyring.driver_key_file().exists(),
        ..RebuildReport::default()
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
    // Guests of unknown manifests may be on hosts that no manifest uses.
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
    summary.find_unknown_guests(driver, &recorded, which)?;
    if !session.has_id {
        return Err(without_id(&summary));
    }
    Ok(summary)
}

/// Returns the hosts to observe; built-in ones only when they have data.
fn asked(
    driver: &Driver,
    settings: &DriverSettings,
    which: &RunSelector,
) -> Result<Vec<String>, DriverError> {
    let catalog = &driver.session.catalog;
    let mut hosts: BTreeSet<String> = catalog.guest_hosts().cloned().collect();
    hosts.extend(hosts::hosts_with_data(settings).map(str::to_owned));
    let named = which.host.as_ref();
    hosts.extend(
        named
            .filter(|host| catalog.built_in_hosts().any(|known| known == *host))
            .cloned(),
    );
    if let Some(name) = named
        && !hosts.contains(name)
        && !catalog.has_host(name)
    {
        return Err(unknown_host(name, &driver.session));
    }
    chosen("host", named, hosts.iter())
}

/// Makes the error for a site without an id, with the ids found on guests.
fn without_id(summary: &RebuildReport) -> DriverError {
    let refused =
        DriverError::refused("The site has no id, so that its guests cannot be identified.");
    if summary.sites.is_empty() {
        return refused.hint(
            "guests carry it in the tag `homestak-s-ID`; homestak site new-id --id ID writes it",
        );
    }
    summary.other_sites().fold(refused, DriverError::hint)
}

/// Returns the selected one, or all.
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

/// The result of a rebuild.
#[derive(Default)]
pub struct RebuildReport {
    /// Whether the driver had a key before.
    had_key: bool,
    /// New records, with their manifests.
    pub restored: Vec<(String, NodeRecord)>,
    /// Nodes that were recorded before.
    pub known: BTreeSet<(String, String, String)>,
    /// Records of existing nodes that have a guest.
    before: Vec<NodeRecord>,
    /// What was not recorded, and why, by manifest.
    pub refused: Vec<(String, Refusal)>,
    /// Hosts that could not be observed, and why.
    pub lost: BTreeMap<String, String>,
    /// Observed hosts.
    asked: BTreeSet<String>,
    /// Guests with a site tag, by host and id.
    seen: BTreeMap<(String, GuestId), ObservedGuest>,
    /// Identities of nodes of the site.
    claimed: BTreeSet<GuestUuid>,
    /// Other sites, with the manifests of this site whose names their guests carry.
    pub sites: BTreeMap<SiteId, BTreeSet<String>>,
}

impl RebuildReport {
    fn see(&mut self, guests: &[ObservedGuest]) {
        for guest in guests.iter().filter(|guest| guest.site.is_some()) {
            let at = (guest.host.clone(), guest.vmid);
            self.seen.insert(at, guest.clone());
        }
    }

    /// Finds guests of manifests that the site does not have, and guests of other sites with the
    /// names of manifests that have no guests here: the site may have lost its id.
    fn find_unknown_guests(
        &mut self,
        driver: &Driver,
        recorded: &OtherRecords,
        which: &RunSelector,
    ) -> Result<(), DriverError> {
        let (site, catalog) = (driver.session.id()?, &driver.session.catalog);
        let asked = |name: &str| which.manifest.as_ref().is_none_or(|one| one == name);
        let found: BTreeSet<String> = self.known.iter().map(|(name, ..)| name.clone()).collect();
        for guest in std::mem::take(&mut self.seen).into_values() {
            // The journal may record guests of a manifest that is not in the site.
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

    /// Returns hints about other sites that this one may be.
    pub fn other_sites(&self) -> impl Iterator<Item = String> {
        self.sites.iter().map(|(id, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            lost_id_hint(&names.join("`, `"), id)
        })
    }

    fn refuse(&mut self, manifest: &str, refusal: Refusal) {
        let new = (manifest.to_owned(), refusal);
        if !self.refused.contains(&new) {
            self.refused.push(new);
        }
    }
}

/// Rebuilds the records of a manifest on a host.
async fn restore(
    driver: &Driver,
    (name, host): (&str, &str),
    (which, dry_run): (&RunSelector, bool),
    summary: &mut RebuildReport,
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
            "notice: `{name}` has errors and is skipped; homestak manifest validate -M {name} lists them"
        ));
        return Ok(());
    };
    let scopes = Scope::of_manifest(driver.session.id()?, &resolved);
    if !scopes.iter().any(|scope| scope.host == host) {
        return Ok(());
    }
    let _lease = driver.journal().lock(&scopes).await?;
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
                happened: StepEvent::Settled,
                at: now,
                record: Some(record.clone()),
            };
            journal.append(run, &entry).await?;
        }
        journal
            .end(run, RunOutcome::Done, operator.clock.now())
            .await?;
    }
    let restored = new.into_iter().map(|record| (name.to_owned(), record));
    summary.restored.extend(restored);
    Ok(())
}

/// Finds guests level by level: those inside a node are found once the node is.
async fn find(
    driver: &Driver,
    (resolved, elsewhere): (&ResolvedManifest, &OtherRecords),
    records: &mut Records,
    summary: &mut RebuildReport,
) -> Result<(Plan, Vec<NodeRecord>), PortError> {
    let site = driver
        .session
        .id()
        .map_err(|error| PortError::refused("read the site's id", error.message.clone(), ""))?;
    let options = PlanOptions::new(Verb::Apply);
    let (mut nodes, mut new): (Vec<NodePlan>, Vec<NodeRecord>) = (Vec::new(), Vec::new());
    loop {
        let observations = observe(driver.connector(), resolved, records).await;
        let observations = observations.map_err(|error| error.error)?;
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
        for observation in observations.values() {
            if let Observation::Available(observed) = observation {
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
                // It was deleted, or its tags were removed, after the list was read.
                Ok(_) => continue,
                // It does not answer, or contradicts its identity. Other guests are not affected.
                Err(error) => {
                    let hint = match error.hint.is_empty() {
                        true => "homestak state rebuild records it once it answers".to_owned(),
                        false => error.hint.clone(),
                    };
                    let reason = Reason {
                        text: match error.class {
                            ErrorClass::Refused => error.detail.to_string(),
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
            // The next apply finds an address that is not known now.
            let reach = provider.address(&record.guest).await;
            record.address = reach.ok().and_then(GuestAddress::address);
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
                .ok_or_else(|| PortError::bug("connect to a node", &"the node is not recorded"))?;
            let address = match node.address {
                Some(address) => Some(address),
                None => {
                    let outer = Box::pin(provider(driver, node, records)).await?;
                    outer.address(&node.guest).await?.address()
                }
            };
            let address = address.ok_or_else(|| {
                PortError::unreachable("connect to a node", "its address is not known", "")
            })?;
            driver.hosts.inside(&record.host, parent, address).await
        }
    }
}

/// Returns nodes that this driver cannot log in to, with commands that grant access.
pub fn locked_out<'s>(
    summary: &'s RebuildReport,
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
        let failed = |error: PortError| DriverError::of_host(&record.host, &error);
        let uuid = &record.guest.uuid;
        // A container of Proxmox VE creates its own host key, which the user confirms.
        let foreign = record.guest.kind == GuestKind::Ct && !traits.seeds_containers;
        let known = foreign || keyring.is_pinned(uuid).map_err(failed)?;
        let mut lines = Vec::new();
        if is_new && !summary.had_key || !known {
            let key = keyring.driver_key().map_err(failed)?;
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
