//! Which guests a plan changes or deletes: those of its manifest, and no others.

use homestak_core::observed::{GuestId, IdentityConflict};
use homestak_core::plan::{NodePlan, Reason};

use super::*;

#[test]
fn a_guest_with_our_name_and_without_our_identity_is_not_ours() {
    let plan = apply(TWO, vec![guest("a", 200, PowerState::Running, None)]);
    assert_eq!(plan.node("a").map(|node| node.action), Some(Action::Create));
}

#[test]
fn a_stopped_guest_is_started_and_never_created_when_the_journal_is_lost() {
    let stopped = ObservedGuest {
        power: PowerState::Stopped,
        ..ours("a", 200)
    };
    let locked = ObservedGuest {
        lock: Some("backup".to_owned()),
        ..stopped.clone()
    };
    for there in [stopped, locked] {
        let plan = apply(TWO, vec![there, ours("b", 500)]);
        let node = plan.node("a").expect("a");
        assert_eq!(node.action, Action::Start);
        let found = node.found.as_ref().expect("a guest");
        assert_eq!(found.guest.vmid, Some(200.into()));
    }
}

#[test]
fn a_guest_of_another_site_is_foreign_whatever_its_name_and_manifest() {
    let other = SiteId::new("zzzz2mzx4vbt3npw").expect("an id");
    let theirs = |name: &str, vmid| ObservedGuest {
        uuid: Some(identity::uuid(&other, "m", "father", name)),
        site: Some(other.clone()),
        ..ours(name, vmid)
    };
    let there = vec![theirs("a", 200), theirs("b", 501), theirs("old", 300)];
    let prune = PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    };
    for options in [prune, PlanOptions::new(Verb::Destroy)] {
        let plan = planned(TWO, there.clone(), &options);
        assert!(!plan.removes(), "{:#?}", plan.nodes);
        assert_eq!(plan.foreign.len(), 3);
        assert!(
            plan.foreign
                .iter()
                .all(|guest| guest.site.as_ref() == Some(&other))
        );
    }
}

#[test]
fn a_guest_that_forged_our_uuid_without_our_site_is_foreign() {
    let forged = ObservedGuest {
        site: None,
        ..ours("a", 666)
    };
    let plan = planned(TWO, vec![forged], &PlanOptions::new(Verb::Destroy));
    assert!(!plan.removes(), "{:#?}", plan.nodes);
}

#[test]
fn several_guests_with_one_identity_are_refused_by_name_when_the_journal_is_lost() {
    let there = vec![ours("a", 200), ours("a", 201), ours("b", 500)];
    for verb in [Verb::Apply, Verb::Destroy] {
        let plan = planned(TWO, there.clone(), &PlanOptions::new(verb));
        let [refusal] = plan.refusals.as_slice() else {
            panic!("{:#?}", plan.refusals);
        };
        assert_eq!(refusal.node.as_deref(), Some("a"));
        for guest in ["200 on father", "201 on father"] {
            assert!(refusal.reason.text.contains(guest), "{refusal:?}");
        }
        assert!(
            plan.node("a")
                .is_none_or(|node| node.action != Action::Destroy)
        );
    }
}

