//! Collects what a machine reports about itself: state, facts, drift, and the last lines that homestak's
//! own units logged. Never the content of files, environment variables or secrets.

use std::collections::BTreeMap;

use homestak_api::v1::node_job::{Collected, JobOutcome, JobResult};
use homestak_core::firstboot::PULL_UNIT;
use homestak_core::foreign::ForeignText;

use super::reboot::needs_reboot;
use super::{Pulls, succeeded, time_zone};
use crate::facts::hostname;
use crate::state::{self, drift};
use crate::{clock, process, run, spec};

/// The maximum number of journal lines that are returned.
const MAX_LINES: &str = "200";
/// The maximum length of a journal line, in characters.
const MAX_LINE: usize = 500;
/// The maximum length of a fact, in characters.
const MAX_FACT: usize = 300;
/// The maximum number of differing fields that are returned.
const MAX_DRIFT: usize = 100;

/// Collects state, facts, drift and journal lines. Omits what cannot be read.
pub(super) fn collect(pulls: Pulls) -> JobOutcome {
    let all: Vec<String> = drift::load().open.into_keys().collect();
    let journal = journal();
    let truncated = all.len() > MAX_DRIFT;
    let collected = Collected {
        status: run::status_word().to_owned(),
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        facts: facts(),
        drift: all.into_iter().take(MAX_DRIFT).collect(),
        journal,
        truncated,
    };
    let generation = spec::current().ok();
    succeeded(JobResult {
        changed: Some(false),
        generation: generation.and_then(|spec| (pulls.generation)(&spec.text)),
        reboot_needed: Some(needs_reboot()),
        collected: Some(collected),
        ..JobResult::default()
    })
}

fn read(path: &str) -> Option<String> {
    fs_err::read_to_string(path).ok()
}

fn facts() -> BTreeMap<String, String> {
    let uname = rustix::system::uname();
    let facts = [
        ("addresses", addresses()),
        ("architecture", Some(std::env::consts::ARCH.to_owned())),
        ("boot_id", Some(clock::boot())),
        ("disk", disk()),
        ("hostname", Some(hostname())),
        (
            "kernel",
            Some(uname.release().to_string_lossy().into_owned()),
        ),
        ("load", read("/proc/loadavg").and_then(|text| load(&text))),
        (
            "memory",
            read("/proc/meminfo").and_then(|text| memory(&text)),
        ),
        ("os", read("/etc/os-release").and_then(|text| os(&text))),
        ("time", time()),
        ("unconfirmed", state::unconfirmed()),
        ("uptime", Some(format!("{} s", clock::uptime() / 1_000))),
        ("virtualization", virtualization()),
    ];
    let short = |text: &str| {
        let text: String = text.chars().take(MAX_FACT).collect();
        String::from(ForeignText::line(&text))
    };
    facts
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), short(value?.trim()))))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn os(text: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map(|name| name.trim_matches('"').to_owned())
}

/// Returns the load of the last 1, 5 and 15 minutes.
fn load(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    (words.len() == 3).then(|| words.join(" "))
}

fn memory(text: &str) -> Option<String> {
    let value = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (total, available) = (value("MemTotal:")?, value("MemAvailable:")?);
    Some(format!(
        "{} MiB available of {} MiB",
        available >> 10,
        total >> 10
    ))
}

fn disk() -> Option<String> {
    let found = rustix::fs::statvfs("/").ok()?;
    let mebibytes = |blocks: u64| blocks.saturating_mul(found.f_frsize) >> 20;
    Some(format!(
        "{} MiB available of {} MiB on /",
        mebibytes(found.f_bavail),
        mebibytes(found.f_blocks)
    ))
}

fn addresses() -> Option<String> {
    let output = process::run(&["ip", "-brief", "address", "show", "up"]).ok()?;
    let lines = output.out.lines().filter(|line| !line.starts_with("lo "));
    let lines: Vec<String> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    Some(lines.join("; "))
}

/// Returns the local time, in which update windows are defined.
fn time() -> Option<String> {
    let now = clock::now().to_zoned(time_zone().ok()?);
    Some(now.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

fn virtualization() -> Option<String> {
    Some(process::run(&["systemd-detect-virt"]).ok()?.out)
}

fn journal() -> Vec<String> {
    let words = [
        "journalctl",
        "--no-pager",
        "--quiet",
        "--output=short-iso",
        "--lines",
        MAX_LINES,
        "--unit=homestak-agent.service",
        "--unit",
        PULL_UNIT,
        "--unit=homestak-job-*",
        "--unit=homestak-undo-*",
    ];
    let Ok(output) = process::run(&words) else {
        return Vec::new();
    };
    output.out.lines().map(short_line).collect()
}

fn short_line(line: &str) -> String {
    let line: String = line.chars().take(MAX_LINE).collect();
    ForeignText::line(&line).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_files_of_the_kernel() {
        assert_eq!(
            load("0.10 0.20 0.30 1/90 77\n").as_deref(),
            Some("0.10 0.20 0.30")
        );
        assert_eq!(load(""), None);
        let text = "MemTotal:        8052176 kB\nMemFree: 1 kB\nMemAvailable:    4026088 kB\n";
        assert_eq!(
            memory(text).as_deref(),
            Some("3931 MiB available of 7863 MiB")
        );
        assert_eq!(memory("MemTotal: x"), None);
        let name = os("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
        assert_eq!(name.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
    }

    #[test]
    fn lines_of_the_journal_are_short_and_have_no_control_characters() {
        let line = short_line(&format!("\u{1b}[2J{}", "x".repeat(600)));
        assert!(line.len() < 520 && !line.contains('\u{1b}'), "{line}");
        for (name, value) in facts() {
            assert!(value.chars().count() <= MAX_FACT, "{name}");
        }
    }
}
