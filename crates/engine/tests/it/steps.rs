//! Steps act only on guests of the plan's site, on the host that the plan names.

use homestak_core::plan::{NodeStatus, Plan, PlanOptions, StepKind, Verb};
use homestak_engine::journal::{Journal as _, RunOutcome, Scope, StepEvent};
use homestak_engine::operate::Interrupt;

use crate::env::TestEnv;

fn manifest(memory: u32) -> String {
    format!(
        "nodes:\n  - {{name: a, type: vm, image: debian-12, cores: 1, memory: {memory}, disk: 8}}\n"
    )
}

fn vmid(env: &TestEnv) -> u32 {
    env.world.guests()[0].vmid
}

/// Replaces tags of the guest, as the user does.
fn retag(env: &TestEnv, change: impl Fn(&str) -> String) {
    let guest = env.world.guests().remove(0);
    let mut config = guest.config.clone();
    let tags = config["tags"].split(';').map(change).collect::<Vec<_>>();
    config.insert("tags".to_owned(), tags.join(";"));
    let config = config.into_iter().collect();
    env.world.put_guest("pve1", guest.kind, guest.vmid, config);
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

fn names(env: &TestEnv) -> Vec<String> {
    env.guests().into_iter().map(|(name, _)| name).collect()
}

/// Continues the last run, or undoes it.
async fn resume_or_roll_back(env: &TestEnv, undo: bool) -> RunOutcome {
    let (_ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let run = env.last_run();
    let ended = if undo {
        operator.roll_back(&run, interrupt).await
    } else {
        operator.resume(&run, &[], interrupt).await
    };
    ended.unwrap()
}

/// Executes a plan and crashes after `n_done` steps.
async fn crash_after(env: &mut TestEnv, plan: &Plan, n_done: usize) {
    // Four points per step: before and after its intent, after its act, and after its result.
    let died = env
        .execute_until(plan, u64::try_from(n_done * 4).unwrap())
        .await;
    assert_eq!(died, None);
    env.wait_until_idle().await;
    let run = env.last_run();
    let done = |happened: &StepEvent| matches!(happened, StepEvent::Done { .. });
    let entries = run.entries.iter();
    assert_eq!(
        entries.filter(|entry| done(&entry.happened)).count(),
        n_done
    );
}

/// Returns how many steps of a plan precede the one of a kind.
fn before(plan: &Plan, kind: StepKind) -> usize {
    plan.steps
        .iter()
        .position(|step| step.kind == kind)
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroying_leaves_a_guest_whose_site_was_replaced_after_a_create_failed() {
    for change in [to_another_site, to_two_sites] {
        let env = TestEnv::new();
        assert_eq!(env.apply(&manifest(1024)).await, RunOutcome::Done);
        retag(&env, change);
        env.wait_until_idle().await;
        let plan = env.plan(&manifest(1024)).await;
        if plan.refusals.is_empty() {
            assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
        }
        let scope = Scope::new(Some(&env.site), "m", "pve1");
        let records = env.journal.records(&scope).await.unwrap();
        assert_eq!(
            records[0].guest.vmid,
            Some(vmid(&env).into()),
            "{records:?}"
        );
        assert_ne!(records[0].status, NodeStatus::Creating, "{records:?}");
        let plan = env
            .plan_with(&manifest(1024), &PlanOptions::new(Verb::Destroy))
            .await;
        if plan.refusals.is_empty() {
            env.execute(&plan).await;
        }
        env.wait_until_idle().await;
        assert_eq!(names(&env), ["a"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_step_leaves_a_guest_whose_site_was_replaced_since_the_plan() {
    for change in [to_another_site, to_two_sites] {
        let env = TestEnv::new();
        assert_eq!(env.apply(&manifest(1024)).await, RunOutcome::Done);
        let plan = env
            .plan_with(&manifest(1024), &PlanOptions::new(Verb::Destroy))
            .await;
        retag(&env, change);
        assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
        env.wait_until_idle().await;
        assert_eq!(names(&env), ["a"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_and_rollback_leave_a_guest_whose_site_was_replaced() {
    for change in [to_another_site, to_two_sites] {
        for undo in [false, true] {
            let mut env = TestEnv::new();
            let plan = env.plan(&manifest(1024)).await;
            let n_done = before(&plan, StepKind::Start);
            crash_after(&mut env, &plan, n_done).await;
            retag(&env, change);
            let ending = resume_or_roll_back(&env, undo).await;
            let expected = if undo {
                RunOutcome::Stuck
            } else {
                RunOutcome::Failed
            };
            assert_eq!(ending, expected);
            env.wait_until_idle().await;
            assert_eq!(env.guests(), [("a".to_owned(), false)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_was_migrated_is_neither_reshaped_nor_grown_nor_started() {
    for kind in [StepKind::Stop, StepKind::Reshape, StepKind::Start] {
        let mut env = TestEnv::with(|builder| builder.cluster("lab").host("pve1").host("pve2"));
        assert_eq!(env.apply(&manifest(1024)).await, RunOutcome::Done);
        env.wait_until_idle().await;
        let plan = env.plan(&manifest(2048)).await;
        let n_done = before(&plan, kind);
        if n_done > 0 {
            crash_after(&mut env, &plan, n_done).await;
        }
        env.world.migrate_guest(vmid(&env), "pve2").unwrap();
        env.wait_for_tasks().await;
        let before = env.world.guests();
        let ending = if n_done > 0 {
            resume_or_roll_back(&env, false).await
        } else {
            env.execute(&plan).await
        };
        assert_eq!(ending, RunOutcome::Failed, "{kind:?}");
        env.wait_until_idle().await;
        let after = env.world.guests();
        let states = |guests: &[homestak_sim::GuestFacts]| {
            (guests[0].running, guests[0].config.get("memory").cloned())
        };
        assert_eq!(states(&after), states(&before), "{kind:?}");
        let run = env.last_run();
        let message = run
            .entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.happened {
                StepEvent::Failed(error) => Some(error.message.clone()),
                _ => None,
            });
        let message = message.unwrap();
        assert!(message.contains("the plan names it on pve1"), "{message}");
        assert!(!message.contains("remove"), "{message}");
    }
}
