//! When guests that boot are asked, on a clock that the tests set.

use std::collections::{BTreeSet, VecDeque};

use super::*;

fn guest(n: u32) -> GuestUuid {
    GuestUuid::new(&format!("00000000-0000-4000-8000-{n:012}")).expect("a UUID")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

/// Asks a guest and records the answer; returns whether it was asked.
async fn ask(schedule: &BootSchedule, n: u32, (from, to): (i64, i64), answered: bool) -> bool {
    let question = schedule.ask("pve1", &guest(n), at(from)).await;
    question.is_ok_and(|question| {
        question.record(answered, at(to));
        true
    })
}

#[tokio::test]
async fn while_nothing_is_known_only_the_oldest_is_asked() {
    let schedule = BootSchedule::default();
    let first = schedule.ask("pve1", &guest(1), at(0)).await.ok();
    let first = first.expect("the first is asked");
    assert!(schedule.ask("pve1", &guest(2), at(0)).await.is_err());
    let other = schedule.ask("pve2", &guest(3), at(0)).await;
    assert!(other.is_ok(), "another host");
    first.record(false, at(3));
    drop(first);
    assert!(!ask(&schedule, 1, (3, 6), false).await, "a pause");
    assert!(!ask(&schedule, 2, (4, 7), false).await, "not the oldest");
    assert!(ask(&schedule, 1, (4, 7), false).await);
}

#[tokio::test]
async fn a_guest_that_answered_is_asked_again_at_once_while_others_boot() {
    let schedule = BootSchedule::default();
    for n in 1..4 {
        ask(&schedule, n, (0, 3), false).await;
    }
    for second in [107, 108, 110, 112] {
        assert!(ask(&schedule, 1, (second, second), true).await);
    }
}

#[tokio::test]
async fn a_guest_that_is_started_again_is_waited_for_like_any_other() {
    let schedule = BootSchedule::default();
    assert!(ask(&schedule, 1, (0, 0), true).await);
    schedule.started("pve1", &guest(1));
    assert!(ask(&schedule, 1, (10, 13), false).await);
    assert!(!ask(&schedule, 1, (13, 16), false).await, "a pause");
    assert!(ask(&schedule, 1, (14, 17), false).await);
}

#[tokio::test]
async fn guests_that_were_running_before_are_all_asked_at_once() {
    let schedule = BootSchedule::default();
    let first = schedule.ask("pve1", &guest(1), at(0)).await.ok();
    for n in 2..21 {
        assert!(schedule.ask("pve1", &guest(n), at(0)).await.is_err());
    }
    first.expect("the first is asked").record(true, at(0));
    for n in 2..21 {
        assert!(ask(&schedule, n, (1, 1), true).await);
    }
}

#[tokio::test]
async fn guests_that_were_started_together_are_asked_as_soon_as_the_first_answers() {
    let schedule = BootSchedule::default();
    for n in 1..21 {
        ask(&schedule, n, (0, 3), false).await;
    }
    for n in 1..21 {
        assert!(ask(&schedule, n, (40, 40), true).await);
    }
}

#[tokio::test]
async fn once_one_answered_the_others_are_asked_at_the_same_age() {
    let schedule = BootSchedule::default();
    assert!(ask(&schedule, 1, (0, 3), false).await);
    for n in 2..5 {
        assert!(!ask(&schedule, n, (20, 23), false).await);
    }
    assert!(ask(&schedule, 1, (38, 41), false).await);
    assert!(ask(&schedule, 1, (42, 42), true).await);
    for n in 2..5 {
        assert!(!ask(&schedule, n, (45, 48), false).await, "too early");
    }
    let left = schedule.ask("pve1", &guest(2), at(59)).await.err();
    assert_eq!(left, Some(Duration::from_secs(1)));
    for n in 2..5 {
        assert!(ask(&schedule, n, (60, 60), true).await);
    }
}

#[tokio::test]
async fn a_guest_that_never_boots_does_not_hold_up_the_others_for_ever() {
    let schedule = BootSchedule::default();
    for second in 0..200 {
        ask(&schedule, 1, (second, second), false).await;
        if ask(&schedule, 2, (second, second), true).await {
            return;
        }
    }
    panic!("the second was never asked");
}

/// Fifty guests of one host, started one after the other as a storage copies them, with boot times
/// of 40 to 50 s. Returns how many milliseconds after it had booted the last one was seen, and how
/// many questions were not answered.
fn fifty_guests(seed: u64) -> (i64, usize) {
    let mut host = BootingHost::default();
    let time = |ms: i64| at(0) + Duration::from_millis(ms.unsigned_abs());
    let mut random = seed;
    let mut booted = Vec::new();
    // What happens when: a guest is waited for (`None`), or its question ends.
    let mut events = BTreeSet::new();
    for n in 0..50_u32 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let start = 605 * i64::from(n);
        booted.push(start + 40_500 + i64::try_from((random >> 33) % 9_000).unwrap());
        events.insert((start, n, None));
    }
    let mut line: VecDeque<(u32, Duration)> = VecDeque::new();
    let (mut is_busy, mut unanswered, mut seen) = (false, 0, 0);
    while let Some((now, n, question)) = events.pop_first() {
        match question {
            None => match host.due(&guest(n), time(now)) {
                Ok(age) => line.push_back((n, age)),
                Err(left) => {
                    let left = left.min(SOON).as_millis().max(1);
                    events.insert((now + i64::try_from(left).unwrap(), n, None));
                }
            },
            Some((age, answered)) => {
                is_busy = false;
                host.record(&guest(n), age, answered, time(now));
                seen = now;
                if !answered {
                    unanswered += 1;
                    events.insert((now + 200, n, None));
                }
            }
        }
        if !is_busy && let Some((n, age)) = line.pop_front() {
            let answered = now >= booted[n as usize];
            let end = now + if answered { 20 } else { 3_000 };
            events.insert((end, n, Some((age, answered))));
            is_busy = true;
        }
    }
    (seen - booted.iter().max().unwrap(), unanswered)
}

#[test]
fn many_guests_are_seen_soon_after_they_have_booted() {
    let all: Vec<(i64, usize)> = (0..20).map(fifty_guests).collect();
    for (delay, unanswered) in &all {
        // Thirteen are sent before the first guest has booted.
        assert!(*delay <= 6_000 && *unanswered <= 25, "{all:?}");
    }
    let mean = all.iter().map(|(delay, _)| delay).sum::<i64>() / 20;
    assert!(mean <= 3_000, "{all:?}");
}
