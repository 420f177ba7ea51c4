//! Checks configuration files with the programs that read them, before the first change.
//!
//! Files without such a program are accepted; a service that fails with them is handled by `service`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_core::converge::{ConvergeStep, SSHD, SSHD_D, SUDOERS};

use crate::error::AgentError;
use crate::process;

/// Path prefixes, and the programs that check the configuration below them.
const CHECKS: &[(&str, &[&str])] = &[
    ("/etc/apache2/", &["/usr/sbin/apache2ctl", "-t"]),
    ("/etc/bind/", &["/usr/bin/named-checkconf"]),
    ("/etc/dnsmasq.", &["/usr/sbin/dnsmasq", "--test"]),
    (
        "/etc/haproxy/",
        &[
            "/usr/sbin/haproxy",
            "-c",
            "-q",
            "-f",
            "/etc/haproxy/haproxy.cfg",
        ],
    ),
    (
        "/etc/nftables.conf",
        &["/usr/sbin/nft", "-c", "-f", "/etc/nftables.conf"],
    ),
    ("/etc/nginx/", &["/usr/sbin/nginx", "-t", "-q"]),
    ("/etc/postfix/", &["/usr/sbin/postfix", "check"]),
    ("/etc/rsyslog.", &["/usr/sbin/rsyslogd", "-N1"]),
    ("/etc/unbound/", &["/usr/sbin/unbound-checkconf"]),
];
const VISUDO: &str = "/usr/sbin/visudo";
const SSHD_PROGRAM: &str = "/usr/sbin/sshd";
/// Runs a check with the new files mounted over `/etc`, in a mount namespace of its own. The exit code
/// is 125 if mounting failed, as in containers without that privilege.
const OVERLAY: &str = "mount -t overlay -o \"lowerdir=/etc,upperdir=$1/etc,workdir=$1/work\" overlay /etc 2>/dev/null || exit 125; shift; exec \"$@\"";
const NOT_MOUNTED: i32 = 125;

type Texts = BTreeMap<String, Option<String>>;

/// Returns the errors in files that the steps write.
pub(crate) fn errors(steps: &[ConvergeStep]) -> Result<Vec<String>, AgentError> {
    let texts = steps.iter().filter_map(|step| match step {
        ConvergeStep::Write { path, content, .. } => Some((path.clone(), Some(content.clone()))),
        ConvergeStep::Delete { path } => Some((path.clone(), None)),
        _ => None,
    });
    let texts: Texts = texts.collect();
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let directory = PathBuf::from(format!("/run/homestak-check-{}", std::process::id()));
    let found = check_all(&directory, &texts);
    _ = fs_err::remove_dir_all(&directory);
    found
}

fn check_all(directory: &Path, texts: &Texts) -> Result<Vec<String>, AgentError> {
    let mut errors = Vec::new();
    for (path, text) in texts {
        if let Some(text) = text
            && path.starts_with(SUDOERS)
            && Path::new(VISUDO).exists()
        {
            errors.extend(sudoers(directory, path, text)?);
        }
    }
    if texts.keys().any(|path| path.starts_with(SSHD)) && Path::new(SSHD_PROGRAM).exists() {
        match check_sshd(texts) {
            Err(AgentError::InvalidFile { path, reason }) => errors.push(invalid(&path, &reason)),
            checked => checked?,
        }
    }
    for (start, program) in CHECKS {
        errors.extend(below(directory, start, program, texts)?);
    }
    Ok(errors)
}

fn invalid(path: &str, reason: &str) -> String {
    format!("`{path}` would be invalid: {reason}")
}

fn put(to: &Path, text: &str) -> Result<(), AgentError> {
    let failed = AgentError::write(to.display());
    fs_err::create_dir_all(to.parent().unwrap_or(to)).map_err(&failed)?;
    durable::write(to, text.as_bytes(), Access::PRIVATE).map_err(failed)
}

fn sudoers(directory: &Path, path: &str, text: &str) -> Result<Option<String>, AgentError> {
    let copy = directory.join("sudoers");
    put(&copy, text)?;
    let reason = visudo(&copy.to_string_lossy(), path)?;
    Ok(reason.map(|reason| invalid(path, &reason)))
}

/// Checks a file that is to replace `path` with `visudo`, and returns its error if it rejects it.
pub(crate) fn visudo(file: &str, path: &str) -> Result<Option<String>, AgentError> {
    let output = process::run(&[VISUDO, "--check", "--file", file])?;
    Ok((output.code != Some(0)).then(|| {
        let reported = reported(&format!("{}\n{}", output.err, output.out), file, path);
        let unknown = match output.timed_out {
            true => "visudo timed out",
            false => "visudo rejects it",
        };
        reported.unwrap_or_else(|| unknown.to_owned())
    }))
}

