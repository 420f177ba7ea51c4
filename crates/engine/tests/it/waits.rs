//! Waiting: for what, how long, and how it is ended.

use std::time::Duration;

use homestak_core::doc::timeouts::Timeouts;
use homestak_engine::events::{Subject, What};
use homestak_engine::journal::{Ending, Happened};
use homestak_engine::operate::{Interrupt, Interrupter};
use homestak_sim::{Call, Fault, FaultKind, Stages, Timing, World};

use crate::lab::Lab;

const ONE: &str = "nodes:\n  - {name: one, preset: vm-small, image: debian-12, vmid: 7001}\n";

fn lab(boot: u64) -> Lab {
    let timing = Timing {
        boot: Duration::from_secs(boot),
        ..Timing::default()
    };
    Lab::with(|builder| builder.host("pve1").timing(timing))
}

fn stages(address: f64, agent: f64, ssh: f64) -> Stages {
    Stages {
        guest: None,
        address: Some(address),
        agent: Some(agent),
        ssh: Some(ssh),
    }
}

/// Returns what was waited for, in order, without what providers say.
fn waits(lab: &Lab, node: &str) -> Vec<String> {
    let events = lab.ear.0.lock().unwrap();
    let what = events.iter().filter_map(|event| match &event.what {
        What::Waiting {
            subject: Subject::Node(name),
            what,
        } if name == node => Some(what.clone()),
        _ => None,
    });
    // A machine under load may let its host answer late.
    what.filter(|what| what.starts_with("its ") && what != "its host to answer")
        .collect()
}

/// Returns why a run failed.
fn why(lab: &Lab) -> String {
    let run = lab.last_run();
    let why = run.entries.iter().find_map(|entry| match &entry.happened {
        Happened::Failed(trouble) | Happened::UndoFailed(trouble) => Some(trouble.message.clone()),
        _ => None,
    });
    why.unwrap_or_default()
}

