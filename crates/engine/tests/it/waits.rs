//! Waits: what is waited for, timeouts, and interruption.

use std::time::Duration;

use homestak_core::doc::timeouts::Timeouts;
use homestak_engine::events::{EventKind, Subject};
use homestak_engine::journal::{RunOutcome, StepEvent};
use homestak_engine::operate::{Interrupt, Interrupter};
use homestak_sim::{BootStages, Call, Fault, FaultKind, Timing, World};

use crate::env::TestEnv;

const ONE: &str = "nodes:\n  - {name: one, preset: vm-small, image: debian-12, vmid: 7001}\n";

fn env(boot: u64) -> TestEnv {
    let timing = Timing {
        boot: Duration::from_secs(boot),
        ..Timing::default()
    };
    TestEnv::with(|builder| builder.host("pve1").timing(timing))
}

fn stages(address: f64, agent: f64, ssh: f64) -> BootStages {
    BootStages {
        guest: None,
        address: Some(address),
        agent: Some(agent),
        ssh: Some(ssh),
    }
}

/// Returns what was waited for, in order, without events of providers.
fn waits(env: &TestEnv, node: &str) -> Vec<String> {
    let events = env.events.0.lock().unwrap();
    let what = events.iter().filter_map(|event| match &event.kind {
        EventKind::Waiting {
            subject: Subject::Node(name),
            what,
        } if name == node => Some(what.clone()),
        _ => None,
    });
    // On a loaded machine the host may respond late.
    what.filter(|what| what.starts_with("its ") && what != "its host to answer")
        .collect()
}

/// Returns why a run failed.
fn why(env: &TestEnv) -> String {
    let run = env.last_run();
    let why = run.entries.iter().find_map(|entry| match &entry.happened {
        StepEvent::Failed(error) | StepEvent::UndoFailed(error) => Some(error.message.clone()),
        _ => None,
    });
    why.unwrap_or_default()
}

