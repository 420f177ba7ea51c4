//! Finds dependencies that no code names: of members, of members' tests, and of the workspace's table.
//! What only tests use belongs in `[dev-dependencies]`.

use super::Fault;
use super::line::{find_word, lines};
use crate::tree::{File, Tree};

/// Packages of others whose library has another name.
const LIBRARIES: &[(&str, &str)] = &[("md-5", "md5")];

pub(super) fn check(tree: &Tree, faults: &mut Vec<Fault>) {
    let members: Vec<&File> = tree.files.iter().filter(|file| is_member(file)).collect();
    for manifest in &members {
        let inside = manifest.path.trim_end_matches("Cargo.toml");
        let sources = tree.files.iter();
        let sources = sources.filter(|file| file.is_rust() && file.path.starts_with(inside));
        let sources: Vec<(bool, String)> = sources.flat_map(code).collect();
        for (section, name, line) in entries(manifest) {
            let library = library(&members, name);
            let uses = |in_tests: bool| {
                let mut sources = sources.iter().filter(|(test, _)| in_tests || !test);
                sources.any(|(_, code)| find_word(code, &library).is_some())
            };
            let message = match section {
                "dependencies" if !uses(false) => format!(
                    "`{name}` is not used outside tests, remove it or move it to `[dev-dependencies]`"
                ),
                "dev-dependencies" if !uses(true) => format!("`{name}` is not used, remove it"),
                _ => continue,
            };
            faults.push(Fault::new(&manifest.path, line, message));
        }
    }
    for (section, name, line) in tree.file("Cargo.toml").map(entries).unwrap_or_default() {
        let named = |file: &&File| entries(file).iter().any(|(_, other, _)| *other == name);
        if section == "workspace.dependencies" && !members.iter().any(named) {
            let message = format!("`{name}` is used by no member, remove it");
            faults.push(Fault::new("Cargo.toml", line, message));
        }
    }
}

fn is_member(file: &File) -> bool {
    let member = file.path.starts_with("crates/") || file.path.starts_with("xtask/");
    member && file.name() == "Cargo.toml"
}

/// Returns the dependencies that a manifest names: section, name and line.
fn entries(manifest: &File) -> Vec<(&str, &str, usize)> {
    let mut section = "";
    let mut entries = Vec::new();
    for line in lines(manifest) {
        if let Some(name) = line.text.trim().strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let name = line.text.split(['.', '=', ' ', '#']).next();
        if let Some(name) = name.filter(|name| !name.is_empty())
            && section.ends_with("dependencies")
            && line.text.contains('=')
        {
            entries.push((section, name, line.number));
        }
    }
    entries
}

/// Returns the code of a file: that of tests, and the rest. The crate for tests has only the latter.
fn code(file: &File) -> [(bool, String); 2] {
    let is_for_tests = file.path.starts_with("crates/test-support/");
    let (tests, others): (Vec<_>, Vec<_>) = lines(file)
        .into_iter()
        .partition(|line| line.test && !is_for_tests);
    let joined = |lines: Vec<super::line::Line<'_>>| {
        let code: Vec<String> = lines.into_iter().map(|line| line.code).collect();
        code.join("\n")
    };
    [(true, joined(tests)), (false, joined(others))]
}

/// Returns the name of a package's library in code.
fn library(members: &[&File], package: &str) -> String {
    if let Some((_, library)) = LIBRARIES.iter().find(|(name, _)| *name == package) {
        return (*library).to_owned();
    }
    let own = format!("name = \"{package}\"\n");
    let manifest = members.iter().find(|file| file.text.contains(&own));
    let named = manifest.and_then(|file| file.text.split_once("[lib]\nname = \""));
    let named = named.and_then(|(_, rest)| rest.split_once('"'));
    named.map_or_else(|| package.replace('-', "_"), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_dependencies_and_those_that_only_tests_use_are_faults() {
        let manifest = "[dependencies]\none-a.workspace = true\ntwo.workspace = true\n\
                        three.workspace = true\nmd-5.workspace = true\nb.workspace = true\n\
                        [dev-dependencies]\nfive.workspace = true\n\
                        six.workspace = true\n";
        let source = "use one_a::x; use md5::y; // two\nfn f() -> b_lib::B { \"two\" }\n\
                      #[cfg(test)]\nmod tests {\n    use two::x;\n}\n";
        let root = "[workspace.dependencies]\ntwo = \"1\"\nseven = \"1\"\n";
        let tree = Tree::of(&[
            ("Cargo.toml", root),
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/src/lib.rs", source),
            ("crates/a/src/tests.rs", "use three::x;\n"),
            ("crates/a/tests/it.rs", "use five::x;\n"),
            (
                "crates/b/Cargo.toml",
                "name = \"b\"\n[lib]\nname = \"b_lib\"\n",
            ),
        ]);
        let mut faults = Vec::new();
        check(&tree, &mut faults);
        let found: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("crates/a/Cargo.toml:3: `two` is not used outside tests"));
        assert!(found[1].starts_with("crates/a/Cargo.toml:4: `three` is not used outside tests"));
        assert!(found[2].starts_with("crates/a/Cargo.toml:9: `six` is not used, remove it"));
        assert!(found[3].starts_with("Cargo.toml:3: `seven` is used by no member"));
    }
}
