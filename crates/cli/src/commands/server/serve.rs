//! The process that listens: serves what is published until it receives a signal to stop. It never
//! opens the site, and so knows none of its secrets.

use std::fs::Permissions;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::log::{self, LogSettings};
use homestak_api::runtime::{self, Spawner};
use homestak_api::systemd::Notifier;
use homestak_api::v1::ServerStart;
use homestak_core::error::chain;
use homestak_driver::server::{self, GRACE, OTHER_PORT, OTHER_SITE, TEMPORARY};
use homestak_driver::{DriverError, DriverSettings, run_blocking};
use homestak_server::settings::ServerSettings;
use homestak_server::{Server, ServerError, ServerOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::log_size::{self, LogFile};
use super::start::{self, KIND};
use super::{Outcome, repos, sentence};
use crate::args::ServerStartArgs;
use crate::runtime::shutdown_signal;
use crate::settings::Settings;
use crate::ui::Printer;

/// How often a server that ends with its last user checks for users.
const USER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the file with the process id may be locked by commands that only look at it.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Most threads for requests: a server that usually runs beside other programs does not take all
/// cores. On one core, a second thread would only cost time.
const MAX_THREADS: usize = 2;

pub(super) fn run(
    args: &ServerStartArgs,
    values: &ServerSettings,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    raise_file_limit();
    log_decisions()?;
    let announced = args.announce.then(announced).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(MAX_THREADS))
        .enable_all()
        .build()
        .map_err(|error| DriverError::failed(format!("Cannot start: {error}.")))?;
    // Before the file with the process id: a reader of that file may send a signal at once, which
    // would end this process without a handler.
    let hangups = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup()).map_err(|error| {
            DriverError::failed(format!("Cannot install signal handlers: {error}."))
        })?
    };
    let is_temporary = args.until_unused.is_some();
    let pid_file = args.pid_file.as_deref();
    let held = pid_file
        .map(|path| PidFile::hold(path, is_temporary, values.limits.grace))
        .transpose()?
        .map(Arc::new);
    let (Some(published), Some(state)) = (args.published.clone(), args.state.clone()) else {
        return Err(DriverError::usage("`--published` needs `--state`."));
    };
    let listener = inherited()?;
    let (again, file) = (args.clone(), held.as_ref().map(Arc::downgrade));
    let options = ServerOptions {
        settings: Box::new(move || {
            let values = start::merged(&again)?;
            if let Some(file) = file.as_ref().and_then(Weak::upgrade) {
                file.set_grace(values.limits.grace);
            }
            Ok(values)
        }),
        published,
        state,
        listener,
        clock: settings.driver.time.clock(),
        hostname: hostname(),
    };
    let users = args.until_unused.as_deref().map(users).transpose()?;
    let users = users.as_ref().map(fs_err::File::file);
    // In the background the log is a file that this program created.
    let log = pid_file.and_then(|_| LogFile::of_stderr());
    let publishing = args.publish_on_hangup.then_some(&settings.driver);
    let outcome = runtime.block_on(serve(
        options,
        (values, users, announced),
        (hangups, publishing),
        (&settings.notifier, log),
        printer,
    ));
    // The file with the process id is released last: nothing of this server is left then.
    drop(runtime);
    outcome
}

/// Logs who was accepted and refused, also without `-v`: in a service, this is the only record.
fn log_decisions() -> Result<(), DriverError> {
    let settings = LogSettings {
        verbose: 1,
        ..LogSettings::default()
    };
    log::start(&settings)
        .map_err(|error| DriverError::failed(format!("Cannot start logging: {error}.")))
}

