//! Checks that members take lints and dependencies from the workspace's `Cargo.toml`.

use super::Fault;
use crate::tree::File;

pub(super) fn check(file: &File, faults: &mut Vec<Fault>) {
    let member = file.path.starts_with("crates/") || file.path.starts_with("xtask/");
    if file.name() != "Cargo.toml" || !member {
        return;
    }
    let mut fault = |line, message: String| faults.push(Fault::new(&file.path, line, message));
    let mut section = "";
    let mut lints = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            if let Some((_, name)) = section.split_once("dependencies.") {
                let message =
                    format!("`{name}` has its own section, write `{name}.workspace = true`");
                fault(index + 1, message);
            }
        } else if section == "lints" && line.replace(' ', "") == "workspace=true" {
            lints = true;
        } else if section.ends_with("dependencies")
            && let Some((name, value)) = line.split_once('=')
            && let Some(message) = dependency(name.trim(), value.trim())
        {
            fault(index + 1, message);
        }
    }
    if !lints {
        fault(
            1,
            "the workspace's lints are not used, add `[lints]` with `workspace = true`".into(),
        );
    }
}

/// Returns what is wrong with a dependency, if anything.
fn dependency(name: &str, value: &str) -> Option<String> {
    if let Some(name) = name.strip_suffix(".workspace") {
        return (value != "true").then(|| format!("write `{name}.workspace = true`"));
    }
    let shared = value.replace(' ', "").contains("workspace=true");
    if !shared {
        return Some(format!(
            "`{name}` is not taken from the workspace, put it into the root's `[workspace.dependencies]` and write `{name}.workspace = true`"
        ));
    }
    value.contains("features").then(|| {
        format!("`{name}` has its own features, set them in the root's `[workspace.dependencies]`: otherwise it is rebuilt for each member")
    })
}

#[cfg(test)]
mod tests {
    use super::super::faults_of;
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        faults_of(check, "crates/core/Cargo.toml", text)
    }

    #[test]
    fn members_take_everything_from_the_workspace() {
        let good = "[lints]\nworkspace = true\n[dependencies]\na.workspace = true # why\nb = { workspace = true, optional = true }\n[features]\nx = []\n";
        assert_eq!(faults(good), [""; 0]);
        assert_eq!(
            faults_of(check, "Cargo.toml", "[workspace.dependencies]\na = \"1\"\n"),
            [""; 0]
        );
    }

    #[test]
    fn versions_paths_and_features_of_members_are_faults() {
        let bad = "[lints]\nworkspace = true\n[dev-dependencies]\na = \"1\"\nb = { path = \"../b\" }\nc = { workspace = true, features = [\"x\"] }\n[dependencies.d]\nversion = \"1\"\n";
        let found = faults(bad);
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("crates/core/Cargo.toml:4: `a` is not taken"));
        assert!(found[2].contains("its own features"));
    }

    #[test]
    fn members_use_the_lints_of_the_workspace() {
        assert!(faults("[package]\nname = \"x\"\n")[0].contains("lints"));
    }
}
