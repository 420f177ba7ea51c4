//! Generates `schema/output/` and `docs/reference/output.md` from [`OUTPUTS`].

use homestak_api::v1::kind::WITHOUT_KIND;
use homestak_api::v1::{OUTPUTS, OutputKind, Program, UNTAGGED};

use super::markdown::Page;
use crate::tree::File;

/// Returns the JSON Schema of everything that is written for other processes.
pub(super) fn schemas() -> impl Iterator<Item = File> {
    let of_kinds = OUTPUTS
        .iter()
        .map(|output| (file(output), output.json_schema()));
    let others = UNTAGGED.iter();
    let others = others.map(|output| (file_of(output.program, output.name), (output.schema)()));
    of_kinds.chain(others).map(|(file, schema)| {
        let text = format!("{schema:#}\n");
        File::new(&format!("schema/output/{file}"), &text)
    })
}

fn file(output: &OutputKind) -> String {
    file_of(output.program, output.kind)
}

fn file_of(program: Program, name: &str) -> String {
    match program {
        Program::Homestak => format!("{name}.json"),
        Program::Agent => format!("agent/{name}.json"),
    }
}

fn link(file: &str) -> String {
    format!("[{file}](../../schema/output/{file})")
}

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = Page::new("JSON output");
    page.paragraph(
        "With `--json-output` a command prints one JSON object on stdout. \
         The fields `kind` and `version` come first and identify its format. \
         Later versions may add fields; ignore fields that you do not know.",
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
            let (kind, schema) = (format!("`{}`", output.kind), link(&file(output)));
            rows.extend(
                (commands.into_iter()).map(|name| vec![name, kind.clone(), schema.clone()]),
            );
        }
        rows.sort();
        page.table(&["command", "kind", "schema"], &rows);
    }
    page.heading(2, "Events and files");
    page.paragraph("They have no `kind` and no `version`; the same rules apply to them.");
    let rows: Vec<_> = UNTAGGED
        .iter()
        .map(|output| {
            let program = match output.program {
                Program::Homestak => "`homestak`",
                Program::Agent => "`homestak-agent`",
            };
            let schema = link(&file_of(output.program, output.name));
            vec![program.to_owned(), output.description.to_owned(), schema]
        })
        .collect();
    page.table(&["program", "what it writes", "schema"], &rows);
    page.heading(2, "Commands without a kind");
    page.paragraph(
        "`--json-output` does not change what they print, or is passed on to another program.",
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
        let of_kinds = OUTPUTS
            .iter()
            .map(|output| (output.kind, output.json_schema()));
        let others = UNTAGGED
            .iter()
            .map(|output| (output.name, (output.schema)()));
        for (output, schema) in of_kinds.chain(others) {
            assert_eq!(
                schema["$schema"],
                "https://json-schema.org/draft/2020-12/schema"
            );
            for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
                let first = known
                    .entry(name.clone())
                    .or_insert_with(|| definition.clone());
                assert_eq!(first, definition, "{name} in {output}");
            }
        }
    }
}
