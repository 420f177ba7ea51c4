//! Random sequences with drivers of two sites whose manifests have the same name, and users who copy,
//! restore, migrate, rename and delete guests on the same cluster. A driver changes or removes only
//! guests that its own site created and its plan names.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::GuestRef;
use homestak_core::plan::{OnError, Plan, PlanOptions, Verb};
use homestak_engine::journal::{Journal as _, Scope};
use homestak_engine::operate::Interrupt;
use homestak_engine::planning::PlanError;
use homestak_sim::{GuestFacts, Kind};
use homestak_test_support::random::Random;

use crate::env::TestEnv;
use crate::memory_journal::MemoryJournal;

/// The owner of a guest, which only the test knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A driver of this site created it.
    Site(usize),
    /// The user created it, with any tags.
    Person,
    /// The user gave it all tags, the identity and the id of a site's guest. A driver without a
    /// record of the node cannot distinguish it from its own.
    Forged(usize),
}

/// An archive, and the guest it was created from.
struct Archive {
    volume: String,
    vmid: u32,
    owner: Owner,
}

struct Driver {
    env: TestEnv,
    site: usize,
}

struct Walk {
    random: Random,
    drivers: Vec<Driver>,
    owners: BTreeMap<u32, Owner>,
    archives: Vec<Archive>,
    log: Vec<String>,
    /// How many changes drivers made, to detect a sequence without any.
    n_changes: usize,
    n_refused: usize,
}

type Guests = BTreeMap<u32, GuestFacts>;
/// Identities and ids that a driver has recorded.
type Recorded = BTreeSet<(String, Option<u32>)>;

fn number(guest: &GuestRef) -> Option<u32> {
    guest.vmid.and_then(|id| id.number())
}

impl Walk {
    fn new(seed: u64) -> Self {
        let env = TestEnv::with(|builder| builder.cluster("walk").host("pve1").host("pve2"));
        let site = |n: u8| SiteId::from_random([n; 16]);
        // Two drivers of the first site, each with its own journal, and one of the second.
        let drivers = [0, 0, 1].map(|n| Driver {
            env: env.driver_of(site(n)),
            site: usize::from(n),
        });
        Self {
            random: Random(seed),
            drivers: drivers.into(),
            owners: BTreeMap::new(),
            archives: Vec::new(),
            log: vec![format!("seed {seed}")],
            n_changes: 0,
            n_refused: 0,
        }
    }

    fn world(&self) -> &homestak_sim::World {
        &self.drivers[0].env.world
    }

    fn guests(&self) -> Guests {
        let guests = self.world().guests().into_iter();
        guests.map(|guest| (guest.vmid, guest)).collect()
    }

    /// Returns one of few ids, so that ids are often reused.
    fn id(&mut self) -> u32 {
        8000 + u32::try_from(self.random.below(10)).unwrap()
    }

    fn some_guest(&mut self) -> Option<u32> {
        let ids: Vec<u32> = self.owners.keys().copied().collect();
        self.random.pick(&ids).copied()
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
        if self.log.len() > 40 {
            self.log.remove(1);
        }
    }

    /// Performs a random action of the user. A refusal by the host is ignored.
    fn user_action(&mut self) {
        let choice = self.random.below(12);
        let (guest, id) = (self.some_guest(), self.id());
        let Some(vmid) = guest else {
            return self.create_foreign(id);
        };
        let owner = self.owners[&vmid];
        let done = match choice {
            0 | 1 => {
                let done = self.world().clone_guest(vmid, id, &[]);
                if done.is_ok() {
                    let owner = self.copied(id, false);
                    self.owners.insert(id, owner);
                }
                done.map(|()| format!("clone {vmid} to {id}"))
            }
            2 => self.world().back_up(vmid, "local").map(|volume| {
                let action = format!("back up {vmid}");
                self.archives.push(Archive {
                    volume,
                    vmid,
                    owner,
                });
                action
            }),
            3..=5 => self.restore(id),
            6 => {
                let to = if self.random.one_in(2) {
                    "pve1"
                } else {
                    "pve2"
                };
                let done = self.world().migrate_guest(vmid, to);
                done.map(|()| format!("migrate {vmid} to {to}"))
            }
            7 => {
                let name = format!("n{}", self.random.below(4));
                let done = self.world().rename_guest(vmid, &name);
                done.map(|()| format!("rename {vmid} to {name}"))
            }
            8 => {
                let done = self.world().delete_guest(vmid);
                if done.is_ok() {
                    self.owners.remove(&vmid);
                }
                done.map(|()| format!("delete {vmid}"))
            }
            9 => self.forge(vmid, id),
            10 => {
                // The user gave up its ownership.
                let done = self.world().change_guest(vmid, &[("delete", "tags")]);
                if done.is_ok() {
                    self.owners.insert(vmid, Owner::Person);
                }
                done.map(|()| format!("untag {vmid}"))
            }
            _ => {
                self.create_foreign(id);
                return;
            }
        };
        if let Ok(what) = done {
            self.note(what);
        }
    }

