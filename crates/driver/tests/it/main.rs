//! The whole driver, with a kind of host that exists only in these tests.
#![expect(unreachable_pub, clippy::unwrap_used, reason = "a test may panic")]

mod memory_host;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use homestak_core::doc::timeouts::Timeouts;
use homestak_core::doc::{Diagnostics, Sources};
use homestak_core::plan::{Plan, PlanOptions, StepKind, Verb};
use homestak_driver::clock::ProgramClock;
use homestak_driver::events::{Event, EventKind, Observer, Subject};
use homestak_driver::hosts::KINDS;
use homestak_driver::job::{Job, refusals};
use homestak_driver::resume::Resume;
use homestak_driver::run_follow::RunFollower;
use homestak_driver::runs::{RunId, RunSelector, read};
use homestak_driver::secrets::KeySources;
use homestak_driver::select::ManifestSelector;
use homestak_driver::settings::{DriverSettings, VmEngine};
use homestak_driver::{DriverError, Notices, Session, journal};
use homestak_engine::journal::RunOutcome;
use homestak_engine::operate::Interrupt;
use homestak_site::Candidates;
use tempfile::TempDir;

use crate::memory_host::{HOST, KIND, MemoryHost, UNREACHABLE, memory_host};

const OTHER: &str = "nodes:\n  - {name: c, preset: small, image: debian-12}\n  - {name: d, preset: small, image: debian-12}\n";
const TWO: &str = "nodes:\n  - {name: a, preset: small, image: debian-12}\n  - {name: b, preset: small, image: debian-12}\n";

/// A site with one manifest, and a state directory.
struct TestSite {
    settings: DriverSettings,
    _directory: TempDir,
}

/// Records notices.
#[derive(Default)]
struct RecordedNotices(Mutex<Vec<String>>);

impl Notices for RecordedNotices {
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

impl Observer for RecordedNotices {
    fn on_event(&self, _: &Event) {}
}

/// Records the events of a job.
#[derive(Default)]
struct EventLog(Mutex<Vec<Event>>);

impl Observer for EventLog {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl EventLog {
    fn list(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the run of all events, and the nodes whose steps were started.
    fn run_and_nodes(&self) -> (RunId, BTreeSet<String>) {
        let events = self.list();
        let run = events[0].run.unwrap();
        assert!(
            events.iter().all(|event| event.run == Some(run)),
            "{events:#?}"
        );
        let nodes = events.into_iter().filter_map(|event| match event.kind {
            EventKind::StepStarted {
                subject: Subject::Node(name),
                ..
            } => Some(name),
            _ => None,
        });
        (run, nodes.collect())
    }

    fn ending(&self) -> Option<RunOutcome> {
        self.list().into_iter().find_map(|event| match event.kind {
            EventKind::RunEnded { ending, .. } => Some(ending),
            _ => None,
        })
    }
}

impl TestSite {
    fn new(manifest: &str) -> Self {
        Self::with(manifest, "nodes: []\n")
    }

