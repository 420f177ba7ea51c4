//! Earlier spellings of commands: verbs without a noun, and names that are retired.
//!
//! They are translated into current commands; none has an implementation of its own.

use std::ffi::{OsStr, OsString};

/// The result of translating arguments.
#[derive(Debug, PartialEq, Eq)]
pub enum Translated {
    /// Run these.
    Run(Vec<OsString>),
    /// The name is retired; this is what to use.
    Retired {
        /// The retired name.
        name: String,
        /// What replaces it.
        replacement: String,
    },
}

/// Verbs without a noun, and the commands they stand for: those of earlier versions, then others.
pub const VERBS: &[(&str, &[&str])] = &[
    ("create", &["manifest", "apply"]),
    ("destroy", &["manifest", "destroy"]),
    ("test", &["manifest", "test"]),
    ("validate", &["manifest", "validate"]),
    ("serve", &["server", "start", "--foreground"]),
    ("plan", &["manifest", "plan"]),
    ("apply", &["manifest", "apply"]),
    ("resume", &["manifest", "resume"]),
    ("rollback", &["manifest", "rollback"]),
];

/// Scenarios that manifests replaced: name, verb, manifest.
pub const RETIRED: &[(&str, &str, &str)] = &[
    ("vm-constructor", "apply", "n1-push"),
    ("vm-destructor", "destroy", "n1-push"),
    ("vm-roundtrip", "test", "n1-push"),
    ("nested-pve-constructor", "apply", "n2-tiered"),
    ("nested-pve-destructor", "destroy", "n2-tiered"),
    ("nested-pve-roundtrip", "test", "n2-tiered"),
    ("recursive-pve-constructor", "apply", "<manifest>"),
    ("recursive-pve-destructor", "destroy", "<manifest>"),
    ("recursive-pve-roundtrip", "test", "<manifest>"),
    ("push-vm-roundtrip", "test", "n1-push"),
    ("pull-vm-roundtrip", "test", "n1-pull"),
    ("simple-vm-constructor", "apply", "n1-push"),
    ("simple-vm-destructor", "destroy", "n1-push"),
    ("simple-vm-roundtrip", "test", "n1-push"),
    ("spec-vm-push-roundtrip", "test", "n1-push"),
    ("spec-vm-pull-roundtrip", "test", "n1-pull"),
];

/// Returns message and hint for a command of earlier versions that has no replacement.
pub(crate) fn removed(arguments: &[OsString]) -> Option<(String, &'static str)> {
    let typed = |at: usize| arguments.get(at).map(|word| word.to_string_lossy());
    let first = command_position(arguments);
    let scenario = match scenario_flag(arguments) {
        Some(name) => name,
        None if first.and_then(typed).as_deref() == Some("scenario") => {
            let words = arguments[first? + 1..]
                .iter()
                .map(|word| word.to_string_lossy());
            let mut words = words.filter(|word| !word.starts_with('-') && word != "run");
            words.next().map(Into::into).unwrap_or_default()
        }
        None => return None,
    };
    if scenario == "pve-setup" {
        return Some((
            "There is no scenario `pve-setup`: this version does not set up hosts.".to_owned(),
            "homestak host role HOST prints what a host needs, homestak host preflight HOST checks it",
        ));
    }
    let name = match scenario.as_str() {
        "" => String::new(),
        name => format!(" `{name}`"),
    };
    Some((
        format!("There is no scenario{name}: manifests replace scenarios."),
        "homestak manifest list shows the manifests; homestak manifest apply -M NAME -H HOST applies one",
    ))
}

/// Global flags with a value, so that their value is not mistaken for a command.
const FLAGS_WITH_VALUE: &[&str] = &["--site", "--log-file", "--timeout"];

/// Translates other spellings into commands.
pub fn translate(mut arguments: Vec<OsString>) -> Translated {
    if let Some(name) = scenario_flag(&arguments) {
        return retired(&name).unwrap_or(Translated::Run(arguments));
    }
    let Some(at) = command_position(&arguments) else {
        return Translated::Run(arguments);
    };
    let mut name = at;
    if is(&arguments[at], "scenario") {
        name = (at + 1..arguments.len())
            .find(|next| !is(&arguments[*next], "run"))
            .unwrap_or(at);
    }
    if let Some(retired) = arguments
        .get(name)
        .and_then(|word| retired(&word.to_string_lossy()))
    {
        return retired;
    }
    if is_configuration(&arguments[at..]) {
        let command = ["manifest", "configure"].map(OsString::from);
        arguments.splice(at..at + 2, command);
        return Translated::Run(arguments);
    }
    if let Some((_, command)) = VERBS.iter().find(|(verb, _)| is(&arguments[at], verb)) {
        arguments.splice(at..=at, command.iter().map(OsString::from));
    }
    Translated::Run(arguments)
}

