//! Reads what a simulation of apt would install: lines such as
//! `Inst NAME [OLD] (NEW LABEL:VERSION/SUITE, ... [ARCHITECTURE])`.

use homestak_api::v1::node_job::PackageUpdate;

/// What a transaction would do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Simulation {
    /// Packages that it would install, also new ones.
    pub(super) packages: Vec<PackageUpdate>,
    /// Packages that it would remove.
    pub(super) removed: Vec<String>,
}

/// Reads the output of `apt-get -s`.
pub(super) fn parse(text: &str) -> Simulation {
    let mut simulation = Simulation::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Inst ") {
            simulation.packages.extend(package(rest));
        } else if let Some(rest) = line.strip_prefix("Remv ") {
            let name = rest.split_whitespace().next();
            simulation.removed.extend(name.map(str::to_owned));
        }
    }
    simulation
}

fn package(line: &str) -> Option<PackageUpdate> {
    let (name, rest) = line.split_once(' ')?;
    // A package that is not installed has no earlier version.
    let (from, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once("] ")?,
        None => ("", rest),
    };
    let (inside, _) = rest.strip_prefix('(')?.split_once(')')?;
    let (to, origins) = inside.split_once(' ')?;
    let origins = match origins.rsplit_once(" [") {
        Some((origins, _architecture)) => origins,
        None => origins,
    };
    is_name(name).then(|| PackageUpdate {
        name: name.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        security: origins.split(", ").any(is_security),
    })
}

/// Returns whether an origin, such as `Debian-Security:12/stable-security`, is a security suite.
fn is_security(origin: &str) -> bool {
    let (label, suite) = origin.split_once(':').unwrap_or(("", origin));
    let suite = suite.rsplit_once('/').map_or(suite, |(_, suite)| suite);
    label == "Debian-Security" || suite.ends_with("-security")
}

/// Returns whether it is the name of a package, with or without an architecture. It becomes an
/// argument of apt, for which `-` and `+` at the end have a meaning.
fn is_name(name: &str) -> bool {
    let (name, architecture) = name.split_once(':').unwrap_or((name, "all"));
    let is_word = |text: &str, more: &str| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.starts_with(is_plain) && text.chars().all(|c| is_plain(c) || more.contains(c))
    };
    is_word(name, "+-.") && !name.ends_with('-') && is_word(architecture, "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a machine with Debian 12.
    const DEBIAN: &str = "\
NOTE: This is only a simulation!
      apt-get needs root privileges for real execution.
Reading package lists...
Building dependency tree...
The following NEW packages will be installed:
  linux-image-6.1.0-42-amd64
Inst bash [5.2.15-2+b8] (5.2.15-2+b13 Debian:12.15/oldstable [amd64])
Conf bash (5.2.15-2+b13 Debian:12.15/oldstable [amd64])
Inst libgcrypt20-dev [1.10.1-3] (1.10.1-3+deb12u1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64]) []
Inst apt [2.6.1] (2.6.2 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2025b-0+deb12u2] (2026f-0+deb12u1 Debian-Security:12/oldstable-security [all])
Inst linux-image-6.1.0-42-amd64 (6.1.159-1 Debian-Security:12/oldstable-security [amd64])
Inst libstdc++6:i386 [12.2.0-14] (12.2.0-14+deb12u1 Debian:12.15/oldstable [i386])
";

    /// Of machines with Ubuntu 22.04 and 24.04, and other archives.
    const UBUNTU: &str = "\
Inst openssl [3.0.2-0ubuntu1.12] (3.0.2-0ubuntu1.15 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
Inst libc6 [2.39-0ubuntu8.4] (2.39-0ubuntu8.5 Ubuntu:24.04/noble-security [amd64])
Inst curl [8.5.0-2ubuntu10.6] (8.5.0-2ubuntu10.7 Ubuntu:24.04/noble-updates [amd64])
Inst docker-ce [5:24.0.6-1~ubuntu.22.04~jammy] (5:24.0.7-1~ubuntu.22.04~jammy Docker CE:jammy [amd64])
Inst tool [1] (2 localhost [all])
Inst agent [1] (2 Some Vendor:1.0/stable [amd64]) [libc6:amd64 ]
Remv snapd [2.58]
";

    fn names(text: &str, security: bool) -> Vec<String> {
        let packages = parse(text).packages.into_iter();
        let packages = packages.filter(|package| package.security == security);
        packages.map(|package| package.name).collect()
    }

    #[test]
    fn packages_of_debian_are_read_with_their_versions_and_suites() {
        assert_eq!(names(DEBIAN, false), ["bash", "libstdc++6:i386"]);
        let security = [
            "libgcrypt20-dev",
            "apt",
            "tzdata",
            "linux-image-6.1.0-42-amd64",
        ];
        assert_eq!(names(DEBIAN, true), security);
        let packages = parse(DEBIAN).packages;
        let bash = &packages[0];
        assert_eq!((&*bash.from, &*bash.to), ("5.2.15-2+b8", "5.2.15-2+b13"));
        let kernel = &packages[4];
        assert_eq!((&*kernel.from, &*kernel.to), ("", "6.1.159-1"));
    }

    #[test]
    fn packages_of_ubuntu_and_of_other_archives_are_read() {
        assert_eq!(names(UBUNTU, true), ["openssl", "libc6"]);
        assert_eq!(names(UBUNTU, false), ["curl", "docker-ce", "tool", "agent"]);
        assert_eq!(parse(UBUNTU).removed, ["snapd"]);
    }

    #[test]
    fn other_lines_and_names_that_are_options_are_left_out() {
        for line in [
            "",
            "Inst",
            "Inst bash",
            "Inst bash [1]",
            "Inst bash [1] (2)",
            "Inst bash [1 (2 Debian:12/stable [all])",
            "Inst -oDpkg::Pre-Invoke::=x [1] (2 Debian:12/stable [all])",
            "Inst bash- [1] (2 Debian:12/stable [all])",
            "Inst ../x [1] (2 Debian:12/stable [all])",
            "Inst a:b:c [1] (2 Debian:12/stable [all])",
        ] {
            assert_eq!(parse(line), Simulation::default(), "{line}");
        }
        assert!(!is_security("Insecurity:12/not-security-updates"));
        assert!(!is_security("security.example"));
    }
}
