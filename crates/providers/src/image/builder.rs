//! Prerequisites and execution of image builds. Root, programs and disk space are checked first.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use homestak_api::runtime;

use super::archive::{Archive, KEYRING};
use super::error::{DiskSpace, ImageError};
use super::process::IsolatedProcess;
use super::progress::BuildProgress;
use super::recipe::{ImageFormat, Recipe};
use super::store::ImageStore;
use crate::process;

/// How many lines of output are examined when a program fails.
const REMEMBERED: usize = 400;

/// How long one program of a build may take: a few minutes are usual, and a slow mirror takes longer.
/// An hour is also how long others wait for the build.
const PROGRAM_TIME: Duration = Duration::from_secs(3600);

/// Programs by the Debian package that has them.
const PROGRAMS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];
const DISK_PROGRAMS: &[(&str, &str)] = &[
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mke2fs", "e2fsprogs"),
    ("qemu-img", "qemu-utils"),
];

/// Builds one image.
pub(super) struct Builder<'b> {
    pub(super) recipe: &'b Recipe,
    pub(super) archive: &'b Archive,
    pub(super) store: &'b ImageStore,
    pub(super) progress: BuildProgress<'b>,
}

impl Builder<'_> {
    /// Refuses what cannot work.
    pub(super) fn check(&self) -> Result<(), ImageError> {
        let programs = match self.recipe.make {
            ImageFormat::Tree => PROGRAMS,
            ImageFormat::Disk => DISK_PROGRAMS,
            #[cfg(test)]
            ImageFormat::Script(_) => &[],
        };
        for (program, package) in programs {
            if process::find(program).is_none() {
                return Err(ImageError::Missing {
                    what: (*program).to_owned(),
                    package,
                });
            }
        }
        if !programs.is_empty() && !Path::new(KEYRING).exists() {
            return Err(ImageError::Missing {
                what: KEYRING.to_owned(),
                package: "debian-archive-keyring",
            });
        }
        let free = self.store.free();
        if free < self.needed() {
            return Err(ImageError::Full {
                name: self.recipe.name.to_owned(),
                path: self.store.directory.clone(),
                free,
                needed: self.needed(),
            });
        }
        Ok(())
    }

    /// Bytes that building takes at its peak, as measured and rounded up.
    fn needed(&self) -> u64 {
        match self.recipe.make {
            ImageFormat::Tree => 500 << 20,
            ImageFormat::Disk => 1800 << 20,
            #[cfg(test)]
            ImageFormat::Script(_) => 1 << 20,
        }
    }

    /// Runs a program to its end. Cancel-safe: dropping it kills the program.
    pub(super) async fn run(
        &mut self,
        program: &str,
        command: Vec<OsString>,
    ) -> Result<(), ImageError> {
        let mut lines: Vec<String> = Vec::new();
        let progress = &mut self.progress;
        let proxies = runtime::run_blocking(proxies).await.unwrap_or_default();
        tracing::debug!(program, "start");
        let running = IsolatedProcess::start(command, &proxies);
        let ended = running
            .follow(PROGRAM_TIME, |line| {
                progress.line_seen(line);
                if lines.len() == REMEMBERED {
                    lines.remove(0);
                }
                lines.push(line.to_owned());
            })
            .await;
        let status = ended.as_ref().map(ToString::to_string).ok();
        tracing::debug!(program, status, "ended");
        let status = match ended {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let room = DiskSpace {
            path: self.store.directory.clone(),
            free: self.store.free(),
            needed: self.needed(),
        };
        Err(ImageError::from_build(
            self.recipe.name,
            program,
            &status,
            self.archive.name(),
            lines,
            room,
        ))
    }
}

/// Returns the proxies that apt uses on this machine. Those of the environment are inherited.
fn proxies() -> Vec<(&'static str, String)> {
    let asked = [
        ("http_proxy", "Acquire::http::Proxy"),
        ("https_proxy", "Acquire::https::Proxy"),
    ];
    asked
        .into_iter()
        .filter_map(|(variable, option)| {
            let arguments = ["dump", "--format", "%v%n", option];
            let text = process::run("apt-config", &arguments).ok()?;
            let value = text.lines().next()?.trim();
            (!value.is_empty()).then(|| (variable, value.to_owned()))
        })
        .collect()
}