/// Waits until something is waited for that contains these words.
async fn waiting_for(lab: &Lab, words: &str) {
    loop {
        let seen =
            lab.ear.0.lock().unwrap().iter().any(
                |event| matches!(&event.what, What::Waiting { what, .. } if what.contains(words)),
            );
        if seen {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_machine_lacks_is_named_while_it_boots() {
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
        let mut lab = lab(45);
        lab.timeouts = Timeouts::parse("boot=9000").unwrap();
        lab.world.set_stages(stages.clone());
        assert_eq!(lab.apply(ONE).await, Ending::Done);
        assert_eq!(waits(&lab, "one"), expected, "{stages:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_in_vain_says_what_was_missing() {
    let never = 100_000.0;
    for (stages, missing) in [
        (stages(5.0, never, never), "its guest agent"),
        (stages(never, 5.0, never), "its address"),
        (stages(5.0, 10.0, never), "its SSH"),
    ] {
        let mut lab = lab(45);
        lab.timeouts = Timeouts::parse("boot=1000").unwrap();
        lab.world.set_stages(stages);
        assert_eq!(lab.apply(ONE).await, Ending::Failed);
        let why = why(&lab);
        assert!(
            why.contains(&format!("waited 1000 s for {missing}")),
            "{why}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_boot_is_waited_for_like_the_first() {
    let mut lab = lab(45);
    lab.timeouts = Timeouts::parse("boot=9000").unwrap();
    assert_eq!(lab.apply(ONE).await, Ending::Done);
    lab.rest().await;
    lab.ear.0.lock().unwrap().clear();
    lab.world.set_stages(stages(5.0, 300.0, 900.0));
    let larger = ONE.replace("vm-small", "vm-large");
    assert_eq!(lab.apply(&larger).await, Ending::Done);
    assert_eq!(waits(&lab, "one"), ["its guest agent", "its SSH"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_machines_that_boot_at_once_need_no_more_patience_than_one() {
    let mut lab = lab(45);
    // Their SSH is up soon after their agents; one that was asked again only after another whole
    // boot would be late.
    lab.world.set_stages(stages(5.0, 1000.0, 1300.0));
    lab.timeouts = Timeouts::parse("boot=1950").unwrap();
    let nodes = (0..6).map(|n| format!("  - {{name: n{n}, preset: vm-small, image: debian-12}}\n"));
    let nodes: String = nodes.collect();
    let manifest = format!("settings: {{parallelism: 8}}\nnodes:\n{nodes}");
    assert_eq!(lab.apply(&manifest).await, Ending::Done, "{}", why(&lab));
}

/// Begins a run and asks it to stop once something is waited for.
async fn interrupted(lab: &Lab, manifest: &str, words: &str) -> Ending {
    let plan = lab.plan(manifest).await;
    let (ask, interrupt): (Interrupter, Interrupt) = Interrupt::new();
    let operator = lab.operator();
    let asking = async {
        waiting_for(lab, words).await;
        ask.ask();
    };
    let (ended, ()) = tokio::join!(operator.carry_out("apply", &plan, interrupt), asking);
    ended.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_machine_ends_when_a_person_asks_and_goes_on_later() {
    let mut lab = lab(45);
    lab.timeouts = Timeouts::parse("boot=2000").unwrap();
    lab.world.set_stages(stages(5.0, 600.0, 600.0));
    assert_eq!(
        interrupted(&lab, ONE, "its guest agent").await,
        Ending::Stopped
    );
    let run = lab.last_run();
    let last = run.entries.last().unwrap();
    assert_eq!(last.happened, Happened::Intent, "nothing is claimed of it");
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_lock_ends_when_a_person_asks() {
    let mut lab = lab(6);
    assert_eq!(lab.apply(ONE).await, Ending::Done);
    lab.rest().await;
    lab.timeouts = Timeouts::parse("lock=80000").unwrap();
    lab.world.set_lock(7001, Some("backup"));
    let larger = ONE.replace("vm-small", "vm-large");
    let plan = lab.plan(&larger).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = lab.operator();
    let asking = async {
        lab.clock.sleep(Duration::from_secs(100)).await;
        ask.ask();
    };
    let (ended, ()) = tokio::join!(operator.carry_out("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, Ending::Stopped);
    let run = lab.last_run();
    lab.world.set_lock(7001, None);
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_waited_for_once_and_not_once_per_try() {
    let mut lab = lab(6);
    assert_eq!(lab.apply(ONE).await, Ending::Done);
    lab.rest().await;
    lab.timeouts = Timeouts::parse("lock=300").unwrap();
    lab.world.set_lock(7001, Some("backup"));
    let larger = ONE.replace("vm-small", "vm-large");
    assert_eq!(lab.apply(&larger).await, Ending::Failed);
    let events = lab.ear.0.lock().unwrap();
    let tries = events.iter().filter(|event| {
        matches!(&event.what, What::Waiting { what, .. } if what.starts_with("another try"))
    });
    assert_eq!(tries.count(), 0);
}

/// Takes the API away for a while, from so many seconds on.
fn away(lab: &Lab, from: u64, seconds: u64) {
    let (world, clock) = (lab.world.clone(), lab.clock.clone());
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
async fn a_host_that_is_away_for_a_while_fails_no_step() {
    // Longer than any number of tries took, shorter than patience.
    for from in [0, 2, 6, 20] {
        let mut lab = lab(30);
        lab.timeouts = Timeouts::parse("api=20000,boot=20000").unwrap();
        let plan = lab.plan(ONE).await;
        away(&lab, from, 400);
        assert_eq!(lab.carry_out(&plan).await, Ending::Done, "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_resumed_while_its_host_is_away_waits_for_it() {
    let mut lab = lab(45);
    let plan = lab.plan(ONE).await;
    lab.timeouts = Timeouts::parse("boot=5").unwrap();
    assert_eq!(
        lab.carry_out(&plan).await,
        Ending::Failed,
        "not ready in time"
    );
    let run = lab.last_run();
    lab.timeouts = Timeouts::parse("api=20000,boot=20000").unwrap();
    away(&lab, 0, 400);
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::Done, "{}", why(&lab));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_waits_for_a_host_that_is_away() {
    let mut lab = lab(6);
    lab.timeouts = Timeouts::parse("api=20000").unwrap();
    assert_eq!(lab.apply(ONE).await, Ending::Done);
    let run = lab.last_run();
    away(&lab, 0, 400);
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ending, Ending::RolledBack, "{}", why(&lab));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_with_a_host_is_one_setting_and_ends() {
    let mut lab = lab(6);
    lab.timeouts = Timeouts::parse("api=600").unwrap();
    let plan = lab.plan(ONE).await;
    lab.world
        .add_fault(Fault::new(Call::any(), FaultKind::Status(595)));
    assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
    let waited = {
        let events = lab.ear.0.lock().unwrap();
        events.iter().any(|event| {
            matches!(&event.what, What::Waiting { what, .. } if what.starts_with("an answer"))
        })
    };
    assert!(waited, "it is shown what is waited for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_host_that_is_away_ends_when_a_person_asks() {
    let mut lab = lab(6);
    lab.timeouts = Timeouts::parse("api=80000").unwrap();
    let plan = lab.plan(ONE).await;
    lab.world
        .add_fault(Fault::new(Call::any(), FaultKind::Status(595)));
    let (ask, interrupt) = Interrupt::new();
    let operator = lab.operator();
    let asking = async {
        waiting_for(&lab, "an answer").await;
        ask.ask();
    };
    let (ended, ()) = tokio::join!(operator.carry_out("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, Ending::Stopped);
    lab.world.clear_faults();
    let (_ask, interrupt) = Interrupt::new();
    let run = lab.last_run();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_an_answer_that_never_comes_ends_when_a_person_asks() {
    let lab = lab(6);
    let plan = lab.plan(ONE).await;
    let call = Call::any().method("POST").path("/qemu");
    lab.world.add_fault(Fault::new(call, FaultKind::Timeout));
    let (ask, interrupt) = Interrupt::new();
    let operator = lab.operator();
    let asking = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ask.ask();
    };
    let (ended, ()) = tokio::join!(operator.carry_out("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, Ending::Stopped);
}