#[test]
fn the_journal_decides_which_of_several_guests_is_ours_and_the_others_are_reported() {
    let guest = ObservedGuest {
        created_as: Some(200.into()),
        ..ours("a", 200)
    };
    let copy = ObservedGuest {
        vmid: 201.into(),
        ..guest.clone()
    };
    let known = record(&guest, "a");
    let there = vec![copy.clone(), guest, ours("b", 500)];
    let plan = recorded(
        TWO,
        there,
        std::slice::from_ref(&known),
        &PlanOptions::new(Verb::Destroy),
    );
    let found = plan.node("a").and_then(|node| node.found.as_ref());
    assert_eq!(found.and_then(|found| found.guest.vmid), Some(200.into()));
    let copies: Vec<(GuestId, Option<&str>)> = plan
        .foreign
        .iter()
        .map(|guest| (guest.vmid, guest.copy_of.as_deref()))
        .collect();
    assert_eq!(copies, [(201.into(), Some("a"))]);
    // Once the original is deleted, its copy is not deleted.
    let there = vec![copy, ours("b", 500)];
    let plan = recorded(
        TWO,
        there.clone(),
        std::slice::from_ref(&known),
        &PlanOptions::new(Verb::Destroy),
    );
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Nothing);
    assert_eq!(plan.foreign[0].copy_of.as_deref(), Some("a"));
    // Creating the node beside it would make two guests with one identity.
    let plan = recorded(TWO, there, &[known], &PlanOptions::new(Verb::Apply));
    assert_eq!(plan.refusals.len(), 1, "{:#?}", plan.refusals);
}

#[test]
fn a_record_of_the_same_node_on_another_host_is_ignored() {
    let guest = ours("a", 200);
    let copy = ours("a", 201);
    let here = record(&guest, "a");
    let moved = NodeRecord {
        host: "mother".to_owned(),
        location: NodeLocation::Host("mother".to_owned()),
        ..record(&ours("a", 700), "a")
    };
    let there = vec![copy, guest, ours("b", 500)];
    let options = PlanOptions::new(Verb::Destroy);
    let plan = recorded(TWO, there, &[here, moved], &options);
    assert_eq!(plan.refusals, []);
    let found = plan.node("a").and_then(|node| node.found.as_ref());
    assert_eq!(found.and_then(|found| found.guest.vmid), Some(200.into()));
}

#[test]
fn a_copy_is_recognized_by_the_id_it_was_created_with_when_the_journal_is_lost() {
    let original = ObservedGuest {
        created_as: Some(200.into()),
        ..ours("a", 200)
    };
    let copy = ObservedGuest {
        created_as: Some(200.into()),
        ..ours("a", 201)
    };
    let single = planned(TWO, vec![copy.clone()], &PlanOptions::new(Verb::Destroy));
    assert!(!single.removes(), "{:#?}", single.nodes);
    // Tags can be forged, so the operator must decide between two.
    let both = planned(TWO, vec![original, copy], &PlanOptions::new(Verb::Destroy));
    assert!(!both.removes(), "{:#?}", both.nodes);
    assert_eq!(both.refusals.len(), 1);
}

#[test]
fn a_guest_that_another_driver_replaced_is_refused_and_not_an_orphan() {
    let guest = ours("a", 200);
    let known = record(&guest, "a");
    let uuid = guest.uuid.as_ref().expect("an identity");
    let replacement = ObservedGuest {
        uuid: Some(identity::successor(uuid)),
        created_as: Some(201.into()),
        ..ours("a", 201)
    };
    let prune = PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    };
    for options in [prune, PlanOptions::new(Verb::Destroy)] {
        let there = vec![replacement.clone(), ours("b", 500)];
        let plan = recorded(TWO, there, std::slice::from_ref(&known), &options);
        let [refusal] = plan.refusals.as_slice() else {
            panic!("{:#?}", plan.refusals);
        };
        assert!(refusal.hint.contains("manifest forget a"), "{refusal:?}");
        let destroyed = |node: &&homestak_core::plan::NodePlan| {
            let found = node.found.as_ref().and_then(|found| found.guest.vmid);
            node.action == Action::Destroy && found == Some(201.into())
        };
        assert!(
            !plan.nodes.iter().any(|node| destroyed(&node)),
            "{:#?}",
            plan.nodes
        );
    }
}

#[test]
fn a_guest_without_the_tag_of_the_site_is_not_an_orphan() {
    let guest = ours("a", 200);
    let known = record(&guest, "a");
    let untagged = ObservedGuest {
        site: None,
        ..guest
    };
    let there = vec![untagged, ours("b", 500)];
    let plan = recorded(TWO, there, &[known], &PlanOptions::new(Verb::Destroy));
    let destroyed: Vec<&str> = plan
        .nodes
        .iter()
        .filter(|node| node.action == Action::Destroy)
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(destroyed, ["b"]);
}

