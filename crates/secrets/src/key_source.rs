//! Where age keys are searched, in the order of SOPS. Reading the environment and files is up to
//! the caller.

use std::path::PathBuf;

/// A possible source of age keys.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// An environment variable that contains keys.
    Variable(&'static str),
    /// A file named by the environment; it must exist.
    NamedFile(PathBuf),
    /// A command that prints keys.
    Command(String),
    /// The default file, which may be missing.
    DefaultFile(PathBuf),
}

/// A command line may contain a secret, so `Debug` omits it.
impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Variable(name) => f.debug_tuple("Variable").field(name).finish(),
            Self::NamedFile(path) => f.debug_tuple("NamedFile").field(path).finish(),
            Self::Command(_) => f.write_str("Command(..)"),
            Self::DefaultFile(path) => f.debug_tuple("DefaultFile").field(path).finish(),
        }
    }
}

/// Returns the sources of keys in order. SOPS uses the keys of all of them.
///
/// `lookup` returns environment variables; an empty one counts as not set.
pub fn key_sources(lookup: &dyn Fn(&str) -> Option<String>) -> Vec<KeySource> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let config = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".config")));
    [
        set("SOPS_AGE_KEY").map(|_| KeySource::Variable("SOPS_AGE_KEY")),
        set("SOPS_AGE_KEY_FILE").map(|path| KeySource::NamedFile(path.into())),
        set("SOPS_AGE_KEY_CMD").map(KeySource::Command),
        config.map(|directory| KeySource::DefaultFile(directory.join("sops/age/keys.txt"))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(variables: &[(&str, &str)]) -> Vec<KeySource> {
        key_sources(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn sources_are_in_the_order_of_sops() {
        let all = sources(&[
            ("HOME", "/home/me"),
            ("SOPS_AGE_KEY_CMD", "pass show age"),
            ("SOPS_AGE_KEY_FILE", "/keys"),
            ("SOPS_AGE_KEY", "AGE-SECRET-KEY-1"),
        ]);
        assert_eq!(
            all,
            [
                KeySource::Variable("SOPS_AGE_KEY"),
                KeySource::NamedFile("/keys".into()),
                KeySource::Command("pass show age".into()),
                KeySource::DefaultFile("/home/me/.config/sops/age/keys.txt".into()),
            ]
        );
        assert!(!format!("{all:?}").contains("SECRET-KEY"));
        assert!(!format!("{all:?}").contains("pass show"));
    }

    #[test]
    fn the_configuration_directory_can_be_set() {
        let elsewhere = sources(&[("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/etc/xdg")]);
        let file = "/etc/xdg/sops/age/keys.txt".into();
        assert_eq!(elsewhere, [KeySource::DefaultFile(file)]);
        assert!(sources(&[("SOPS_AGE_KEY", "")]).is_empty());
    }
}
