//! Texts of files that others write into too, as they should be.
//!
//! In: a text. Out: the text with our part put right, every other line kept.
//! Never: a change to a text that is right already.

use std::collections::{BTreeMap, BTreeSet};

/// Gives `/etc/hosts` one line for the machine's own names.
pub(super) fn hosts(text: &str, address: &str, names: &[String]) -> String {
    let line = format!("{address} {}", names.join(" "));
    let own: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let is_own = |line: &str| {
        let words: Vec<&str> = before_comment(line).split_whitespace().collect();
        let Some((first, rest)) = words.split_first() else {
            return false;
        };
        *first == "127.0.1.1" || *first == address || rest.iter().any(|name| own.contains(name))
    };
    let is_right = |text: &str| text.split_whitespace().eq(line.split_whitespace());
    let found: Vec<&str> = text.lines().filter(|line| is_own(line)).collect();
    if let [only] = found.as_slice()
        && is_right(only)
    {
        return text.to_owned();
    }
    let mut lines: Vec<String> = Vec::new();
    let mut placed = false;
    for old in text.lines() {
        let local = before_comment(old).split_whitespace().next() == Some("127.0.0.1");
        if is_own(old) && !local {
            if !placed {
                lines.push(line.clone());
                placed = true;
            }
            continue;
        }
        if local && is_own(old) {
            // The name moves to its own line; `localhost` stays.
            let mut words = old.split_whitespace().filter(|word| !own.contains(word));
            let kept: Vec<&str> = words.by_ref().collect();
            lines.push(kept.join(" "));
            continue;
        }
        lines.push(old.to_owned());
    }
    if !placed {
        lines.insert(0, line);
    }
    lines.join("\n") + "\n"
}

/// Gives `/etc/resolv.conf` exactly these name servers, and a domain to search.
pub(super) fn resolv(text: &str, dns: &[String], domain: Option<&str>) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| {
            let word = line.split_whitespace().next().unwrap_or_default();
            word != "nameserver" && !(domain.is_some() && matches!(word, "search" | "domain"))
        })
        .map(str::to_owned)
        .collect();
    if let Some(domain) = domain {
        lines.push(format!("search {domain}"));
    }
    lines.extend(dns.iter().map(|server| format!("nameserver {server}")));
    lines.join("\n") + "\n"
}

/// A rule of a sudoers file: for whom, and whether it asks for no password.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) subjects: Vec<String>,
    pub(super) nopasswd: bool,
}

/// Reads a logical line of a sudoers file. `None` for anything but a rule.
pub(super) fn rule(line: &str) -> Option<Rule> {
    let line = line.trim();
    let (subjects, rest) = line.split_once('=')?;
    let first = subjects.split_whitespace().next()?;
    // A number stands for a user; anything else behind this sign is a comment or an include.
    if first.starts_with('#') && !is_number(first) {
        return None;
    }
    let other = [
        "@",
        "Defaults",
        "User_Alias",
        "Host_Alias",
        "Cmnd_Alias",
        "Runas_Alias",
    ];
    if other.iter().any(|start| first.starts_with(start)) {
        return None;
    }
    // The list of subjects ends where the host begins; commas may have spaces around them.
    let mut words: Vec<&str> = subjects.split_whitespace().collect();
    if words.len() > 1 {
        words.pop();
    }
    let subjects = words.join(" ").replace(" ,", ",").replace(", ", ",");
    Some(Rule {
        subjects: subjects
            .split(',')
            .map(|one| one.trim().to_owned())
            .collect(),
        nopasswd: rest.contains("NOPASSWD"),
    })
}

