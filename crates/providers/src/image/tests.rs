//! Everything around the building, with small scripts in place of Debian. They run as the real
//! builders do, which takes root.
#![expect(
    clippy::disallowed_methods,
    reason = "tests mount small file systems, and are set up by environment"
)]

use std::sync::Mutex;
use std::time::Duration;

use super::*;

/// Returns a recipe that runs a script; `$1` is where the image goes.
fn script(name: &'static str, text: String) -> Recipe {
    Recipe {
        name,
        suite: "none",
        make: ImageFormat::Script(text.leak()),
    }
}

/// Returns whether this is root; loud when it is not.
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let line = "SKIPPED: building images needs root";
        assert!(std::env::var("HOMESTAK_TEST_REQUIRE").is_err(), "{line}");
        println!("{line}");
    }
    root
}

fn quiet(_: &str) {}

/// A small file system that is unmounted when the test ends.
struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    fn new(at: &'p Path, size: &str) -> Self {
        let options = format!("size={size}");
        let mut command = std::process::Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(at);
        assert!(command.status().unwrap().success());
        Self(at)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        _ = std::process::Command::new("umount").arg(self.0).status();
    }
}

/// Returns the names in a directory, without locks.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs_err::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".lock-"))
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn concurrent_builders_build_once() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let images = Images::new(dir.path().join("images"));
    let text = format!(
        "echo once >> {}; sleep 1; echo data > $1/file",
        count.display()
    );
    let recipe = script("twice", text);
    let lines = Mutex::new(Vec::new());
    let report = |line: &str| lines.lock().unwrap().push(line.to_owned());
    let (one, other) = tokio::join!(
        images.build(&recipe, None, &report),
        images.build(&recipe, None, &report)
    );
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(fs_err::read_to_string(count).unwrap(), "once\n");
    let waiting = "twice: waiting for another build of it".to_owned();
    assert!(lines.lock().unwrap().contains(&waiting));
    assert_eq!(names(&dir.path().join("images")).len(), 1);
}

#[tokio::test]
async fn a_failed_build_reports_why_and_leaves_nothing() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let recipe = script(
        "bad",
        "echo x > $1/x; echo no such thing >&2; exit 7".into(),
    );
    let error = images.build(&recipe, None, &quiet).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::Failed { log, status, .. } if log == &["no such thing"] && status.contains('7')),
        "{error:?}"
    );
    assert_eq!(names(dir.path()), [""; 0]);
}

#[tokio::test]
async fn a_dropped_build_kills_its_processes_and_leaves_nothing() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    fs_err::write(&held, "").unwrap();
    let images = Images::new(dir.path().join("images"));
    let text = format!(
        "exec 9<{}; flock 9; (sleep 1000) & echo I: running apt-get update; wait",
        held.display()
    );
    let recipe = script("dropped", text);
    let (started, mut began) = tokio::sync::mpsc::unbounded_channel();
    let report = |_: &str| _ = started.send(());
    {
        let building = images.build(&recipe, None, &report);
        tokio::select! {
            _ = building => panic!("it cannot end"),
            _ = began.recv() => {}
        }
    }
    // A lock is released when the last process that has opened the file ends.
    fs_err::File::open(&held)
        .unwrap()
        .file()
        .try_lock()
        .unwrap();
    assert_eq!(names(&dir.path().join("images")), [""; 0]);
}

#[tokio::test]
async fn leftovers_are_removed_and_running_builds_are_not() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let other = images.store.lock("swept-disk", || ()).await.unwrap();
    fs_err::create_dir_all(dir.path().join(".build-swept-0123abcd/root/etc")).unwrap();
    fs_err::create_dir_all(dir.path().join(".build-swept-disk-0123abcd/root")).unwrap();
    let recipe = script("swept", "echo data > $1/file".into());
    let (key, _) = images.build(&recipe, None, &quiet).await.unwrap();
    let finished = format!("swept-{key}");
    assert_eq!(names(dir.path()), [".build-swept-disk-0123abcd", &finished]);
    assert_eq!(images.sweep().unwrap(), 0);
    drop(other);
    fs_err::create_dir_all(dir.path().join(".remove-0123abcd/root")).unwrap();
    assert_eq!(images.sweep().unwrap(), 2);
    assert_eq!(names(dir.path()), [finished]);
}

