//! Writes or compares the generated files: JSON Schemas and reference pages. Their text comes from
//! the program's own tables (kinds, codes, commands, variables), except for headings and
//! introductions.

mod command_line;
mod diagnostics;
mod documents;
mod environment;
mod markdown;
mod output;
mod timeouts;

use std::path::Path;

use anyhow::Result;
use homestak_core::doc::DocumentKind;

use crate::tree::File;

/// What to do with the generated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Write what differs.
    Write,
    /// Change nothing; report what differs.
    Compare,
}

/// Generates all files, and returns which were written or are out of date.
pub fn run(root: &Path, goal: Goal) -> Result<Vec<String>> {
    let files = files()?;
    let mut report = Vec::new();
    for file in &files {
        let path = root.join(&file.path);
        let current = fs_err::read_to_string(&path).ok();
        if current.as_deref() == Some(&file.text) {
            continue;
        }
        match goal {
            Goal::Write => {
                if let Some(directory) = path.parent() {
                    fs_err::create_dir_all(directory)?;
                }
                fs_err::write(&path, &file.text)?;
                report.push(file.path.clone());
            }
            Goal::Compare => report.push(difference(file, current.as_deref())),
        }
    }
    if goal == Goal::Compare {
        report.extend(leftovers(root, &files));
    }
    Ok(report)
}

/// Generates all files.
fn files() -> Result<Vec<File>> {
    let mut files: Vec<File> = DocumentKind::ALL
        .iter()
        .map(|kind| File::new(&schema_path(*kind), &format!("{:#}\n", kind.schema())))
        .collect();
    files.extend(output::schemas());
    let openapi = homestak_api::v1::openapi::document();
    files.push(File::new("schema/openapi.json", &format!("{openapi:#}\n")));
    let pages = [
        ("cli", command_line::page()?),
        ("diagnostics", diagnostics::page()?),
        ("documents", documents::page()?),
        ("environment", environment::page()),
        ("output", output::page()),
        ("timeouts", timeouts::page()),
    ];
    for (name, text) in pages {
        files.push(File::new(&format!("docs/reference/{name}.md"), &text));
    }
    Ok(files)
}

fn schema_path(kind: DocumentKind) -> String {
    format!("schema/{}.v{}.json", kind.name(), kind.version())
}

/// Describes where a file differs from the generated one.
fn difference(file: &File, current: Option<&str>) -> String {
    let Some(current) = current else {
        return format!("{}:1: missing: run `cargo xtask gen`", file.path);
    };
    let same = current
        .lines()
        .zip(file.text.lines())
        .take_while(|(one, other)| one == other)
        .count();
    format!(
        "{}:{}: out of date: run `cargo xtask gen`",
        file.path,
        same + 1
    )
}

/// Returns schemas that are no longer generated.
fn leftovers(root: &Path, files: &[File]) -> Vec<String> {
    let directories = ["schema", "schema/output", "schema/output/agent"];
    let entries = directories.iter().flat_map(|directory| {
        let entries = fs_err::read_dir(root.join(directory));
        let entries = entries.into_iter().flatten().flatten();
        let entries = entries.filter(|entry| entry.path().is_file());
        entries
            .filter_map(move |entry| Some(format!("{directory}/{}", entry.file_name().to_str()?)))
    });
    let mut left: Vec<String> = entries
        .filter(|path| !files.iter().any(|file| file.path == *path))
        .map(|path| format!("{path}:1: no longer generated: delete it"))
        .collect();
    left.sort();
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_first_line_and_the_command() {
        let file = File::new("schema/x.json", "a\nb\nc\n");
        assert_eq!(
            difference(&file, Some("a\nx\nc\n")),
            "schema/x.json:2: out of date: run `cargo xtask gen`"
        );
        assert_eq!(
            difference(&file, None),
            "schema/x.json:1: missing: run `cargo xtask gen`"
        );
    }

    #[test]
    fn generated_text_is_the_same_each_time_and_ends_in_one_newline() {
        let (first, second) = (files().unwrap(), files().unwrap());
        for (one, other) in first.iter().zip(&second) {
            assert_eq!(one.text, other.text, "{}", one.path);
            assert!(
                one.text.ends_with('\n') && !one.text.ends_with("\n\n"),
                "{}",
                one.path
            );
        }
    }
}
