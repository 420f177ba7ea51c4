//! Checks links between Markdown files: the file and the heading must exist. Web links are not
//! checked.

use std::collections::BTreeSet;

use super::Fault;
use crate::tree::{File, Tree};

pub(super) fn check(tree: &Tree, faults: &mut Vec<Fault>) {
    let pages = tree
        .files
        .iter()
        .filter(|file| file.ends_in(&["md"]) && !file.is_test_data());
    for file in pages {
        for (number, line) in prose(&file.text) {
            for target in targets(&line) {
                if let Some(message) = fault(tree, file, target) {
                    faults.push(Fault::new(&file.path, number, message));
                }
            }
        }
    }
}

/// Returns what is wrong with the target of a link, if anything.
fn fault(tree: &Tree, file: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let found = if path.is_empty() {
        Some(file.path.clone())
    } else {
        resolve(&file.path, path)
    };
    let Some(found) = found.filter(|found| found.is_empty() || tree.paths.contains(found)) else {
        return Some(format!(
            "the target of the link `{target}` does not exist, correct the path"
        ));
    };
    let page = tree.file(&found).filter(|page| page.ends_in(&["md"]))?;
    (!heading.is_empty() && !headings(&page.text).contains(heading))
        .then(|| format!("`{found}` has no heading for the link `{target}`, correct it"))
}

/// Resolves a relative path to one from the root, or `None` outside of the root.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if path.starts_with('/') {
        parts.clear();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the lines outside of code blocks, without code between backticks.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
            lines.push((index + 1, outside));
        }
    }
    lines
}

/// Returns the targets of `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut targets: Vec<&str> = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect();
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.extend(target.split_whitespace().next());
    }
    targets
}

/// Returns the anchors of headings: lower case, hyphens for spaces.
fn headings(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || !line.starts_with('#') {
            continue;
        }
        let name: String = line
            .trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        // The second heading of the same name gets a number.
        let mut unique = name.clone();
        let mut count = 0;
        while !found.insert(unique.clone()) {
            count += 1;
            unique = format!("{name}-{count}");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", "# Two words: `x`\n\n# Again\n\n# Again\n"),
            ("schema/x.json", "{}"),
        ]);
        let mut faults = Vec::new();
        check(&tree, &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn broken_links_are_found() {
        assert_eq!(
            faults("# A\n\n[x](c.md)\n"),
            ["docs/a.md:3: the target of the link `c.md` does not exist, correct the path"]
        );
        assert_eq!(
            faults("[x](../../out.md) [`y`](#b)\n[z]: b.md#no\n").len(),
            3
        );
    }

    #[test]
    fn working_links_are_accepted() {
        let text = "# A\n\n[`x`](b.md#two-words-x) [y](../schema) [z](#a) [s](../schema/x.json)\n\
            [w](https://example.org) [n](b.md#again-1)\n`[no](link.md)`\n```\n[no](link.md)\n```\n\n[r]: ./b.md\n";
        assert_eq!(faults(text), [""; 0]);
    }
}
