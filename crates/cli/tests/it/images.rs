//! `homestak image`: build, list, verify, remove, and a build that is killed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Run, TestEnv};

/// Runs with a local root of its own.
fn command(env: &TestEnv, arguments: &[&str]) -> Command {
    let mut command = env.command(arguments);
    command.env("HOMESTAK_LOCAL_ROOT", env.work().join("realm"));
    command
}

fn run(env: &TestEnv, arguments: &[&str]) -> Run {
    Run::of(&mut command(env, arguments))
}

/// Returns whether images can be built (root and mmdebstrap); prints a line when not.
fn can_build() -> bool {
    let root = rustix::process::geteuid().is_root();
    let can_build = root && Path::new("/usr/bin/mmdebstrap").exists();
    if !can_build {
        let line = "SKIPPED: images need root and mmdebstrap; run tests/prepare as root";
        assert!(std::env::var("HOMESTAK_TEST_REQUIRE").is_err(), "{line}");
        println!("{line}");
    }
    can_build
}

/// Writes an image as if it had been built: a tree with one file.
fn write_image(env: &TestEnv, id: &str, checksum: &str) {
    let (name, key) = id.rsplit_once('-').unwrap();
    let directory = env.work().join("realm/images").join(id);
    std::fs::create_dir_all(directory.join("root")).unwrap();
    std::fs::write(directory.join("root/file"), "data\n").unwrap();
    let record = serde_json::json!({
        "version": 1, "name": name, "key": key, "made": "2026-01-02T03:04:05Z",
        "archive": { "main": "http://m.example/debian", "security": "http://m.example/debian-security" },
        "checksum": checksum, "bytes": 5_242_880, "files": 2,
    });
    std::fs::write(directory.join("image.json"), record.to_string()).unwrap();
}

#[test]
fn an_unknown_image_is_reported_with_the_nearest_name() {
    let env = TestEnv::without_site();
    let run = run(&env, &["image", "build", "debain-12"]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("There is no image `debain-12`."),
        "{}",
        run.err
    );
    assert!(run.err.contains("did you mean `debian-12`?"), "{}", run.err);
}

#[test]
fn an_empty_image_list_prints_how_to_build_an_image() {
    let env = TestEnv::without_site();
    let run = run(&env, &["image", "list"]);
    assert_eq!((run.code, &*run.out), (0, ""));
    assert!(run.err.contains("homestak image build NAME"), "{}", run.err);
    let json = self::run(&env, &["image", "list", "--json-output"]).json();
    assert_eq!(json["kind"], "image.list");
    assert_eq!(json["images"], serde_json::json!([]));
    let run = self::run(&env, &["image", "verify", "debian-12"]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("homestak image build debian-12"),
        "{}",
        run.err
    );
}

#[test]
fn images_are_listed_verified_and_removed() {
    if !can_build() {
        return;
    }
    let env = TestEnv::without_site();
    write_image(&env, "debian-12-0123456789ab", "0000");
    let list = run(&env, &["image", "list"]).good();
    let row = "debian-12  0123456789ab  2026-01-02 03:04  5 MiB  2      outdated";
    assert!(list.contains(row), "{list}");
    let run = self::run(&env, &["image", "verify"]);
    assert_eq!(run.code, 1);
    assert_eq!(run.out, "CHANGED  debian-12-0123456789ab\n");
    assert!(
        run.err
            .contains("homestak image remove debian-12-0123456789ab"),
        "{}",
        run.err
    );
    let json = self::run(&env, &["image", "verify", "--json-output"]);
    assert_eq!(json.code, 1);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let found = json["images"][0]["found"].as_str().unwrap().to_owned();
    write_image(&env, "debian-12-0123456789ab", &found);
    self::run(&env, &["image", "verify", "debian-12"]).good();
    let record = env
        .work()
        .join("realm/images/debian-12-0123456789ab/image.json");
    let held = std::fs::File::open(record).unwrap();
    held.lock_shared().unwrap();
    let refused = self::run(&env, &["image", "remove", "debian-12"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("is in use"), "{}", refused.err);
    drop(held);
    let json = self::run(&env, &["image", "remove", "--outdated", "--json-output"]).json();
    assert_eq!(json["images"][0]["key"], "0123456789ab");
    assert!(self::run(&env, &["image", "list"]).out.is_empty());
}

#[test]
fn building_without_root_is_an_error() {
    if !can_build() {
        return;
    }
    let env = TestEnv::without_site();
    let mut ordinary = Command::new("setpriv");
    ordinary
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        // A copy: other users may be unable to read the directory of the program.
        .arg(executable_copy(&env))
        .args(["image", "build", "debian-12"])
        .env_clear()
        .env("HOMESTAK_LOCAL_ROOT", "/nonexistent");
    let run = ordinary.output().map(Run::from).unwrap();
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        run.err.contains("Building image `debian-12` needs root."),
        "{}",
        run.err
    );
    assert!(run.err.contains("-H sim"), "{}", run.err);
}

/// Returns a copy of the program that everyone can run.
fn executable_copy(env: &TestEnv) -> std::path::PathBuf {
    let work = env.work();
    let copy = work.join("homestak");
    std::fs::copy(env!("CARGO_BIN_EXE_homestak"), &copy).unwrap();
    for path in [work.parent().unwrap(), &work, &copy] {
        crate::support::set_mode(path, 0o755);
    }
    copy
}

/// Starts a real build and returns once it downloads or installs.
fn begin(env: &TestEnv) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    let mut child = command(env, &["image", "build", "debian-13"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("unpacking the base") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    (child, lines)
}

/// Returns the command lines of processes that name a path.
fn processes_about(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok())
        .filter(|words| words.contains(path))
        .collect()
}

fn leftovers(env: &TestEnv) -> Vec<String> {
    let entries = std::fs::read_dir(env.work().join("realm/images")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with(".lock-")).collect()
}

#[test]
fn an_interrupted_build_leaves_no_files_or_processes() {
    if !can_build() {
        return;
    }
    let env = TestEnv::without_site();
    let (mut child, _lines) = begin(&env);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(leftovers(&env), [""; 0]);
    assert_eq!(processes_about(&env.work()), [""; 0]);
}

#[test]
fn the_next_build_removes_leftovers_of_a_killed_one() {
    if !can_build() {
        return;
    }
    let env = TestEnv::without_site();
    let (mut child, _lines) = begin(&env);
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel kills the child processes; that takes a short time.
    while !processes_about(&env.work()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(leftovers(&env).len(), 1);
    // The next build cannot reach its mirror, and still removes the leftovers first.
    let next = command(&env, &["image", "build", "debian-13"])
        .env("HOMESTAK_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(next.code, 1);
    assert!(
        next.err
            .contains("cannot download packages from http://127.0.0.1:9/debian"),
        "{}",
        next.err
    );
    assert_eq!(leftovers(&env), [""; 0]);
}

#[test]
fn an_unreadable_image_directory_is_an_error() {
    let env = TestEnv::without_site();
    let list = |root: &str| {
        let mut command = env.command(&["image", "list"]);
        let command = command.env("HOMESTAK_LOCAL_ROOT", env.work().join(root));
        command.output().map(Run::from).unwrap()
    };
    let none = list("new");
    assert!(none.err.contains("No image is built"), "{}", none.err);
    none.good();
    std::fs::write(env.work().join("file"), "").unwrap();
    let run = list("file");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.err.contains("file/images"), "{}", run.err);
}
