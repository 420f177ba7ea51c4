//! Configuration checked by the programs that read it, before the first change.
//!
//! What cannot be checked here is not refused: a service that does not start later is handled then
//! (see `service`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_core::converge::{SSHD, SSHD_D, SUDOERS, Step};

use crate::error::AgentError;
use crate::process;

/// Programs that check the configuration below a path, and where it is.
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
/// Runs a check where `/etc` is what it will be. Nobody else sees that: the mount ends with the
/// process. The code tells that it could not be mounted, as in a container that may not.
const OVERLAY: &str = "mount -t overlay -o \"lowerdir=/etc,upperdir=$1/etc,workdir=$1/work\" overlay /etc 2>/dev/null || exit 125; shift; exec \"$@\"";
const NOT_MOUNTED: i32 = 125;

type Texts = BTreeMap<String, Option<String>>;

/// Returns what is wrong with files that the steps write.
pub(crate) fn faults(steps: &[Step]) -> Result<Vec<String>, AgentError> {
    let texts = steps.iter().filter_map(|step| match step {
        Step::Write { path, content, .. } => Some((path.clone(), Some(content.clone()))),
        Step::Delete { path } => Some((path.clone(), None)),
        _ => None,
    });
    let texts: Texts = texts.collect();
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let place = PathBuf::from(format!("/run/homestak-check-{}", std::process::id()));
    let found = look(&place, &texts);
    _ = fs_err::remove_dir_all(&place);
    found
}

fn look(place: &Path, texts: &Texts) -> Result<Vec<String>, AgentError> {
    let mut faults = Vec::new();
    for (path, text) in texts {
        if let Some(text) = text
            && path.starts_with(SUDOERS)
            && Path::new(VISUDO).exists()
        {
            faults.extend(sudoers(place, path, text)?);
        }
    }
    if texts.keys().any(|path| path.starts_with(SSHD)) && Path::new(SSHD_PROGRAM).exists() {
        match check_sshd(texts) {
            Err(AgentError::Unsound { path, said }) => faults.push(unsound(&path, &said)),
            checked => checked?,
        }
    }
    for (start, program) in CHECKS {
        faults.extend(below(place, start, program, texts)?);
    }
    Ok(faults)
}

fn unsound(path: &str, said: &str) -> String {
    format!("`{path}` would be unsound: {said}")
}

fn put(to: &Path, text: &str) -> Result<(), AgentError> {
    let failed = AgentError::write(to.display());
    fs_err::create_dir_all(to.parent().unwrap_or(to)).map_err(&failed)?;
    durable::write(to, text.as_bytes(), Access::PRIVATE).map_err(failed)
}

fn sudoers(place: &Path, path: &str, text: &str) -> Result<Option<String>, AgentError> {
    let copy = place.join("sudoers");
    put(&copy, text)?;
    let said = visudo(&copy.to_string_lossy(), path)?;
    Ok(said.map(|said| unsound(path, &said)))
}

/// Lets `visudo` check a file that will be at `path`; returns what it reports of one that it
/// rejects.
pub(crate) fn visudo(file: &str, path: &str) -> Result<Option<String>, AgentError> {
    let ended = process::run(&[VISUDO, "--check", "--file", file])?;
    Ok((ended.code != Some(0)).then(|| {
        let reported = reported(&format!("{}\n{}", ended.err, ended.out), file, path);
        let unknown = match ended.too_long {
            true => "visudo took too long",
            false => "visudo rejects it",
        };
        reported.unwrap_or_else(|| unknown.to_owned())
    }))
}

/// Returns the lines that name the file. The others quote it, and not everyone may read it.
fn reported(output: &str, file: &str, path: &str) -> Option<String> {
    let lines = output.lines().map(str::trim);
    let lines: Vec<String> = lines
        .filter(|line| line.contains(file))
        .map(|line| line.replace(file, path))
        .collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// Checks the SSH server's configuration as it will be, in a directory of its own.
pub(crate) fn check_sshd(texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
    let place = PathBuf::from(format!("/run/homestak-sshd-{}", std::process::id()));
    let result = check_sshd_in(&place, texts);
    _ = fs_err::remove_dir_all(&place);
    result
}

fn check_sshd_in(place: &Path, texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
    let parts = place.join("parts");
    fs_err::create_dir_all(&parts).map_err(AgentError::write(SSHD))?;
    // The server itself makes this at its start, and its check wants it.
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
            None if path == SSHD => place.join("sshd_config"),
            None => continue,
        };
        let text = text.replace(&format!("{SSHD_D}/"), &format!("{}/", parts.display()));
        durable::write(&to, text.as_bytes(), Access::PRIVATE).map_err(AgentError::write(path))?;
    }
    let main = place.join("sshd_config");
    let ended = process::run(&["/usr/sbin/sshd", "-t", "-f", &main.to_string_lossy()])?;
    if ended.code == Some(0) {
        return Ok(());
    }
    let said = ended.said();
    let said = said.replace(&*parts.to_string_lossy(), SSHD_D);
    Err(AgentError::Unsound {
        path: SSHD.to_owned(),
        said: said.replace(&*main.to_string_lossy(), SSHD),
    })
}

/// Lets a program check what will be below a path.
fn below(
    place: &Path,
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
    let etc = place.join("etc");
    for (path, text) in &mine {
        // What goes cannot be hidden from a program this way.
        let (Some(text), Ok(inner)) = (text, Path::new(path).strip_prefix("/etc")) else {
            return Ok(None);
        };
        put(&etc.join(inner), text)?;
    }
    fs_err::create_dir_all(place.join("work")).map_err(AgentError::write(place.display()))?;
    let where_it_is = place.to_string_lossy();
    let mut words = vec!["unshare", "--mount", "--propagation", "private", "--"];
    words.extend(["sh", "-c", OVERLAY, "sh", &*where_it_is]);
    words.extend(program);
    let ended = process::run(&words)?;
    let refused = !matches!(ended.code, Some(0 | NOT_MOUNTED) | None);
    _ = fs_err::remove_dir_all(place);
    Ok(refused.then(|| unsound(first, &ended.said())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visudo_is_reported_with_the_place_and_without_the_line_it_quotes() {
        let output = "/run/x/sudoers:1:5: syntax error\nops secret=(ALL\n    ^~~~~~\n";
        let reported = |output| reported(output, "/run/x/sudoers", "/etc/sudoers.d/own");
        assert_eq!(
            reported(output).as_deref(),
            Some("/etc/sudoers.d/own:1:5: syntax error")
        );
        assert_eq!(reported(""), None);
    }
}