#[test]
fn templates_and_guests_with_an_identity_conflict_are_refused() {
    let contested = ObservedGuest {
        contested: Some(IdentityConflict {
            detail: "its notes were changed".to_owned(),
            hint: "change them back".to_owned(),
        }),
        ..ours("a", 200)
    };
    let template = ObservedGuest {
        template: true,
        ..ours("a", 200)
    };
    for guest in [contested, template] {
        for verb in [Verb::Apply, Verb::Destroy] {
            let there = vec![guest.clone(), ours("b", 500)];
            let plan = planned(TWO, there, &PlanOptions::new(verb));
            assert_eq!(plan.refusals.len(), 1, "{verb:?} {:#?}", plan.refusals);
        }
    }
}

#[test]
fn a_guest_whose_creation_was_interrupted_is_destroyed() {
    let known = NodeRecord {
        status: NodeStatus::Creating,
        ..record(&ours("a", 200), "a")
    };
    let plan = recorded(TWO, Vec::new(), &[known], &PlanOptions::new(Verb::Destroy));
    let node = plan.node("a").expect("a");
    assert_eq!(node.action, Action::Destroy);
    assert!(plan.steps.iter().any(|step| step.kind == StepKind::Destroy));
}

#[test]
fn a_migrated_guest_makes_a_plan_stale_and_a_new_one_has_its_host() {
    let there = ours("a", 200);
    let known = record(&there, "a");
    let destroy = |guest| {
        let options = PlanOptions::new(Verb::Destroy);
        recorded(TWO, vec![guest], std::slice::from_ref(&known), &options)
    };
    let before = destroy(there.clone());
    let after = destroy(ObservedGuest {
        host: "mother".to_owned(),
        ..there
    });
    assert!(!before.same_work(&after));
    let found = after.node("a").and_then(|node| node.found.as_ref());
    assert_eq!(found.map(|found| found.guest.host.as_str()), Some("mother"));
}

#[test]
fn guests_without_a_site_are_matched_by_the_journal_alone_and_can_be_reidentified() {
    let old = ObservedGuest {
        uuid: GuestUuid::new("11111111-2222-8333-8444-555555555555"),
        site: None,
        ..ours("a", 200)
    };
    let known = record(&old, "a");
    let destroy = PlanOptions::new(Verb::Destroy);
    let plan = planned(TWO, vec![old.clone()], &destroy);
    assert!(!plan.removes(), "no record shows that it is ours");
    let plan = recorded(
        TWO,
        vec![old.clone()],
        std::slice::from_ref(&known),
        &destroy,
    );
    assert!(plan.removes());
    let other = ObservedGuest {
        vmid: 201.into(),
        ..old.clone()
    };
    let plan = recorded(TWO, vec![other], std::slice::from_ref(&known), &destroy);
    assert!(!plan.removes(), "its id is another");
    let plan = recorded(
        TWO,
        vec![old],
        &[known],
        &PlanOptions::new(Verb::Reidentify),
    );
    let [node] = plan.nodes.as_slice() else {
        panic!("{:#?}", plan.nodes);
    };
    assert_eq!(node.action, Action::Reidentify);
    let new = node.reidentified.as_ref().expect("an identity");
    assert_eq!(new.uuid, identity::uuid(&site(), "m", "father", "a"));
    let kinds: Vec<StepKind> = plan.steps.iter().map(|step| step.kind).collect();
    assert_eq!(kinds, [StepKind::Reidentify]);
}

