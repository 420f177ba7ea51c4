//! Steps act only on a guest that is of the plan's site and where the plan has it.

use homestak_core::plan::{NodeStatus, Plan, PlanOptions, StepKind, Verb};
use homestak_engine::journal::{Ending, Happened, Journal as _, Scope};
use homestak_engine::operate::Interrupt;

use crate::lab::Lab;

fn manifest(memory: u32) -> String {
    format!(
        "nodes:\n  - {{name: a, type: vm, image: debian-12, cores: 1, memory: {memory}, disk: 8}}\n"
    )
}

fn vmid(lab: &Lab) -> u32 {
    lab.world.guests()[0].vmid
}

/// Replaces tags of the guest, as a person does.
fn retag(lab: &Lab, change: impl Fn(&str) -> String) {
    let guest = lab.world.guests().remove(0);
    let mut config = guest.config.clone();
    let tags = config["tags"].split(';').map(change).collect::<Vec<_>>();
    config.insert("tags".to_owned(), tags.join(";"));
    let config = config.into_iter().collect();
    lab.world.put_guest("pve1", guest.kind, guest.vmid, config);
}

fn to_another_site(tag: &str) -> String {
    if tag.starts_with("homestak-s-") {
        "homestak-s-otherssite".to_owned()
    } else {
        tag.to_owned()
    }
}

fn to_two_sites(tag: &str) -> String {
    if tag.starts_with("homestak-s-") {
        format!("{tag};homestak-s-otherssite")
    } else {
        tag.to_owned()
    }
}

fn names(lab: &Lab) -> Vec<String> {
    lab.guests().into_iter().map(|(name, _)| name).collect()
}

/// Continues the last run, or undoes it.
async fn go_on(lab: &Lab, undo: bool) -> Ending {
    let (_ask, interrupt) = Interrupt::new();
    let operator = lab.operator();
    let run = lab.last_run();
    let ended = if undo {
        operator.roll_back(&run, interrupt).await
    } else {
        operator.resume(&run, &[], interrupt).await
    };
    ended.unwrap()
}

/// Carries a plan out and dies once so many steps are done.
async fn die_after(lab: &mut Lab, plan: &Plan, n_done: usize) {
    // Four moments a step: before and after its intent, after its act and after its result.
    let died = lab
        .carry_out_until(plan, u64::try_from(n_done * 4).unwrap())
        .await;
    assert_eq!(died, None);
    lab.rest().await;
    let run = lab.last_run();
    let done = |happened: &Happened| matches!(happened, Happened::Done { .. });
    let entries = run.entries.iter();
    assert_eq!(
        entries.filter(|entry| done(&entry.happened)).count(),
        n_done
    );
}

/// Returns how many steps of a plan come before the one of a kind.
fn before(plan: &Plan, kind: StepKind) -> usize {
    plan.steps
        .iter()
        .position(|step| step.kind == kind)
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroying_leaves_a_guest_whose_site_was_replaced_after_a_create_failed() {
    for change in [to_another_site, to_two_sites] {
        let lab = Lab::new();
        assert_eq!(lab.apply(&manifest(1024)).await, Ending::Done);
        retag(&lab, change);
        lab.rest().await;
        let plan = lab.plan(&manifest(1024)).await;
        if plan.refusals.is_empty() {
            assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
        }
        let scope = Scope::new(Some(&lab.site), "m", "pve1");
        let records = lab.journal.records(&scope).await.unwrap();
        assert_eq!(
            records[0].guest.vmid,
            Some(vmid(&lab).into()),
            "{records:?}"
        );
        assert_ne!(records[0].status, NodeStatus::Creating, "{records:?}");
        let plan = lab
            .plan_with(&manifest(1024), &PlanOptions::new(Verb::Destroy))
            .await;
        if plan.refusals.is_empty() {
            lab.carry_out(&plan).await;
        }
        lab.rest().await;
        assert_eq!(names(&lab), ["a"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_step_leaves_a_guest_whose_site_was_replaced_since_the_plan() {
    for change in [to_another_site, to_two_sites] {
        let lab = Lab::new();
        assert_eq!(lab.apply(&manifest(1024)).await, Ending::Done);
        let plan = lab
            .plan_with(&manifest(1024), &PlanOptions::new(Verb::Destroy))
            .await;
        retag(&lab, change);
        assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
        lab.rest().await;
        assert_eq!(names(&lab), ["a"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_and_rollback_leave_a_guest_whose_site_was_replaced() {
    for change in [to_another_site, to_two_sites] {
        for undo in [false, true] {
            let mut lab = Lab::new();
            let plan = lab.plan(&manifest(1024)).await;
            let n_done = before(&plan, StepKind::Start);
            die_after(&mut lab, &plan, n_done).await;
            retag(&lab, change);
            let ending = go_on(&lab, undo).await;
            let expected = if undo { Ending::Stuck } else { Ending::Failed };
            assert_eq!(ending, expected);
            lab.rest().await;
            assert_eq!(lab.guests(), [("a".to_owned(), false)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_was_migrated_is_neither_reshaped_nor_grown_nor_started() {
    for kind in [StepKind::Stop, StepKind::Reshape, StepKind::Start] {
        let mut lab = Lab::with(|builder| builder.cluster("lab").host("pve1").host("pve2"));
        assert_eq!(lab.apply(&manifest(1024)).await, Ending::Done);
        lab.rest().await;
        let plan = lab.plan(&manifest(2048)).await;
        let n_done = before(&plan, kind);
        if n_done > 0 {
            die_after(&mut lab, &plan, n_done).await;
        }
        lab.world.migrate_guest(vmid(&lab), "pve2").unwrap();
        lab.settle().await;
        let before = lab.world.guests();
        let ending = if n_done > 0 {
            go_on(&lab, false).await
        } else {
            lab.carry_out(&plan).await
        };
        assert_eq!(ending, Ending::Failed, "{kind:?}");
        lab.rest().await;
        let after = lab.world.guests();
        let seen = |guests: &[homestak_sim::GuestFacts]| {
            (guests[0].running, guests[0].config.get("memory").cloned())
        };
        assert_eq!(seen(&after), seen(&before), "{kind:?}");
        let run = lab.last_run();
        let trouble = run
            .entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.happened {
                Happened::Failed(trouble) => Some(trouble.message.clone()),
                _ => None,
            });
        let trouble = trouble.unwrap();
        assert!(trouble.contains("the plan names it on pve1"), "{trouble}");
        assert!(!trouble.contains("remove"), "{trouble}");
    }
}
