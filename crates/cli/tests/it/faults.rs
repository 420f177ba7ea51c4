//! Faults and events of the simulator, from a file.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::support::TestEnv;

fn script(env: &TestEnv, text: &str) -> String {
    let path = env.work().join("faults.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_invalid_fault_script_is_refused_with_its_location() {
    let env = TestEnv::without_site();
    for (text, words) in [
        (
            "- on: {nth: 1}\n  kind: nonsense\n",
            "entry 1 of the script",
        ),
        ("- at: 3\n  event: {host-gone: pve1}\n", "host-offline"),
        ("on: {}\n", "a list of faults and events"),
        ("- [\n", "faults.yaml"),
    ] {
        let file = script(&env, text);
        let run = env.run(&["sim", "serve", "--listen", "127.0.0.1:0", "--faults", &file]);
        assert_eq!(run.code, 1, "{text}: {}", run.err);
        assert!(run.err.contains(words), "{text}: {}", run.err);
    }
}

#[test]
fn the_fault_script_in_the_guide_is_valid() {
    let guide = include_str!("../../../../docs/guides/simulator.md");
    let example = guide
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let env = TestEnv::without_site();
    let file = script(&env, example);
    let mut child = env
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
