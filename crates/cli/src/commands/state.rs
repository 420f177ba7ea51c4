//! `homestak state`: what the state directory knows, restored from the hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{GuestKind, GuestUuid, ObservedGuest};
use homestak_core::plan::{
    Elsewhere, Inputs, Look, NodePlan, NodeRecord, NodeStatus, Options, Paces, Place, Records,
    Refusal, Verb, rebuild, rebuilt_plan, unknown_manifest,
};
use homestak_core::resolve::{Request, Resolved, manifest};
use homestak_engine::journal::{Ending, Entry, Happened};
use homestak_engine::look::look;
use homestak_engine::ports::{Class, PortError, Provider, Reach};
use serde_json::{Value as Json, json};

use super::manifest::runs::lost_id;
use super::{Outcome, require_sound};
use crate::args::{RebuildArgs, StateCommand};
use crate::connect::{block_on, failed};
use crate::error::CommandError;
use crate::local_host::LOCAL;
use crate::operator::{Bench, hold, scopes};
use crate::places::SIM;
use crate::session::Session;
use crate::settings::Settings;
use crate::sim_host;
use crate::ui::progress::Screen;
use crate::ui::{Printer, count, table};

/// Something that the hosts have was not recorded.
const REFUSED: u8 = 3;

/// Runs a state command.
pub(super) fn run(command: &StateCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let StateCommand::Rebuild(args) = command;
    let session = Session::open(settings)?;
    session.id()?;
    let manifests = chosen(
        "manifest",
        args.manifest.as_ref(),
        session.catalog.manifests.keys(),
    )?;
    let hosts = hosts(args, &session, settings)?;
    let screen = Screen::new(printer.shape, false);
    let bench = Bench::new(Arc::new(session), settings, screen)?;
    // Whether there is a key before anybody needs one.
    let had_key = bench.keyring.own_file().exists();
    let mut summary = Summary::default();
    block_on(async {
        for name in &manifests {
            for host in &hosts {
                if summary.lost.contains_key(host) {
                    continue;
                }
                printer.detail(&format!("looking for nodes of {name} on {host}"));
                restore(&bench, (name, host), args, &mut summary, printer).await?;
            }
        }
        // What no manifest of the site names may be on a host that none of them is for.
        for host in &hosts {
            if !summary.asked.contains(host) && !summary.lost.contains_key(host) {
                let seen = async { bench.places().host(host).await?.observe().await };
                match seen.await {
                    Ok(observed) => summary.see(&observed.guests),
                    Err(error) => {
                        summary.lost.insert(host.clone(), error.to_string());
                    }
                }
            }
        }
        Ok::<(), CommandError>(())
    })??;
    summary.strangers(&bench, args)?;
    if !bench.session.has_id {
        return Err(without_id(&summary));
    }
    show(&summary, &bench, (args, had_key), printer)
}

/// Refuses to record anything for a site without an id, with the ids that guests carry.
fn without_id(summary: &Summary) -> CommandError {
    let refused =
        CommandError::refused("The site has no id, so that no guest can be shown to be its own.");
    if summary.sites.is_empty() {
        return refused.hint(
            "guests carry it in the tag `homestak-s-ID`; homestak site new-id --id ID writes it",
        );
    }
    summary.other_sites().fold(refused, CommandError::hint)
}

/// Returns the one that is named, or all.
fn chosen<'k>(
    what: &'static str,
    named: Option<&String>,
    all: impl Iterator<Item = &'k String> + Clone,
) -> Result<Vec<String>, CommandError> {
    match named {
        None => Ok(all.cloned().collect()),
        Some(name) if all.clone().any(|known| known == name) => Ok(vec![name.clone()]),
        Some(name) => Err(CommandError::unknown(what, name, all.map(String::as_str))),
    }
}

/// Returns the hosts that are asked. This machine and the simulator are when they have anything.
fn hosts(
    args: &RebuildArgs,
    session: &Session,
    settings: &Settings,
) -> Result<Vec<String>, CommandError> {
    let mut hosts: BTreeSet<String> = session.catalog.nodes.keys().cloned().collect();
    let own = [
        (SIM, sim_host::directory(settings)),
        (LOCAL, settings.local_root.join("nodes")),
    ];
    for (name, directory) in own {
        if directory.exists() || args.host.as_deref() == Some(name) {
            hosts.insert(name.to_owned());
        }
    }
    chosen("host", args.host.as_ref(), hosts.iter())
}

