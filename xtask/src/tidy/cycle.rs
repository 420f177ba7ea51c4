//! Finds import cycles among the modules directly below a crate's `src`. Tests and re-exports of
//! the crate root under another name are ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Fault;
use super::line::lines;
use crate::tree::{File, Tree};

/// Crates without import cycles. Add a crate once its cycles are resolved.
const CRATES: &[&str] = &["agent", "api", "providers", "store"];

/// Where a module is imported: path and line.
type Location<'t> = (&'t str, usize);
/// What a module imports.
type Imports<'t> = BTreeMap<&'t str, BTreeMap<&'t str, Location<'t>>>;

pub(super) fn check(tree: &Tree, faults: &mut Vec<Fault>) {
    for name in CRATES {
        let root = format!("crates/{name}/src/");
        let files: Vec<_> = tree
            .files
            .iter()
            .filter_map(|file| locate(file, &root))
            .collect();
        let modules: BTreeSet<&str> = files.iter().map(|(_, module, _)| *module).collect();
        let codes: Vec<String> = files.iter().map(|(file, ..)| code(file)).collect();
        let mut imports = Imports::new();
        for ((file, module, depth), code) in files.iter().zip(&codes) {
            for (name, line) in names(code, *depth) {
                if let Some(other) = modules.get(name).filter(|other| *other != module) {
                    let all = imports.entry(*module).or_default();
                    all.entry(*other).or_insert((&file.path, line));
                }
            }
        }
        for module in modules {
            if let Some(cycle) = cycle(module, &imports) {
                let (path, line) = imports[module][cycle[1]];
                let message = format!(
                    "import cycle {}: move shared items into a module of their own",
                    cycle.join(" -> ")
                );
                faults.push(Fault::new(path, line, message));
            }
        }
    }
}

/// Returns the module of a crate that a file belongs to, and how deep below the crate it is.
fn locate<'t>(file: &'t File, root: &str) -> Option<(&'t File, &'t str, usize)> {
    let inner = file.path.strip_prefix(root)?.strip_suffix(".rs")?;
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    let module = inner.split('/').next()?;
    let is_root = module == "lib" || module == "main";
    (!is_root && !file.is_test()).then(|| (file, module, inner.split('/').count()))
}

/// Returns the code of a file without tests, line by line.
fn code(file: &File) -> String {
    let lines = lines(file);
    let code = lines
        .iter()
        .map(|line| if line.test { "" } else { &line.code });
    code.collect::<Vec<_>>().join("\n")
}

/// Returns the names that follow the crate root in paths, with their lines.
fn names(code: &str, depth: usize) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for needle in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&needle) {
            if code[..at].ends_with(is_part) || code[..at].ends_with("super::") {
                continue;
            }
            let at = at + needle.len();
            let mut starts = vec![at];
            if let Some(list) = code[at..].strip_prefix('{') {
                starts[0] += 1;
                let mut depth = 0;
                for (inner, letter) in list.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => starts.push(at + inner + 2),
                        _ => {}
                    }
                }
            }
            for start in starts {
                let text = code[start..].trim_start();
                let end = text.find(|letter| !is_part(letter)).unwrap_or(text.len());
                found.push((&text[..end], code[..start].lines().count()));
            }
        }
    }
    found
}

fn is_part(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the shortest cycle through a module; only modules that sort after it are followed.
fn cycle<'t>(module: &'t str, imports: &Imports<'t>) -> Option<Vec<&'t str>> {
    let mut paths = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        let last = path.last().copied().unwrap_or(module);
        for next in imports
            .get(last)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .copied()
        {
            let longer = [path.as_slice(), &[next]].concat();
            if next == module {
                return Some(longer);
            }
            if next > module && seen.insert(next) {
                paths.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let mut faults = Vec::new();
        check(&Tree::of(files), &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_a_fault() {
        let found = faults(&[
            (
                "crates/agent/src/a.rs",
                "//! A.\n\nuse crate::{\n    c::{b, D},\n    x,\n};\n",
            ),
            ("crates/agent/src/b/mod.rs", "use super::a;\n"),
            ("crates/agent/src/b/inner.rs", "use super::super::a;\n"),
            (
                "crates/agent/src/c.rs",
                "fn f() { crate::b::g(\"crate::c\") } // crate::a\n",
            ),
        ]);
        assert_eq!(found.len(), 1);
        let start = "crates/agent/src/a.rs:3: import cycle a -> c -> b -> a: ";
        assert!(found[0].starts_with(start), "{}", found[0]);
    }

    #[test]
    fn a_module_and_tests_may_import_what_imports_them() {
        let tests = "#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::a::x;\n}\n";
        let found = faults(&[
            ("crates/agent/src/a/mod.rs", "mod c;\nuse crate::b;\n"),
            (
                "crates/agent/src/a/c.rs",
                "use super::d;\nuse crate::a::e;\n",
            ),
            ("crates/agent/src/b.rs", tests),
            ("crates/agent/src/lib.rs", "use crate::a;\nuse crate::b;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