    /// Creates a foreign guest, with a name that manifests use too.
    fn create_foreign(&mut self, id: u32) {
        if self.owners.contains_key(&id) {
            return;
        }
        let name = format!("n{}", self.random.below(4));
        let config = vec![("name".to_owned(), name)];
        self.world().put_guest("pve1", Kind::Qemu, id, config);
        self.owners.insert(id, Owner::Person);
        self.note(format!("put {id}"));
    }

    fn restore(&mut self, id: u32) -> Result<String, String> {
        let n = u64::try_from(self.archives.len()).unwrap();
        let at = (n > 0).then(|| self.random.below(n)).ok_or("no archive")?;
        let unique = self.random.one_in(3);
        let in_place = self.random.one_in(2);
        let archive = &self.archives[usize::try_from(at).unwrap()];
        let (vmid, owner) = (archive.vmid, archive.owner);
        let id = if in_place { vmid } else { id };
        let mut with = vec![("force", "1")];
        if unique {
            with.push(("unique", "1"));
        }
        if self.world().is_running(id) {
            self.world().switch_off(id);
        }
        self.world().restore_backup(&archive.volume, id, &with)?;
        // Restored to its own id, it is the guest that was backed up, unless its identity is new.
        // A container keeps its identity.
        let ct = self.guests()[&id].kind == Kind::Lxc;
        let owner = if id == vmid && (ct || !unique) {
            owner
        } else {
            self.copied(id, !unique)
        };
        self.owners.insert(id, owner);
        Ok(format!("restore {vmid} as {id}, unique {unique}"))
    }

    /// Returns the owner of a copy: the user, unless it is a copy of a copy that has the id of the
    /// original guest and all of its marks. The clone of a machine has its own SMBIOS UUID.
    fn copied(&self, id: u32, keeps_smbios: bool) -> Owner {
        let copy = &self.guests()[&id];
        let tags = copy.config.get("tags").map_or("", String::as_str);
        let tagged = |tag: String| tags.split(';').any(|one| one == tag);
        let of = |driver: &&Driver| tagged(format!("homestak-s-{}", driver.env.site));
        match self.drivers.iter().find(of) {
            Some(driver)
                if tagged(format!("homestak-v-{id}"))
                    && (keeps_smbios || copy.kind == Kind::Lxc) =>
            {
                Owner::Forged(driver.site)
            }
            _ => Owner::Person,
        }
    }

    /// Copies all marks of one guest to another.
    fn forge(&mut self, vmid: u32, onto: u32) -> Result<String, String> {
        let guests = self.guests();
        let (from, to) = (&guests[&vmid], guests.get(&onto).ok_or("nothing to forge")?);
        let site = match (self.owners[&vmid], self.owners[&onto]) {
            (Owner::Site(site) | Owner::Forged(site), Owner::Person) if vmid != onto => site,
            _ => return Err("nothing to forge".to_owned()),
        };
        if from.kind != to.kind {
            return Err("nothing to forge".to_owned());
        }
        let text = |key: &str| from.config.get(key).cloned().unwrap_or_default();
        // With its own id instead of the original's.
        let tags = text("tags").replace(&vmid.to_string(), &onto.to_string());
        let mut with = vec![("tags", tags), ("description", text("description"))];
        if from.kind == Kind::Qemu {
            with.push(("smbios1", text("smbios1")));
        }
        let with: Vec<(&str, &str)> = with
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        self.world().change_guest(onto, &with)?;
        self.owners.insert(onto, Owner::Forged(site));
        Ok(format!("forge {onto} after {vmid}"))
    }

    fn manifest(&mut self) -> String {
        let mut text = "nodes:\n".to_owned();
        let mut ids = BTreeSet::new();
        for n in 0..=self.random.below(3) {
            let id = self.id();
            let vmid = match self.random.one_in(2) && ids.insert(id) {
                true => format!(", vmid: {id}"),
                false => String::new(),
            };
            let source = match self.random.one_in(3) {
                true => "type: ct, template: debian-12-standard",
                false => "type: vm, image: debian-12",
            };
            text +=
                &format!("  - {{name: n{n}, {source}, cores: 1, memory: 512, disk: 8{vmid}}}\n");
        }
        text
    }