    /// Makes a site with a second manifest, `other`.
    fn with(manifest: &str, other: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = directory.path().join("site");
        let documents = [
            (
                "site.yaml",
                "defaults: {bridge: vmbr0, datastore: fast}\nnetworks:\n  lan: {cidr: 192.0.2.0/24, vlan: 20}\n",
            ),
            ("hosts/memory.yaml", "kind: memory\n"),
            ("hosts/unreachable.yaml", "kind: memory\n"),
            ("manifests/pair.yaml", manifest),
            ("manifests/other.yaml", other),
            ("presets/small.yaml", "cores: 1\nmemory: 1024\ndisk: 10\n"),
            (
                "presets/bridged.yaml",
                "cores: 1\nmemory: 1024\ndisk: 10\nbridge: vmbr7\n",
            ),
            (
                "images/debian-12.yaml",
                "source: https://example.org/d.qcow2\n",
            ),
            (
                "images/debian-12-ct.yaml",
                "type: template\nsource: https://example.org/d.tar.zst\n",
            ),
        ];
        for (name, text) in documents {
            let path = site.join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        let path = |name: &str| directory.path().join(name);
        let settings = DriverSettings {
            run_directory: None,
            log_directory: None,
            publish_to: None,
            server: None,
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
            time: ProgramClock::wall(),
            #[cfg(debug_assertions)]
            crash_at: None,
        };
        Self {
            settings,
            _directory: directory,
        }
    }

    fn memory_host(&self) -> Arc<MemoryHost> {
        memory_host(&self.settings.state)
    }

    fn job(&self) -> Result<Job, DriverError> {
        self.job_of("pair", Arc::new(RecordedNotices::default()))
    }

    fn job_of(&self, manifest: &str, observer: Arc<dyn Observer>) -> Result<Job, DriverError> {
        self.job_on(Some(HOST), manifest, observer)
    }

    fn job_on(
        &self,
        host: Option<&str>,
        manifest: &str,
        observer: Arc<dyn Observer>,
    ) -> Result<Job, DriverError> {
        let session = Session::open(&self.settings, Arc::new(RecordedNotices::default()))?;
        let choice = ManifestSelector {
            name: Some(manifest.to_owned()),
            host: host.map(str::to_owned),
            ..ManifestSelector::default()
        };
        Job::open(choice, None, session, &self.settings, observer)
    }

    /// Plans and executes like a command, and returns the plan.
    async fn run(&self, verb: Verb) -> Result<Plan, DriverError> {
        let job = self.job()?;
        let _lease = job.lock().await?;
        let plan = job.plan(&PlanOptions::new(verb)).await?;
        refusals(&plan)?;
        if !plan.is_empty() {
            job.preflight(&plan).await?;
            let (_asks, interrupt) = Interrupt::new();
            let ending = job.carry_out(verb.name(), &plan, interrupt).await?;
            assert_eq!(ending, RunOutcome::Done);
        }
        Ok(plan)
    }
}

#[tokio::test]
async fn a_host_without_numbers_bridges_and_storages_is_planned_applied_and_destroyed() {
    let site = TestSite::new(TWO);
    let plan = site.run(Verb::Apply).await.unwrap();
    let list = site.memory_host().list();
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

    let again = site.run(Verb::Apply).await.unwrap();
    assert!(again.is_empty(), "{again:#?}");
    let found = again.nodes.iter().filter_map(|node| node.found.as_ref());
    let mut found: Vec<String> = found
        .filter_map(|found| Some(found.guest.vmid?.to_string()))
        .collect();
    found.sort();
    assert_eq!(found, ids, "the journal and the host agree");

    site.run(Verb::Destroy).await.unwrap();
    assert_eq!(site.memory_host().list(), []);
}

/// Locks, plans and executes a manifest like a command.
async fn apply(job: Job) -> Result<RunOutcome, DriverError> {
    let _lease = job.lock().await?;
    let plan = job.plan(&PlanOptions::new(Verb::Apply)).await?;
    refusals(&plan)?;
    let (_asks, interrupt) = Interrupt::new();
    job.carry_out("apply", plan, interrupt).await
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn of_two_runs_in_one_process_one_is_killed_and_resumed_and_the_other_is_unaffected() {
    let site = TestSite::with(TWO, OTHER);
    // Its id is written once, before both begin.
    site.run(Verb::Apply).await.unwrap();
    site.run(Verb::Destroy).await.unwrap();
    let host = site.memory_host();
    host.hold(&["b", "d"]);
    let (killed_log, other_log) = (Arc::new(EventLog::default()), Arc::new(EventLog::default()));
    let killed = site.job_of("pair", killed_log.clone()).unwrap();
    let other = site.job_of("other", other_log.clone()).unwrap();
    let (killed, other) = (tokio::spawn(apply(killed)), tokio::spawn(apply(other)));
    host.wait_for_starts(&["b", "d"]).await;

    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    let (killed_run, nodes) = killed_log.run_and_nodes();
    assert_eq!(nodes, set(&["a", "b"]));
    assert_eq!(killed_log.ending(), None);
    let before = killed_log.list().len();

    host.hold(&[]);
    assert_eq!(other.await.unwrap().unwrap(), RunOutcome::Done);
    let (other_run, nodes) = other_log.run_and_nodes();
    assert_ne!(other_run, killed_run);
    assert_eq!(nodes, set(&["c", "d"]));
    assert_eq!(other_log.ending(), Some(RunOutcome::Done));
    assert_eq!(
        killed_log.list().len(),
        before,
        "a killed run does nothing more"
    );

    let resumed_log = Arc::new(EventLog::default());
    let job = site.job_of("pair", resumed_log.clone()).unwrap();
    let which = RunSelector {
        manifest: Some("pair".to_owned()),
        host: None,
    };
    let resume = Resume::open(&job.driver, &which, &[]).await.unwrap();
    assert_eq!(resume.run.head.id, killed_run);
    let (_asks, interrupt) = Interrupt::new();
    let ending = resume.carry_out(interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
    let (run, nodes) = resumed_log.run_and_nodes();
    assert_eq!(run, killed_run);
    assert!(
        nodes.contains("b") && nodes.is_subset(&set(&["a", "b"])),
        "{nodes:?}"
    );
    let mut names: Vec<String> = host.list().into_iter().map(|(name, ..)| name).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d"], "each was created once");
}

#[tokio::test]
async fn a_run_is_followed_by_its_journal_until_it_ends() {
    let site = TestSite::new(TWO);
    let host = site.memory_host();
    host.hold(&["b"]);
    let own_log = Arc::new(EventLog::default());
    let running = tokio::spawn(apply(site.job_of("pair", own_log.clone()).unwrap()));
    host.wait_for_starts(&["b"]).await;
    // As another process: with its own journal.
    let journal = journal(&site.settings).unwrap();
    let head = journal.runs(None).await.unwrap().remove(0);
    let run = read(&head, &journal).await.unwrap();
    let followed = EventLog::default();
    let follower = RunFollower::new(&journal, site.settings.time.clock(), &run);
    let release = async {
        while !followed.list().iter().any(is_start_of_b) {
            tokio::task::yield_now().await;
        }
        assert_eq!(followed.ending(), None);
        host.hold(&[]);
    };
    let (ended, ()) = tokio::join!(follower.follow(&followed), release);
    assert_eq!(ended.unwrap(), Some(RunOutcome::Done));
    assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Done);
    assert_eq!(followed.run_and_nodes(), own_log.run_and_nodes());
    assert_eq!(followed.ending(), Some(RunOutcome::Done));
}

fn is_start_of_b(event: &Event) -> bool {
    matches!(
        &event.kind,
        EventKind::StepStarted { subject: Subject::Node(name), step: StepKind::Start, .. } if name == "b"
    )
}

#[tokio::test]
async fn the_host_that_cannot_be_observed_is_named() {
    let node = |name, host| {
        format!("  - {{name: {name}, preset: small, image: debian-12, host: {host}}}\n")
    };
    let site = TestSite::new(&format!(
        "nodes:\n{}{}",
        node("a", HOST),
        node("b", UNREACHABLE)
    ));
    let job = site.job_on(None, "pair", Arc::new(RecordedNotices::default()));
    let planned = job.unwrap().plan(&PlanOptions::new(Verb::Apply)).await;
    let hints = planned.unwrap_err().hints.join("\n");
    assert!(hints.contains("check that `unreachable` is up"), "{hints}");
}

#[tokio::test]
async fn missing_host_features_are_refused_before_any_change() {
    for (node, expected) in [
        (
            "preset: small, image: debian-12, vmid: 900",
            "`memory` assigns ids itself",
        ),
        (
            "preset: bridged, image: debian-12",
            "`memory` does not support bridges, such as `vmbr7`",
        ),
        (
            "preset: small, image: debian-12, network: lan",
            "`memory` does not support VLANs, such as 20",
        ),
        (
            "preset: small, type: ct, template: 'local:vztmpl/d.tar.zst'",
            "`memory` has no storages, so the volume `local:vztmpl/d.tar.zst` cannot be used",
        ),
        (
            "preset: small, type: ct, template: debian-12-ct",
            "`memory` does not support containers",
        ),
    ] {
        let site = TestSite::new(&format!("nodes:\n  - {{name: a, {node}}}\n"));
        let plan = site
            .job()
            .unwrap()
            .plan(&PlanOptions::new(Verb::Apply))
            .await
            .unwrap();
        let reasons = || plan.refusals.iter().map(|refusal| &refusal.reason);
        assert!(
            reasons().any(|reason| reason.text.contains(expected)),
            "{plan:#?}"
        );
        for reason in reasons() {
            let source = reason.source.as_ref();
            assert!(source.is_some_and(|at| at.contains(".yaml:")), "{reason:?}");
        }
        site.run(Verb::Apply).await.unwrap_err();
        assert_eq!(site.memory_host().list(), []);
    }
}
