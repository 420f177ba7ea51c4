//! A host in the test's process behind a door, and the program on a site that knows the host.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use homestak_sim::kept::stock;
use homestak_sim::{Identity, Pace, Timing, World, serve_as, serve_inside};
use tokio::runtime::Runtime;

use super::cases::Case;
use super::gate::{self, Fuse};
use crate::support::{self, Run};

const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";
/// How much faster than on the wall time goes for the host, and for the program.
const PACE: Pace = Pace::Accelerated(400.0);
const HURRY: &str = "20";
/// The hypervisor of manifests that have one.
pub(super) const INNER: u32 = 7100;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});
static IDENTITY: LazyLock<Identity> =
    LazyLock::new(|| Identity::make("127.0.0.1:0".parse().unwrap()).unwrap());
/// Making a site takes longer than copying one.
static SITE: LazyLock<support::World> = LazyLock::new(support::World::new);

/// What is there before the program is killed: a World, and what the program remembers of it.
#[derive(Default)]
pub(super) struct Base {
    world: Option<Vec<u8>>,
    state: Option<tempfile::TempDir>,
}

/// A host, a site and a memory of their own.
pub(super) struct Rig {
    pub(super) world: World,
    pub(super) fuse: Arc<Fuse>,
    site: support::World,
    handles: Vec<homestak_sim::Handle>,
}

impl Rig {
    /// Makes one in which things are as they were.
    pub(super) fn new(base: &Base) -> Self {
        let world = match &base.world {
            Some(saved) => World::restore(saved, PACE).unwrap(),
            None => fresh(),
        };
        let fuse = Arc::new(Fuse::default());
        let site = support::World::bare();
        copy(&SITE.site(), &site.site());
        let mut handles = Vec::new();
        RUNTIME.block_on(async {
            let local = "127.0.0.1:0".parse().unwrap();
            let outer = serve_as(world.clone(), local, &IDENTITY).await.unwrap();
            let door = gate::open(outer.address, fuse.clone(), || true).await;
            site.write(
                "nodes/father.yaml",
                &format!(
                    "node: pve1\napi_endpoint: https://{door}\nfingerprint: \"{}\"\ndatastore: local\n",
                    outer.fingerprint
                ),
            );
            let inner = serve_inside(world.clone(), INNER, local, &IDENTITY);
            let inner = inner.await.unwrap();
            let around = world.clone();
            // It is made when it is first asked for, and must have images then.
            let is_up = move || around.inside(INNER, furnish).is_some();
            let door = gate::open(inner.address, fuse.clone(), is_up).await;
            site.write(
                "nodes/inner.yaml",
                &format!(
                    "api_endpoint: https://localhost:{}\nfingerprint: \"{}\"\ndatastore: local\n",
                    door.port(),
                    inner.fingerprint
                ),
            );
            handles.extend([outer, inner]);
        });
        site.secrets(&format!(
            "api_tokens:\n  father: {TOKEN}\n  inner: {TOKEN}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\n"
        ));
        let rig = Self {
            world,
            fuse,
            site,
            handles,
        };
        if let Some(state) = &base.state {
            copy(state.path(), &rig.state());
        }
        rig
    }

    /// Writes the manifest `m`.
    pub(super) fn manifest(&self, nodes: &str) {
        // Simulated guests run no SSH.
        self.site.write(
            "manifests/m.yaml",
            &format!("schema_version: 2\nname: m\nsettings: {{verify_ssh: false}}\n{nodes}"),
        );
    }

    /// Keeps the World and the memory as they are.
    pub(super) fn base(&self) -> Base {
        self.settle();
        let state = tempfile::tempdir().unwrap();
        copy(&self.state(), state.path());
        Base {
            world: Some(self.world.save()),
            state: Some(state),
        }
    }

    pub(super) fn state(&self) -> PathBuf {
        self.site.home().join(".local/state/homestak")
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Run {
        self.run_with(arguments, None)
    }

    /// Runs the program, which may be killed at a moment, or by the fuse.
    pub(super) fn run_with(&self, arguments: &[&str], crash_at: Option<u64>) -> Run {
        let mut command = self.site.command(arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_HURRY", HURRY);
        if let Some(moment) = crash_at {
            command.env("HOMESTAK_CRASH_AT", moment.to_string());
        }
        self.finish(command)
    }

    /// Runs a command to its end.
    pub(super) fn finish(&self, mut command: Command) -> Run {
        // Into files: a program that is killed leaves nobody waiting at a pipe.
        let [out, err] = ["out", "err"].map(|name| self.site.home().join(name));
        let open = |path: &Path| Stdio::from(std::fs::File::create(path).unwrap());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(open(&out))
            .stderr(open(&err))
            .spawn()
            .unwrap();
        self.fuse.aim(child.id());
        let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into();
        for _ in 0..60_000 {
            if let Some(status) = child.try_wait().unwrap() {
                return Run {
                    code: status.code().unwrap_or(-1),
                    out: read(&out),
                    err: read(&err),
                };
            }
            std::thread::sleep(Duration::from_millis(4));
        }
        _ = (child.kill(), child.wait());
        let (out, err): (String, String) = (read(&out), read(&err));
        panic!("{command:?} does not end:\n{out}\n{err}");
    }

    /// Does what a case is about, with flags that agree to everything.
    pub(super) fn carry_out(&self, case: &Case, crash_at: Option<u64>) -> Run {
        self.run_with(case.command, crash_at)
    }

    /// Waits until no task runs and the list of guests has caught up.
    pub(super) fn settle(&self) {
        while self.world.activity().1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // A sweep takes a second of the World's.
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.stop();
        }
    }
}

fn fresh() -> World {
    let timing = Timing {
        boot: Duration::from_secs(10),
        ct_start: Duration::from_millis(500),
        shutdown: Duration::from_secs(1),
        unpack_speed: 300_000_000,
        sweep: Duration::from_secs(1),
        ..Timing::default()
    };
    let builder = World::builder().pace(PACE).timing(timing).host("pve1");
    // Tasks run where it was built.
    let _inside = RUNTIME.enter();
    furnish(builder.storage("local")).build()
}

fn furnish(builder: homestak_sim::Builder) -> homestak_sim::Builder {
    stock(builder.token(TOKEN))
}

/// Finds the World in the hypervisor, when it runs.
pub(super) fn world_in(world: &World, vmid: u32) -> Option<World> {
    world.inside(vmid, furnish)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
