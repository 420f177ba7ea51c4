//! Reads the allowed licences and banned crates of `deny.toml`. This is not a TOML parser: the file
//! has one entry per line.

/// Which licences and crates the product may use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// Licences, as SPDX names them.
    pub(super) licences: Vec<String>,
    /// Banned crates, each with the line of its entry and the reason.
    pub(super) bans: Vec<Ban>,
}

/// A banned crate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ban {
    /// Name of the crate.
    pub(super) name: String,
    /// Why it is banned.
    pub(super) reason: Option<String>,
    /// Line of the entry.
    pub(super) line: usize,
}

impl Policy {
    /// Reads the lists.
    pub(super) fn parse(text: &str) -> Self {
        let mut policy = Self::default();
        let (mut section, mut list) = ("", "");
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('#') {
                continue;
            }
            if list.is_empty() && line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
            } else if let Some((key, "[")) = line.split_once(" = ") {
                list = key;
            } else if line == "]" {
                list = "";
            } else if (section, list) == ("licenses", "allow") {
                policy.licences.extend(quoted(line).map(str::to_owned));
            } else if (section, list) == ("bans", "deny") {
                policy.bans.extend(after(line, "crate = ").map(|name| Ban {
                    name: name.to_owned(),
                    reason: after(line, "reason = ").map(str::to_owned),
                    line: index + 1,
                }));
            }
        }
        policy
    }
}

/// Returns the first quoted text.
fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

/// Returns the quoted text behind a key.
fn after<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split_once(key).and_then(|(_, rest)| quoted(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_are_read() {
        let text = "[licenses]\nversion = 2\n# Why.\nallow = [\n    \"MIT\", # x\n    \"Zlib\",\n]\n\n[bans]\ndeny = [\n    { crate = \"a-sys\", reason = \"no\" },\n    { crate = \"b\" },\n]\nskip = [\n    { crate = \"c\" },\n]\n";
        let policy = Policy::parse(text);
        assert_eq!(policy.licences, ["MIT", "Zlib"]);
        let bans: Vec<_> = policy
            .bans
            .iter()
            .map(|ban| (ban.name.as_str(), ban.reason.as_deref(), ban.line))
            .collect();
        assert_eq!(bans, [("a-sys", Some("no"), 11), ("b", None, 12)]);
    }
}
