//! Checks the parameters of a call against the schema. All errors are reported together, in the
//! wording of Proxmox VE.

use std::collections::BTreeMap;

use regex_lite::Regex;

use super::format;
use super::property;
use super::{Definition, Format, Method, table};

/// Parameters as strings.
pub(crate) type Parameters = BTreeMap<String, String>;

/// Checks every parameter and turns booleans into `0` and `1`.
pub(crate) fn check(
    method: &Method,
    given: &Parameters,
) -> Result<Parameters, BTreeMap<String, String>> {
    let mut faults = BTreeMap::new();
    let mut checked = Parameters::new();
    for (name, value) in given {
        let Some(definition) = table().definition(method, name) else {
            faults.insert(
                name.clone(),
                "property is not defined in schema and the schema does not allow additional \
                 properties"
                    .to_owned(),
            );
            continue;
        };
        if let Some(other) = definition.requires.as_ref()
            && !given.contains_key(other)
        {
            let fault = format!("missing property required by '{name}'");
            faults.insert(other.clone(), fault);
        }
        match check_value(definition, name, value) {
            Ok(value) => {
                checked.insert(name.clone(), value);
            }
            Err(fault) => {
                faults.insert(name.clone(), fault);
            }
        }
    }
    for name in method
        .parameters
        .keys()
        .filter(|name| !name.ends_with("[n]"))
    {
        let missing = !given.contains_key(name)
            && table()
                .definition(method, name)
                .is_some_and(|definition| !definition.is_optional());
        if missing {
            faults.insert(
                name.clone(),
                "property is missing and it is not optional".into(),
            );
        }
    }
    if faults.is_empty() {
        Ok(checked)
    } else {
        Err(faults)
    }
}

fn check_value(definition: &Definition, path: &str, value: &str) -> Result<String, String> {
    let kind = definition.kind.as_deref().unwrap_or("string");
    let mismatch = || format!("type check ('{kind}') failed - got '{value}'");
    let mut normal = value.to_owned();
    match kind {
        "integer" => {
            value.parse::<i64>().map_err(|_| mismatch())?;
        }
        "number" => {
            value.parse::<f64>().map_err(|_| mismatch())?;
        }
        "boolean" => {
            normal = parse_bool(value).ok_or_else(mismatch)?.to_owned();
        }
        _ => {}
    }
    if let Some(pattern) = &definition.pattern
        && !matches_pattern(pattern, value)
    {
        return Err("value does not match the regex pattern".into());
    }
    check_format(definition, path, value)?;
    if let Some(most) = definition.max_length
        && value.chars().count() > most
    {
        return Err(format!("value may only be {most} characters long"));
    }
    if let Some(least) = definition.min_length
        && value.chars().count() < least
    {
        return Err(format!("value must be at least {least} characters long"));
    }
    if let Ok(number) = value.parse::<f64>()
        && matches!(kind, "integer" | "number")
    {
        if let Some(least) = definition.minimum.filter(|least| number < *least) {
            return Err(format!("value must have a minimum value of {least}"));
        }
        if let Some(most) = definition.maximum.filter(|most| number > *most) {
            return Err(format!("value must have a maximum value of {most}"));
        }
    }
    if !definition.values.is_empty() && !definition.values.iter().any(|known| known == value) {
        return Err(format!(
            "value '{value}' does not have a value in the enumeration '{}'",
            definition.values.join(", ")
        ));
    }
    Ok(normal)
}

fn check_format(definition: &Definition, path: &str, value: &str) -> Result<(), String> {
    if let Some(parts) = property::parts_of(definition) {
        return check_parts(parts, path, value)
            .map_err(|fault| format!("invalid format - {fault}"));
    }
    match &definition.format {
        Some(Format::Named(name)) => {
            format::check(name, value).map_err(|fault| format!("invalid format - {fault}"))
        }
        Some(Format::Parts(_)) | None => Ok(()),
    }
}

fn check_parts(
    parts: &BTreeMap<String, Definition>,
    path: &str,
    value: &str,
) -> Result<(), String> {
    let given = property::parse(value, parts)?;
    let mut faults: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in &given {
        let inner = format!("{path}.{key}");
        match parts.get(key) {
            Some(definition) => {
                if let Err(fault) = check_value(definition, &inner, value) {
                    faults.insert(inner, fault);
                }
            }
            None => {
                faults.insert(
                    inner,
                    "property is not defined in schema and the schema does not allow additional \
                     properties"
                        .into(),
                );
            }
        }
    }
    for (key, definition) in parts {
        if definition.alias.is_none() && !definition.is_optional() && !given.contains_key(key) {
            faults.insert(
                format!("{path}.{key}"),
                "property is missing and it is not optional".into(),
            );
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    let lines: String = faults
        .iter()
        .map(|(path, fault)| format!("{path}: {fault}\n"))
        .collect();
    Err(format!("format error\n{lines}"))
}

/// Returns `1` or `0` for a value that PVE accepts as a boolean.
fn parse_bool(value: &str) -> Option<&'static str> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some("1"),
        "0" | "false" | "no" | "off" => Some("0"),
        _ => None,
    }
}

fn matches_pattern(pattern: &str, value: &str) -> bool {
    // A Perl pattern that this regex engine does not support accepts every value.
    // `(?^:` is how Perl prints the start of a compiled pattern.
    let pattern = pattern.replace("(?^:", "(?:").replace("(?^i:", "(?i:");
    Regex::new(&format!("^(?:{pattern})$")).map_or(true, |regex| regex.is_match(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(verb: &str, path: &str, given: &[(&str, &str)]) -> BTreeMap<String, String> {
        let (method, mut names) = table().find(verb, path).unwrap();
        for (name, value) in given {
            names.insert((*name).into(), (*value).into());
        }
        check(method, &names).err().unwrap_or_default()
    }

    #[test]
    fn reports_all_invalid_parameters_together() {
        let found = faults(
            "POST",
            "/nodes/pve1/qemu",
            &[("vmid", "abc"), ("bogus", "1"), ("name", "a_b")],
        );
        assert_eq!(found["vmid"], "type check ('integer') failed - got 'abc'");
        assert!(found["bogus"].starts_with("property is not defined in schema"));
        assert_eq!(
            found["name"],
            "invalid format - value does not look like a valid DNS name\n"
        );
    }

    #[test]
    fn reports_the_path_of_an_invalid_part_of_a_property_string() {
        let found = faults(
            "POST",
            "/nodes/pve1/lxc",
            &[
                ("vmid", "100"),
                ("ostemplate", "local:vztmpl/a.tar.zst"),
                ("net0", "name=eth0,ip=10.0.0.999/24"),
            ],
        );
        assert_eq!(
            found["net0"],
            "invalid format - format error\nnet0.ip: invalid format - value does not look like \
             a valid ipv4 network configuration\n\n"
        );
    }

    #[test]
    fn accepts_patterns_in_perl_notation() {
        let found = faults("POST", "/access/users/a@pve/token/t", &[]);
        assert_eq!(found["tokenid"], "value does not match the regex pattern");
    }

    #[test]
    fn reports_a_missing_vmid() {
        let found = faults("POST", "/nodes/pve1/qemu", &[]);
        assert_eq!(found["vmid"], "property is missing and it is not optional");
    }
}