/// Returns the lines that name the file. The others quote its content, which may be secret.
fn reported(output: &str, file: &str, path: &str) -> Option<String> {
    let lines = output.lines().map(str::trim);
    let lines: Vec<String> = lines
        .filter(|line| line.contains(file))
        .map(|line| line.replace(file, path))
        .collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// Checks the new configuration of the SSH server, in a directory of its own.
pub(crate) fn check_sshd(texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
    let directory = PathBuf::from(format!("/run/homestak-sshd-{}", std::process::id()));
    let result = check_sshd_in(&directory, texts);
    _ = fs_err::remove_dir_all(&directory);
    result
}

fn check_sshd_in(
    directory: &Path,
    texts: &BTreeMap<String, Option<String>>,
) -> Result<(), AgentError> {
    let parts = directory.join("parts");
    fs_err::create_dir_all(&parts).map_err(AgentError::write(SSHD))?;
    // The server creates this at its start, and its check needs it.
    fs_err::create_dir_all("/run/sshd").map_err(AgentError::write("/run/sshd"))?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let own = fs_err::read_dir(SSHD_D).into_iter().flatten().flatten();
    let found = own.filter_map(|entry| entry.path().to_str().map(str::to_owned));
    for path in found.chain([SSHD.to_owned()]) {
        if let Ok(text) = fs_err::read_to_string(&path) {
            all.insert(path, text);
        }
    }
    for (path, text) in texts {
        match text {
            Some(text) => all.insert(path.clone(), text.clone()),
            None => all.remove(path),
        };
    }
    for (path, text) in &all {
        let inner = path
            .strip_prefix(SSHD_D)
            .and_then(|rest| rest.strip_prefix('/'));
        let to = match inner {
            Some(name) => parts.join(name),
            None if path == SSHD => directory.join("sshd_config"),
            None => continue,
        };
        let text = text.replace(&format!("{SSHD_D}/"), &format!("{}/", parts.display()));
        durable::write(&to, text.as_bytes(), Access::PRIVATE).map_err(AgentError::write(path))?;
    }
    let main = directory.join("sshd_config");
    let output = process::run(&["/usr/sbin/sshd", "-t", "-f", &main.to_string_lossy()])?;
    if output.code == Some(0) {
        return Ok(());
    }
    let reason = output.reason();
    let reason = reason.replace(&*parts.to_string_lossy(), SSHD_D);
    Err(AgentError::InvalidFile {
        path: SSHD.to_owned(),
        reason: reason.replace(&*main.to_string_lossy(), SSHD),
    })
}

/// Checks the new configuration below a path with a program.
fn below(
    directory: &Path,
    start: &str,
    program: &[&str],
    texts: &Texts,
) -> Result<Option<String>, AgentError> {
    let mine: Vec<_> = texts
        .iter()
        .filter(|(path, _)| path.starts_with(start))
        .collect();
    let is_there = program.first().is_some_and(|name| Path::new(name).exists());
    let Some((first, _)) = mine.first().filter(|_| is_there) else {
        return Ok(None);
    };
    let etc = directory.join("etc");
    for (path, text) in &mine {
        // An overlay of these files cannot hide a deleted one.
        let (Some(text), Ok(inner)) = (text, Path::new(path).strip_prefix("/etc")) else {
            return Ok(None);
        };
        put(&etc.join(inner), text)?;
    }
    fs_err::create_dir_all(directory.join("work"))
        .map_err(AgentError::write(directory.display()))?;
    let overlay = directory.to_string_lossy();
    let mut words = vec!["unshare", "--mount", "--propagation", "private", "--"];
    words.extend(["sh", "-c", OVERLAY, "sh", &*overlay]);
    words.extend(program);
    let output = process::run(&words)?;
    let refused = !matches!(output.code, Some(0 | NOT_MOUNTED) | None);
    _ = fs_err::remove_dir_all(directory);
    Ok(refused.then(|| invalid(first, &output.reason())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_visudo_is_reported_with_its_position_and_without_quoted_content() {
        let output = "/run/x/sudoers:1:5: syntax error\nops secret=(ALL\n    ^~~~~~\n";
        let reported = |output| reported(output, "/run/x/sudoers", "/etc/sudoers.d/own");
        assert_eq!(
            reported(output).as_deref(),
            Some("/etc/sudoers.d/own:1:5: syntax error")
        );
        assert_eq!(reported(""), None);
    }
}
