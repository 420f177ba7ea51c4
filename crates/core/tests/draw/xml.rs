//! A small checker for well-formed XML without doctypes, comments and CDATA.

use std::collections::BTreeMap;

/// One start tag.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Element {
    /// A coordinate or size.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.attributes[name]
            .parse()
            .expect("coordinates are numbers")
    }
}

/// Reads a document and returns its elements in order.
pub(crate) fn elements(text: &str) -> Result<Vec<Element>, String> {
    let mut found = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = text.trim_end();
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start])?;
        if open.is_empty() && start > 0 {
            return Err("text outside of the root".to_owned());
        }
        let end = rest.find('>').ok_or("a tag without end")?;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("unexpected end of {name}"));
            }
            continue;
        }
        if open.is_empty() && !found.is_empty() {
            return Err("two roots".to_owned());
        }
        let element = element(tag.trim_end_matches('/'))?;
        if !tag.ends_with('/') {
            open.push(element.name.clone());
        }
        found.push(element);
    }
    match open.last() {
        Some(name) => Err(format!("{name} is never closed")),
        None if rest.is_empty() => Ok(found),
        None => Err("text after the root".to_owned()),
    }
}

fn element(tag: &str) -> Result<Element, String> {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    if !is_name(name) {
        return Err(format!("bad element name in `{tag}`"));
    }
    let mut attributes = BTreeMap::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest
            .trim_start()
            .split_once("=\"")
            .ok_or(format!("`{rest}`"))?;
        let (value, after) = after
            .split_once('"')
            .ok_or(format!("no quote in `{rest}`"))?;
        check_text(value)?;
        if !is_name(key) || value.contains('<') {
            return Err(format!("bad attribute in `{tag}`"));
        }
        if attributes
            .insert(key.to_owned(), value.to_owned())
            .is_some()
        {
            return Err(format!("{key} twice in `{tag}`"));
        }
        rest = after;
    }
    Ok(Element {
        name: name.to_owned(),
        attributes,
    })
}

/// Text may contain known entities and the characters that XML 1.0 allows.
fn check_text(text: &str) -> Result<(), String> {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        if !known.iter().any(|entity| part.starts_with(entity)) {
            return Err(format!("a bare ampersand before `{part}`"));
        }
    }
    let allowed = |c: char| match c {
        '\n' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => c >= ' ',
    };
    match text.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(format!("the character {c:?} is not allowed")),
        None => Ok(()),
    }
}