/// Waits for a `Waiting` event that contains this text.
async fn waiting_for(env: &TestEnv, text: &str) {
    loop {
        let is_waiting = env.events.0.lock().unwrap().iter().any(
            |event| matches!(&event.kind, EventKind::Waiting { what, .. } if what.contains(text)),
        );
        if is_waiting {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parts_of_a_booting_machine_are_reported() {
    for (stages, expected) in [
        (stages(5.0, 300.0, 300.0), vec!["its guest agent"]),
        (
            stages(900.0, 300.0, 900.0),
            vec!["its guest agent", "its address"],
        ),
        (
            stages(5.0, 300.0, 900.0),
            vec!["its guest agent", "its SSH"],
        ),
    ] {
        let mut env = env(45);
        env.timeouts = Timeouts::parse("boot=9000").unwrap();
        env.world.set_stages(stages.clone());
        assert_eq!(env.apply(ONE).await, RunOutcome::Done);
        assert_eq!(waits(&env, "one"), expected, "{stages:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_times_out_names_what_was_missing() {
    let never = 100_000.0;
    for (stages, missing) in [
        (stages(5.0, never, never), "its guest agent"),
        (stages(never, 5.0, never), "its address"),
        (stages(5.0, 10.0, never), "its SSH"),
    ] {
        let mut env = env(45);
        env.timeouts = Timeouts::parse("boot=1000").unwrap();
        env.world.set_stages(stages);
        assert_eq!(env.apply(ONE).await, RunOutcome::Failed);
        let why = why(&env);
        assert!(
            why.contains(&format!("timed out after 1000 s waiting for {missing}")),
            "{why}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_boot_is_waited_for_like_the_first() {
    let mut env = env(45);
    env.timeouts = Timeouts::parse("boot=9000").unwrap();
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    env.wait_until_idle().await;
    env.events.0.lock().unwrap().clear();
    env.world.set_stages(stages(5.0, 300.0, 900.0));
    let larger = ONE.replace("vm-small", "vm-large");
    assert_eq!(env.apply(&larger).await, RunOutcome::Done);
    assert_eq!(waits(&env, "one"), ["its guest agent", "its SSH"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_boots_need_no_longer_timeout_than_one() {
    let mut env = env(45);
    // SSH is available soon after the agent; polling again only after a whole boot time would be
    // too late.
    env.world.set_stages(stages(5.0, 1000.0, 1300.0));
    env.timeouts = Timeouts::parse("boot=1950").unwrap();
    let nodes = (0..6).map(|n| format!("  - {{name: n{n}, preset: vm-small, image: debian-12}}\n"));
    let nodes: String = nodes.collect();
    let manifest = format!("settings: {{parallelism: 8}}\nnodes:\n{nodes}");
    assert_eq!(
        env.apply(&manifest).await,
        RunOutcome::Done,
        "{}",
        why(&env)
    );
}

/// Starts a run and interrupts it once it waits for this.
async fn interrupted(env: &TestEnv, manifest: &str, what: &str) -> RunOutcome {
    let plan = env.plan(manifest).await;
    let (ask, interrupt): (Interrupter, Interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        waiting_for(env, what).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    ended.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_boot_ends_when_a_stop_is_requested_and_can_be_resumed() {
    let mut env = env(45);
    env.timeouts = Timeouts::parse("boot=2000").unwrap();
    env.world.set_stages(stages(5.0, 600.0, 600.0));
    assert_eq!(
        interrupted(&env, ONE, "its guest agent").await,
        RunOutcome::Stopped
    );
    let run = env.last_run();
    let last = run.entries.last().unwrap();
    assert_eq!(last.happened, StepEvent::Intent, "nothing is claimed of it");
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_lock_ends_when_a_stop_is_requested() {
    let mut env = env(6);
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    env.wait_until_idle().await;
    env.timeouts = Timeouts::parse("lock=80000").unwrap();
    env.world.lock_guest(7001, "backup");
    let larger = ONE.replace("vm-small", "vm-large");
    let plan = env.plan(&larger).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        env.clock.sleep(Duration::from_secs(100)).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
    let run = env.last_run();
    env.world.unlock_guest(7001);
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_waited_for_once_and_not_once_per_try() {
    let mut env = env(6);
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    env.wait_until_idle().await;
    env.timeouts = Timeouts::parse("lock=300").unwrap();
    env.world.lock_guest(7001, "backup");
    let larger = ONE.replace("vm-small", "vm-large");
    assert_eq!(env.apply(&larger).await, RunOutcome::Failed);
    let events = env.events.0.lock().unwrap();
    let tries = events.iter().filter(|event| {
        matches!(&event.kind, EventKind::Waiting { what, .. } if what.starts_with("another try"))
    });
    assert_eq!(tries.count(), 0);
}

/// Makes the API unreachable for some seconds, starting after `from` seconds.
fn make_unreachable(env: &TestEnv, from: u64, seconds: u64) {
    let (world, clock) = (env.world.clone(), env.clock.clone());
    let refuse = move |world: &World| {
        world.add_fault(Fault::new(Call::any(), FaultKind::Status(595)));
    };
    if from == 0 {
        refuse(&world);
    }
    tokio::spawn(async move {
        if from > 0 {
            clock.sleep(Duration::from_secs(from)).await;
            refuse(&world);
        }
        clock.sleep(Duration::from_secs(seconds)).await;
        world.clear_faults();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_unreachable_for_a_while_fails_no_step() {
    // Longer than all retries take, shorter than the timeout.
    for from in [0, 2, 6, 20] {
        let mut env = env(30);
        env.timeouts = Timeouts::parse("api=20000,boot=20000").unwrap();
        let plan = env.plan(ONE).await;
        make_unreachable(&env, from, 400);
        assert_eq!(env.execute(&plan).await, RunOutcome::Done, "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_resumed_while_its_host_is_unreachable_waits() {
    let mut env = env(45);
    let plan = env.plan(ONE).await;
    env.timeouts = Timeouts::parse("boot=5").unwrap();
    assert_eq!(
        env.execute(&plan).await,
        RunOutcome::Failed,
        "not ready in time"
    );
    let run = env.last_run();
    env.timeouts = Timeouts::parse("api=20000,boot=20000").unwrap();
    make_unreachable(&env, 0, 400);
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done, "{}", why(&env));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_waits_for_an_unreachable_host() {
    let mut env = env(6);
    env.timeouts = Timeouts::parse("api=20000").unwrap();
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    let run = env.last_run();
    make_unreachable(&env, 0, 400);
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::RolledBack, "{}", why(&env));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeout_of_a_host_is_one_setting() {
    let mut env = env(6);
    env.timeouts = Timeouts::parse("api=600").unwrap();
    let plan = env.plan(ONE).await;
    env.world
        .add_fault(Fault::new(Call::any(), FaultKind::Status(595)));
    assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
    let waited = {
        let events = env.events.0.lock().unwrap();
        events.iter().any(|event| {
            matches!(&event.kind, EventKind::Waiting { what, .. } if what.starts_with("an answer"))
        })
    };
    assert!(waited, "the wait is reported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_an_unreachable_host_ends_when_a_stop_is_requested() {
    let mut env = env(6);
    env.timeouts = Timeouts::parse("api=80000").unwrap();
    let plan = env.plan(ONE).await;
    env.world
        .add_fault(Fault::new(Call::any(), FaultKind::Status(595)));
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        waiting_for(&env, "an answer").await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
    env.world.clear_faults();
    let (_ask, interrupt) = Interrupt::new();
    let run = env.last_run();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_an_answer_ends_when_a_stop_is_requested() {
    let env = env(6);
    let plan = env.plan(ONE).await;
    let call = Call::any().method("POST").path("/qemu");
    env.world.add_fault(Fault::new(call, FaultKind::Timeout));
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
}