/// Reads what is printed once the server listens.
fn announced() -> Result<ServerStart, DriverError> {
    let failed =
        |error: &dyn std::fmt::Display| DriverError::failed(format!("Cannot start: {error}."));
    let text = std::io::read_to_string(std::io::stdin()).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

async fn serve(
    options: ServerOptions,
    (values, users, announced): (&ServerSettings, Option<&std::fs::File>, Option<ServerStart>),
    (hangups, publishing): (Signal, Option<&DriverSettings>),
    (notifier, log): (&Notifier, Option<LogFile>),
    printer: &Printer,
) -> Outcome {
    let server = Server::open(options).await.map_err(|error| {
        let failed = DriverError::failed(sentence(&error)).hint_if_full(&error);
        match error {
            ServerError::Listen { source, .. }
                if source.kind() == std::io::ErrorKind::AddrInUse =>
            {
                failed.hint(OTHER_SITE).hint(OTHER_PORT)
            }
            ServerError::Listen { .. } => failed.hint(OTHER_PORT),
            ServerError::Published { .. } => {
                failed.hint("homestak server publish publishes the site")
            }
            _ => failed,
        }
    })?;
    let reload = server.reloader();
    let address = server.address();
    if let Some(start) = announced {
        let start = ServerStart {
            url: format!("https://127.0.0.1:{}", address.port()),
            port: address.port(),
            ..start
        };
        print(&start, printer);
    }
    tracing::info!(%address, bind = %values.bind, "listening");
    let stop = CancellationToken::new();
    let tasks = Spawner::default();
    let heartbeat = server.heartbeat();
    let ended = spawn_watched(&tasks, "server", server.run(stop.clone()));
    // A day is never reached by a watchdog; it only replaces "no watchdog".
    let interval = notifier.interval().unwrap_or(Duration::from_secs(86_400));
    let mut alive = tokio::time::interval(interval);
    let mut log_size = tokio::time::interval(log_size::CHECK);
    notifier.ready();
    let mut shutdown = std::pin::pin!(shutdown_signal());
    let mut unused = std::pin::pin!(unused(users));
    let mut reloads = std::pin::pin!(reload_at(hangups, reload, publishing, &stop));
    loop {
        tokio::select! {
            // Cancel safety: only ever waited for.
            () = &mut shutdown => break,
            // Cancel safety: only ever waited for.
            () = &mut unused => break,
            // Cancel safety: only ever waited for.
            () = ended.cancelled() => {
                notifier.stopping();
                // Also ends a process that publishes.
                stop.cancel();
                return Err(DriverError::failed("The server ended without a request to stop.")
                    .hint("this is a bug of homestak; please report it with the log"));
            }
            // Cancel safety: only ever waited for.
            () = &mut reloads => {}
            // Cancel safety: a missed tick is followed by the next.
            _ = alive.tick() => if heartbeat.is_alive() {
                notifier.alive();
            },
            // Cancel safety: a missed tick is followed by the next.
            _ = log_size.tick() => {
                if let Some(log) = log.clone() {
                    // Cancel safety: the work is finished on its thread.
                    _ = runtime::run_blocking(move || log.limit()).await;
                }
            }
        }
    }
    notifier.stopping();
    tracing::info!("stopping: requests in progress are answered");
    stop.cancel();
    tasks.wait().await;
    Ok(ExitCode::SUCCESS)
}

/// Starts a task, and returns a token that is cancelled when it ends, also if it panics.
fn spawn_watched(
    tasks: &Spawner,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> CancellationToken {
    let ended = CancellationToken::new();
    let guard = ended.clone().drop_guard();
    // Cancel safety: that of the task.
    tasks.spawn(name, async move {
        let _guard = guard;
        task.await;
    });
    ended
}

/// Reloads at each SIGHUP; never ends. If the site is published too, that is done by another process,
/// and what was published before is read first: a command that waits does not wait for repositories.
async fn reload_at(
    mut hangups: Signal,
    reload: impl Fn() -> Result<Vec<String>, ServerError>,
    publishing: Option<&DriverSettings>,
    stop: &CancellationToken,
) {
    loop {
        // Cancel safety: a signal that is not taken now is taken next time.
        hangups.recv().await;
        log_reload(reload());
        let Some(settings) = publishing.cloned() else {
            continue;
        };
        let stop = stop.clone();
        let published =
            run_blocking(move || server::publish_again(&settings, &|| stop.is_cancelled()));
        // Cancel safety: the process is ended by `stop`.
        match published.await {
            Ok(messages) => {
                let messages = messages.iter();
                messages.for_each(|message| tracing::warn!("{message}"));
                tracing::info!("the site was published again");
            }
            Err(error) => tracing::error!(error = error.message, "the published data is unchanged"),
        }
        log_reload(reload());
    }
}

fn log_reload(reloaded: Result<Vec<String>, ServerError>) {
    match reloaded {
        Ok(changes) => tracing::info!(?changes, "reloaded"),
        Err(error) => tracing::error!(
            error = chain(&error),
            "not reloaded; the previous configuration stays in effect"
        ),
    }
}

/// Allows as many open files as the system does: the usual 1024 are far fewer than the connections
/// that the server is set to accept. Where this fails, it stays as it is.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    _ = setrlimit(Resource::Nofile, raised);
}

/// Opens the file on which users of the server hold shared locks.
fn users(path: &Path) -> Result<fs_err::File, DriverError> {
    let mut options = fs_err::OpenOptions::new();
    let file = options.create(true).write(true).truncate(false).open(path);
    file.map_err(|error| DriverError::file("open", path, &error))
}

/// Waits until no other process holds a lock on a file, and locks it, so that a new run does not
/// use this server while it ends.
async fn unused(users: Option<&std::fs::File>) {
    let Some(users) = users else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(USER_POLL_INTERVAL).await;
        if users.try_lock().is_ok() {
            tracing::info!("no process uses this server any more; stopping");
            return;
        }
    }
}

