//! The driver as a whole, with a kind of host that only these tests have.
#![expect(unreachable_pub, clippy::unwrap_used, reason = "a test may panic")]

mod meadow;

use std::sync::{Arc, Mutex};

use homestak_core::doc::timeouts::Timeouts;
use homestak_core::doc::{Diagnostics, Sources};
use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_driver::clock::Time;
use homestak_driver::events::{Event, Observer};
use homestak_driver::hosts::KINDS;
use homestak_driver::job::{Job, refusals};
use homestak_driver::secrets::KeySources;
use homestak_driver::select::ManifestSelector;
use homestak_driver::settings::{DriverSettings, VmEngine};
use homestak_driver::{DriverError, Notices, Session};
use homestak_engine::journal::RunOutcome;
use homestak_engine::operate::Interrupt;
use homestak_site::Candidates;
use tempfile::TempDir;

use crate::meadow::{KIND, MEADOW, Meadow, meadow};

const TWO: &str = "nodes:\n  - {name: a, preset: small, image: debian-12}\n  - {name: b, preset: small, image: debian-12}\n";

/// A site with one manifest, and a state directory.
struct Rig {
    settings: DriverSettings,
    _directory: TempDir,
}

/// What was said in the meantime.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Notices for Said {
    fn detail(&self, text: &str) {
        self.notice(text);
    }

    fn notice(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }

    fn diagnostics(&self, faults: &Diagnostics, _: &Sources) {
        self.notice(&format!("{faults:?}"));
    }
}

impl Observer for Said {
    fn on_event(&self, _: &Event) {}
}

impl Rig {
    fn new(manifest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = directory.path().join("site");
        let documents = [
            (
                "site.yaml",
                "defaults: {bridge: vmbr0, datastore: fast}\nnetworks:\n  lan: {cidr: 192.0.2.0/24, vlan: 20}\n",
            ),
            ("hosts/meadow.yaml", "kind: meadow\n"),
            ("manifests/pair.yaml", manifest),
            ("presets/small.yaml", "cores: 1\nmemory: 1024\ndisk: 10\n"),
            (
                "presets/bridged.yaml",
                "cores: 1\nmemory: 1024\ndisk: 10\nbridge: vmbr7\n",
            ),
            (
                "images/debian-12.yaml",
                "source: https://example.org/d.qcow2\n",
            ),
        ];
        for (name, text) in documents {
            let path = site.join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        let path = |name: &str| directory.path().join(name);
        let settings = DriverSettings {
            kinds: KINDS.iter().copied().chain([&KIND]).collect(),
            candidates: Candidates {
                flag: Some(site),
                site_config: None,
                root: None,
                working_directory: path("."),
                system_root: path("system"),
                owners: Vec::new(),
            },
            state: path("state"),
            program: path("homestak"),
            local_root: path("local"),
            vm_engine: VmEngine::Auto,
            cloud_init: false,
            debian_mirror: None,
            sim_speed: 1.0,
            agent: path("homestak-agent"),
            timeouts: Timeouts::default(),
            ssh_config: None,
            keys: KeySources::new(&|_| None),
            time: Time::wall(),
            #[cfg(debug_assertions)]
            crash_at: None,
        };
        Self {
            settings,
            _directory: directory,
        }
    }

    fn meadow(&self) -> Arc<Meadow> {
        meadow(&self.settings.state)
    }

    fn job(&self) -> Result<Job, DriverError> {
        let said = Arc::new(Said::default());
        let session = Session::open(&self.settings, said.clone())?;
        let choice = ManifestSelector {
            name: Some("pair".to_owned()),
            host: Some(MEADOW.to_owned()),
            ..ManifestSelector::default()
        };
        Job::open(choice, None, session, &self.settings, said)
    }

    /// Plans and executes what is to do, as a command does; returns the plan.
    async fn run(&self, verb: Verb) -> Result<Plan, DriverError> {
        let job = self.job()?;
        let _lease = job.lock().await?;
        let plan = job.plan(&PlanOptions::new(verb)).await?;
        refusals(&plan)?;
        if !plan.is_empty() {
            job.preflight(&plan).await?;
            let (_asks, interrupt) = Interrupt::new();
            let ending = job.carry_out(verb.word(), &plan, interrupt).await?;
            assert_eq!(ending, RunOutcome::Done);
        }
        Ok(plan)
    }
}

#[tokio::test]
async fn a_host_without_numbers_bridges_and_storages_is_planned_applied_and_destroyed() {
    let rig = Rig::new(TWO);
    let plan = rig.run(Verb::Apply).await.unwrap();
    let list = rig.meadow().list();
    let mut names: Vec<&str> = list.iter().map(|(name, ..)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    let ids: Vec<&str> = list.iter().map(|(_, id, _)| id.as_str()).collect();
    assert_eq!(ids, ["blue-heron", "grey-owl"]);
    assert!(list.iter().all(|(.., runs)| *runs), "{list:?}");
    let written = serde_json::to_string(&plan).unwrap();
    assert!(
        !written.contains("bridge") && !written.contains("storage"),
        "{written}"
    );

    let again = rig.run(Verb::Apply).await.unwrap();
    assert!(again.is_empty(), "{again:#?}");
    let found = again.nodes.iter().filter_map(|node| node.found.as_ref());
    let mut found: Vec<String> = found
        .filter_map(|found| Some(found.guest.vmid?.to_string()))
        .collect();
    found.sort();
    assert_eq!(found, ids, "the journal and the host agree");

    rig.run(Verb::Destroy).await.unwrap();
    assert_eq!(rig.meadow().list(), []);
}

#[tokio::test]
async fn missing_host_features_are_refused_before_anything_is_done() {
    for (node, expected) in [
        (
            "preset: small, image: debian-12, vmid: 900",
            "`meadow` assigns ids itself",
        ),
        (
            "preset: bridged, image: debian-12",
            "`meadow` does not support bridges, such as `vmbr7`",
        ),
        (
            "preset: small, image: debian-12, network: lan",
            "`meadow` does not support VLANs, such as 20",
        ),
        (
            "preset: small, type: ct, template: 'local:vztmpl/d.tar.zst'",
            "`meadow` has no storages, so the volume `local:vztmpl/d.tar.zst` cannot be used",
        ),
    ] {
        let rig = Rig::new(&format!("nodes:\n  - {{name: a, {node}}}\n"));
        let plan = rig
            .job()
            .unwrap()
            .plan(&PlanOptions::new(Verb::Apply))
            .await
            .unwrap();
        let [refusal] = plan.refusals.as_slice() else {
            panic!("{node}: {:#?}", plan.refusals);
        };
        assert!(refusal.reason.text.contains(expected), "{refusal:?}");
        let source = refusal.reason.source.as_ref();
        assert!(
            source.is_some_and(|at| at.contains(".yaml:")),
            "{refusal:?}"
        );
        rig.run(Verb::Apply).await.unwrap_err();
        assert_eq!(rig.meadow().list(), []);
    }
}
