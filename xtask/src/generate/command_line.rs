//! Generates `docs/reference/cli.md` from the clap command tree.

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use homestak_cli::args::Cli;
use homestak_cli::legacy::{RETIRED, VERBS};

use super::markdown::Page;

/// Returns the page.
pub(super) fn page() -> Result<String> {
    let mut root = Cli::command();
    root.build();
    let mut page = Page::new("Command line");
    page.paragraph(&sentence(&root));
    page.paragraph(
        "Results go to stdout, everything else to stderr. \
         `--help` after a command prints the same text.",
    );
    page.heading(2, "Global options");
    page.paragraph("They can be given before or after the command.");
    let global: Vec<&Arg> = root.get_arguments().filter(|arg| shown(arg)).collect();
    page.table(&["option", "meaning"], &rows(&global));
    page.heading(2, "Exit codes");
    page.table(&["code", "meaning"], &exit_codes(&root)?);
    page.heading(2, "Commands");
    for command in root.get_subcommands() {
        describe(command, &mut page);
    }
    page.heading(2, "Aliases");
    page.paragraph("Short forms, and commands of earlier versions.");
    let verbs: Vec<_> = VERBS
        .iter()
        .map(|(verb, words)| {
            let mut today = format!("`homestak {}`", words.join(" "));
            if !exists(&root, words) {
                today += " (not in this version)";
            }
            vec![format!("`homestak {verb}`"), today]
        })
        .collect();
    page.table(&["alias", "command"], &verbs);
    page.heading(2, "Scenarios");
    page.paragraph("Scenarios of earlier versions were replaced by manifests.");
    let retired: Vec<_> = RETIRED
        .iter()
        .map(|(name, verb, manifest)| {
            vec![
                format!("`{name}`"),
                format!("`homestak manifest {verb} -M {manifest}`"),
            ]
        })
        .collect();
    page.table(&["scenario", "replaced by"], &retired);
    Ok(page.finish())
}

/// Returns whether the tree has a command. Flags end the search.
fn exists(command: &Command, words: &[&str]) -> bool {
    match words.split_first() {
        Some((word, rest)) if !word.starts_with('-') => command
            .find_subcommand(word)
            .is_some_and(|below| exists(below, rest)),
        _ => true,
    }
}

/// Describes a command and its subcommands.
fn describe(command: &Command, page: &mut Page) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    page.heading(3, &format!("`{name}`"));
    page.paragraph(&sentence(command));
    if let Some(more) = command.get_after_help() {
        page.code(&more.to_string());
    }
    if command.has_subcommands() {
        for below in command.get_subcommands() {
            describe(below, page);
        }
        return;
    }
    let usage = command.clone().render_usage().to_string();
    page.code(usage.trim_start_matches("Usage: "));
    let own = || {
        command
            .get_arguments()
            .filter(|arg| shown(arg) && !arg.is_global_set())
    };
    let values: Vec<&Arg> = own().filter(|arg| arg.is_positional()).collect();
    if !values.is_empty() {
        page.table(&["argument", "meaning"], &rows(&values));
    }
    let options: Vec<&Arg> = own().filter(|arg| !arg.is_positional()).collect();
    if !options.is_empty() {
        page.table(&["option", "meaning"], &rows(&options));
    }
}

/// Returns the description of a command with a period, which help in the terminal lacks.
fn sentence(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let paragraphs: Vec<String> = about.split("\n\n").map(full_stop).collect();
    paragraphs.join(" ")
}

fn full_stop(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', '!', '?']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

/// Returns whether an argument is listed; `--help` and `--version` exist everywhere.
fn shown(arg: &Arg) -> bool {
    !arg.is_hide_set()
        && !matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        )
}

fn rows(args: &[&Arg]) -> Vec<Vec<String>> {
    args.iter()
        .map(|arg| vec![format!("`{}`", spelling(arg)), meaning(arg)])
        .collect()
}

/// Returns how an argument is written: `-M, --manifest <NAME>`.
fn spelling(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names
        .iter()
        .map(|name| format!("<{name}>"))
        .collect::<Vec<_>>()
        .join(" ");
    if arg.is_positional() {
        let many = matches!(arg.get_action(), ArgAction::Append);
        return if many { format!("{value}...") } else { value };
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let takes_value = arg.get_action().takes_values();
    if takes_value {
        format!("{} {value}", flags.join(", "))
    } else {
        flags.join(", ")
    }
}

/// Returns the help of an argument with its choices and its default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut meaning = full_stop(&help.map(ToString::to_string).unwrap_or_default());
    if !arg.get_action().takes_values() {
        return meaning;
    }
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|choice| !choice.is_hide_set())
        .map(|choice| {
            let name = choice.get_name();
            match choice.get_help() {
                Some(help) => format!("`{name}` ({help})"),
                None => format!("`{name}`"),
            }
        })
        .collect();
    if !choices.is_empty() {
        meaning += &format!(" One of {}.", choices.join(", "));
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .filter(|value| !value.is_empty())
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if !defaults.is_empty() {
        meaning += &format!(" Default: {}.", defaults.join(", "));
    }
    if arg.is_required_set() {
        meaning += " Required.";
    }
    meaning
}

/// Returns the exit codes from the end of the program's help.
fn exit_codes(root: &Command) -> Result<Vec<Vec<String>>> {
    let help = root
        .get_after_help()
        .context("the help of `homestak` does not end with exit codes")?
        .to_string();
    let rows: Vec<_> = help
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(code, _)| code.parse::<u8>().is_ok())
        .map(|(code, meaning)| vec![format!("`{code}`"), meaning.trim().to_owned()])
        .collect();
    if rows.is_empty() {
        anyhow::bail!("the help of `homestak` lists no exit codes");
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_heading() {
        fn walk(command: &Command, page: &str) {
            for below in command
                .get_subcommands()
                .filter(|below| below.get_name() != "help" && !below.is_hide_set())
            {
                let name = below.get_bin_name().unwrap();
                assert!(page.contains(&format!("### `{name}`\n")), "{name}");
                walk(below, page);
            }
        }
        let mut root = Cli::command();
        root.build();
        walk(&root, &page().unwrap());
    }

    #[test]
    fn commands_are_looked_up_in_the_tree() {
        let root = Cli::command();
        assert!(exists(&root, &["manifest", "validate", "--flag"]));
        assert!(!exists(&root, &["manifest", "frobnicate"]));
    }

    #[test]
    fn options_show_choices_and_defaults() {
        let arg = Arg::new("format")
            .long("format")
            .short('f')
            .value_name("WORD")
            .help("What to draw")
            .value_parser(["tree", "svg"])
            .default_value("tree");
        assert_eq!(spelling(&arg), "-f, --format <WORD>");
        assert_eq!(
            meaning(&arg),
            "What to draw. One of `tree`, `svg`. Default: `tree`."
        );
    }
}
