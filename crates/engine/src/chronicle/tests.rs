//! Rows as events come.
//!
//! In: plans and events made by hand. Out: rows compared.
//! Never: a run; those are tested through the program.

use homestak_core::observed::{GuestKind, GuestRef, GuestUuid, PowerState};
use homestak_core::plan::{
    ExistingGuest, NodePlan, NodeRecord, NodeStatus, OnError, PLAN_FORMAT, Steps, steps,
};
use homestak_core::units::Seconds;

use crate::journal::{Entry, RunHead};

use super::*;
use crate::ports::{Class, Next};

fn node(name: &str, action: Action) -> NodePlan {
    NodePlan {
        name: name.to_owned(),
        host: "father".to_owned(),
        location: NodeLocation::Host("father".to_owned()),
        depth: 0,
        action,
        reasons: Vec::new(),
        wanted: None,
        found: Some(ExistingGuest {
            guest: GuestRef {
                uuid: GuestUuid::from_bytes([7; 16]),
                kind: GuestKind::Vm,
                vmid: Some(100.into()),
                host: "pve1".to_owned(),
            },
            legacy_identity: false,
            power: PowerState::Running,
            created: Some(true),
            ready: Some(true),
            cores: None,
            memory: None,
            disk: None,
            address: "192.0.2.1".parse().ok(),
            configured: None,
            hosts_guests: None,
        }),
        config: None,
        reidentified: None,
        recorded: None,
    }
}

fn plan(verb: Verb, nodes: Vec<NodePlan>) -> Plan {
    let mut plan = Plan {
        format: PLAN_FORMAT,
        verb,
        site: None,
        manifest: "m".to_owned(),
        hosts: vec!["father".to_owned()],
        on_error: OnError::Stop,
        parallelism: 1,
        verify_ssh: false,
        timeout_buffer: Seconds(0),
        timeouts: homestak_core::doc::timeouts::Timeouts::default(),
        nodes,
        images: Vec::new(),
        steps: Steps::default(),
        foreign: Vec::new(),
        refusals: Vec::new(),
        estimate: None,
        measured: false,
    };
    plan.steps = steps(&plan);
    plan
}

fn tell(chronicle: &mut Chronicle, what: What) {
    let at = Timestamp::from_second(1_000).expect("a moment");
    let run = RunId(7);
    chronicle.hear(&Event { at, run, what });
}

fn started(step: StepKind, undo: bool) -> What {
    What::StepStarted {
        subject: Subject::Node("a".to_owned()),
        step,
        undo,
    }
}

fn done(step: StepKind, undo: bool) -> What {
    What::StepDone {
        subject: Subject::Node("a".to_owned()),
        step,
        undo,
        changed: true,
        kept: false,
        seconds: 2.0,
        guest_id: None,
        address: None,
    }
}

fn failed(step: StepKind, undo: bool) -> What {
    What::StepFailed {
        subject: Subject::Node("a".to_owned()),
        step,
        undo,
        trouble: Trouble {
            class: Class::Refused,
            message: "no".to_owned(),
            log: Vec::new(),
            hint: String::new(),
            next: Next::Repeat,
        },
        seconds: 1.0,
    }
}

#[test]
fn what_was_there_is_known_before_anything_happens() {
    let chronicle = Chronicle::new(&plan(Verb::Apply, vec![node("a", Action::Nothing)]));
    let row = &chronicle.nodes[0];
    assert_eq!(
        (row.status, row.guest_id),
        (Status::Completed, Some(100.into()))
    );
    assert!(row.address.is_some());
    let gone = Chronicle::new(&plan(Verb::Destroy, vec![node("a", Action::Nothing)]));
    assert_eq!(gone.nodes[0].status, Status::Destroyed);
    // The old guest's id says nothing of the one that takes its place.
    let new = Chronicle::new(&plan(Verb::Apply, vec![node("a", Action::Replace)]));
    assert_eq!((new.nodes[0].guest_id, new.nodes[0].address), (None, None));
}

#[test]
fn a_node_is_done_with_its_last_step() {
    let mut chronicle = Chronicle::new(&plan(Verb::Destroy, vec![node("a", Action::Destroy)]));
    assert_eq!(chronicle.nodes[0].status, Status::Pending);
    for step in [StepKind::Stop, StepKind::Destroy] {
        tell(&mut chronicle, started(step, false));
        assert_eq!(chronicle.nodes[0].status, Status::Running);
        tell(&mut chronicle, done(step, false));
    }
    let row = &chronicle.nodes[0];
    assert_eq!((row.status, row.seconds()), (Status::Destroyed, 4.0));
    assert_eq!(row.address, None);
    assert_eq!(chronicle.run, Some(RunId(7)));
}

