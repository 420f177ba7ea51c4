//! Changes one value of a document in place; comments and layout stay.
//!
//! In: a document's text, a key at its top, a text value. Out: the changed text.
//! Never: a change that would not read back; then there is none.

use super::emit::emit_scalar;
use super::tree::Scalar;
use super::{Faults, FileId, Source, yaml};

/// Sets a key at the top of a mapping to a text. Returns `None` when the text is no mapping, or
/// the result would not read back.
pub fn set_text(text: &str, key: &str, value: &str) -> Option<String> {
    let read = |text: &str| {
        yaml::parse(
            FileId(0),
            &Source::new("document", text),
            &mut Faults::default(),
        )
    };
    let tree = read(text)?;
    tree.entries()?;
    let scalar = emit_scalar(&Scalar::text(value));
    let changed = match tree.field(key) {
        Some(old) => {
            let (start, end) = (old.span.start as usize, old.span.end as usize);
            let space = if start > 0 && text.as_bytes().get(start - 1) == Some(&b':') {
                " "
            } else {
                ""
            };
            format!("{}{space}{scalar}{}", text.get(..start)?, text.get(end..)?)
        }
        None => {
            let newline = if text.is_empty() || text.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            format!("{text}{newline}{key}: {scalar}\n")
        }
    };
    let again = read(&changed)?;
    let kept = |name: &str| name == key || tree.field(name) == again.field(name);
    let same = again.entries()?.iter().all(|entry| kept(&entry.key.text));
    (same && again.field(key)?.as_text() == Some(value)).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::set_text;

    #[test]
    fn a_key_is_added_or_changed_and_the_rest_stays() {
        let text = "# father\napi_endpoint: https://a:8006  # rack 3\n";
        let added = set_text(text, "fingerprint", "AA:BB").unwrap();
        assert_eq!(
            added,
            format!("{text}fingerprint: \"AA:BB\"\n").replace("\"AA:BB\"", &quoted("AA:BB"))
        );
        let changed = set_text(&added, "fingerprint", "CC:DD").unwrap();
        assert_eq!(changed, added.replace("AA:BB", "CC:DD"));
        assert_eq!(
            set_text("a: 1\nfingerprint:\n", "fingerprint", "x y").unwrap(),
            "a: 1\nfingerprint: x y\n"
        );
        assert_eq!(set_text("- a\n", "fingerprint", "x"), None);
        assert_eq!(
            set_text("{a: 1}\n", "fingerprint", "x"),
            None,
            "a flow mapping has no room behind it"
        );
    }

    fn quoted(text: &str) -> String {
        super::emit_scalar(&super::Scalar::text(text))
    }
}