#[tokio::test]
async fn verification_finds_changes_and_images_in_use_are_not_removed() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let text = "mkdir $1/root; echo data > $1/root/file".to_owned();
    let recipe = script("held", text);
    let (key, directory) = images.build(&recipe, None, &quiet).await.unwrap();
    let tree = ImageTree {
        key: key.clone(),
        path: directory.join("root"),
    };
    assert!(images.verify("held").await.unwrap()[0].is_intact());
    let hold = tree.hold().unwrap();
    assert!(images.list()[0].in_use);
    // Its name counts, and so does its name with its key.
    for name in ["held".to_owned(), format!("held-{key}")] {
        let refused = images.remove(&name).await.unwrap_err();
        assert!(matches!(refused, ImageError::InUse { .. }), "{refused}");
    }
    drop(hold);
    fs_err::write(tree.path.join("file"), "DATA\n").unwrap();
    assert!(!images.verify("held").await.unwrap()[0].is_intact());
    assert_eq!(images.remove("held").await.unwrap().len(), 1);
    assert_eq!(names(dir.path()), [""; 0]);
    assert!(tree.hold().is_err());
}

#[tokio::test]
async fn a_full_disk_is_reported_with_sizes_and_nothing_is_left() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _small = Mounted::new(dir.path(), "8m");
    let images = Images::new(dir.path().to_owned());
    let text = "dd if=/dev/zero of=$1/big bs=1M count=32".to_owned();
    let error = images
        .build(&script("big", text), None, &quiet)
        .await
        .unwrap_err();
    let left = names(dir.path());
    // Refused before anything is built, when there is no room for it at all.
    let early = images.ensure_tree("debian-12", &quiet).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::Full { free, path, .. } if *free < 1 << 20 && path == dir.path()),
        "{error:?}"
    );
    assert_eq!(left, [""; 0]);
    let words = early.to_string();
    assert!(
        words.contains("8 MiB free, about 500 MiB needed"),
        "{words}"
    );
    assert!(early.hint().contains("homestak image list"));
}

#[test]
fn an_image_whose_recipe_has_changed_is_outdated() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let recipe = Recipe::tree("debian-12").unwrap();
    let current = recipe.key(&images.archive());
    for key in [&current, "0123456789ab"] {
        let build_directory = images.store.begin("debian-12").unwrap();
        let record = ImageRecord {
            version: 1,
            name: "debian-12".into(),
            key: key.to_owned(),
            made: jiff::Timestamp::UNIX_EPOCH,
            archive: images.archive(),
            checksum: String::new(),
            bytes: 0,
            files: 0,
        };
        images.store.finish(build_directory, &record).unwrap();
    }
    let list = images.list();
    let outdated: Vec<&str> = list
        .iter()
        .filter(|image| !image.current)
        .map(|image| &*image.key)
        .collect();
    assert_eq!(outdated, ["0123456789ab"]);
    assert_eq!(images.current_tree("pve-8").unwrap().key, current);
    let elsewhere = images.with_mirror(Some("http://elsewhere.example/debian".into()));
    assert_eq!(elsewhere.current_tree("debian-12"), None);
}

#[tokio::test]
async fn an_incomplete_image_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let recipe = Recipe::tree("debian-12").unwrap();
    let key = recipe.key(&images.archive());
    let directory = images.store.path("debian-12", &key);
    fs_err::create_dir_all(directory.join("root")).unwrap();
    assert_eq!(images.current_tree("debian-12"), None);
    fs_err::write(directory.join(RECORD), "{\"version\": 1, \"na").unwrap();
    assert_eq!(images.current_tree("debian-12"), None);
    assert!(images.list().is_empty());
    let absent = images.verify("debian-12").await.unwrap_err();
    assert_eq!(absent.hint(), "homestak image build debian-12");
}

#[tokio::test]
async fn an_unknown_image_is_reported_with_the_available_ones() {
    let images = Images::new("/nonexistent".into());
    let error = images.ensure_tree("debian-11", &quiet).await.unwrap_err();
    assert_eq!(error.to_string(), "image `debian-11` does not exist");
    assert!(error.hint().contains("debian-12, debian-13"));
    let port = error.into_port_error("make an image");
    assert_eq!(port.class, homestak_engine::ports::ErrorClass::Missing);
}

#[tokio::test]
async fn waiting_for_a_builder_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(dir.path().to_owned());
    let held = images.store.lock("x", || ()).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), images.store.lock("x", || ()));
    assert!(waited.await.is_err());
    drop(held);
    images
        .store
        .lock("x", || panic!("nobody has it"))
        .await
        .unwrap();
}
