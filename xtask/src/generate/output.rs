//! `schema/output/` and `docs/reference/output.md`, from the table of outputs.

use homestak_api::v1::kind::WITHOUT_KIND;
use homestak_api::v1::{OUTPUTS, OutputKind, Program};

use super::markdown::Page;
use crate::tree::File;

/// Makes the JSON Schema of every output.
pub(super) fn schemas() -> impl Iterator<Item = File> {
    OUTPUTS.iter().map(|output| {
        let text = format!("{:#}\n", output.json_schema());
        File::new(&format!("schema/output/{}", file(output)), &text)
    })
}

fn file(output: &OutputKind) -> String {
    match output.program {
        Program::Homestak => format!("{}.json", output.kind),
        Program::Agent => format!("agent/{}.json", output.kind),
    }
}

/// Makes the page.
pub(super) fn page() -> String {
    let mut page = Page::new("JSON output");
    page.paragraph(
        "With `--json-output` a command prints one JSON object on stdout. \
         `kind` and `version` come first and tell which one it is. \
         Fields may be added; readers ignore fields they do not know.",
    );
    page.paragraph(
        "Each kind has a JSON Schema (2020-12) in `schema/output/`, and a type of the same shape in \
         the crate `homestak-api`, module `v1`.",
    );
    page.paragraph(
        "A command of `homestak` that fails prints the kind `error`, whatever its own kind is. \
         A command of `homestak-agent` that fails prints `success`, `error` and `message` under its \
         own kind.",
    );
    page.paragraph(
        "With `--events` as well, each event of a run is one line of JSON, and the result is the \
         last line.",
    );
    for (title, program, name) in [
        ("Commands of `homestak`", Program::Homestak, "homestak"),
        (
            "Commands of `homestak-agent`",
            Program::Agent,
            "homestak-agent",
        ),
    ] {
        page.heading(2, title);
        let mut rows = Vec::new();
        for output in OUTPUTS.iter().filter(|output| output.program == program) {
            let commands = output.commands.iter();
            let mut commands: Vec<String> = commands
                .map(|command| format!("`{name} {command}`"))
                .collect();
            if commands.is_empty() {
                commands.push("any, when it fails".to_owned());
            }
            let (kind, file) = (format!("`{}`", output.kind), file(output));
            let schema = format!("[{file}](../../schema/output/{file})");
            rows.extend(
                (commands.into_iter()).map(|name| vec![name, kind.clone(), schema.clone()]),
            );
        }
        rows.sort();
        page.table(&["command", "kind", "schema"], &rows);
    }
    page.heading(2, "Commands without a kind");
    page.paragraph(
        "They print the same with `--json-output` as without, or what another program prints.",
    );
    let rows: Vec<_> = WITHOUT_KIND
        .iter()
        .map(|(command, printed)| vec![format!("`homestak {command}`"), (*printed).to_owned()])
        .collect();
    page.table(&["command", "what it prints"], &rows);
    page.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{Command, CommandFactory as _};
    use homestak_cli::args::Cli;

    use super::*;

    fn leaves(command: &Command, words: &str, all: &mut Vec<String>) {
        for below in command.get_subcommands() {
            let words = format!("{words} {}", below.get_name());
            match below.get_name() {
                "help" => {}
                _ if below.has_subcommands() => leaves(below, &words, all),
                _ => all.push(words.trim().to_owned()),
            }
        }
    }

    #[test]
    fn every_command_has_a_kind_or_a_reason_to_have_none() {
        let mut commands = Vec::new();
        leaves(&Cli::command(), "", &mut commands);
        commands.sort();
        let outputs = OUTPUTS.iter();
        let outputs = outputs.filter(|output| output.program == Program::Homestak);
        let words = |command: &&str| command.split(" --").next().unwrap_or_default().to_owned();
        let with_kind = outputs.flat_map(|output| output.commands).map(words);
        let without = WITHOUT_KIND
            .iter()
            .map(|(command, _)| (*command).to_owned());
        let mut listed: Vec<String> = with_kind.chain(without).collect();
        listed.sort();
        listed.dedup();
        assert_eq!(listed, commands);
    }

    #[test]
    fn no_type_has_a_field_that_hides_kind_or_version() {
        for output in OUTPUTS {
            let schema = output.json_schema();
            assert_eq!(schema["properties"]["kind"]["const"], output.kind);
            let variants = schema["anyOf"].as_array().into_iter().flatten();
            let names = variants.filter_map(|variant| variant["$ref"].as_str());
            for name in names.filter_map(|name| name.strip_prefix("#/$defs/")) {
                for field in ["kind", "version"] {
                    let fields = &schema["$defs"][name]["properties"];
                    assert!(fields[field].is_null(), "{name}.{field} in {}", output.kind);
                }
            }
        }
    }

    #[test]
    fn a_definition_is_the_same_in_every_schema() {
        let mut known = BTreeMap::new();
        for output in OUTPUTS {
            let schema = output.json_schema();
            assert_eq!(
                schema["$schema"],
                "https://json-schema.org/draft/2020-12/schema"
            );
            for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
                let first = known
                    .entry(name.clone())
                    .or_insert_with(|| definition.clone());
                assert_eq!(first, definition, "{name} in {}", output.kind);
            }
        }
    }
}
