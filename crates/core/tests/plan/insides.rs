//! What a plan says of the configuration of nodes that could not be asked.

use homestak_core::plan::{Configured, Unseen};

use super::*;

const ONE: &str = "nodes:\n  - {name: a, preset: small}\n";

/// Plans for a node whose spec has the digest `new`, and which could not be asked.
fn unasked(power: Power, change: impl Fn(&mut NodeRecord, &mut ObservedGuest)) -> Plan {
    let (catalog, resolved) = documents(ONE);
    let mut there = ours("a", 200);
    there.power = power;
    let mut known = record(&there, "a");
    change(&mut known, &mut there);
    let config = ConfigPlan {
        spec: "base".to_owned(),
        digest: "new".to_owned(),
        port: 22,
        found: None,
        unseen: (power == Power::Running).then(|| Unseen {
            why: "its host key is not known here".into(),
            hint: "homestak state rebuild".to_owned(),
        }),
    };
    plan(&Inputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        looks: &[(
            Place::Host("father".to_owned()),
            Look::Seen(host(vec![there])),
        )]
        .into(),
        records: &[known].into_iter().collect(),
        elsewhere: &Elsewhere::default(),
        configs: &[("a".to_owned(), config)].into(),
        options: &Options::new(Verb::Apply),
        paces: &Paces::default(),
    })
}

fn configured(digest: &str) -> Option<Configured> {
    Some(Configured {
        spec: "base".to_owned(),
        digest: digest.to_owned(),
        port: 22,
    })
}

fn says(plan: &Plan, words: &str) -> bool {
    let reasons = &plan.node("a").expect("the node").reasons;
    reasons.iter().any(|reason| reason.text.contains(words))
}

const MAY: &str = "may be removed";

#[test]
fn a_node_that_was_configured_otherwise_and_could_not_be_asked_may_lose_something() {
    for power in [Power::Stopped, Power::Running] {
        let plan = unasked(power, |known, _| known.configured = configured("old"));
        assert!(plan.removes_inside(), "{:#?}", plan.nodes);
        assert!(says(&plan, MAY), "{:#?}", plan.nodes);
    }
    // Nothing records what it was made inside.
    let plan = unasked(Power::Stopped, |_, _| {});
    assert!(
        plan.removes_inside() && says(&plan, MAY),
        "{:#?}",
        plan.nodes
    );
    // As after `state rebuild`, which cannot tell whether it was ever reached.
    let plan = unasked(Power::Stopped, |known, _| {
        (known.status, known.source) = (NodeStatus::Made, None);
    });
    let node = plan.node("a").expect("the node");
    let ready = node.found.as_ref().and_then(|found| found.ready);
    assert_eq!((node.action, ready), (Action::Start, None));
    assert!(
        plan.removes_inside() && says(&plan, MAY),
        "{:#?}",
        plan.nodes
    );
    // What runs is reached again, so that its address is known.
    let plan = unasked(Power::Running, |known, _| {
        (known.status, known.source) = (NodeStatus::Made, None);
    });
    assert_eq!(plan.node("a").expect("the node").action, Action::Start);
}

#[test]
fn a_node_with_the_same_spec_or_that_was_never_reached_loses_nothing() {
    let same = unasked(Power::Stopped, |known, _| {
        known.configured = configured("new");
    });
    let never = unasked(Power::Stopped, |known, _| {
        (known.status, known.source) = (NodeStatus::Made, Some("debian-12".to_owned()));
    });
    for plan in [same, never] {
        assert_eq!(plan.node("a").expect("the node").action, Action::Start);
        assert!(
            !plan.removes_inside() && !says(&plan, MAY),
            "{:#?}",
            plan.nodes
        );
    }
}

#[test]
fn a_node_that_does_not_run_and_is_changed_is_said_to_be_started() {
    let plan = unasked(Power::Stopped, |_, there| there.cores = Some(4));
    assert_eq!(plan.node("a").expect("the node").action, Action::Change);
    assert!(says(&plan, "it is started afterwards"), "{:#?}", plan.nodes);
}

#[test]
fn why_a_node_could_not_be_asked_is_in_the_plan_and_no_part_of_the_work() {
    let asked = unasked(Power::Running, |known, _| {
        known.configured = configured("old");
    });
    let why = "says could not be seen: its host key is not known here";
    assert!(says(&asked, why), "{:#?}", asked.nodes);
    let changed = unasked(Power::Running, |_, there| there.cores = Some(4));
    let why = "what differs inside could not be seen: its host key is not known here";
    assert!(says(&changed, why), "{:#?}", changed.nodes);
    let mut later = asked.clone();
    for config in later
        .nodes
        .iter_mut()
        .filter_map(|node| node.config.as_mut())
    {
        config.unseen = None;
    }
    assert!(asked.same_work(&later));
}

#[test]
fn a_guest_whose_power_is_unknown_is_not_said_to_be_stopped() {
    let changed = unasked(Power::Unknown, |_, there| there.cores = Some(4));
    let plans = [
        changed,
        unasked(Power::Unknown, |_, _| {}),
        apply(ONE, vec![guest_of_unknown_power()]),
    ];
    for plan in plans {
        assert!(!says(&plan, "it does not run"), "{:#?}", plan.nodes);
        assert_eq!(plan.refusals.len(), 1, "{:#?}", plan.refusals);
    }
}

fn guest_of_unknown_power() -> ObservedGuest {
    ObservedGuest {
        power: Power::Unknown,
        ..ours("a", 200)
    }
}