    /// A driver plans and executes its plan: immediately, after actions of the user, or until a crash.
    async fn drive(&mut self) {
        let at = usize::try_from(self.random.below(3)).unwrap();
        if self.random.one_in(6) {
            self.drivers[at].env.journal = MemoryJournal::default();
            self.note(format!("driver {at} loses its journal"));
        }
        let manifest = self.manifest();
        let options = PlanOptions {
            prune: self.random.one_in(2),
            on_error: Some(match self.random.below(3) {
                0 => OnError::Stop,
                1 => OnError::Rollback,
                _ => OnError::Continue,
            }),
            ..PlanOptions::new(if self.random.one_in(3) {
                Verb::Destroy
            } else {
                Verb::Apply
            })
        };
        self.wait_for_tasks().await;
        let scope = Scope::new(Some(&self.drivers[at].env.site), "m", "pve1");
        let records = self.drivers[at].env.journal.records(&scope).await.unwrap();
        let known: Recorded = records
            .iter()
            .map(|record| (record.guest.uuid.to_string(), number(&record.guest)))
            .collect();
        let plan = match self.drivers[at].env.try_plan(&manifest, &options).await {
            Ok(plan) => plan,
            // A node has the id that the manifest gives to another one.
            Err(PlanError::Diagnostics(_)) => {
                self.n_refused += 1;
                return;
            }
            Err(error) => panic!("{error:?}"),
        };
        self.note(format!(
            "driver {at}: {} {:?}\n{manifest}",
            plan.verb.name(),
            plan.nodes
                .iter()
                .map(|node| (
                    &node.name,
                    node.action,
                    node.found.as_ref().map(|found| found.guest.vmid)
                ))
                .collect::<Vec<_>>()
        ));
        if !plan.refusals.is_empty() {
            self.n_refused += 1;
            // The user removes the record, so that only the identity counts.
            for node in plan
                .refusals
                .iter()
                .filter_map(|refusal| refusal.node.as_ref())
            {
                let env = &self.drivers[at].env;
                env.journal.forget(&scope, node).await.unwrap();
            }
            return;
        }
        while self.random.one_in(3) {
            self.user_action();
        }
        self.wait_for_tasks().await;
        let before = self.guests();
        let moment = if self.random.one_in(3) {
            1 + self.random.below(40)
        } else {
            100_000
        };
        let ended = self.drivers[at].env.execute_until(&plan, moment).await;
        if ended.is_none() {
            let run = self.drivers[at].env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let operator = self.drivers[at].env.operator();
            match self.random.below(3) {
                0 => _ = operator.resume(&run, &[], interrupt).await.unwrap(),
                1 => _ = operator.roll_back(&run, interrupt).await.unwrap(),
                _ => {}
            }
        }
        self.wait_for_tasks().await;
        self.check_changes(at, &plan, &before, &known);
    }

    /// Compares the guests before and after: a driver may change only its own guests.
    fn check_changes(&mut self, at: usize, plan: &Plan, before: &Guests, known: &Recorded) {
        let after = self.guests();
        let site = self.drivers[at].site;
        let named: BTreeSet<Option<u32>> = plan
            .nodes
            .iter()
            .filter_map(|node| Some(number(&node.found.as_ref()?.guest)))
            .collect();
        for (vmid, was) in before {
            let now = after.get(vmid);
            if now == Some(was) {
                continue;
            }
            self.n_changes += 1;
            // A guest with the identity of the node, restored since the plan was made, is
            // completed. Only guests that the plan found are removed.
            let tags = was.config.get("tags").map_or("", String::as_str);
            let mut wanted = plan.nodes.iter().filter_map(|node| node.wanted.as_ref());
            let completed =
                now.is_some() && wanted.any(|wanted| tags.contains(wanted.uuid.as_str()));
            let planned = named.contains(&Some(*vmid)) || completed;
            let allowed = match self.owners[vmid] {
                Owner::Site(owner) => owner == site,
                Owner::Forged(owner) => {
                    // A driver that had no record of the node may have recorded this guest itself.
                    let another = |(uuid, id): &(String, Option<u32>)| {
                        tags.contains(uuid.as_str()) && *id != Some(*vmid)
                    };
                    owner == site && !known.iter().any(another)
                }
                Owner::Person => false,
            };
            assert!(
                allowed && planned,
                "driver {at} of site {site} changed guest {vmid} of {:?}, planned: {}\n{was:#?}\n{now:#?}\n{}",
                self.owners[vmid],
                planned,
                self.log.join("\n")
            );
            match now {
                Some(_) => self.owners.insert(*vmid, Owner::Site(site)),
                None => self.owners.remove(vmid),
            };
        }
        for vmid in after.keys().filter(|vmid| !before.contains_key(*vmid)) {
            self.n_changes += 1;
            self.owners.insert(*vmid, Owner::Site(site));
        }
    }

    /// Waits until tasks have ended and the list of guests is current.
    async fn wait_for_tasks(&self) {
        self.drivers[0].env.wait_until_idle().await;
    }
}

async fn walk(seed: u64, n_steps: u64) -> (usize, usize) {
    let mut walk = Walk::new(seed);
    for _ in 0..n_steps {
        if walk.random.one_in(4) {
            walk.drive().await;
        } else {
            walk.user_action();
        }
    }
    (walk.n_changes, walk.n_refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_driver_touches_a_guest_that_its_site_did_not_create_and_plan() {
    let variable = |name| std::env::var(name).ok();
    let first: u64 = variable("HOMESTAK_TEST_SEED")
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    // Actions of the user and of drivers in one sequence.
    const LONG: u64 = 400;
    let n_walks = if variable("HOMESTAK_TEST_FULL").is_some() {
        250
    } else {
        4
    };
    let (mut n_changes, mut n_refused) = (0, 0);
    for seed in first..first + n_walks {
        let (changes, refused) = walk(seed, LONG).await;
        n_changes += changes;
        n_refused += refused;
    }
    println!(
        "{} steps, {n_changes} changes of guests by drivers, {n_refused} plans refused",
        n_walks * LONG
    );
    assert!(n_changes > 50, "{n_changes}");
}