/// What came of it.
#[derive(Default)]
struct Summary {
    /// Manifest, and what is recorded now.
    restored: Vec<(String, NodeRecord)>,
    /// How many nodes were known before.
    known: BTreeSet<(String, String, String)>,
    /// Those of them that have a guest.
    before: Vec<NodeRecord>,
    refused: Vec<(String, Refusal)>,
    /// Hosts that could not be asked, and why.
    lost: BTreeMap<String, String>,
    /// Hosts that were looked at.
    asked: BTreeSet<String>,
    /// Guests that carry a site, by where they are.
    seen: BTreeMap<(String, u32), ObservedGuest>,
    /// Identities of nodes.
    claimed: BTreeSet<GuestUuid>,
    /// Other sites, and manifests of this one whose name their guests carry.
    sites: BTreeMap<SiteId, BTreeSet<String>>,
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
    fn strangers(&mut self, bench: &Bench, args: &RebuildArgs) -> Result<(), CommandError> {
        let (site, catalog) = (bench.session.id()?, &bench.session.catalog);
        let asked = |name: &str| args.manifest.as_ref().is_none_or(|one| one == name);
        let found: BTreeSet<String> = self.known.iter().map(|(name, ..)| name.clone()).collect();
        for guest in std::mem::take(&mut self.seen).into_values() {
            let claims = |uuid| self.claimed.contains(uuid);
            let known = |name: &str| catalog.manifests.contains_key(name);
            let stranger = unknown_manifest(site, &guest, known)
                .filter(|_| args.manifest.is_none() && !guest.uuid.as_ref().is_some_and(claims));
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
    fn other_sites(&self) -> impl Iterator<Item = String> {
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
    bench: &Bench,
    (name, host): (&str, &str),
    args: &RebuildArgs,
    summary: &mut Summary,
    printer: &Printer,
) -> Result<(), CommandError> {
    let request = Request {
        host: Some(host.to_owned()),
        ..Request::default()
    };
    let catalog = &bench.session.catalog;
    let (resolved, faults) = manifest(catalog, name, &request);
    if faults.errors() > 0 && args.manifest.is_some() {
        require_sound(printer, &faults, &catalog.sources)?;
    }
    let Some(resolved) = resolved.filter(|_| faults.errors() == 0) else {
        printer.say(&format!(
            "notice: `{name}` has faults and is left out; homestak manifest validate -M {name} lists them"
        ));
        return Ok(());
    };
    let scopes = scopes(bench.session.id()?, &resolved);
    if !scopes.iter().any(|scope| scope.host == host) {
        return Ok(());
    }
    let _lease = hold(bench.journal(), &scopes).await?;
    summary.asked.insert(host.to_owned());
    let mut records = bench.records(&scopes).await?;
    for record in records.values() {
        let key = (name.to_owned(), record.host.clone(), record.name.clone());
        if summary.known.insert(key) && record.status != NodeStatus::Destroyed {
            summary.before.push(record.clone());
        }
    }
    let elsewhere = bench
        .journal()
        .elsewhere(bench.session.id()?, &scopes)
        .await?;
    let found = find(bench, (&resolved, &elsewhere), &mut records, summary).await;
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
    if !args.dry_run && !new.is_empty() {
        let operator = &bench.operator;
        let now = operator.clock.now();
        let journal = bench.journal();
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
    bench: &Bench,
    (resolved, elsewhere): (&Resolved, &Elsewhere),
    records: &mut Records,
    summary: &mut Summary,
) -> Result<(homestak_core::plan::Plan, Vec<NodeRecord>), PortError> {
    let site = bench
        .session
        .id()
        .map_err(|error| PortError::refused("read the site's id", error.message.clone(), ""))?;
    let options = Options::new(Verb::Apply);
    let (mut nodes, mut new): (Vec<NodePlan>, Vec<NodeRecord>) = (Vec::new(), Vec::new());
    loop {
        let looks = look(bench.places(), resolved, records).await?;
        let inputs = Inputs {
            site,
            catalog: &bench.session.catalog,
            resolved,
            looks: &looks,
            records,
            elsewhere,
            configs: &BTreeMap::new(),
            options: &options,
            paces: &Paces::default(),
        };
        let rebuilt = rebuild(&inputs);
        summary.claimed.extend(rebuilt.claimed);
        for look in looks.values() {
            if let Look::Seen(observed) = look {
                summary.see(&observed.guests);
            }
        }
        for refusal in rebuilt.refusals {
            summary.refuse(&resolved.name, refusal);
        }
        let mut level = Vec::new();
        for (node, mut record) in rebuilt.nodes {
            let provider = provider(bench, &record, records).await?;
            match provider.inspect(&record.guest).await {
                Ok(Some(there)) if there.uuid.is_some() => {}
                // Gone, or someone removed its tags, since the list was read.
                Ok(_) => continue,
                // It is there, and something about it contradicts its identity.
                Err(error) if error.class == Class::Refused => {
                    let refusal = Refusal {
                        node: Some(node.name),
                        reason: homestak_core::plan::Reason {
                            text: error.detail.to_string(),
                            source: None,
                        },
                        hint: error.hint,
                    };
                    summary.refuse(&resolved.name, refusal);
                    continue;
                }
                Err(error) => return Err(error),
            }
            // An address that is not known now is found by the next apply.
            let reach = provider.address(&record.guest).await;
            record.address = reach.ok().and_then(Reach::address);
            level.push((node, record));
        }
        if level.is_empty() {
            return Ok((rebuilt_plan(&inputs, nodes), new));
        }
        for (node, record) in level {
            records.insert(record.clone());
            nodes.push(node);
            new.push(record);
        }
    }
}

async fn provider(
    bench: &Bench,
    record: &NodeRecord,
    records: &Records,
) -> Result<Arc<dyn Provider>, PortError> {
    match &record.place {
        Place::Host(host) => bench.places().host(host).await,
        Place::Inside(parent) => {
            let address = records
                .of(parent, &record.host)
                .and_then(|parent| parent.address);
            let address = address
                .ok_or_else(|| PortError::bug("look inside a node", &"its address is not known"))?;
            bench.places().inside(&record.host, parent, address).await
        }
    }
}

fn show(
    summary: &Summary,
    bench: &Bench,
    (args, had_key): (&RebuildArgs, bool),
    printer: &Printer,
) -> Outcome {
    let locked = match args.dry_run {
        true => Vec::new(),
        false => locked_out(summary, bench, had_key)?,
    };
    let code = match (summary.lost.is_empty(), summary.refused.is_empty()) {
        (false, _) => 1,
        (true, false) => REFUSED,
        (true, true) => 0,
    };
    let before = summary.known.len() - summary.restored.len();
    if printer.shape.json {
        let restored: Vec<Json> = summary.restored.iter().map(|(manifest, record)| {
            json!({ "manifest": manifest, "host": record.host, "node": record.name, "vmid": record.guest.vmid, "address": record.address })
        }).collect();
        let refused: Vec<Json> = summary.refused.iter().map(|(manifest, refusal)| {
            json!({ "manifest": manifest, "node": refusal.node, "reason": refusal.reason.text, "hint": refusal.hint })
        }).collect();
        let locked: Vec<Json> = locked
            .iter()
            .map(|(record, lines)| json!({ "node": record.name, "host": record.host, "commands": lines }))
            .collect();
        let sites: Vec<Json> = summary
            .sites
            .iter()
            .map(|(site, manifests)| json!({ "site": site, "manifests": manifests }))
            .collect();
        printer.json(
            "state.rebuild",
            json!({
                "success": code == 0, "dry_run": args.dry_run, "restored": restored, "known": before,
                "refused": refused, "without_keys": locked, "unreachable": summary.lost,
                "other_sites": sites,
            }),
        );
        return Ok(ExitCode::from(code));
    }
    let rows = summary.restored.iter().map(|(manifest, record)| {
        let address = record.address.map(|address| address.to_string());
        vec![
            record.name.clone(),
            manifest.clone(),
            record.guest.to_string(),
            address.unwrap_or_default(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        printer.data(&table::render(
            &["node", "manifest", "guest", "address"],
            rows,
        ));
    }
    for (manifest, refusal) in &summary.refused {
        let node = refusal.node.as_ref();
        let about = match (manifest.as_str(), node) {
            ("", _) => String::new(),
            (manifest, Some(node)) => format!("{manifest}/{node}: "),
            (manifest, None) => format!("{manifest}: "),
        };
        printer.say(&format!("refused: {about}{}", refusal.reason.text));
        printer.hint(&refusal.hint);
    }
    for notice in summary.other_sites() {
        printer.say(&format!("notice: {notice}"));
    }
    for (host, why) in &summary.lost {
        printer.say(&format!("error: {host} could not be asked: {why}"));
    }
    if !locked.is_empty() {
        printer
            .say("This driver cannot log in to these nodes yet. On the console of each, as root:");
    }
    for (record, lines) in &locked {
        printer.say(&format!("  {} on {}:", record.name, record.host));
        for line in lines {
            printer.say(&format!("    {line}"));
        }
    }
    let verb = if args.dry_run {
        "would be recorded"
    } else {
        "recorded"
    };
    let known = count(before, "node");
    printer.say(&format!(
        "{} {verb}; {known} known before.",
        count(summary.restored.len(), "node")
    ));
    Ok(ExitCode::from(code))
}

/// Returns nodes that this driver has no keys for, each with the commands that let it in.
fn locked_out<'s>(
    summary: &'s Summary,
    bench: &Bench,
    had_key: bool,
) -> Result<Vec<(&'s NodeRecord, Vec<String>)>, CommandError> {
    let keyring = &bench.keyring;
    let mut locked = Vec::new();
    let new = summary.restored.iter().map(|(_, record)| (record, true));
    let before = summary.before.iter().map(|record| (record, false));
    for (record, is_new) in new.chain(before).filter(|(one, _)| one.host != SIM) {
        let word = |error: PortError| failed(&record.host, &error);
        let uuid = &record.guest.uuid;
        // A container of Proxmox VE creates its own host key, and a person says whether it is that.
        let foreign = record.guest.kind == GuestKind::Ct && record.host != LOCAL;
        let known = foreign || keyring.knows(uuid).map_err(word)?;
        let mut lines = Vec::new();
        if is_new && !had_key || !known {
            let key = keyring.own().map_err(word)?;
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
