//! Specs that a node cannot fulfil are refused as a whole, before the first step.

use homestak_core::converge::{
    Decision, Facts, PackageFact, Resource, State, SystemFact, UnitFact, decide,
};
use serde_json::{Value, json};

use crate::{minimal_spec, read};

/// A node with all packages that every spec needs.
fn debian() -> Facts {
    let packages = read(&minimal_spec())
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
    let mut spec = minimal_spec();
    spec["config"] = config;
    let mut known = debian();
    facts(&mut known);
    decide(&read(&spec), &known, &State::default())
}

#[test]
fn all_reasons_for_a_refusal_are_listed() {
    let config = json!({
        "sysctl": { "vm.swappiness": 10, "vm.swapiness": 10 },
        "files": [{ "path": "/etc/app", "content": "", "owner": "nobody-here", "group": "nor-here", "restart": ["no-such"] }],
    });
    let decision = decided(config, |facts| {
        facts.sysctl.insert("vm.swappiness".into(), "60".into());
        let why = "it belongs to the host".to_owned();
        facts.readonly_sysctl.insert("vm.swappiness".into(), why);
        facts.missing_owners = ["user nobody-here", "group nor-here"]
            .map(str::to_owned)
            .into();
    });
    assert!(decision.steps.is_empty(), "{:?}", decision.steps);
    assert_eq!(
        decision.refusals,
        [
            "group `nor-here` does not exist (owner of `/etc/app`)",
            "kernel setting `vm.swapiness` does not exist on this node",
            "kernel setting `vm.swappiness` cannot be changed on this node: it belongs to the host",
            "unit `no-such.service` does not exist (restarted for `/etc/app`)",
            "user `nobody-here` does not exist (owner of `/etc/app`)",
        ]
    );
}

#[test]
fn a_read_only_setting_with_the_desired_value_is_accepted() {
    let decision = decided(json!({ "sysctl": { "vm.swappiness": 60 } }), |facts| {
        facts.sysctl.insert("vm.swappiness".into(), "60".into());
        facts
            .readonly_sysctl
            .insert("vm.swappiness".into(), "no".into());
    });
    assert!(decision.refusals.is_empty(), "{:?}", decision.refusals);
}

#[test]
fn owners_and_units_that_the_spec_creates_are_accepted() {
    let mut spec = minimal_spec();
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
    // A package that is to be installed may provide the unit.
    facts.units.clear();
    assert_eq!(refused(&facts, &spec).len(), 1);
    spec["platform"] = json!({ "packages": ["ready"] });
    assert!(
        refused(&facts, &spec).is_empty(),
        "{:?}",
        refused(&facts, &spec)
    );
}
