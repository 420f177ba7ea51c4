//! Which crate of the workspace may depend on which. Third-party crates are covered by `deny.toml`.

use anyhow::{Context as _, Result};
use serde_json::Value as Json;

use crate::process;
use crate::tree::root;

/// The allowed dependencies. A new one is a design decision: document it in `docs/design/` first.
pub const ALLOWED: &[(&str, &[&str])] = &[
    ("homestak-core", &[]),
    ("homestak-api", &["homestak-core"]),
    ("homestak-agent", &["homestak-api", "homestak-core"]),
    ("homestak-engine", &["homestak-api", "homestak-core"]),
    (
        "homestak-providers",
        &["homestak-api", "homestak-core", "homestak-engine"],
    ),
    (
        "homestak-server",
        &["homestak-api", "homestak-core", "homestak-store"],
    ),
    ("homestak-sim", &["homestak-api", "homestak-core"]),
    ("homestak-secrets", &["homestak-core"]),
    ("homestak-site", &["homestak-api", "homestak-core"]),
    (
        "homestak-store",
        &["homestak-api", "homestak-core", "homestak-engine"],
    ),
    (
        "homestak",
        &[
            "homestak-agent",
            "homestak-api",
            "homestak-core",
            "homestak-driver",
            "homestak-server",
            "homestak-sim",
            "homestak-site",
        ],
    ),
    (
        "homestak-driver",
        &[
            "homestak-api",
            "homestak-core",
            "homestak-engine",
            "homestak-providers",
            "homestak-secrets",
            "homestak-sim",
            "homestak-site",
            "homestak-store",
        ],
    ),
    (
        "homestak-test-support",
        &[
            "homestak-api",
            "homestak-core",
            "homestak-engine",
            "homestak-providers",
        ],
    ),
    ("xtask", &["homestak", "homestak-api", "homestak-core"]),
];

/// Additional dependencies of tests.
pub const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    (
        "homestak",
        &[
            "homestak-engine",
            "homestak-providers",
            "homestak-store",
            "homestak-test-support",
        ],
    ),
    (
        "homestak-agent",
        &["homestak-server", "homestak-test-support"],
    ),
    ("homestak-store", &["homestak-test-support"]),
    (
        "homestak-engine",
        &[
            "homestak-providers",
            "homestak-sim",
            "homestak-store",
            "homestak-test-support",
        ],
    ),
    (
        "homestak-providers",
        &["homestak-sim", "homestak-test-support"],
    ),
];

/// Returns every dependency of this workspace that is not in the table.
pub fn check() -> Result<Vec<String>> {
    compare(&process::own_packages(&root())?)
}

fn compare(metadata: &Json) -> Result<Vec<String>> {
    let packages = metadata["packages"]
        .as_array()
        .context("`cargo metadata` lists no packages")?;
    let names: Vec<&str> = packages
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(product) = row(ALLOWED, name) else {
            faults.push(format!(
                "{name} is not in the table: list its dependencies in xtask/src/crate_dependencies.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let test = dependency["kind"] == "dev";
            let allowed = product.contains(&to)
                || test && row(ALLOWED_IN_TESTS, name).is_some_and(|row| row.contains(&to));
            if names.contains(&to) && !allowed {
                let kind = if test { " in tests" } else { "" };
                faults.push(format!(
                    "{name} uses {to}{kind}, which xtask/src/crate_dependencies.rs does not allow"
                ));
            }
        }
    }
    for (name, _) in ALLOWED.iter().chain(ALLOWED_IN_TESTS) {
        if !names.contains(name) {
            faults.push(format!(
                "{name} is in the table but not in the workspace: remove its row"
            ));
        }
    }
    Ok(faults)
}

fn row(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(from, _)| *from == name)
        .map(|(_, to)| *to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(name: &str, dependencies: Json) -> Vec<String> {
        let mut packages: Vec<Json> = ALLOWED
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(name, _)| json!({ "name": name, "dependencies": [] }))
            .collect();
        packages.push(json!({ "name": name, "dependencies": dependencies }));
        compare(&json!({ "packages": packages })).unwrap()
    }

    #[test]
    fn listed_dependencies_and_third_party_crates_are_allowed() {
        let used =
            json!([{ "name": "homestak-core", "kind": null }, { "name": "serde", "kind": null }]);
        assert_eq!(workspace("homestak-site", used), [""; 0]);
    }

    #[test]
    fn a_dependency_that_is_not_listed_is_a_fault() {
        let used = json!([{ "name": "homestak-site", "kind": null }]);
        assert!(
            workspace("homestak-core", used)[0].starts_with("homestak-core uses homestak-site,")
        );
    }

    #[test]
    fn a_dependency_of_tests_is_reported_as_such() {
        let used = json!([{ "name": "homestak-site", "kind": "dev" }]);
        assert!(workspace("homestak-core", used)[0].contains("uses homestak-site in tests"));
    }

    #[test]
    fn a_crate_without_a_row_is_a_fault() {
        assert!(workspace("homestak-new", json!([]))[0].contains("not in the table"));
    }
}
