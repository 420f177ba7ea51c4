//! Parses and formats property strings such as `local:1,format=qcow2`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::{Definition, Format};

/// Splits a property string without checking it. A part without a key gets the key `default`.
pub(crate) fn split(text: &str, default: &str) -> Vec<(String, String)> {
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (default.to_owned(), part.to_owned()),
        })
        .collect()
}

/// Returns the value of one part.
pub(crate) fn part<'a>(parts: &'a [(String, String)], key: &str) -> Option<&'a str> {
    parts
        .iter()
        .find(|(name, _)| name == key)
        .map(|(_, value)| value.as_str())
}

/// Joins parts; the one with the key `default` is written without it.
pub(crate) fn join(parts: &[(String, String)], default: &str) -> String {
    let texts: Vec<String> = parts
        .iter()
        .map(|(key, value)| {
            if key == default {
                value.clone()
            } else {
                format!("{key}={value}")
            }
        })
        .collect();
    texts.join(",")
}

/// Parses by definition: resolves aliases and assigns a bare value to the default key.
pub(crate) fn parse(
    text: &str,
    parts: &BTreeMap<String, Definition>,
) -> Result<BTreeMap<String, String>, String> {
    let default = parts
        .iter()
        .find(|(_, part)| part.default_key.is_some())
        .map(|(name, _)| name.clone());
    let mut found = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                (key.to_owned(), value.to_owned())
            }
            Some(_) => return Err("missing key in comma-separated list property\n".into()),
            None => {
                // `virtio` alone is a network model without a MAC address.
                let alias = parts.get(part).and_then(|part| part.key_alias.clone());
                if let Some(alias) = alias {
                    found.insert(alias, part.to_owned());
                    continue;
                }
                let Some(default) = &default else {
                    return Err(
                        "value without key, but schema does not define a default key\n".into(),
                    );
                };
                (default.clone(), part.to_owned())
            }
        };
        let definition = parts.get(&key);
        let target = match definition.and_then(|part| part.alias.clone()) {
            Some(alias) => {
                if let Some(of) = definition.and_then(|part| part.key_alias.clone()) {
                    found.insert(of, key.clone());
                }
                alias
            }
            None => key.clone(),
        };
        if found.insert(target, value).is_some() {
            return Err(format!(
                "duplicate key in comma-separated list property: {key}\n"
            ));
        }
    }
    Ok(found)
}

/// Returns the parts of a format that the API description only names.
pub(crate) fn named(name: &str) -> Option<&'static BTreeMap<String, Definition>> {
    static NAMED: OnceLock<BTreeMap<String, BTreeMap<String, Definition>>> = OnceLock::new();
    NAMED
        .get_or_init(|| {
            serde_json::from_str(include_str!("named.json"))
                .expect("the named formats are committed and a test parses them")
        })
        .get(name)
}

/// Returns the parts of a definition that is a property string.
pub(crate) fn parts_of(definition: &Definition) -> Option<&BTreeMap<String, Definition>> {
    match definition.format.as_ref()? {
        Format::Parts(parts) => Some(parts),
        Format::Named(name) => named(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_the_parts_restores_the_property_string() {
        let text = "local:100/vm-100-disk-0.qcow2,size=1G,media=disk";
        assert_eq!(join(&split(text, "file"), "file"), text);
    }

    #[test]
    fn named_formats_can_be_parsed() {
        assert!(named("pve-qm-smbios1").is_some_and(|parts| parts.contains_key("uuid")));
    }
}
