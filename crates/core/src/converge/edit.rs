//! Edits the text of files that are managed in part. Lines that are not managed stay, and a text
//! that already matches is returned unchanged.

use std::collections::{BTreeMap, BTreeSet};

/// Sets the one line of `/etc/hosts` for the machine's own names.
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
    let matches = |text: &str| text.split_whitespace().eq(line.split_whitespace());
    let found: Vec<&str> = text.lines().filter(|line| is_own(line)).collect();
    if let [only] = found.as_slice()
        && matches(only)
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

/// Sets the name servers and the search domain of `/etc/resolv.conf`.
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

/// A rule of a sudoers file: its subjects, and whether it has `NOPASSWD`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) subjects: Vec<String>,
    pub(super) nopasswd: bool,
}

/// Parses a logical line of a sudoers file; `None` for anything but a rule.
pub(super) fn rule(line: &str) -> Option<Rule> {
    let line = line.trim();
    let (subjects, rest) = line.split_once('=')?;
    let first = subjects.split_whitespace().next()?;
    // `#` with a number is a user id; otherwise it is a comment or an include.
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
    // The last word before `=` is the host; commas may have spaces around them.
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

/// Returns a subject as sudo reads it: without quotes and escapes, and ids without leading zeros.
pub(super) fn normalized_subject(subject: &str) -> String {
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

/// Removes lines of a sudoers file that include files other than its directory, or that disable
/// authentication. `None` if there are none.
pub(super) fn without_unsafe_lines(text: &str) -> Option<String> {
    let lines = logical_lines(text);
    let is_unsafe = |line: &&String| {
        let line = line.replace("\\\n", " ");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [word, path, ..] if is_include(word) => !is_default_includedir(word, path),
            [word, rest @ ..] if word.starts_with("Defaults") => {
                let rest: String = rest.concat();
                rest.contains("!authenticate") || rest.contains("exempt_group")
            }
            _ => false,
        }
    };
    let is_any = lines.iter().any(|line| is_unsafe(&line));
    let left = lines.iter().filter(|line| !is_unsafe(line));
    is_any.then(|| left.map(|line| format!("{line}\n")).collect())
}

fn is_include(word: &str) -> bool {
    let word = word.strip_prefix(['@', '#']);
    word.is_some_and(|word| word == "include" || word == "includedir")
}

/// Returns whether an include is the default one of Debian.
fn is_default_includedir(word: &str, path: &str) -> bool {
    word.ends_with("includedir") && path.trim_matches('"').trim_end_matches('/') == "/etc/sudoers.d"
}

fn is_number(word: &str) -> bool {
    let rest = word.strip_prefix('#').unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_digit())
}

type Alias = (String, Vec<String>);

