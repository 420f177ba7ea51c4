//! The Debian archive that images are built from: the one that apt uses on this machine.
//!
//! Other repositories are ignored.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The keys of Debian, in the package `debian-archive-keyring`.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Debian's archive and its security updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archive {
    /// Address of the archive; mmdebstrap's own choice when the machine names none, as on Ubuntu.
    pub(super) main: Option<String>,
    /// Address of the security updates, where there is one.
    pub(super) security: Option<String>,
}

impl Archive {
    /// Returns the archive to build from. A mirror that was asked for may name its security
    /// updates after a space; otherwise they are beside it, under the usual name.
    pub(super) fn choose(mirror: Option<&str>, apt: &Path) -> Self {
        if let Some(mirror) = mirror {
            let mut words = mirror.split_whitespace().map(trim);
            if let Some(main) = words.next() {
                let security = words.next().unwrap_or_else(|| format!("{main}-security"));
                return Self {
                    main: Some(main),
                    security: Some(security),
                };
            }
        }
        let entries = entries(apt);
        let pick = |ending: &str| {
            let found = entries.iter().find(|uri| uri.ends_with(ending));
            found.cloned()
        };
        let Some(main) = pick("/debian") else {
            return Self::default();
        };
        Self {
            main: Some(main),
            security: pick("/debian-security"),
        }
    }

    /// Returns the name of the archive in messages.
    pub(super) fn name(&self) -> &str {
        self.main
            .as_deref()
            .unwrap_or("mmdebstrap's default mirror")
    }

    /// Returns the addresses, each with the suites that it has of a suite. None when mmdebstrap
    /// chooses them.
    pub(super) fn suites(&self, suite: &str) -> Vec<(&str, Vec<String>)> {
        let Some(main) = &self.main else {
            return Vec::new();
        };
        let main = (
            main.as_str(),
            vec![suite.to_owned(), format!("{suite}-updates")],
        );
        let security = self.security.as_deref();
        let security = security.map(|uri| (uri, vec![format!("{suite}-security")]));
        std::iter::once(main).chain(security).collect()
    }

    /// Returns the sources of a suite for apt, one stanza per archive. None when mmdebstrap has
    /// written them.
    pub(super) fn render(&self, suite: &str) -> Option<String> {
        let stanza = |uri: &str, suites: &str| {
            format!(
                "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n"
            )
        };
        let stanzas = self.suites(suite).into_iter();
        let stanzas: Vec<String> = stanzas
            .map(|(uri, suites)| stanza(uri, &suites.join(" ")))
            .collect();
        (!stanzas.is_empty()).then(|| stanzas.join("\n"))
    }
}

/// Returns the addresses of Debian's archives in apt's configuration, in its order.
fn entries(apt: &Path) -> Vec<String> {
    let mut files = vec![apt.join("sources.list")];
    let more = fs_err::read_dir(apt.join("sources.list.d"));
    let more = more.into_iter().flatten().flatten().map(|file| file.path());
    let mut more: Vec<_> = more.collect();
    more.sort();
    files.extend(more);
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = fs_err::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("list") => found.extend(text.lines().filter_map(one_line)),
            Some("sources") => found.extend(text.split("\n\n").flat_map(stanza)),
            _ => {}
        }
    }
    found.into_iter().filter_map(|uri| archive(&uri)).collect()
}

/// Reads `deb [options] URI suite components`.
fn one_line(line: &str) -> Option<String> {
    let line = line.split('#').next()?.trim().strip_prefix("deb")?;
    let line = line.strip_prefix(char::is_whitespace)?.trim_start();
    let line = match line.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => line,
    };
    let mut words = line.split_whitespace();
    let uri = words.next()?;
    words
        .skip(1)
        .any(|component| component == "main")
        .then(|| uri.to_owned())
}

/// Reads a paragraph of a `.sources` file.
fn stanza(text: &str) -> Vec<String> {
    let field = |name: &str| -> Vec<&str> {
        let mut words = Vec::new();
        let mut inside = false;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let rest = match line.split_once(':') {
                _ if line.starts_with(char::is_whitespace) => line,
                Some((key, rest)) => {
                    inside = key.eq_ignore_ascii_case(name);
                    rest
                }
                None => continue,
            };
            if inside {
                words.extend(rest.split_whitespace());
            }
        }
        words
    };
    let wanted = field("Types").contains(&"deb")
        && field("Components").contains(&"main")
        && !field("Enabled").contains(&"no");
    if !wanted {
        return Vec::new();
    }
    field("URIs").into_iter().map(str::to_owned).collect()
}

