//! `homestak image`: built, listed, verified and removed, and killed while it builds.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Run, World};

/// Runs in a realm of this world's own.
fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.command(arguments);
    command.env("HOMESTAK_LOCAL_ROOT", world.work().join("realm"));
    command
}

fn run(world: &World, arguments: &[&str]) -> Run {
    command(world, arguments).output().map(Run::from).unwrap()
}

/// Returns whether this is root with mmdebstrap; loud when it is not.
fn possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let possible = root && Path::new("/usr/bin/mmdebstrap").exists();
    if !possible {
        let line = "SKIPPED: images need root and mmdebstrap; run tests/prepare as root";
        assert!(std::env::var("HOMESTAK_TEST_REQUIRE").is_err(), "{line}");
        println!("{line}");
    }
    possible
}

/// Puts an image there as if it had been built: a tree with one file.
fn pretend(world: &World, id: &str, checksum: &str) {
    let (name, key) = id.rsplit_once('-').unwrap();
    let place = world.work().join("realm/images").join(id);
    std::fs::create_dir_all(place.join("root")).unwrap();
    std::fs::write(place.join("root/file"), "data\n").unwrap();
    let record = serde_json::json!({
        "version": 1, "name": name, "key": key, "made": "2026-01-02T03:04:05Z",
        "archive": { "main": "http://m.example/debian", "security": "http://m.example/debian-security" },
        "checksum": checksum, "bytes": 5_242_880, "files": 2,
    });
    std::fs::write(place.join("image.json"), record.to_string()).unwrap();
}

#[test]
fn a_name_that_no_image_has_is_told_with_the_nearest() {
    let world = World::bare();
    let run = run(&world, &["image", "build", "debain-12"]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("There is no image `debain-12`."),
        "{}",
        run.err
    );
    assert!(run.err.contains("did you mean `debian-12`?"), "{}", run.err);
}

#[test]
fn an_empty_cache_says_how_to_fill_it() {
    let world = World::bare();
    let run = run(&world, &["image", "list"]);
    assert_eq!((run.code, &*run.out), (0, ""));
    assert!(run.err.contains("homestak image build NAME"), "{}", run.err);
    let json = self::run(&world, &["image", "list", "--json-output"]).json();
    assert_eq!(json["kind"], "image.list");
    assert_eq!(json["images"], serde_json::json!([]));
    let run = self::run(&world, &["image", "verify", "debian-12"]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("homestak image build debian-12"),
        "{}",
        run.err
    );
}

#[test]
fn images_are_listed_verified_and_removed() {
    if !possible() {
        return;
    }
    let world = World::bare();
    pretend(&world, "debian-12-0123456789ab", "0000");
    let list = run(&world, &["image", "list"]).good();
    let row = "debian-12  0123456789ab  2026-01-02 03:04  5 MiB  2      outdated";
    assert!(list.contains(row), "{list}");
    let run = self::run(&world, &["image", "verify"]);
    assert_eq!(run.code, 1);
    assert_eq!(run.out, "CHANGED  debian-12-0123456789ab\n");
    assert!(
        run.err
            .contains("homestak image remove debian-12-0123456789ab"),
        "{}",
        run.err
    );
    let json = self::run(&world, &["image", "verify", "--json-output"]);
    assert_eq!(json.code, 1);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let found = json["images"][0]["found"].as_str().unwrap().to_owned();
    pretend(&world, "debian-12-0123456789ab", &found);
    self::run(&world, &["image", "verify", "debian-12"]).good();
    let record = world
        .work()
        .join("realm/images/debian-12-0123456789ab/image.json");
    let held = std::fs::File::open(record).unwrap();
    held.lock_shared().unwrap();
    let refused = self::run(&world, &["image", "remove", "debian-12"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("is in use"), "{}", refused.err);
    drop(held);
    let json = self::run(&world, &["image", "remove", "--outdated", "--json-output"]).json();
    assert_eq!(json["images"][0]["key"], "0123456789ab");
    assert!(self::run(&world, &["image", "list"]).out.is_empty());
}

#[test]
fn without_root_nothing_is_built_and_it_is_said() {
    if !possible() {
        return;
    }
    let world = World::bare();
    let mut ordinary = Command::new("setpriv");
    ordinary
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        // A copy: the directory of the program may be closed to others.
        .arg(open_copy(&world))
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
fn open_copy(world: &World) -> std::path::PathBuf {
    let work = world.work();
    let copy = work.join("homestak");
    std::fs::copy(env!("CARGO_BIN_EXE_homestak"), &copy).unwrap();
    for path in [work.parent().unwrap(), &work, &copy] {
        crate::support::set_mode(path, 0o755);
    }
    copy
}

/// Starts a real build and returns when it has begun to fetch or install.
fn begin(world: &World) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    let mut child = command(world, &["image", "build", "debian-13"])
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

fn leftovers(world: &World) -> Vec<String> {
    let entries = std::fs::read_dir(world.work().join("realm/images")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with(".lock-")).collect()
}

#[test]
fn a_build_that_is_interrupted_leaves_nothing() {
    if !possible() {
        return;
    }
    let world = World::bare();
    let (mut child, _lines) = begin(&world);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(leftovers(&world), [""; 0]);
    assert_eq!(processes_about(&world.work()), [""; 0]);
}

#[test]
fn a_build_that_is_killed_ends_with_it_and_the_next_one_clears_up() {
    if !possible() {
        return;
    }
    let world = World::bare();
    let (mut child, _lines) = begin(&world);
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel ends what it had started; that takes a moment.
    while !processes_about(&world.work()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(leftovers(&world).len(), 1);
    // The next builder has no archive, and still clears up first.
    let next = command(&world, &["image", "build", "debian-13"])
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
    assert_eq!(leftovers(&world), [""; 0]);
}

#[test]
fn images_that_cannot_be_listed_are_not_said_to_be_none() {
    let world = World::bare();
    let list = |root: &str| {
        let mut command = world.command(&["image", "list"]);
        let command = command.env("HOMESTAK_LOCAL_ROOT", world.work().join(root));
        command.output().map(Run::from).unwrap()
    };
    let none = list("new");
    assert!(none.err.contains("No image is built"), "{}", none.err);
    none.good();
    std::fs::write(world.work().join("file"), "").unwrap();
    let run = list("file");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.err.contains("file/images"), "{}", run.err);
}
