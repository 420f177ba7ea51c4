//! Condenses the output of a build (mmdebstrap, apt, dpkg) to one progress line every few seconds.

use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use jiff::Timestamp;

/// The minimum time between two lines of the same phase.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// How the line begins that starts a phase, and the name under which the phase is reported.
const PHASES: &[(&str, &str)] = &[
    ("I: running apt-get update", "reading package lists"),
    ("I: downloading packages", "downloading packages"),
    ("I: extracting archives", "unpacking the base system"),
    (
        "I: installing essential packages",
        "installing the base system",
    ),
    ("I: installing remaining packages", "installing packages"),
    ("I: running --customize-hook", "preparing"),
    ("I: cleaning package lists", "cleaning up"),
    ("update-initramfs: Generating", "building the initramfs"),
];

/// Reports the progress of a build.
pub(super) struct BuildProgress<'s> {
    name: &'s str,
    report: &'s (dyn Fn(&str) + Send + Sync),
    started: Timestamp,
    reported_at: Option<Timestamp>,
    phase: &'static str,
    packages: usize,
    steps: usize,
}

impl<'s> BuildProgress<'s> {
    /// Starts to measure the duration.
    pub(super) fn new(name: &'s str, report: &'s (dyn Fn(&str) + Send + Sync)) -> Self {
        Self {
            name,
            report,
            started: WallClock.now(),
            reported_at: None,
            phase: "",
            packages: 0,
            steps: 0,
        }
    }

    /// Starts a phase.
    pub(super) fn phase(&mut self, phase: &'static str) {
        self.phase = phase;
        self.report_line(WallClock.now());
    }

    /// Processes a line of output.
    pub(super) fn line_seen(&mut self, line: &str) {
        self.line_at(line, WallClock.now());
    }

    fn line_at(&mut self, line: &str, now: Timestamp) {
        if let Some((_, phase)) = PHASES.iter().find(|(start, _)| line.starts_with(start)) {
            self.phase = phase;
            return self.report_line(now);
        }
        if let Some(count) = newly_installed(line) {
            self.packages += count;
        } else if line.starts_with("Unpacking ") || line.starts_with("Setting up ") {
            self.steps += 1;
        }
        let passed = self
            .reported_at
            .map(|reported_at| now.duration_since(reported_at));
        if passed.is_some_and(|passed| passed.unsigned_abs() >= REPORT_INTERVAL) {
            self.report_line(now);
        }
    }

    /// Returns how long the build has taken, in whole seconds.
    pub(super) fn seconds(&self) -> i64 {
        WallClock.now().duration_since(self.started).as_secs()
    }

    fn report_line(&mut self, now: Timestamp) {
        self.reported_at = Some(now);
        let (name, phase) = (self.name, self.phase);
        let seconds = now.duration_since(self.started).as_secs();
        let progress = if self.phase.starts_with("installing") && self.packages > 0 {
            // Each package is unpacked and set up: two steps, 50 % each. Not all are printed, so
            // this is a lower bound.
            let percent = (self.steps * 50 / self.packages).min(100);
            format!(", {percent} %")
        } else {
            String::new()
        };
        (self.report)(&format!("{name}: {phase}{progress} ({seconds} s)"));
    }
}

/// Reads `0 upgraded, 69 newly installed, 0 to remove and 0 not upgraded.`
fn newly_installed(line: &str) -> Option<usize> {
    let (before, _) = line.split_once(" newly installed")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_long_build_is_reported_in_few_lines() {
        let lines = Mutex::new(Vec::new());
        let report = |line: &str| lines.lock().unwrap().push(line.to_owned());
        let mut progress = BuildProgress::new("debian-12", &report);
        let start = progress.started;
        let mut line_seen = |seconds: i64, line: &str| {
            let now = start + jiff::SignedDuration::from_secs(seconds);
            progress.line_at(line, now);
        };
        line_seen(0, "I: running apt-get update...");
        line_seen(
            1,
            "Get:1 http://mirror.example/debian bookworm InRelease [151 kB]",
        );
        line_seen(
            2,
            "0 upgraded, 3 newly installed, 0 to remove and 0 not upgraded.",
        );
        line_seen(4, "I: installing essential packages...");
        line_seen(5, "Unpacking libc6:amd64 (2.36-9+deb12u13) ...");
        line_seen(6, "Setting up libc6:amd64 (2.36-9+deb12u13) ...");
        line_seen(7, "Unpacking dpkg (1.21.22) ...");
        line_seen(7, "Processing triggers for libc-bin (2.36-9+deb12u13) ...");
        assert_eq!(
            *lines.lock().unwrap(),
            [
                "debian-12: reading package lists (0 s)",
                "debian-12: installing the base system, 0 % (4 s)",
                "debian-12: installing the base system, 50 % (7 s)",
            ]
        );
    }
}
