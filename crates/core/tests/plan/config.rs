//! Plans for nodes whose configuration could not be inspected.

use homestak_core::plan::{AppliedSpec, InspectionFailure, SpecComparison};

use super::*;

const ONE: &str = "nodes:\n  - {name: a, preset: small}\n";

/// Plans for a node whose spec has the digest `new`, and which could not be inspected.
fn uninspected(power: PowerState, change: impl Fn(&mut NodeRecord, &mut ObservedGuest)) -> Plan {
    let (catalog, resolved) = documents(ONE);
    let mut there = ours("a", 200);
    there.power = power;
    let mut known = record(&there, "a");
    change(&mut known, &mut there);
    let config = ConfigPlan {
        spec: "base".to_owned(),
        digest: "new".to_owned(),
        port: 22,
        mode: Mode::Push,
        found: None,
        unseen: (power == PowerState::Running).then(|| InspectionFailure {
            why: "its host key is not known here".into(),
            hint: "homestak state rebuild".to_owned(),
        }),
    };
    plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations: &[(
            NodeLocation::Host("father".to_owned()),
            Observation::Available(host(vec![there])),
        )]
        .into(),
        records: &[known].into_iter().collect(),
        other_records: &OtherRecords::default(),
        configs: &[("a".to_owned(), config)].into(),
        options: &PlanOptions::new(Verb::Apply),
        step_durations: &StepDurations::default(),
    })
}

fn configured(digest: &str) -> Option<AppliedSpec> {
    Some(AppliedSpec {
        spec: "base".to_owned(),
        digest: digest.to_owned(),
        port: 22,
        mode: None,
    })
}

fn has_reason(plan: &Plan, text: &str) -> bool {
    let reasons = &plan.node("a").expect("the node").reasons;
    reasons.iter().any(|reason| reason.text.contains(text))
}

const MAY_REMOVE: &str = "may be removed";

#[test]
fn applying_another_spec_to_an_uninspected_node_may_remove_something() {
    for power in [PowerState::Stopped, PowerState::Running] {
        let plan = uninspected(power, |known, _| known.configured = configured("old"));
        assert!(plan.removes_inside(), "{:#?}", plan.nodes);
        assert!(has_reason(&plan, MAY_REMOVE), "{:#?}", plan.nodes);
    }
    // No record of an applied spec.
    let plan = uninspected(PowerState::Stopped, |_, _| {});
    assert!(
        plan.removes_inside() && has_reason(&plan, MAY_REMOVE),
        "{:#?}",
        plan.nodes
    );
    // As after `state rebuild`, when it is unknown whether it was ever reached.
    let plan = uninspected(PowerState::Stopped, |known, _| {
        (known.status, known.source) = (NodeStatus::Created, None);
    });
    let node = plan.node("a").expect("the node");
    let ready = node.found.as_ref().and_then(|found| found.ready);
    assert_eq!((node.action, ready), (Action::Start, None));
    assert!(
        plan.removes_inside() && has_reason(&plan, MAY_REMOVE),
        "{:#?}",
        plan.nodes
    );
    // A running node is reached again, so that its address is known.
    let plan = uninspected(PowerState::Running, |known, _| {
        (known.status, known.source) = (NodeStatus::Created, None);
    });
    assert_eq!(plan.node("a").expect("the node").action, Action::Start);
}

#[test]
fn nothing_is_removed_with_the_same_spec_or_if_the_node_was_never_reached() {
    let same = uninspected(PowerState::Stopped, |known, _| {
        known.configured = configured("new");
    });
    let never = uninspected(PowerState::Stopped, |known, _| {
        (known.status, known.source) = (NodeStatus::Created, Some("debian-12".to_owned()));
    });
    for plan in [same, never] {
        assert_eq!(plan.node("a").expect("the node").action, Action::Start);
        assert!(
            !plan.removes_inside() && !has_reason(&plan, MAY_REMOVE),
            "{:#?}",
            plan.nodes
        );
    }
}

#[test]
fn a_change_of_a_stopped_node_reports_that_it_is_started() {
    let plan = uninspected(PowerState::Stopped, |_, there| there.cores = Some(4));
    assert_eq!(plan.node("a").expect("the node").action, Action::Change);
    assert!(
        has_reason(&plan, "it is started afterwards"),
        "{:#?}",
        plan.nodes
    );
}

#[test]
fn the_inspection_failure_is_in_the_plan_and_not_part_of_the_work() {
    let inspected = uninspected(PowerState::Running, |known, _| {
        known.configured = configured("old");
    });
    let why = "could not be compared with its spec `base`: its host key is not known here";
    assert!(has_reason(&inspected, why), "{:#?}", inspected.nodes);
    let changed = uninspected(PowerState::Running, |_, there| there.cores = Some(4));
    let why = "it could not be compared with its spec: its host key is not known here";
    assert!(has_reason(&changed, why), "{:#?}", changed.nodes);
    let mut later = inspected.clone();
    for config in later
        .nodes
        .iter_mut()
        .filter_map(|node| node.config.as_mut())
    {
        config.unseen = None;
    }
    assert!(inspected.same_work(&later));
}

#[test]
fn a_guest_in_unknown_power_state_is_not_reported_as_stopped() {
    let changed = uninspected(PowerState::Unknown, |_, there| there.cores = Some(4));
    let plans = [
        changed,
        uninspected(PowerState::Unknown, |_, _| {}),
        apply(ONE, vec![guest_of_unknown_power()]),
    ];
    for plan in plans {
        assert!(!has_reason(&plan, "it is stopped"), "{:#?}", plan.nodes);
        assert_eq!(plan.refusals.len(), 1, "{:#?}", plan.refusals);
    }
}

fn guest_of_unknown_power() -> ObservedGuest {
    ObservedGuest {
        power: PowerState::Unknown,
        ..ours("a", 200)
    }
}

/// Plans for a node that complies with its spec, configured last in a mode.
fn compliant(before: Option<Mode>, mode: Mode) -> Plan {
    let (catalog, resolved) = documents(ONE);
    let there = ours("a", 200);
    let mut known = record(&there, "a");
    known.configured = configured("new");
    if let Some(configured) = &mut known.configured {
        configured.mode = before;
    }
    let config = ConfigPlan {
        spec: "base".to_owned(),
        digest: "new".to_owned(),
        port: 22,
        mode,
        found: Some(SpecComparison {
            settled: true,
            ..SpecComparison::default()
        }),
        unseen: None,
    };
    plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations: &[(
            NodeLocation::Host("father".to_owned()),
            Observation::Available(host(vec![there])),
        )]
        .into(),
        records: &[known].into_iter().collect(),
        other_records: &OtherRecords::default(),
        configs: &[("a".to_owned(), config)].into(),
        options: &PlanOptions::new(Verb::Apply),
        step_durations: &StepDurations::default(),
    })
}

#[test]
fn another_mode_is_configured_although_the_spec_is_the_same() {
    let plan = compliant(Some(Mode::Hybrid), Mode::Pull);
    let node = plan.node("a").expect("the node");
    assert_eq!(node.action, Action::Configure);
    assert!(node.changes_mode() && !plan.removes_inside());
    let text = "its mode changes from `hybrid` to `pull`";
    assert!(has_reason(&plan, text), "{:#?}", plan.nodes);
    // A record of an older program does not have the mode.
    for (before, mode) in [(Some(Mode::Pull), Mode::Pull), (None, Mode::Pull)] {
        let plan = compliant(before, mode);
        assert_eq!(plan.node("a").expect("the node").action, Action::Nothing);
    }
}