/// Parses the user aliases of a logical line; `None` if it defines none.
fn aliases(line: &str) -> Option<Vec<Alias>> {
    let rest = line.trim().strip_prefix("User_Alias")?;
    let mut words = rest.strip_prefix(char::is_whitespace)?.split(" #");
    let list = words.next().unwrap_or_default();
    // User ids look like comments.
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

/// Returns the user aliases of a sudoers file with their members.
pub(super) fn user_aliases(text: &str) -> Vec<Alias> {
    let lines = logical_lines(text).into_iter();
    lines
        .filter_map(|line| aliases(&line.replace("\\\n", " ")))
        .flatten()
        .collect()
}

/// Removes members of the user aliases of a sudoers file, and aliases without members. `None` if
/// nothing changes.
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

/// Removes rules of a sudoers file. `None` if nothing changes.
pub(super) fn without_rules(text: &str, unwanted: impl Fn(&str, bool) -> bool) -> Option<String> {
    let mut changed = false;
    let mut lines = Vec::new();
    for line in logical_lines(text) {
        let Some(rule) = rule(&line.replace("\\\n", " ")) else {
            lines.push(line);
            continue;
        };
        let (removed, kept): (Vec<_>, Vec<_>) = rule
            .subjects
            .iter()
            .partition(|subject| unwanted(subject, rule.nopasswd));
        if removed.is_empty() {
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

/// Returns whether a text has only comments and empty lines.
pub(super) fn is_blank(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| {
        line.is_empty()
            || line.starts_with('#') && !is_number(line) && !line.starts_with("#include")
    })
}

/// Comments out settings of an sshd configuration file that differ. `Match` blocks are handled by
/// [`sshd_exceptions`].
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
        let differs = settings.iter().any(|(setting, desired)| {
            name.eq_ignore_ascii_case(setting) && !same_setting(value, desired)
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

/// Default values of `AuthorizedKeysFile`.
const DEFAULT_KEY_FILES: &[&str] = &[
    ".ssh/authorized_keys",
    ".ssh/authorized_keys2",
    "%h/.ssh/authorized_keys",
    "%h/.ssh/authorized_keys2",
];

/// Comments out lines of an sshd configuration file that grant more access than the settings:
/// exceptions in `Match` blocks, other sources of keys, and includes of other files. Returns the
/// new text and those lines.
pub(super) fn sshd_exceptions(
    text: &str,
    settings: &BTreeMap<String, String>,
) -> (String, Vec<String>) {
    let (mut left, mut exceptions) = (String::new(), Vec::new());
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
            .any(|(setting, desired)| is(setting) && !same_setting(value, desired));
        let is_command = is("AuthorizedKeysCommand") || is("TrustedUserCAKeys");
        let is_exception = !general && differs
            || is_command && !value.eq_ignore_ascii_case("none")
            || is("AuthorizedKeysFile")
                && values.iter().any(|path| !DEFAULT_KEY_FILES.contains(path))
            || is("Include") && values != ["/etc/ssh/sshd_config.d/*.conf"];
        if is_exception {
            left += "#homestak: ";
            exceptions.push(line.trim().to_owned());
        }
        left += &format!("{line}\n");
    }
    if !text.ends_with('\n') {
        left.pop();
    }
    (left, exceptions)
}

/// Adds the line that includes the configuration directory.
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

/// Compares two values of a setting; `prohibit-password` has an older name.
pub(super) fn same_setting(found: &str, desired: &str) -> bool {
    let plain = |value: &str| match value.to_ascii_lowercase().as_str() {
        "without-password" => "prohibit-password".to_owned(),
        other => other.to_owned(),
    };
    plain(found) == plain(desired)
}

/// Returns type and body of a key in a line of `authorized_keys`, without options and comment.
/// Parsed as sshd does: a first word that is not a key type is options, which may contain quoted
/// text.
pub(super) fn key_body(line: &str) -> Option<String> {
    const BLANK: [char; 2] = [' ', '\t'];
    // sshd ignores everything after a zero byte.
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
    // Other white space in the body is ignored.
    let body: String = body
        .chars()
        .filter(|c| !c.is_ascii_whitespace() && *c != '\u{b}')
        .collect();
    // Signature algorithm names mean the key type.
    let kind = kind.strip_prefix("webauthn-").unwrap_or(kind);
    let rsa = ["rsa-sha2-256", "rsa-sha2-512"];
    let kind = match rsa.iter().find_map(|name| kind.strip_prefix(name)) {
        Some(rest) => format!("ssh-rsa{rest}"),
        None => kind.to_owned(),
    };
    (!body.is_empty()).then(|| format!("{kind} {body}"))
}

/// Returns whether a key has options, such as a forced command or `cert-authority`.
pub(super) fn has_options(line: &str) -> bool {
    !is_key_type(line.trim_start_matches([' ', '\t']))
}

fn is_key_type(line: &str) -> bool {
    ["ssh-", "ecdsa-", "sk-", "rsa-sha2-", "webauthn-"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Returns the text after options; `None` if a quote is not closed, which sshd rejects too.
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

/// Removes the subscription notice from the script of Proxmox VE.
pub(super) fn without_subscription_notice(text: &str) -> String {
    text.replace(NOTICE_CONDITION, NEVER_CONDITION)
}

/// The condition that shows the notice.
const NOTICE_CONDITION: &str = ".data.status.toLowerCase() !== 'active'";
/// A condition that is never true.
const NEVER_CONDITION: &str = ".data.status.toLowerCase() === 'never'";

fn before_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
