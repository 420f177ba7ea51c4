//! Which guests a plan may act on: its own, and no others.

use homestak_core::observed::{Contradiction, GuestId};
use homestak_core::plan::{NodePlan, Reason};

use super::*;

#[test]
fn a_guest_with_our_name_and_without_our_identity_is_not_ours() {
    let plan = apply(TWO, vec![guest("a", 200, Power::Running, None)]);
    assert_eq!(plan.node("a").map(|node| node.action), Some(Action::Create));
}

#[test]
fn a_stopped_guest_is_started_and_never_created_when_the_journal_is_lost() {
    let stopped = ObservedGuest {
        power: Power::Stopped,
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
    let prune = Options {
        prune: true,
        ..Options::new(Verb::Apply)
    };
    for options in [prune, Options::new(Verb::Destroy)] {
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
    let plan = planned(TWO, vec![forged], &Options::new(Verb::Destroy));
    assert!(!plan.removes(), "{:#?}", plan.nodes);
}

#[test]
fn several_guests_with_one_identity_are_refused_by_name_when_the_journal_is_lost() {
    let there = vec![ours("a", 200), ours("a", 201), ours("b", 500)];
    for verb in [Verb::Apply, Verb::Destroy] {
        let plan = planned(TWO, there.clone(), &Options::new(verb));
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
        &Options::new(Verb::Destroy),
    );
    let found = plan.node("a").and_then(|node| node.found.as_ref());
    assert_eq!(found.and_then(|found| found.guest.vmid), Some(200.into()));
    let copies: Vec<(GuestId, Option<&str>)> = plan
        .foreign
        .iter()
        .map(|guest| (guest.vmid, guest.copy_of.as_deref()))
        .collect();
    assert_eq!(copies, [(201.into(), Some("a"))]);
    // Once the original is gone, its copy is nobody's to remove.
    let there = vec![copy, ours("b", 500)];
    let plan = recorded(
        TWO,
        there.clone(),
        std::slice::from_ref(&known),
        &Options::new(Verb::Destroy),
    );
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Nothing);
    assert_eq!(plan.foreign[0].copy_of.as_deref(), Some("a"));
    // And creating the node beside it would make two of one identity.
    let plan = recorded(TWO, there, &[known], &Options::new(Verb::Apply));
    assert_eq!(plan.refusals.len(), 1, "{:#?}", plan.refusals);
}

#[test]
fn a_record_of_the_same_node_on_another_host_decides_nothing() {
    let guest = ours("a", 200);
    let copy = ours("a", 201);
    let here = record(&guest, "a");
    let moved = NodeRecord {
        host: "mother".to_owned(),
        place: Place::Host("mother".to_owned()),
        ..record(&ours("a", 700), "a")
    };
    let there = vec![copy, guest, ours("b", 500)];
    let options = Options::new(Verb::Destroy);
    let plan = recorded(TWO, there, &[here, moved], &options);
    assert_eq!(plan.refusals, []);
    let found = plan.node("a").and_then(|node| node.found.as_ref());
    assert_eq!(found.and_then(|found| found.guest.vmid), Some(200.into()));
}

#[test]
fn a_copy_is_known_by_the_id_it_was_created_with_when_the_journal_is_lost() {
    let original = ObservedGuest {
        created_as: Some(200.into()),
        ..ours("a", 200)
    };
    let copy = ObservedGuest {
        created_as: Some(200.into()),
        ..ours("a", 201)
    };
    let lone = planned(TWO, vec![copy.clone()], &Options::new(Verb::Destroy));
    assert!(!lone.removes(), "{:#?}", lone.nodes);
    // Tags can be forged, so two stay a person's decision.
    let both = planned(TWO, vec![original, copy], &Options::new(Verb::Destroy));
    assert!(!both.removes(), "{:#?}", both.nodes);
    assert_eq!(both.refusals.len(), 1);
}

#[test]
fn a_guest_that_another_driver_replaced_is_refused_and_no_stray() {
    let guest = ours("a", 200);
    let known = record(&guest, "a");
    let uuid = guest.uuid.as_ref().expect("an identity");
    let replacement = ObservedGuest {
        uuid: Some(identity::successor(uuid)),
        created_as: Some(201.into()),
        ..ours("a", 201)
    };
    let prune = Options {
        prune: true,
        ..Options::new(Verb::Apply)
    };
    for options in [prune, Options::new(Verb::Destroy)] {
        let there = vec![replacement.clone(), ours("b", 500)];
        let plan = recorded(TWO, there, std::slice::from_ref(&known), &options);
        let [refusal] = plan.refusals.as_slice() else {
            panic!("{:#?}", plan.refusals);
        };
        assert!(refusal.hint.contains("manifest forget a"), "{refusal:?}");
        let gone = |node: &&homestak_core::plan::NodePlan| {
            let found = node.found.as_ref().and_then(|found| found.guest.vmid);
            node.action == Action::Destroy && found == Some(201.into())
        };
        assert!(
            !plan.nodes.iter().any(|node| gone(&node)),
            "{:#?}",
            plan.nodes
        );
    }
}

#[test]
fn a_guest_that_lost_the_tag_of_the_site_is_no_stray() {
    let guest = ours("a", 200);
    let known = record(&guest, "a");
    let untagged = ObservedGuest {
        site: None,
        ..guest
    };
    let there = vec![untagged, ours("b", 500)];
    let plan = recorded(TWO, there, &[known], &Options::new(Verb::Destroy));
    let gone: Vec<&str> = plan
        .nodes
        .iter()
        .filter(|node| node.action == Action::Destroy)
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(gone, ["b"]);
}

#[test]
fn what_is_contested_or_a_template_is_not_removed() {
    let contested = ObservedGuest {
        contested: Some(Contradiction {
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
            let plan = planned(TWO, there, &Options::new(verb));
            assert_eq!(plan.refusals.len(), 1, "{verb:?} {:#?}", plan.refusals);
        }
    }
}

#[test]
fn a_guest_whose_creation_was_cut_off_is_looked_for_when_it_is_destroyed() {
    let known = NodeRecord {
        status: NodeStatus::Creating,
        ..record(&ours("a", 200), "a")
    };
    let plan = recorded(TWO, Vec::new(), &[known], &Options::new(Verb::Destroy));
    let node = plan.node("a").expect("a");
    assert_eq!(node.action, Action::Destroy);
    assert!(plan.steps.iter().any(|step| step.kind == StepKind::Destroy));
}

#[test]
fn a_guest_that_was_migrated_makes_a_plan_stale_and_a_new_one_names_its_host() {
    let there = ours("a", 200);
    let known = record(&there, "a");
    let destroy = |guest| {
        let options = Options::new(Verb::Destroy);
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
fn guests_without_a_site_are_ours_by_the_journal_alone_and_get_an_identity_of_the_site() {
    let old = ObservedGuest {
        uuid: GuestUuid::new("11111111-2222-8333-8444-555555555555"),
        site: None,
        ..ours("a", 200)
    };
    let known = record(&old, "a");
    let destroy = Options::new(Verb::Destroy);
    let plan = planned(TWO, vec![old.clone()], &destroy);
    assert!(!plan.removes(), "nothing records that it is ours");
    let plan = recorded(
        TWO,
        vec![old.clone()],
        std::slice::from_ref(&known),
        &destroy,
    );
    assert!(plan.removes());
    let elsewhere = ObservedGuest {
        vmid: 201.into(),
        ..old.clone()
    };
    let plan = recorded(TWO, vec![elsewhere], std::slice::from_ref(&known), &destroy);
    assert!(!plan.removes(), "its id is another");
    let plan = recorded(TWO, vec![old], &[known], &Options::new(Verb::Reidentify));
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
fn what_the_manifest_does_not_name_is_left_unless_asked() {
    let there = vec![ours("a", 200), ours("b", 500), ours("old", 300)];
    let plan = apply(TWO, there.clone());
    assert_eq!(
        plan.node("old").map(|node| node.action),
        Some(Action::Leave)
    );
    assert!(plan.is_empty());
    let options = Options {
        prune: true,
        ..Options::new(Verb::Apply)
    };
    let plan = planned(TWO, there, &options);
    let action = plan.node("old").map(|node| node.action);
    assert_eq!(action, Some(Action::Destroy));
    assert!(plan.removes());
}

/// Options that remove what the manifest does not name.
fn removing() -> [Options; 2] {
    let prune = Options {
        prune: true,
        ..Options::new(Verb::Apply)
    };
    [prune, Options::new(Verb::Destroy)]
}

fn removed(plan: &Plan) -> Vec<Option<GuestId>> {
    let going = plan
        .nodes
        .iter()
        .filter(|node| node.action == Action::Destroy);
    going
        .map(|node| node.found.as_ref().and_then(|found| found.guest.vmid))
        .collect()
}

#[test]
fn a_guest_that_is_recorded_for_another_manifest_or_host_is_never_a_stray() {
    // Someone changed its manifest tag, or it was migrated here.
    let edited = ObservedGuest {
        uuid: Some(identity::uuid(&site(), "other", "father", "old")),
        ..ours("old", 300)
    };
    let elsewhere = Elsewhere(vec![("other".to_owned(), record(&edited, "old"))]);
    for options in removing() {
        let plan = with_journal(TWO, vec![edited.clone()], &elsewhere, &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        assert_eq!(plan.foreign.len(), 1);
    }
}

#[test]
fn a_guest_of_the_same_manifest_for_another_host_of_the_site_is_no_stray() {
    let theirs = ObservedGuest {
        uuid: Some(identity::uuid(&site(), "m", "mother", "a")),
        ..ours("a", 300)
    };
    for options in removing() {
        let plan = planned(TWO, vec![theirs.clone()], &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        assert_eq!(plan.foreign.len(), 1);
    }
}

#[test]
fn tags_alone_do_not_make_a_guest_a_stray() {
    let forged = ObservedGuest {
        uuid: GuestUuid::new("11111111-2222-8333-8444-555555555555"),
        ..ours("tenant-db", 777)
    };
    for options in removing() {
        let plan = planned(TWO, vec![forged.clone()], &options);
        assert_eq!(removed(&plan), [], "{:#?}", plan.nodes);
        let left = plan.node("tenant-db").expect("it is named");
        assert_eq!(left.action, Action::Leave);
    }
}

#[test]
fn a_stray_that_is_contested_or_a_template_is_refused_and_not_forgotten() {
    let template = ObservedGuest {
        template: true,
        ..ours("old", 300)
    };
    let contested = ObservedGuest {
        contested: Some(Contradiction {
            detail: "its notes were changed".to_owned(),
            hint: "change them back".to_owned(),
        }),
        ..ours("old", 300)
    };
    for guest in [template, contested] {
        for options in removing() {
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
    let unmarked = ObservedGuest {
        uuid: None,
        site: None,
        manifest: None,
        contested: Some(Contradiction {
            detail: "it lost its tags".to_owned(),
            hint: "give them back".to_owned(),
        }),
        ..guest
    };
    for there in [edited, unmarked] {
        for verb in [Verb::Apply, Verb::Destroy] {
            let there = vec![there.clone(), ours("b", 500)];
            let options = Options::new(verb);
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
    let plan = planned(TWO, vec![there], &Options::new(Verb::Destroy));
    assert_eq!(removed(&plan), [Some(200.into())]);
}

const NESTED: &str = "nodes: [{name: hv, type: pve, preset: small}, {name: in, type: vm, preset: small, parent: hv}]\n";

/// Plans with what is in `hv`.
fn nested(inside: Option<Vec<ObservedGuest>>, options: &Options) -> Plan {
    let (catalog, resolved) = documents(NESTED);
    let looks = [
        (
            Place::Host("father".to_owned()),
            Look::Seen(host(vec![ours("hv", 200)])),
        ),
        (
            Place::Inside("hv".to_owned()),
            inside.map_or_else(
                || Look::Unseen("it was not reached".to_owned()),
                |guests| Look::Seen(host(guests)),
            ),
        ),
    ];
    plan(&Inputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        looks: &looks.into(),
        records: &homestak_core::plan::Records::default(),
        elsewhere: &Elsewhere::default(),
        configs: &BTreeMap::new(),
        options,
        paces: &Paces::default(),
    })
}

#[test]
fn a_node_with_guests_of_others_in_it_is_not_removed() {
    let destroy = Options::new(Verb::Destroy);
    let theirs = guest("bobs-db", 555, Power::Running, None);
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
fn a_removal_says_that_what_is_in_a_node_was_not_seen() {
    let plan = nested(None, &Options::new(Verb::Destroy));
    let node = plan.node("hv").expect("hv");
    assert!(
        node.reasons.iter().any(|why| why.text.contains("not seen")),
        "{node:#?}"
    );
}

#[test]
fn a_guest_that_was_given_up_shares_no_identity_with_the_one_created_after_it() {
    let known = record(&ours("a", 200), "a");
    let given_up = guest("a", 200, Power::Running, None);
    let there = vec![given_up, ours("b", 500)];
    let known = std::slice::from_ref(&known);
    let plan = recorded(TWO, there.clone(), known, &Options::new(Verb::Apply));
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Create);
    let wanted = a.wanted.as_ref().expect("a guest");
    assert_ne!(wanted.uuid, identity::uuid(&site(), "m", "father", "a"));
    assert!(a.is_given_up());
    let plan = recorded(TWO, there, known, &Options::new(Verb::Destroy));
    let a = plan.node("a").expect("a");
    assert_eq!(a.action, Action::Nothing);
    assert!(a.reasons[0].text.contains("guest 200"), "{a:#?}");
    // Whatever is said of it, and after the plan was written to a file.
    let mut written = serde_json::to_value(a).expect("a node");
    written["reasons"][0]["text"] = "other words".into();
    let mut read: NodePlan = serde_json::from_value(written).expect("the same node");
    assert!(read.is_given_up());
    read.reasons[0] = Reason {
        text: a.reasons[0].text.clone(),
        ..Reason::default()
    };
    assert!(!read.is_given_up());
}