/// Returns a name of a rule as sudo reads it: without quotes and escapes, and numbers without zeros
/// in front.
pub(super) fn plain(subject: &str) -> String {
    let mut name = String::new();
    let mut rest = subject;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\\' {
            let code = rest.strip_prefix('x').and_then(|rest| rest.get(..2));
            let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
            if let Some(code) = code {
                name.push(char::from(code));
                rest = &rest[3..];
            } else if let Some(c) = rest.chars().next() {
                name.push(c);
                rest = &rest[c.len_utf8()..];
            }
        } else if c != '"' {
            name.push(c);
        }
    }
    for sign in ["%#", "#"] {
        if let Some(number) = name
            .strip_prefix(sign)
            .and_then(|one| one.parse::<u64>().ok())
        {
            return format!("{sign}{number}");
        }
    }
    name
}

/// Takes lines out of a sudoers file that read other files than those of its directory, or that make
/// sudo ask for no password. `None` when there are none.
pub(super) fn without_loose_lines(text: &str) -> Option<String> {
    let lines = logical_lines(text);
    let is_loose = |line: &&String| {
        let line = line.replace("\\\n", " ");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [word, path, ..] if is_include(word) => !is_usual(word, path),
            [word, rest @ ..] if word.starts_with("Defaults") => {
                let rest: String = rest.concat();
                rest.contains("!authenticate") || rest.contains("exempt_group")
            }
            _ => false,
        }
    };
    let is_any = lines.iter().any(|line| is_loose(&line));
    let left = lines.iter().filter(|line| !is_loose(line));
    is_any.then(|| left.map(|line| format!("{line}\n")).collect())
}

fn is_include(word: &str) -> bool {
    let word = word.strip_prefix(['@', '#']);
    word.is_some_and(|word| word == "include" || word == "includedir")
}

/// Tells whether a line is the one with which Debian reads the directory.
fn is_usual(word: &str, path: &str) -> bool {
    word.ends_with("includedir") && path.trim_matches('"').trim_end_matches('/') == "/etc/sudoers.d"
}

fn is_number(word: &str) -> bool {
    let rest = word.strip_prefix('#').unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_digit())
}

type Alias = (String, Vec<String>);