#[test]
fn what_could_not_be_undone_stays_stuck() {
    let mut chronicle = Chronicle::new(&plan(Verb::Apply, vec![node("a", Action::Start)]));
    tell(&mut chronicle, failed(StepKind::Start, false));
    assert_eq!(chronicle.nodes[0].status, Status::Failed);
    tell(&mut chronicle, started(StepKind::Start, true));
    tell(&mut chronicle, failed(StepKind::Start, true));
    tell(&mut chronicle, done(StepKind::Create, true));
    assert_eq!(chronicle.nodes[0].status, Status::Stuck);
    assert!(chronicle.unwinding);
    assert_eq!(chronicle.troubles().count(), 1);
}

#[test]
fn nothing_runs_when_nobody_carries_it_out() {
    let mut chronicle = Chronicle::new(&plan(Verb::Apply, vec![node("a", Action::Start)]));
    tell(&mut chronicle, started(StepKind::Start, false));
    chronicle.died();
    let row = &chronicle.nodes[0];
    assert_eq!(
        (row.status, row.now.is_some()),
        (Status::Interrupted, false)
    );
}

#[test]
fn an_image_has_a_row_of_its_own() {
    let mut chronicle = Chronicle::new(&plan(Verb::Apply, vec![node("a", Action::Nothing)]));
    let subject = Subject::Image {
        name: "debian-12".to_owned(),
        place: "father".to_owned(),
    };
    let step = StepKind::Image;
    tell(
        &mut chronicle,
        What::StepStarted {
            subject,
            step,
            undo: false,
        },
    );
    assert_eq!((chronicle.nodes.len(), chronicle.images.len()), (1, 1));
}

#[test]
fn records_of_nodes_that_went_with_another_are_not_taken_for_those_of_that_node() {
    let plan = plan(Verb::Destroy, vec![node("hyper", Action::Destroy)]);
    let guest = |vmid: u32| GuestRef {
        uuid: GuestUuid::from_bytes([7; 16]),
        kind: GuestKind::Vm,
        vmid: Some(vmid.into()),
        host: "pve1".to_owned(),
    };
    let gone = |name: &str, vmid| NodeRecord {
        name: name.to_owned(),
        host: "father".to_owned(),
        location: NodeLocation::Host("father".to_owned()),
        site: None,
        guest: guest(vmid),
        status: NodeStatus::Destroyed,
        source: None,
        address: None,
        user: None,
        configured: None,
        hosts_guests: None,
    };
    let at = |second| Timestamp::from_second(second).expect("a moment");
    let entry = |step, second, happened, record| Entry {
        step,
        happened,
        at: at(second),
        record,
    };
    let done = Happened::Done { changed: true };
    let last = || plan.steps.iter().last().map(|step| step.id.clone());
    let mut entries = vec![
        entry(last(), 1_000, Happened::Intent, None),
        entry(last(), 1_005, done.clone(), Some(gone("hyper", 100))),
        entry(last(), 1_005, done, Some(gone("kid", 200))),
    ];
    let run = |entries| Run {
        head: RunHead {
            id: RunId(7),
            mark: None,
            site: None,
            form: PLAN_FORMAT,
            manifest: "m".to_owned(),
            hosts: vec!["father".to_owned()],
            verb: "destroy".to_owned(),
            started: at(1_000),
            ended: None,
        },
        plan: plan.clone(),
        entries,
    };
    let row = |entries| Chronicle::of_run(&run(entries)).nodes.remove(0);
    let with = row(entries.clone());
    entries.pop();
    assert_eq!(with, row(entries));
    assert_eq!((with.guest_id, with.seconds()), (Some(100.into()), 5.0));
}

#[test]
fn a_node_that_goes_with_another_is_gone_when_that_is() {
    let inside = NodePlan {
        location: NodeLocation::Inside("a".to_owned()),
        ..node("kid", Action::Nothing)
    };
    let plan = plan(Verb::Destroy, vec![node("a", Action::Destroy), inside]);
    let mut chronicle = Chronicle::new(&plan);
    assert_eq!(chronicle.nodes[1].status, Status::Pending);
    tell(&mut chronicle, failed(StepKind::Destroy, false));
    assert_eq!(chronicle.nodes[1].status, Status::Pending);
    for step in [StepKind::Stop, StepKind::Destroy] {
        tell(&mut chronicle, done(step, false));
    }
    assert_eq!(chronicle.nodes[1].status, Status::Destroyed);
}
