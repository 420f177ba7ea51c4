//! Sample plans, node records and journal entries.

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{GuestKind, GuestRef, GuestUuid};
use homestak_core::plan::{
    Action, DesiredGuest, GuestPlan, Nic, NodeLocation, NodePlan, NodeRecord, NodeStatus, OnError,
    PLAN_FORMAT, Plan, Reason, StepId, Steps, Verb, steps,
};
use homestak_engine::journal::{Entry, Scope, StepError, StepEvent};
use homestak_engine::ports::{ErrorClass, Gib, Mib, NextAction};
use jiff::Timestamp;

/// A point in time, some seconds after a fixed start.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::new(1_700_000_000 + seconds, 123_456_789).unwrap()
}

/// The site of all samples.
pub fn site() -> SiteId {
    SiteId::new("kq7f2mzx4vbt3npw").unwrap()
}

/// A manifest on a host.
pub fn scope(manifest: &str, host: &str) -> Scope {
    Scope::new(Some(&site()), manifest, host)
}

/// The n-th guest.
pub fn uuid(number: usize) -> GuestUuid {
    GuestUuid::new(&format!("6f1d2a3b-4c5d-4e6f-8a9b-{number:012x}")).unwrap()
}

/// A plan that creates virtual machines with four steps each: create, start, ready, discard.
pub fn plan(manifest: &str, nodes: usize) -> Plan {
    let mut plan = Plan {
        format: PLAN_FORMAT,
        verb: Verb::Apply,
        site: Some(site()),
        manifest: manifest.into(),
        hosts: vec!["father".into()],
        on_error: OnError::Stop,
        parallelism: 8,
        verify_ssh: true,
        timeout_buffer: homestak_core::units::Seconds(60),
        timeouts: homestak_core::doc::timeouts::Timeouts::default(),
        nodes: (0..nodes).map(node).collect(),
        images: Vec::new(),
        steps: Steps::default(),
        foreign: Vec::new(),
        refusals: Vec::new(),
        estimate: Some(61.5),
        measured: false,
    };
    plan.steps = steps(&plan);
    plan
}

/// The id of a step of a plan that [`plan`] returns.
pub fn step(number: usize) -> Option<StepId> {
    let kind = ["create", "start", "ready", "discard"][number % 4];
    let id = format!("{kind}:father/node-{}", number / 4);
    Some(StepId::from(id))
}

fn node(number: usize) -> NodePlan {
    NodePlan {
        name: format!("node-{number}"),
        host: "father".into(),
        location: NodeLocation::Host("father".into()),
        depth: 0,
        action: Action::Create,
        reasons: vec![Reason {
            text: "it is not there".into(),
            source: Some("manifests/n1-basic.yaml:12:5".into()),
            ..Reason::default()
        }],
        wanted: Some(wanted(number)),
        found: None,
        config: None,
        simulated: false,
        reidentified: None,
        recorded: None,
    }
}

fn wanted(number: usize) -> DesiredGuest {
    DesiredGuest {
        guest: GuestPlan {
            uuid: uuid(number),
            kind: GuestKind::Vm,
            host: "father".into(),
            vmid: None,
            cores: 2,
            memory: Mib(2048),
            disk: Gib(20),
            storage: Some("local-zfs".into()),
            image_storage: Some("local".into()),
            nic: Nic {
                mac: "bc:24:11:00:00:01".into(),
                bridge: Some("vmbr0".into()),
                vlan: None,
                address: Some(("10.0.0.7".parse().unwrap(), 24)),
                gateway: Some("10.0.0.1".parse().unwrap()),
            },
            unprivileged: false,
            hosts_guests: false,
        },
        source: "debian-12-custom".into(),
        image: None,
        dns: vec!["10.0.0.1".parse().unwrap()],
        user: "homestak".into(),
        packages: vec!["qemu-guest-agent".into()],
    }
}

/// The record of a node.
pub fn record(name: &str, status: NodeStatus) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        host: "father".into(),
        location: NodeLocation::Host("father".into()),
        site: Some(site()),
        guest: GuestRef {
            uuid: uuid(name.len()),
            kind: GuestKind::Vm,
            vmid: (status != NodeStatus::Creating).then_some(99_011.into()),
            host: "father".into(),
        },
        status,
        source: Some("debian-12-custom".into()),
        address: (status == NodeStatus::Ready).then(|| "10.0.0.7".parse().unwrap()),
        // Older versions did not record it.
        user: None,
        configured: None,
        hosts_guests: None,
    }
}

/// An entry of a step.
pub fn entry(number: usize, happened: StepEvent) -> Entry {
    Entry {
        step: step(number),
        happened,
        at: at(i64::try_from(number).unwrap()),
        record: None,
    }
}

/// An entry of a step with a node record.
pub fn entry_with_record(number: usize, happened: StepEvent, record: NodeRecord) -> Entry {
    Entry {
        record: Some(record),
        ..entry(number, happened)
    }
}

/// A step that changed something.
pub fn done() -> StepEvent {
    StepEvent::Done { changed: true }
}

/// An error whose text is hard to store: quotes, a newline, an emoji, an empty line.
pub fn step_error() -> StepError {
    StepError {
        class: ErrorClass::Refused,
        message: "create guest 99011 on father: storage `local-zfs` is \"full\"\n\u{1f480}".into(),
        log: vec!["line 1".into(), String::new(), "TASK ERROR".into()],
        hint: "free space".into(),
        next: NextAction::Repeat,
    }
}