/// Verbs whose use prints a notice.
const WITH_NOTICE: &[&str] = &["create", "destroy", "test", "serve"];

/// Returns the notice for a verb of earlier versions.
pub fn notice(arguments: &[OsString]) -> Option<String> {
    let at = command_position(arguments)?;
    let (verb, command) = VERBS.iter().find(|(verb, _)| is(&arguments[at], verb))?;
    WITH_NOTICE
        .contains(verb)
        .then(|| format!("notice: `{verb}` is now `homestak {}`", command.join(" ")))
}

/// Returns whether it is `config apply` for the nodes of a manifest, which the driver runs; without
/// a manifest it is a command of the agent, for this machine.
fn is_configuration(words: &[OsString]) -> bool {
    let [config, apply, rest @ ..] = words else {
        return false;
    };
    let is_manifest = |word: &OsString| {
        let text = word.to_string_lossy();
        // `-Mname` too: the agent has no flag `-M`.
        text.starts_with("-M") || text == "--manifest" || text.starts_with("--manifest=")
    };
    is(config, "config") && is(apply, "apply") && rest.iter().any(is_manifest)
}

fn is(word: &OsStr, text: &str) -> bool {
    word == text
}

/// Returns the position of the first argument that is neither a flag nor a flag's value.
fn command_position(arguments: &[OsString]) -> Option<usize> {
    let mut skip = false;
    for (at, word) in arguments.iter().enumerate().skip(1) {
        let text = word.to_string_lossy();
        if std::mem::take(&mut skip) {
            continue;
        }
        if FLAGS_WITH_VALUE.contains(&text.as_ref()) {
            skip = true;
        } else if !text.starts_with('-') {
            return Some(at);
        }
    }
    None
}

/// Returns the scenario of `--scenario NAME`, `--scenario=NAME` or `-S NAME`.
fn scenario_flag(arguments: &[OsString]) -> Option<String> {
    let mut words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if let Some(name) = word.strip_prefix("--scenario=") {
            return Some(name.to_owned());
        }
        if word == "--scenario" || word == "-S" {
            return words.next().map(std::borrow::Cow::into_owned);
        }
    }
    None
}

fn retired(name: &str) -> Option<Translated> {
    let (_, verb, manifest) = RETIRED.iter().find(|(retired, _, _)| *retired == name)?;
    let replacement = format!("homestak manifest {verb} -M {manifest} -H <host>");
    Some(Translated::Retired {
        name: name.to_owned(),
        replacement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Translated {
        translate(line.split_whitespace().map(OsString::from).collect())
    }

    fn run(line: &str) -> Translated {
        Translated::Run(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn verbs_become_noun_and_action() {
        assert_eq!(
            translated("homestak validate -M x"),
            run("homestak manifest validate -M x")
        );
        assert_eq!(
            translated("homestak --site d create -M x"),
            run("homestak --site d manifest apply -M x")
        );
        assert_eq!(
            translated("homestak serve"),
            run("homestak server start --foreground")
        );
    }

    #[test]
    fn config_apply_with_a_manifest_is_the_drivers_command() {
        for flag in ["-M x", "--manifest x", "--manifest=x", "-Mx"] {
            assert_eq!(
                translated(&format!("homestak --site d config apply web {flag}")),
                run(&format!("homestak --site d manifest configure web {flag}"))
            );
        }
        for line in [
            "homestak config apply --spec x",
            "homestak config check -M x",
        ] {
            assert_eq!(translated(line), run(line));
        }
    }

    #[test]
    fn only_typed_verbs_print_a_notice() {
        let words =
            |line: &str| -> Vec<OsString> { line.split_whitespace().map(OsString::from).collect() };
        let printed = notice(&words("homestak --site d create -M x")).unwrap();
        assert!(printed.contains("`homestak manifest apply`"), "{printed}");
        for line in [
            "homestak manifest destroy -M x",
            "homestak validate",
            "homestak",
        ] {
            assert_eq!(notice(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn a_value_that_looks_like_a_verb_is_not_translated() {
        assert_eq!(
            translated("homestak --site create site show"),
            run("homestak --site create site show")
        );
        assert_eq!(
            translated("homestak manifest show test"),
            run("homestak manifest show test")
        );
    }

    #[test]
    fn retired_names_are_found_in_every_spelling() {
        for (name, verb, manifest) in RETIRED {
            let expected = Translated::Retired {
                name: (*name).into(),
                replacement: format!("homestak manifest {verb} -M {manifest} -H <host>"),
            };
            for line in [
                "{}",
                "scenario {}",
                "scenario run {}",
                "--scenario {} --host father",
                "-S {}",
                "--scenario={}",
            ] {
                assert_eq!(
                    translated(&format!("homestak {}", line.replace("{}", name))),
                    expected
                );
            }
        }
    }
}