/// Returns an address when it is one of Debian's archives, by the names they have everywhere.
fn archive(uri: &str) -> Option<String> {
    // Cloud images of Debian name a file that holds the address.
    let uri = match uri.strip_prefix("mirror+file:") {
        Some(file) => {
            let path = format!("/{}", file.trim_start_matches('/'));
            let text = fs_err::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with("http"))?;
            trim(line.split_whitespace().next()?)
        }
        None => trim(uri),
    };
    let (scheme, rest) = uri.split_once("://")?;
    if !matches!(scheme, "http" | "https") {
        return None;
    }
    // An older way to name the archive of security updates leaves its path out.
    if rest.starts_with("security.") && !rest.contains('/') {
        return Some(format!("{uri}/debian-security"));
    }
    // Packages that others make for Debian are below `linux`.
    let known = !rest.ends_with("/linux/debian")
        && (rest.ends_with("/debian") || rest.ends_with("/debian-security"));
    known.then_some(uri)
}

fn trim(uri: &str) -> String {
    uri.trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[(&str, &str)]) -> Archive {
        let apt = tempfile::tempdir().unwrap();
        fs_err::create_dir(apt.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            fs_err::write(apt.path().join(name), text).unwrap();
        }
        Archive::choose(None, apt.path())
    }

    fn archive_of(main: &str, security: &str) -> Archive {
        Archive {
            main: Some(main.to_owned()),
            security: Some(security.to_owned()),
        }
    }

    #[test]
    fn a_mirror_in_either_form_of_apts_sources_is_used() {
        let lines = "# deb http://old.example/debian bookworm main\ndeb [arch=amd64 signed-by=/k] https://mirror.example/debian/ bookworm main contrib\ndeb http://security.mirror.example bookworm-security main\ndeb-src http://src.example/debian bookworm main\n";
        assert_eq!(
            chosen(&[("sources.list", lines)]),
            archive_of(
                "https://mirror.example/debian",
                "http://security.mirror.example/debian-security"
            )
        );
        let stanzas = "Types: deb deb-src\n# a remark\nURIs: http://near.example/debian\n http://far.example/debian\nSuites: trixie\nComponents: main\n\nTypes: deb\nURIs: http://near.example/debian-security\nSuites: trixie-security\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n";
        assert_eq!(
            chosen(&[("sources.list.d/debian.sources", stanzas)]),
            archive_of(
                "http://near.example/debian",
                "http://near.example/debian-security"
            )
        );
    }

    #[test]
    fn other_repositories_are_ignored() {
        let others = "deb https://engine.example/linux/debian bookworm main\ndeb https://apt.example bookworm main\ndeb http://archive.example/ubuntu noble main\ndeb http://x.example/debian bookworm stable\ndeb cdrom:[Debian]/debian bookworm main\n";
        assert_eq!(chosen(&[("sources.list", others)]), Archive::default());
        let off = "Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n";
        assert_eq!(
            chosen(&[
                ("sources.list.d/a.sources", off),
                (
                    "sources.list.d/b.list.disabled",
                    "deb http://b.example/debian bookworm main"
                )
            ]),
            Archive::default()
        );
    }

    #[test]
    fn a_file_of_mirrors_is_followed() {
        let list = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(list.path(), "https://deb.example/debian\tpriority:1\n").unwrap();
        let line = format!("deb mirror+file://{} trixie main\n", list.path().display());
        assert_eq!(
            chosen(&[("sources.list", &line)]).main.as_deref(),
            Some("https://deb.example/debian")
        );
    }

    #[test]
    fn a_given_mirror_takes_precedence() {
        let nowhere = Path::new("/nonexistent");
        assert_eq!(
            Archive::choose(Some("http://m.example/debian/"), nowhere),
            archive_of(
                "http://m.example/debian",
                "http://m.example/debian-security"
            )
        );
        assert_eq!(
            Archive::choose(Some("http://m.example/d http://s.example/s"), nowhere),
            archive_of("http://m.example/d", "http://s.example/s")
        );
        assert_eq!(Archive::choose(Some(" "), nowhere), Archive::default());
    }

    #[test]
    fn without_a_mirror_mmdebstrap_chooses_the_sources() {
        let none = Archive::default();
        assert_eq!(none.suites("trixie"), []);
        assert_eq!(none.render("trixie"), None);
        let canonical_name =
            chosen(&[("sources.list", "deb http://m.example/debian trixie main\n")]);
        assert_eq!(canonical_name.security, None);
        let text = canonical_name.render("trixie").unwrap();
        assert!(text.contains("Suites: trixie trixie-updates\n") && !text.contains("security"));
    }
}
