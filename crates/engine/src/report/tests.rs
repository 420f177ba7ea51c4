//! Reports from events and from recorded runs.

use homestak_core::observed::{GuestKind, GuestRef, GuestUuid, PowerState};
use homestak_core::plan::{
    ExistingGuest, NodePlan, NodeRecord, NodeStatus, OnError, PLAN_FORMAT, Steps, steps,
};
use homestak_core::units::Seconds;

use crate::journal::{Entry, RunSummary};

use super::*;
use crate::ports::{ErrorClass, NextAction};

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
                uuid: GuestUuid::new("07070707-0707-0707-0707-070707070707").unwrap(),
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
        simulated: false,
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

fn apply(report: &mut RunReport, kind: EventKind) {
    let at = Timestamp::from_second(1_000).expect("a timestamp");
    let run = RunId(7);
    report.apply(&Event {
        at,
        run: Some(run),
        kind,
    });
}

fn started(step: StepKind, undo: bool) -> EventKind {
    EventKind::StepStarted {
        subject: Subject::Node("a".to_owned()),
        step,
        undo,
    }
}

fn done(step: StepKind, undo: bool) -> EventKind {
    EventKind::StepDone {
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

fn failed(step: StepKind, undo: bool) -> EventKind {
    EventKind::StepFailed {
        subject: Subject::Node("a".to_owned()),
        step,
        undo,
        error: StepError {
            class: ErrorClass::Refused,
            message: "no".to_owned(),
            log: Vec::new(),
            hint: String::new(),
            next: NextAction::Repeat,
        },
        seconds: 1.0,
    }
}

#[test]
fn existing_nodes_are_in_the_report_before_anything_happens() {
    let report = RunReport::new(&plan(Verb::Apply, vec![node("a", Action::Nothing)]));
    let row = &report.nodes[0];
    assert_eq!(
        (row.status, row.guest_id),
        (RowStatus::Completed, Some(100.into()))
    );
    assert!(row.address.is_some());
    let destroyed = RunReport::new(&plan(Verb::Destroy, vec![node("a", Action::Nothing)]));
    assert_eq!(destroyed.nodes[0].status, RowStatus::Destroyed);
    // The id of the old guest is not that of its replacement.
    let new = RunReport::new(&plan(Verb::Apply, vec![node("a", Action::Replace)]));
    assert_eq!((new.nodes[0].guest_id, new.nodes[0].address), (None, None));
}

#[test]
fn a_node_is_completed_by_its_last_step() {
    let mut report = RunReport::new(&plan(Verb::Destroy, vec![node("a", Action::Destroy)]));
    assert_eq!(report.nodes[0].status, RowStatus::Pending);
    for step in [StepKind::Stop, StepKind::Destroy] {
        apply(&mut report, started(step, false));
        assert_eq!(report.nodes[0].status, RowStatus::Running);
        apply(&mut report, done(step, false));
    }
    let row = &report.nodes[0];
    assert_eq!((row.status, row.seconds()), (RowStatus::Destroyed, 4.0));
    assert_eq!(row.address, None);
    assert_eq!(report.run, Some(RunId(7)));
}

#[test]
fn what_could_not_be_undone_stays_stuck() {
    let mut report = RunReport::new(&plan(Verb::Apply, vec![node("a", Action::Start)]));
    apply(&mut report, failed(StepKind::Start, false));
    assert_eq!(report.nodes[0].status, RowStatus::Failed);
    apply(&mut report, started(StepKind::Start, true));
    apply(&mut report, failed(StepKind::Start, true));
    apply(&mut report, done(StepKind::Create, true));
    assert_eq!(report.nodes[0].status, RowStatus::Stuck);
    assert!(report.rolling_back);
    assert_eq!(report.errors().count(), 1);
}

#[test]
fn nothing_runs_when_no_process_executes_it() {
    let mut report = RunReport::new(&plan(Verb::Apply, vec![node("a", Action::Start)]));
    apply(&mut report, started(StepKind::Start, false));
    report.mark_interrupted();
    let row = &report.nodes[0];
    assert_eq!(
        (row.status, row.now.is_some()),
        (RowStatus::Interrupted, false)
    );
}

#[test]
fn an_image_has_a_row_of_its_own() {
    let mut report = RunReport::new(&plan(Verb::Apply, vec![node("a", Action::Nothing)]));
    let subject = Subject::Image {
        name: "debian-12".to_owned(),
        location: "father".to_owned(),
    };
    let step = StepKind::Image;
    apply(
        &mut report,
        EventKind::StepStarted {
            subject,
            step,
            undo: false,
        },
    );
    assert_eq!((report.nodes.len(), report.images.len()), (1, 1));
}

#[test]
fn records_of_nodes_destroyed_with_another_are_not_its_own() {
    let plan = plan(Verb::Destroy, vec![node("hyper", Action::Destroy)]);
    let guest = |vmid: u32| GuestRef {
        uuid: GuestUuid::new("07070707-0707-0707-0707-070707070707").unwrap(),
        kind: GuestKind::Vm,
        vmid: Some(vmid.into()),
        host: "pve1".to_owned(),
    };
    let destroyed = |name: &str, vmid| NodeRecord {
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
    let at = |second| Timestamp::from_second(second).expect("a timestamp");
    let entry = |step, second, happened, record| Entry {
        step,
        happened,
        at: at(second),
        record,
    };
    let done = StepEvent::Done { changed: true };
    let last = || plan.steps.iter().last().map(|step| step.id.clone());
    let mut entries = vec![
        entry(last(), 1_000, StepEvent::Intent, None),
        entry(last(), 1_005, done.clone(), Some(destroyed("hyper", 100))),
        entry(last(), 1_005, done, Some(destroyed("kid", 200))),
    ];
    let run = |entries| Run {
        head: RunSummary {
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
    let row = |entries| RunReport::of_run(&run(entries)).nodes.remove(0);
    let with = row(entries.clone());
    entries.pop();
    assert_eq!(with, row(entries));
    assert_eq!((with.guest_id, with.seconds()), (Some(100.into()), 5.0));
}

#[test]
fn a_node_is_destroyed_with_its_parent() {
    let inside = NodePlan {
        location: NodeLocation::Inside("a".to_owned()),
        ..node("kid", Action::Nothing)
    };
    let plan = plan(Verb::Destroy, vec![node("a", Action::Destroy), inside]);
    let mut report = RunReport::new(&plan);
    assert_eq!(report.nodes[1].status, RowStatus::Pending);
    apply(&mut report, failed(StepKind::Destroy, false));
    assert_eq!(report.nodes[1].status, RowStatus::Pending);
    for step in [StepKind::Stop, StepKind::Destroy] {
        apply(&mut report, done(step, false));
    }
    assert_eq!(report.nodes[1].status, RowStatus::Destroyed);
}
