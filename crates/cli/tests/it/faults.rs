//! Faults and events of the simulator, from a file.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::support::World;

fn script(world: &World, text: &str) -> String {
    let path = world.work().join("faults.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_script_that_is_wrong_is_refused_with_its_place() {
    let world = World::bare();
    for (text, words) in [
        (
            "- on: {nth: 1}\n  kind: nonsense\n",
            "entry 1 of the script",
        ),
        ("- at: 3\n  event: {host-gone: pve1}\n", "host-offline"),
        ("on: {}\n", "a list of faults and events"),
        ("- [\n", "faults.yaml"),
    ] {
        let file = script(&world, text);
        let run = world.run(&["sim", "serve", "--listen", "127.0.0.1:0", "--faults", &file]);
        assert_eq!(run.code, 1, "{text}: {}", run.err);
        assert!(run.err.contains(words), "{text}: {}", run.err);
    }
}

#[test]
fn the_example_of_the_guide_is_a_script() {
    let guide = include_str!("../../../../docs/guides/simulator.md");
    let example = guide
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let world = World::bare();
    let file = script(&world, example);
    let mut child = world
        .command(&[
            "sim",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--guests",
            "3",
            "--faults",
            &file,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    _ = child.kill();
    _ = child.wait();
    assert!(line.starts_with("url:"), "{line}");
}
