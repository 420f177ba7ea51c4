//! What a node cannot become is refused as a whole, before the first step.

use homestak_core::converge::{
    Decision, Facts, PackageFact, Resource, State, SystemFact, UnitFact, decide,
};
use serde_json::{Value, json};

use crate::{read, smallest};

/// A node with everything installed that every spec wants.
fn debian() -> Facts {
    let packages = read(&smallest())
        .into_iter()
        .filter_map(|resource| match resource {
            Resource::Package { name, .. } => Some((name, PackageFact::default())),
            _ => None,
        });
    Facts {
        system: SystemFact {
            id: "debian".into(),
            version: "12".into(),
            systemd: true,
        },
        packages: packages.collect(),
        ..Facts::default()
    }
}

fn decided(config: Value, facts: impl FnOnce(&mut Facts)) -> Decision {
    let mut spec = smallest();
    spec["config"] = config;
    let mut known = debian();
    facts(&mut known);
    decide(&read(&spec), &known, &State::default())
}

#[test]
fn everything_that_the_node_cannot_have_is_refused_at_once() {
    let config = json!({
        "sysctl": { "vm.swappiness": 10, "vm.swapiness": 10 },
        "files": [{ "path": "/etc/app", "content": "", "owner": "nobody-here", "group": "nor-here", "restart": ["no-such"] }],
    });
    let decision = decided(config, |facts| {
        facts.sysctl.insert("vm.swappiness".into(), "60".into());
        let why = "it belongs to the machine that this node runs on".to_owned();
        facts.fixed_sysctl.insert("vm.swappiness".into(), why);
        facts.missing_owners = ["user nobody-here", "group nor-here"]
            .map(str::to_owned)
            .into();
    });
    assert!(decision.steps.is_empty(), "{:?}", decision.steps);
    assert_eq!(
        decision.refusals,
        [
            "the kernel of this node has no setting `vm.swapiness`",
            "the setting `vm.swappiness` cannot be changed on this node: it belongs to the machine that this node runs on",
            "there is no group `nor-here` to own `/etc/app`",
            "there is no unit `no-such.service` to restart for `/etc/app`",
            "there is no user `nobody-here` to own `/etc/app`",
        ]
    );
}

#[test]
fn a_setting_that_is_right_already_need_not_be_changeable() {
    let decision = decided(json!({ "sysctl": { "vm.swappiness": 60 } }), |facts| {
        facts.sysctl.insert("vm.swappiness".into(), "60".into());
        facts
            .fixed_sysctl
            .insert("vm.swappiness".into(), "no".into());
    });
    assert!(decision.refusals.is_empty(), "{:?}", decision.refusals);
}

#[test]
fn owners_and_units_that_come_with_the_spec_are_not_refused() {
    let mut spec = smallest();
    spec["access"]["users"] = json!([{ "name": "app" }]);
    spec["config"] = json!({ "files": [
        { "path": "/etc/app", "content": "", "owner": "app", "group": "app", "restart": ["app", "ready"] },
        { "path": "/etc/systemd/system/app.service", "content": "[Service]\n" },
    ] });
    let mut facts = Facts {
        missing_owners: ["user app", "group app"].map(str::to_owned).into(),
        ..debian()
    };
    facts
        .units
        .insert("ready.service".into(), UnitFact::default());
    let refused =
        |facts: &Facts, spec: &Value| decide(&read(spec), facts, &State::default()).refusals;
    assert!(
        refused(&facts, &spec).is_empty(),
        "{:?}",
        refused(&facts, &spec)
    );
    // A package that is to be installed may bring the unit.
    facts.units.clear();
    assert_eq!(refused(&facts, &spec).len(), 1);
    spec["platform"] = json!({ "packages": ["ready"] });
    assert!(
        refused(&facts, &spec).is_empty(),
        "{:?}",
        refused(&facts, &spec)
    );
}