#[test]
fn orphans_are_kept_without_prune() {
    let there = vec![ours("a", 200), ours("b", 500), ours("old", 300)];
    let plan = apply(TWO, there.clone());
    assert_eq!(plan.node("old").map(|node| node.action), Some(Action::Keep));
    assert!(plan.is_empty());
    let options = PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    };
    let plan = planned(TWO, there, &options);
    let action = plan.node("old").map(|node| node.action);
    assert_eq!(action, Some(Action::Destroy));
    assert!(plan.removes());
}

/// Options that delete orphans.
fn deleting() -> [PlanOptions; 2] {
    let prune = PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    };
    [prune, PlanOptions::new(Verb::Destroy)]
}

fn removed(plan: &Plan) -> Vec<Option<GuestId>> {
    let deleted = plan
        .nodes
        .iter()
        .filter(|node| node.action == Action::Destroy);
    deleted
        .map(|node| node.found.as_ref().and_then(|found| found.guest.vmid))
        .collect()
}

#[test]
fn a_guest_recorded_for_another_manifest_or_host_is_never_an_orphan() {
    // Its manifest tag was changed, or it was migrated.
    let edited = ObservedGuest {
        uuid: Some(identity::uuid(&site(), "other", "father", "old")),
        ..ours("old", 300)
    };
    let other = OtherRecords(vec![("other".to_owned(), record(&edited, "old"))]);
    for options in deleting() {
        let plan = with_journal(TWO, vec![edited.clone()], &other, &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        assert_eq!(plan.foreign.len(), 1);
    }
}

#[test]
fn a_guest_of_the_same_manifest_for_another_host_is_not_an_orphan() {
    let theirs = ObservedGuest {
        uuid: Some(identity::uuid(&site(), "m", "mother", "a")),
        ..ours("a", 300)
    };
    for options in deleting() {
        let plan = planned(TWO, vec![theirs.clone()], &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        assert_eq!(plan.foreign.len(), 1);
    }
}

#[test]
fn tags_alone_do_not_make_a_guest_an_orphan() {
    let forged = ObservedGuest {
        uuid: GuestUuid::new("11111111-2222-8333-8444-555555555555"),
        ..ours("tenant-db", 777)
    };
    for options in deleting() {
        let plan = planned(TWO, vec![forged.clone()], &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        let kept = plan.node("tenant-db").expect("it is listed");
        assert_eq!(kept.action, Action::Keep);
    }
}

#[test]
fn an_orphan_that_is_a_template_or_has_an_identity_conflict_is_refused() {
    let template = ObservedGuest {
        template: true,
        ..ours("old", 300)
    };
    let contested = ObservedGuest {
        contested: Some(IdentityConflict {
            detail: "its notes were changed".to_owned(),
            hint: "change them back".to_owned(),
        }),
        ..ours("old", 300)
    };
    for guest in [template, contested] {
        for options in deleting() {
            let plan = planned(TWO, vec![guest.clone()], &options);
            assert_eq!(plan.refusals.len(), 1, "{:#?}", plan.refusals);
        }
        let plan = apply(TWO, vec![guest]);
        assert_eq!(plan.refusals, []);
        assert!(plan.node("old").is_some());
    }
}

#[test]
fn the_recorded_guest_with_the_tags_of_another_site_is_refused() {
    let guest = ours("a", 200);
    let known = record(&guest, "a");
    let edited = ObservedGuest {
        site: SiteId::new("zzzz2mzx4vbt3npw"),
        ..guest.clone()
    };
    let untagged = ObservedGuest {
        uuid: None,
        site: None,
        manifest: None,
        contested: Some(IdentityConflict {
            detail: "it lost its tags".to_owned(),
            hint: "give them back".to_owned(),
        }),
        ..guest
    };
    for there in [edited, untagged] {
        for verb in [Verb::Apply, Verb::Destroy] {
            let there = vec![there.clone(), ours("b", 500)];
            let options = PlanOptions::new(verb);
            let plan = recorded(TWO, there, std::slice::from_ref(&known), &options);
            let refused: Vec<_> = plan.refusals.iter().map(|r| r.node.as_deref()).collect();
            assert!(
                refused.contains(&Some("a")),
                "{verb:?} {:#?}",
                plan.refusals
            );
        }
    }
}

#[test]
fn a_guest_that_lost_the_tag_of_its_manifest_is_found_when_the_journal_is_lost() {
    let there = ObservedGuest {
        manifest: None,
        ..ours("a", 200)
    };
    let plan = planned(TWO, vec![there], &PlanOptions::new(Verb::Destroy));
    assert_eq!(removed(&plan), [Some(200.into())]);
}

const NESTED: &str = "nodes: [{name: hv, type: pve, preset: small}, {name: in, type: vm, preset: small, parent: hv}]\n";

/// Plans with guests in `hv`.
fn nested(inside: Option<Vec<ObservedGuest>>, options: &PlanOptions) -> Plan {
    let (catalog, resolved) = documents(NESTED);
    let observations = [
        (
            NodeLocation::Host("father".to_owned()),
            Observation::Available(host(vec![ours("hv", 200)])),
        ),
        (
            NodeLocation::Inside("hv".to_owned()),
            inside.map_or_else(
                || Observation::Unavailable("it was not reached".to_owned()),
                |guests| Observation::Available(host(guests)),
            ),
        ),
    ];
    plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations: &observations.into(),
        records: &homestak_core::plan::Records::default(),
        other_records: &OtherRecords::default(),
        configs: &BTreeMap::new(),
        options,
        step_durations: &StepDurations::default(),
    })
}

#[test]
fn a_node_with_foreign_guests_in_it_is_not_deleted() {
    let destroy = PlanOptions::new(Verb::Destroy);
    let theirs = guest("bobs-db", 555, PowerState::Running, None);
    let plan = nested(Some(vec![ours("in", 300), theirs]), &destroy);
    let [refusal] = plan.refusals.as_slice() else {
        panic!("{:#?}", plan.refusals);
    };
    assert_eq!(refusal.node.as_deref(), Some("hv"));
    assert!(refusal.reason.text.contains("555 (bobs-db)"), "{refusal:?}");
    let plan = nested(Some(vec![ours("in", 300)]), &destroy);
    assert_eq!(plan.refusals, []);
}

#[test]
fn a_deletion_reports_that_guests_in_a_node_could_not_be_listed() {
    let plan = nested(None, &PlanOptions::new(Verb::Destroy));
    let node = plan.node("hv").expect("hv");
    assert!(
        node.reasons
            .iter()
            .any(|why| why.text.contains("could not be listed")),
        "{node:#?}"
    );
}

#[test]
fn a_guest_without_tags_shares_no_identity_with_the_one_created_after_it() {
    let known = record(&ours("a", 200), "a");
    let untagged = guest("a", 200, PowerState::Running, None);
    let there = vec![untagged, ours("b", 500)];
    let known = std::slice::from_ref(&known);
    let plan = recorded(TWO, there.clone(), known, &PlanOptions::new(Verb::Apply));
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Create);
    let wanted = a.wanted.as_ref().expect("a guest");
    assert_ne!(wanted.uuid, identity::uuid(&site(), "m", "father", "a"));
    assert!(a.is_untagged());
    let plan = recorded(TWO, there, known, &PlanOptions::new(Verb::Destroy));
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Nothing);
    assert!(a.reasons[0].text.contains("guest 200"), "{a:#?}");
    // Whatever the text of the reason, and after a round trip through a file.
    let mut written = serde_json::to_value(a).expect("a node");
    written["reasons"][0]["text"] = "another text".into();
    let mut read: NodePlan = serde_json::from_value(written).expect("the same node");
    assert!(read.is_untagged());
    read.reasons[0] = Reason {
        text: a.reasons[0].text.clone(),
        ..Reason::default()
    };
    assert!(!read.is_untagged());
}
