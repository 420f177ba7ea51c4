//! The program is killed at any moment of a run, and at any request, and another one finishes the
//! run or undoes it. `make test` takes a sample, `make test-full` everything.

mod cases;
mod gate;
mod rig;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::support::Run;
use cases::{CASES, Course, picture};
use gate::When;
use rig::Rig;

/// How many points are tried at the same time: the program mostly waits.
const LANES: usize = 4;

static COURSES: LazyLock<Vec<Course>> = LazyLock::new(|| {
    std::thread::scope(|scope| {
        let all: Vec<_> = CASES
            .iter()
            .map(|case| scope.spawn(|| Course::of(case)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
});

/// Where the program is killed.
#[derive(Clone, Copy, Debug, Hash)]
enum Death {
    /// At the n-th moment of the run.
    Moment(u64),
    /// At the n-th request.
    Request(u64, When),
}

/// What is done about it.
#[derive(Clone, Copy, Debug, Hash)]
enum Cure {
    Resume,
    Rollback,
}

/// One thing to try.
#[derive(Clone, Debug)]
struct Point {
    course: usize,
    death: Death,
    cure: Cure,
    fault: Option<Fault>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn seed() -> String {
    variable("HOMESTAK_TEST_SEED").unwrap_or_else(|| "1".to_owned())
}

fn hash(what: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((seed(), what))
}

/// Takes so many points of each case, by the seed; all of them in a full run.
fn sample(points: Vec<Point>, of_each: usize) -> Vec<Point> {
    if variable("HOMESTAK_TEST_FULL").is_some() {
        return points;
    }
    let mut by_case: BTreeMap<usize, Vec<Point>> = BTreeMap::new();
    for point in points {
        by_case.entry(point.course).or_default().push(point);
    }
    let mut taken = Vec::new();
    for (_, mut points) in by_case {
        points.sort_by_key(|point| hash((point.course, point.death, point.cure)));
        points.truncate(of_each);
        taken.extend(points);
    }
    taken
}

fn points(deaths: impl Fn(&Course) -> Vec<Death>) -> Vec<Point> {
    let mut all = Vec::new();
    for (course, it) in COURSES.iter().enumerate() {
        for death in deaths(it) {
            all.extend([Cure::Resume, Cure::Rollback].map(|cure| Point {
                course,
                death,
                cure,
                fault: None,
            }));
        }
    }
    all
}

fn moments(course: &Course) -> Vec<Death> {
    (1..=course.moments).map(Death::Moment).collect()
}

fn requests(course: &Course) -> Vec<Death> {
    let both = |nth| [When::Before, When::After].map(|when| Death::Request(nth, when));
    (1..=course.requests).flat_map(both).collect()
}

/// Tries all points, several at a time. Returns at how many the program was killed.
fn try_all(what: &str, points: &[Point]) -> usize {
    let (next, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = points.get(nth) else {
                        break;
                    };
                    if nth > 0 && nth.is_multiple_of(200) {
                        println!("{what}: {nth} of {}", points.len());
                    }
                    match std::panic::catch_unwind(|| try_one(point)) {
                        Ok(was_killed) => {
                            _ = killed.fetch_add(was_killed.into(), Ordering::Relaxed);
                        }
                        Err(_) => failures.lock().unwrap().push(point.clone()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let killed = killed.into_inner();
    println!("{what}: {} points, killed at {killed}", points.len());
    assert!(
        failures.is_empty(),
        "HOMESTAK_TEST_SEED={} repeats it; {} of {} points failed: {failures:#?}",
        seed(),
        failures.len(),
        points.len()
    );
    killed
}

/// Whether a rollback undid what can be undone, and said what cannot.
fn is_undone(run: &Run) -> bool {
    run.code == 1
        && run
            .err
            .contains("Reverted, except for what cannot be reverted:")
}

/// Kills the program at a point, does something about it, and looks. Returns whether it was killed.
fn try_one(point: &Point) -> bool {
    let course = &COURSES[point.course];
    let case = course.case;
    let rig = Rig::new(&course.base);
    rig.manifest(case.manifest);
    if let Some(fault) = &point.fault {
        rig.world.add_fault(fault.clone());
    }
    let mut said = format!("{}: {point:?}\n", case.name);
    let mut tell = |run: &Run| said += &format!("--- {}\n{}{}", run.code, run.out, run.err);
    let killed = match point.death {
        Death::Moment(nth) => rig.carry_out(case, Some(nth)),
        Death::Request(nth, when) => {
            rig.fuse.arm(nth, when);
            rig.carry_out(case, None)
        }
    };
    rig.fuse.reset();
    tell(&killed);
    let was_killed = killed.code == -1;
    match point.cure {
        Cure::Resume => {}
        Cure::Rollback => {
            let mut left = 4;
            let undone = loop {
                let run = rig.run(&["manifest", "rollback", "--yes"]);
                tell(&run);
                left -= 1;
                let ended = matches!(run.code, 0 | 3) || is_undone(&run);
                if ended || point.fault.is_none() || left == 0 {
                    break run;
                }
            };
            // There may have been nothing to undo: nothing was begun, or all was done.
            if undone.code == 3 {
                assert!(undone.err.contains("There is no unfinished run"), "{said}");
            } else {
                assert!(undone.code == 0 || is_undone(&undone), "{said}");
            }
            rig.settle();
            if case.is_reversible && killed.code != 0 {
                assert_eq!(picture(&rig.world), course.before, "{said}");
            }
        }
    }
    // Whatever was undone or never begun: the same command does it in the end.
    let mut left = 6;
    loop {
        let run = match point.cure {
            Cure::Resume => rig.run(&["manifest", "resume"]),
            Cure::Rollback => rig.carry_out(case, None),
        };
        tell(&run);
        let run = if run.code == 3 && run.err.contains("There is no unfinished run") {
            let run = rig.carry_out(case, None);
            tell(&run);
            run
        } else {
            run
        };
        left -= 1;
        if run.code == 0 {
            break;
        }
        assert!(point.fault.is_some() && left > 0, "{said}");
    }
    rig.world.clear_faults();
    rig.settle();
    assert_eq!(picture(&rig.world), course.after, "{said}");
    let events = |word: &&&str| **word != "--events";
    let mut plan: Vec<&str> = case.command.iter().filter(events).copied().collect();
    plan.extend(["--dry-run", "--json-output"]);
    let plan = rig.run(&plan);
    tell(&plan);
    assert_eq!(plan.code, 0, "{said}");
    let json: Value = serde_json::from_str(&plan.out).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().all(|node| node["action"] == "nothing"),
        "{said}"
    );
    was_killed
}

#[test]
fn a_run_that_was_killed_at_any_moment_is_finished_or_undone() {
    let points = sample(points(moments), 14);
    assert_eq!(try_all("moments", &points), points.len());
}

#[test]
fn a_run_that_was_killed_at_any_request_is_finished_or_undone() {
    let points = sample(points(requests), 14);
    let killed = try_all("requests", &points);
    // How often is asked depends on how fast the host is.
    assert!(killed * 2 > points.len(), "{killed}");
}

#[test]
fn a_host_in_trouble_makes_a_kill_no_worse() {
    let kinds = [
        FaultKind::ResetBefore,
        FaultKind::ResetAfter,
        FaultKind::LostAnswer,
        FaultKind::RepeatedAnswer,
        FaultKind::Status(596),
        FaultKind::Garbage,
        FaultKind::Truncated,
    ];
    let all = points(|course| [moments(course), requests(course)].concat());
    let mut points = sample(all, 10);
    for point in &mut points {
        let dice = hash((point.course, point.death, point.cure, "fault"));
        let kind = kinds[(dice % 7) as usize].clone();
        let nth = 1 + dice / 7 % COURSES[point.course].requests;
        point.fault = Some(Fault::new(Call::nth(nth), kind));
    }
    let killed = try_all("requests and faults", &points);
    assert!(killed * 3 > points.len(), "{killed}");
}