/// Reads the names for users that a logical line gives. `None` when it is about something else.
fn aliases(line: &str) -> Option<Vec<Alias>> {
    let rest = line.trim().strip_prefix("User_Alias")?;
    let mut words = rest.strip_prefix(char::is_whitespace)?.split(" #");
    let list = words.next().unwrap_or_default();
    // Numbers of users begin like a comment.
    let numbers: String = words
        .take_while(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .map(|word| format!(" #{word}"))
        .collect();
    let list = format!("{list}{numbers}");
    let named = list.split(':').filter_map(|one| {
        let (name, members) = one.split_once('=')?;
        let members = members.split(',').map(|member| member.trim().to_owned());
        Some((name.trim().to_owned(), members.collect()))
    });
    Some(named.collect())
}

/// Returns the names for users that a sudoers file gives, each with whom it stands for.
pub(super) fn user_aliases(text: &str) -> Vec<Alias> {
    let lines = logical_lines(text).into_iter();
    lines
        .filter_map(|line| aliases(&line.replace("\\\n", " ")))
        .flatten()
        .collect()
}

/// Takes members out of the names for users of a sudoers file; a name for nobody goes. `None` when
/// there is nothing to take out.
pub(super) fn without_members(text: &str, unwanted: impl Fn(&str) -> bool) -> Option<String> {
    let mut changed = false;
    let mut lines = Vec::new();
    for line in logical_lines(text) {
        let Some(found) = aliases(&line.replace("\\\n", " ")) else {
            lines.push(line);
            continue;
        };
        if !found
            .iter()
            .any(|(_, members)| members.iter().any(|one| unwanted(one)))
        {
            lines.push(line);
            continue;
        }
        changed = true;
        let kept: Vec<String> = found
            .into_iter()
            .filter_map(|(name, mut members)| {
                members.retain(|member| !unwanted(member));
                (!members.is_empty()).then(|| format!("{name} = {}", members.join(", ")))
            })
            .collect();
        if !kept.is_empty() {
            lines.push(format!("User_Alias {}", kept.join(" : ")));
        }
    }
    changed.then(|| lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Joins lines that end with a backslash.
pub(super) fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let mut whole = open.take().map_or_else(String::new, |start| start + "\n");
        whole.push_str(line);
        if line.ends_with('\\') {
            open = Some(whole);
        } else {
            lines.push(whole);
        }
    }
    lines.extend(open);
    lines
}

/// Takes rules out of a sudoers file. `None` when there is nothing to take out.
pub(super) fn without_rules(text: &str, unwanted: impl Fn(&str, bool) -> bool) -> Option<String> {
    let mut changed = false;
    let mut lines = Vec::new();
    for line in logical_lines(text) {
        let Some(rule) = rule(&line.replace("\\\n", " ")) else {
            lines.push(line);
            continue;
        };
        let (out, kept): (Vec<_>, Vec<_>) = rule
            .subjects
            .iter()
            .partition(|subject| unwanted(subject, rule.nopasswd));
        if out.is_empty() {
            lines.push(line);
            continue;
        }
        changed = true;
        if !kept.is_empty() {
            let joined = line.replace("\\\n", " ");
            let (subjects, rest) = joined.split_once('=').unwrap_or((&joined, ""));
            let host = subjects.split_whitespace().last().unwrap_or("ALL");
            let kept: Vec<&str> = kept.iter().map(|one| one.as_str()).collect();
            lines.push(format!("{} {host}={rest}", kept.join(",")));
        }
    }
    changed.then(|| lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Tells whether a file has nothing but comments and empty lines.
pub(super) fn is_idle(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| {
        line.is_empty()
            || line.starts_with('#') && !is_number(line) && !line.starts_with("#include")
    })
}

/// Comments settings out of a part of the SSH server's configuration that say otherwise. Settings
/// for some users or addresses (`Match`) are looked at by themselves.
pub(super) fn sshd(text: &str, settings: &BTreeMap<String, String>) -> String {
    let mut lines = Vec::new();
    let mut general = true;
    for line in text.lines() {
        let bare = line.trim().replacen('=', " ", 1);
        let mut words = bare.split_whitespace();
        let name = words.next().unwrap_or_default().trim_matches('"');
        if name.eq_ignore_ascii_case("match") {
            general = false;
        }
        let value = words.next().unwrap_or_default().trim_matches('"');
        let differs = settings.iter().any(|(setting, wanted)| {
            name.eq_ignore_ascii_case(setting) && !same_setting(value, wanted)
        });
        lines.push(if general && differs {
            format!("#homestak: {line}")
        } else {
            line.to_owned()
        });
    }
    let joined = lines.join("\n");
    if text.ends_with('\n') {
        joined + "\n"
    } else {
        joined
    }
}

/// Where the server finds keys of users unless it is configured otherwise.
const USUAL_KEYS: &[&str] = &[
    ".ssh/authorized_keys",
    ".ssh/authorized_keys2",
    "%h/.ssh/authorized_keys",
    "%h/.ssh/authorized_keys2",
];

/// Comments lines out of a part of the SSH server's configuration that let others in than the
/// settings say: exceptions from settings for some users or addresses (`Match`), other sources of
/// keys, and files in other places. Returns what is left, and those lines.
pub(super) fn sshd_exceptions(
    text: &str,
    settings: &BTreeMap<String, String>,
) -> (String, Vec<String>) {
    let (mut left, mut out) = (String::new(), Vec::new());
    let mut general = true;
    for line in text.lines() {
        let bare = line.trim().replacen('=', " ", 1);
        let words: Vec<&str> = bare
            .split_whitespace()
            .map(|word| word.trim_matches('"'))
            .collect();
        let (name, values) = words.split_first().unwrap_or((&"", &[]));
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        general &= !is("match");
        let value = values.first().copied().unwrap_or_default();
        let differs = settings
            .iter()
            .any(|(setting, wanted)| is(setting) && !same_setting(value, wanted));
        let is_command = is("AuthorizedKeysCommand") || is("TrustedUserCAKeys");
        let is_out = !general && differs
            || is_command && !value.eq_ignore_ascii_case("none")
            || is("AuthorizedKeysFile") && values.iter().any(|path| !USUAL_KEYS.contains(path))
            || is("Include") && values != ["/etc/ssh/sshd_config.d/*.conf"];
        if is_out {
            left += "#homestak: ";
            out.push(line.trim().to_owned());
        }
        left += &format!("{line}\n");
    }
    if !text.ends_with('\n') {
        left.pop();
    }
    (left, out)
}

/// Puts the line in front that makes the server read its directory.
pub(super) fn sshd_include(text: &str) -> String {
    let line = "Include /etc/ssh/sshd_config.d/*.conf";
    let mut general = text
        .lines()
        .take_while(|line| !line.trim_start().to_ascii_lowercase().starts_with("match"));
    let has = general.any(|found| {
        found
            .split_whitespace()
            .map(str::to_ascii_lowercase)
            .eq(line.split_whitespace().map(str::to_ascii_lowercase))
    });
    if has {
        text.to_owned()
    } else {
        format!("{line}\n{text}")
    }
}

/// Compares two values of a setting: one of them has two names.
pub(super) fn same_setting(found: &str, wanted: &str) -> bool {
    let plain = |value: &str| match value.to_ascii_lowercase().as_str() {
        "without-password" => "prohibit-password".to_owned(),
        other => other.to_owned(),
    };
    plain(found) == plain(wanted)
}

/// A line of authorised keys: what makes it the same key, whatever its comment. Read as sshd does:
/// a first word that is no type of key is options, in which quotes may enclose anything.
pub(super) fn key_body(line: &str) -> Option<String> {
    const BLANK: [char; 2] = [' ', '\t'];
    // Nothing behind a zero byte counts.
    let line = line.split('\0').next().unwrap_or_default();
    let mut line = line.trim_start_matches(BLANK);
    if line.starts_with('#') {
        return None;
    }
    if !is_key_type(line) {
        line = without_options(line)?.trim_start_matches(BLANK);
    }
    let (kind, rest) = line.split_once(BLANK).filter(|_| is_key_type(line))?;
    let body = rest.trim_start_matches(BLANK).split(BLANK).next()?;
    // Other white space within is skipped.
    let body: String = body
        .chars()
        .filter(|c| !c.is_ascii_whitespace() && *c != '\u{b}')
        .collect();
    // Names of signatures stand for the type of key that makes them.
    let kind = kind.strip_prefix("webauthn-").unwrap_or(kind);
    let rsa = ["rsa-sha2-256", "rsa-sha2-512"];
    let kind = match rsa.iter().find_map(|name| kind.strip_prefix(name)) {
        Some(rest) => format!("ssh-rsa{rest}"),
        None => kind.to_owned(),
    };
    (!body.is_empty()).then(|| format!("{kind} {body}"))
}

/// Tells whether options come before a key: a command that is run instead of a shell, or that whoever
/// has the key decides about others.
pub(super) fn has_options(line: &str) -> bool {
    !is_key_type(line.trim_start_matches([' ', '\t']))
}

fn is_key_type(line: &str) -> bool {
    ["ssh-", "ecdsa-", "sk-", "rsa-sha2-", "webauthn-"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Returns what follows options; `None` where a quote does not end, which sshd does not read either.
fn without_options(line: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            ' ' | '\t' if !quoted => return Some(&line[at..]),
            '"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = c == '\\';
    }
    None
}

/// Takes the notice about a missing subscription out of the pages of Proxmox VE.
pub(super) fn notice(text: &str) -> String {
    text.replace(NOTICE_ASKED, NOTICE_NEVER)
}

/// How the pages ask whether there is a subscription.
const NOTICE_ASKED: &str = ".data.status.toLowerCase() !== 'active'";
/// A question whose answer is always no.
const NOTICE_NEVER: &str = ".data.status.toLowerCase() === 'never'";

fn before_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
