//! A simulated host behind a proxy, and a site with that host.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use homestak_sim::persistent::stock;
use homestak_sim::{Identity, Pace, Timing, World, serve_inside, serve_with_identity};
use tokio::runtime::Runtime;

use super::cases::Case;
use super::proxy::{self, KillTrigger};
use crate::support::{self, Run};

const TOKEN: &str = "root@pam!homestak=00000000-0000-4000-8000-000000000001";
/// Acceleration of the host and of the program.
const PACE: Pace = Pace::Accelerated(400.0);
const SPEED: &str = "20";
/// The hypervisor of manifests that have one.
pub(super) const INNER: u32 = 7100;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});
static IDENTITY: LazyLock<Identity> =
    LazyLock::new(|| Identity::generate("127.0.0.1:0".parse().unwrap()).unwrap());
/// Creating a site takes longer than copying one.
static SITE: LazyLock<support::TestEnv> = LazyLock::new(support::TestEnv::new);

/// The state before a case: a World, and the state directory of the program.
#[derive(Default)]
pub(super) struct InitialState {
    world: Option<Vec<u8>>,
    state: Option<tempfile::TempDir>,
}

/// A host, a site and a state directory for one trial.
pub(super) struct Setup {
    pub(super) world: World,
    pub(super) trigger: Arc<KillTrigger>,
    env: support::TestEnv,
    handles: Vec<homestak_sim::Handle>,
}

impl Setup {
    /// Creates a setup with an initial state.
    pub(super) fn new(initial: &InitialState) -> Self {
        let world = match &initial.world {
            Some(saved) => World::restore(saved, PACE).unwrap(),
            None => new_world(),
        };
        let trigger = Arc::new(KillTrigger::default());
        let env = support::TestEnv::without_site();
        copy(&SITE.site(), &env.site());
        let mut handles = Vec::new();
        RUNTIME.block_on(async {
            let local = "127.0.0.1:0".parse().unwrap();
            let outer = serve_with_identity(world.clone(), local, &IDENTITY).await.unwrap();
            let address = proxy::start(outer.address, trigger.clone(), || true).await;
            env.write(
                "nodes/father.yaml",
                &format!(
                    "node: pve1\napi_endpoint: https://{address}\nfingerprint: \"{}\"\ndatastore: local\n",
                    outer.fingerprint
                ),
            );
            let inner = serve_inside(world.clone(), INNER, local, &IDENTITY);
            let inner = inner.await.unwrap();
            let around = world.clone();
            // It is created at the first call, and needs images then.
            let is_up = move || around.inside(INNER, with_images).is_some();
            let address = proxy::start(inner.address, trigger.clone(), is_up).await;
            env.write(
                "nodes/inner.yaml",
                &format!(
                    "api_endpoint: https://localhost:{}\nfingerprint: \"{}\"\ndatastore: local\n",
                    address.port(),
                    inner.fingerprint
                ),
            );
            handles.extend([outer, inner]);
        });
        env.secrets(&format!(
            "api_tokens:\n  father: {TOKEN}\n  inner: {TOKEN}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAAkeyvalue ops@desk\n"
        ));
        let setup = Self {
            world,
            trigger,
            env,
            handles,
        };
        if let Some(state) = &initial.state {
            copy(state.path(), &setup.state());
        }
        setup
    }

    /// Writes the manifest `m`.
    pub(super) fn manifest(&self, nodes: &str) {
        // Simulated guests run no SSH.
        self.env.write(
            "manifests/m.yaml",
            &format!("schema_version: 2\nname: m\nsettings: {{verify_ssh: false}}\n{nodes}"),
        );
    }

    /// Saves the World and the state directory.
    pub(super) fn save(&self) -> InitialState {
        self.wait_until_idle();
        let state = tempfile::tempdir().unwrap();
        copy(&self.state(), state.path());
        InitialState {
            world: Some(self.world.save()),
            state: Some(state),
        }
    }

    pub(super) fn state(&self) -> PathBuf {
        self.env.home().join(".local/state/homestak")
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Run {
        self.run_with(arguments, None)
    }

    /// Runs the program, which may be killed at a crash point or by the trigger.
    pub(super) fn run_with(&self, arguments: &[&str], crash_at: Option<u64>) -> Run {
        let mut command = self.env.command(arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_HURRY", SPEED);
        if let Some(crash_point) = crash_at {
            command.env("HOMESTAK_CRASH_AT", crash_point.to_string());
        }
        self.finish(command)
    }

    /// Runs a command to its end.
    pub(super) fn finish(&self, mut command: Command) -> Run {
        // Into files: processes that survive a killed program would keep a pipe open.
        let [out, err] = ["out", "err"].map(|name| self.env.home().join(name));
        let open = |path: &Path| Stdio::from(std::fs::File::create(path).unwrap());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(open(&out))
            .stderr(open(&err))
            .spawn()
            .unwrap();
        self.trigger.set_program(child.id());
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

    /// Runs the command of a case.
    pub(super) fn run_case(&self, case: &Case, crash_at: Option<u64>) -> Run {
        self.run_with(case.command, crash_at)
    }

    /// Waits until no task runs and the list of guests has caught up.
    pub(super) fn wait_until_idle(&self) {
        while self.world.activity().1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // A sweep takes a second of simulated time.
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.stop();
        }
    }
}

fn new_world() -> World {
    let timing = Timing {
        boot: Duration::from_secs(10),
        ct_start: Duration::from_millis(500),
        shutdown: Duration::from_secs(1),
        unpack_speed: 300_000_000,
        sweep: Duration::from_secs(1),
        ..Timing::default()
    };
    let builder = World::builder().pace(PACE).timing(timing).host("pve1");
    // Tasks run in the runtime in which the World was built.
    let _inside = RUNTIME.enter();
    with_images(builder.storage("local")).build()
}

fn with_images(builder: homestak_sim::Builder) -> homestak_sim::Builder {
    stock(builder.token(TOKEN))
}

/// Returns the World in a hypervisor that is running.
pub(super) fn world_in(world: &World, vmid: u32) -> Option<World> {
    world.inside(vmid, with_images)
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
