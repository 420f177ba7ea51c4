//! Runs an independent client, unmodified proxmoxer from PyPI, against the simulator.
//!
//! Requires `tests/prepare`. Without it the test is skipped, or fails if `HOMESTAK_TEST_REQUIRE` is
//! set.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use homestak_sim::{Pace, World, serve};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a Python interpreter that has proxmoxer.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
fn python() -> Option<PathBuf> {
    let given = std::env::var("HOMESTAK_TEST_PYTHON").map(PathBuf::from);
    let python = given.unwrap_or_else(|_| root().join("target/test-venv/bin/python"));
    let usable = std::process::Command::new(&python)
        .args(["-c", "import proxmoxer, requests"])
        .output()
        .is_ok_and(|output| output.status.success());
    if usable {
        return Some(python);
    }
    let line = format!(
        "skipped: {} has no proxmoxer: run tests/prepare\n",
        python.display()
    );
    assert!(std::env::var("HOMESTAK_TEST_REQUIRE").is_err(), "{line}");
    // Not `eprintln!`, whose output is captured in passing tests.
    std::io::stderr().write_all(line.as_bytes()).ok();
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runs an external client"
)]
async fn proxmoxer_drives_a_full_lifecycle() {
    let Some(python) = python() else {
        return;
    };
    let world = World::builder()
        .seed(3)
        .pace(Pace::Accelerated(40.0))
        .host("pve1")
        .storage("local")
        .file("local", "import/debian.qcow2", 100_000_000)
        .file("local", "vztmpl/debian-13.tar.zst", 82_000_000)
        .user("root@pam", "correct horse")
        .token("root@pam!driver=00000000-0000-4000-8000-000000000001")
        .build();
    let handle = serve(world.clone(), ([127, 0, 0, 1], 0).into())
        .await
        .expect("it listens");
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = directory.path().join("ca.pem");
    fs_err::write(&certificate, &handle.certificate_pem).expect("written");
    let mut command = std::process::Command::new(python);
    command
        .arg(root().join("tests/python/proxmoxer_lifecycle.py"))
        .args(["127.0.0.1", &handle.address.port().to_string()])
        .arg(&certificate)
        .args([
            "correct horse",
            "driver",
            "00000000-0000-4000-8000-000000000001",
        ]);
    // The client blocks its thread; the simulator must keep running.
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("the thread ends")
        .expect("Python runs");
    handle.stop();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.trim_end().ends_with("done"), "{stdout}");
    assert!(
        world.guests().is_empty(),
        "no guest is left: {:?}",
        world.guests()
    );
}
