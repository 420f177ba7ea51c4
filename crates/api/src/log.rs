//! Logging and panics: the one setup that every program of the workspace uses.
//!
//! Only the workspace's own crates are logged. Dependencies are off at every level: at trace they
//! log headers and bodies, which may hold secrets.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_core::foreign::ForeignText;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

/// Where the log goes, and how detailed it is.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// How often `-v` was given: info, debug, trace.
    pub verbose: u8,
    /// The file of `--log-file`. With one, only errors go to stderr.
    pub file: Option<PathBuf>,
    /// The value of `JOURNAL_STREAM`, which systemd sets for services that log to its journal.
    pub journal_stream: Option<String>,
}

/// Lines of a live display at the end of stderr. A log line erases them before it is written, so
/// that neither garbles the other. Read and changed while stderr is locked.
pub static LIVE_LINES: AtomicUsize = AtomicUsize::new(0);

static VERBOSE: AtomicU8 = AtomicU8::new(0);
static FILE: OnceLock<File> = OnceLock::new();
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Starts logging, and logs panics. A second call can only raise the level or add the file.
pub fn start(settings: &LogSettings) -> io::Result<()> {
    static STARTED: Once = Once::new();
    let mut verbose = settings.verbose;
    if let Some(path) = &settings.file {
        _ = FILE.set(open(path)?);
        verbose = verbose.max(1);
    }
    VERBOSE.fetch_max(verbose, Ordering::Relaxed);
    STARTED.call_once(|| {
        let sink = Sink {
            journal: settings.journal_stream.as_deref().is_some_and(is_stderr),
        };
        let ours = filter_fn(|meta| meta.target().starts_with("homestak") && is_logged(meta));
        let layer = tracing_subscriber::fmt::layer().with_writer(sink);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(ours));
        _ = tracing::subscriber::set_global_default(subscriber);
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            log_panic(info);
            // The default hook prints a backtrace, when one is asked for.
            if std::backtrace::Backtrace::capture().status()
                == std::backtrace::BacktraceStatus::Captured
            {
                default(info);
            }
        }));
    });
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// Returns whether any thread or task has panicked.
pub fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

fn log_panic(info: &PanicHookInfo<'_>) {
    PANICKED.store(true, Ordering::Relaxed);
    let message = info.payload_as_str().unwrap_or("no message");
    let location = info.location().map(ToString::to_string);
    tracing::error!(location, "panicked: {message}");
}

fn is_logged(meta: &Metadata<'_>) -> bool {
    let most = match VERBOSE.load(Ordering::Relaxed) {
        0 => Level::ERROR,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    *meta.level() <= most
}

/// Opens a log file to append to. Only its owner may read it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = fs_err::OpenOptions::new();
    let file = options.append(true).create(true).mode(0o600).open(path)?;
    let meta = file.metadata()?;
    // Not a device or a pipe: those belong to others too.
    if meta.is_file() && meta.permissions().mode() & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(file.into())
}

/// Returns whether stderr is the stream that `JOURNAL_STREAM` names: device and inode.
fn is_stderr(stream: &str) -> bool {
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| format!("{}:{}", stat.st_dev, stat.st_ino) == stream)
}

/// Writes log lines to the file, the journal or stderr.
struct Sink {
    journal: bool,
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        self.writer(Level::ERROR)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter {
        self.writer(*meta.level())
    }
}

impl Sink {
    fn writer(&self, level: Level) -> LineWriter {
        LineWriter {
            journal: self.journal,
            level,
        }
    }
}

/// Writes one line, which is handed over whole.
struct LineWriter {
    journal: bool,
    level: Level,
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        // A value may come from a node: it must neither control a terminal nor begin a line.
        let line = ForeignText::line(text.trim_end_matches('\n'));
        if let Some(mut file) = FILE.get() {
            file.write_all(format!("{}\n", line.as_str()).as_bytes())?;
        }
        if FILE.get().is_none() || self.level == Level::ERROR {
            let text = match self.journal {
                true => journal_line(self.level, line.as_str()),
                false => format!("{}\n", line.as_str()),
            };
            let mut out = io::stderr().lock();
            let erase = match LIVE_LINES.swap(0, Ordering::Relaxed) {
                0 => String::new(),
                lines => format!("\x1b[{lines}A\x1b[0J"),
            };
            out.write_all((erase + &text).as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a line for the journal: with the level as systemd reads it, and without the time, which
/// the journal adds itself.
fn journal_line(level: Level, line: &str) -> String {
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let rest = line.split_once(' ').map_or(line, |(_, rest)| rest);
    format!("<{priority}>{}\n", rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_the_journal_has_a_priority_and_no_time() {
        let line = "2026-01-02T03:04:05.000006Z  INFO run{id=1}: homestak_engine: finished";
        let expected = "<6>INFO run{id=1}: homestak_engine: finished\n";
        assert_eq!(journal_line(Level::INFO, line), expected);
    }

    #[test]
    fn only_the_owner_may_read_a_log_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs_err::write(&path, "earlier\n").unwrap();
        let wide = std::fs::Permissions::from_mode(0o644);
        fs_err::set_permissions(&path, wide).unwrap();
        drop(open(&path).unwrap());
        let meta = fs_err::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "earlier\n");
    }
}
