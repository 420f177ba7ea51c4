//! Checks licences and bans of third-party crates by `deny.toml`. Advisories need a database: use
//! `cargo deny` for those.

use serde_json::Value as Json;

use super::Fault;
use super::deny::Policy;

pub(super) fn check(policy: &Policy, metadata: &Json, faults: &mut Vec<Fault>) {
    let mut fault = |line, message: String| faults.push(Fault::new("deny.toml", line, message));
    if policy.licences.is_empty() || policy.bans.is_empty() {
        fault(
            1,
            "no licences or no bans found, write one entry per line under `allow = [` and `deny = [`"
                .into(),
        );
        return;
    }
    for ban in policy.bans.iter().filter(|ban| ban.reason.is_none()) {
        fault(
            ban.line,
            format!("`{}` is banned without a reason, add one", ban.name),
        );
    }
    for package in metadata["packages"].as_array().into_iter().flatten() {
        // Our own packages come from no registry.
        if package["source"].is_null() {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        let version = package["version"].as_str().unwrap_or_default();
        if let Some(ban) = policy.bans.iter().find(|ban| ban.name == name) {
            let why = ban.reason.as_deref().unwrap_or("see there");
            fault(
                ban.line,
                format!("`{name}` is banned ({why}), remove what depends on it"),
            );
        }
        match package["license"].as_str() {
            None => fault(
                1,
                format!("`{name}` {version} declares no licence: find out which, or do not use it"),
            ),
            Some(licence) if allowed(licence, &policy.licences) => {}
            Some(licence) => fault(
                1,
                format!(
                    "`{name}` {version} is under `{licence}`, which is not in the list: do not use it, or allow it with a reason"
                ),
            ),
        }
    }
}

/// Returns whether an SPDX expression can be satisfied with allowed licences alone. One that cannot
/// be parsed is not allowed.
fn allowed(expression: &str, licences: &[String]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        licences,
        broken: false,
    };
    parser.any_of() && parser.words.is_empty() && !parser.broken
}

/// Parses an expression; `AND` binds closer than `OR`.
struct Parser<'w> {
    words: &'w [&'w str],
    licences: &'w [String],
    broken: bool,
}

impl<'w> Parser<'w> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn next(&mut self) -> &'w str {
        let Some((first, rest)) = self.words.split_first() else {
            self.broken = true;
            return "";
        };
        self.words = rest;
        first
    }

    fn any_of(&mut self) -> bool {
        let mut met = self.all_of();
        while self.take("OR") {
            met |= self.all_of();
        }
        met
    }

    fn all_of(&mut self) -> bool {
        let mut met = self.single();
        while self.take("AND") {
            met &= self.single();
        }
        met
    }

    fn single(&mut self) -> bool {
        if self.take("(") {
            let met = self.any_of();
            self.broken |= !self.take(")");
            return met;
        }
        let mut name = self.next().to_owned();
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.next());
        }
        self.licences.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(name: &str, licence: Option<&str>) -> Vec<String> {
        let policy = Policy::parse(
            "[licenses]\nallow = [\n\"MIT\",\n\"Unicode-3.0\",\n]\n[bans]\ndeny = [\n{ crate = \"chrono\", reason = \"jiff is used\" },\n]\n",
        );
        let metadata = json!({ "packages": [
            { "name": "ours", "version": "0.1.0", "source": null, "license": "Whatever" },
            { "name": name, "version": "1.0.0", "source": "registry", "license": licence },
        ] });
        let mut faults = Vec::new();
        check(&policy, &metadata, &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn allowed_licences_pass() {
        for licence in [
            "MIT",
            "MIT OR GPL-3.0",
            "Apache-2.0/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert_eq!(faults("a", Some(licence)), [""; 0], "{licence}");
        }
    }

    #[test]
    fn other_licences_do_not() {
        for licence in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT WITH x-exception",
            "MIT OR (",
            "MIT MIT",
        ] {
            assert_eq!(faults("a", Some(licence)).len(), 1, "{licence}");
        }
        assert!(faults("a", None)[0].contains("declares no licence"));
    }

    #[test]
    fn banned_crates_are_found_with_the_reason() {
        assert_eq!(
            faults("chrono", Some("MIT")),
            ["deny.toml:8: `chrono` is banned (jiff is used), remove what depends on it"]
        );
    }
}
