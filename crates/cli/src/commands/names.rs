//! Shell completion of names: manifests, hosts, nodes. If they cannot be read, none are offered.

use std::collections::BTreeSet;
use std::process::ExitCode;

use homestak_driver::runs::RunSelector;
use homestak_driver::{DriverError, journal, nodes};

use crate::args::NamesArg;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Appended to the scripts that are generated from the command tree.
const BASH: &str = r#"
_homestak_names() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" kind=""
    case "$prev" in
        -M|--manifest) kind=manifests ;;
        -H|--host) kind=hosts ;;
        *)
            case "${COMP_WORDS[*]:1:COMP_CWORD-1}" in
                ssh|console|logs|exec|"spec diff"|"manifest forget") kind=nodes ;;
                "host show"|"host trust"|"host role"|"host preflight") kind=hosts ;;
                "manifest show"|"manifest validate"|"manifest graph") kind=manifests ;;
            esac ;;
    esac
    if [[ -n "$kind" && "$cur" != -* ]]; then
        COMPREPLY=($(compgen -W "$(homestak completions --names "$kind" 2>/dev/null)" -- "$cur"))
        return 0
    fi
    _homestak "$@"
}
complete -F _homestak_names -o bashdefault -o default homestak
"#;
const FISH: &str = "
complete -c homestak -s M -l manifest -x -a '(homestak completions --names manifests 2>/dev/null)'
complete -c homestak -s H -l host -x -a '(homestak completions --names hosts 2>/dev/null)'
complete -c homestak -n '__fish_seen_subcommand_from ssh console logs exec' -f -a '(homestak completions --names nodes 2>/dev/null)'
";
const ZSH: &str = r#"_homestak_name_manifests() { compadd -- ${(f)"$(homestak completions --names manifests 2>/dev/null)"} }
_homestak_name_hosts() { compadd -- ${(f)"$(homestak completions --names hosts 2>/dev/null)"} }
_homestak_name_nodes() { compadd -- ${(f)"$(homestak completions --names nodes 2>/dev/null)"} }

"#;

/// Adds the completion of names to a completion script.
pub(super) fn add(shell: clap_complete::Shell, script: &str) -> String {
    match shell {
        clap_complete::Shell::Bash => format!("{script}{BASH}"),
        clap_complete::Shell::Fish => format!("{script}{FISH}"),
        clap_complete::Shell::Zsh => zsh(script),
        _ => script.to_owned(),
    }
}

/// Inserts the functions after the first line, `#compdef homestak`, which must stay first, and uses
/// them for the arguments that are names.
fn zsh(script: &str) -> String {
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    let mut text = format!("{first}\n\n{ZSH}");
    for line in rest.lines() {
        let starts = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
        let kind = if starts(&["'-M+[", "'--manifest=[", "'::name -- Name of a manifest"]) {
            "manifests"
        } else if starts(&["'-H+[", "'--host=["]) {
            "hosts"
        } else if starts(&["':node --", "'*::nodes --"]) {
            "nodes"
        } else {
            ""
        };
        let completer = format!(":_homestak_name_{kind}'");
        let line = match kind {
            "" => line.to_owned(),
            _ => line.replace(":_default'", &completer),
        };
        text += &line;
        text.push('\n');
    }
    text
}

/// Prints names, one per line.
pub(super) fn print(kind: NamesArg, settings: &Settings, printer: &Printer) -> ExitCode {
    let names = read_names(kind, settings).unwrap_or_default();
    let lines = names.into_iter().map(|name| format!("{name}\n"));
    printer.data(&lines.collect::<String>());
    ExitCode::SUCCESS
}

fn read_names(kind: NamesArg, settings: &Settings) -> Result<BTreeSet<String>, DriverError> {
    let session = settings.session()?;
    Ok(match kind {
        NamesArg::Manifests => session.catalog.manifests.keys().cloned().collect(),
        NamesArg::Hosts => {
            let built_in = session.catalog.built_in_hosts().map(str::to_owned);
            session
                .catalog
                .guest_hosts()
                .cloned()
                .chain(built_in)
                .collect()
        }
        NamesArg::Nodes => {
            let journal = journal(&settings.driver)?;
            let all_runs = RunSelector::default();
            let nodes = block_on(nodes::all(journal.as_ref(), &session, &all_runs))??;
            let nodes = nodes.list.iter();
            nodes.map(|node| node.name().to_owned()).collect()
        }
    })
}