/// Shows where a server listens.
pub(super) fn print(start: &ServerStart, printer: &Printer) {
    if printer.output.json {
        printer.json(KIND, start);
        return;
    }
    printer.data(&format!(
        "url:          {}\nfingerprint:  {}\nspecs:        {}\n",
        start.url,
        start.fingerprint,
        start.specs.join(", ")
    ));
    if let Some(authority) = &start.authority_file {
        printer.data(&format!("authority:    {authority}\n"));
    }
    if let Some(token_file) = &start.repo_token_file {
        printer.data(&repos::render(&start.repos, token_file));
    }
}

/// A file with the process id of this server, which is locked while it runs and removed when it ends.
struct PidFile {
    path: PathBuf,
    is_temporary: bool,
    lock: Mutex<fs_err::File>,
}

impl PidFile {
    fn hold(path: &Path, is_temporary: bool, grace: u32) -> Result<Self, DriverError> {
        let failed = |error: std::io::Error| DriverError::file("write", path, &error);
        let mut options = fs_err::OpenOptions::new();
        // Another user who could open it could lock it, and so pass for the server.
        options.create(true).write(true).truncate(false).mode(0o600);
        let mut waited = Duration::ZERO;
        let file = loop {
            let file = options.open(path).map_err(failed)?;
            if file.file().try_lock().is_err() {
                if waited < LOCK_WAIT {
                    runtime::pause(LOCK_PAUSE).map_err(failed)?;
                    waited += LOCK_PAUSE;
                    continue;
                }
                let message = format!("Another server has locked `{}`.", path.display());
                return Err(DriverError::refused(message).hint("homestak server status shows it"));
            }
            // One that ended in between has removed the file that is locked now.
            let opened = file.metadata().map_err(failed)?;
            if fs_err::metadata(path).is_ok_and(|there| there.ino() == opened.ino()) {
                break file;
            }
        };
        let private = Permissions::from_mode(0o600);
        file.set_permissions(private).map_err(failed)?;
        let held = Self {
            path: path.to_owned(),
            is_temporary,
            lock: Mutex::new(file),
        };
        held.write(grace).map_err(failed)?;
        Ok(held)
    }

    fn write(&self, grace: u32) -> std::io::Result<()> {
        let mut text = format!("{}\n", std::process::id());
        if self.is_temporary {
            text += &format!("{TEMPORARY}\n");
        }
        text += &format!("{GRACE}{grace}\n");
        let file = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Written over the old text, so that concurrent readers always find the process id.
        file.file().write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Records how long requests in progress may take when it stops.
    fn set_grace(&self, grace: u32) {
        if let Err(error) = self.write(grace) {
            tracing::warn!(%error, file = %self.path.display(), "not written");
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // One that stays does no harm: it is not locked.
        _ = fs_err::remove_file(&self.path);
    }
}

/// Returns the socket that systemd passes.
fn inherited() -> Result<Option<std::net::TcpListener>, DriverError> {
    let taken = listenfd::ListenFd::from_env().take_tcp_listener(0);
    taken.map_err(|error| {
        DriverError::failed(format!(
            "The socket that systemd passed cannot be used: {error}."
        ))
    })
}

fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_or_panics_is_noticed() {
        let tasks = Spawner::default();
        spawn_watched(&tasks, "ends", async {}).cancelled().await;
        let panics = async { panic!("on purpose") };
        spawn_watched(&tasks, "panics", panics).cancelled().await;
        let runs = spawn_watched(&tasks, "runs", std::future::pending());
        tokio::task::yield_now().await;
        assert!(!runs.is_cancelled());
    }

    #[test]
    fn a_command_that_looks_at_the_file_with_the_process_id_does_not_stop_a_server_that_starts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.pid");
        let looked_at = fs_err::File::create(&path).unwrap();
        looked_at.file().lock_shared().unwrap();
        let starts = std::thread::spawn({
            let path = path.clone();
            move || PidFile::hold(&path, false, 5)
        });
        std::thread::sleep(Duration::from_millis(200));
        drop(looked_at);
        let held = starts.join().unwrap().unwrap();
        // Another server stays there.
        let refused = PidFile::hold(&path, false, 5).err().unwrap();
        assert!(refused.message.contains("Another server has locked"));
        drop(held);
    }
}
