//! Changes one value of a document in its text; comments and layout stay. The result is parsed
//! again before it is returned.

use super::emit::emit_scalar;
use super::tree::Scalar;
use super::{Diagnostics, FileId, Source, yaml};

/// Sets a top-level key to a string. Returns `None` if the document is not a mapping, or the result
/// would not parse to the expected value.
pub fn set_text(text: &str, key: &str, value: &str) -> Option<String> {
    let read = |text: &str| {
        yaml::parse(
            FileId(0),
            &Source::new("document", text),
            &mut Diagnostics::default(),
        )
    };
    let tree = read(text)?;
    tree.entries()?;
    let scalar = emit_scalar(&Scalar::text(value));
    let entry = tree.entries()?.iter().find(|entry| entry.key.text == key);
    let changed = match entry {
        // The key has no value: insert it after the colon.
        Some(entry) if entry.value.span.start == entry.value.span.end => {
            let key_end = entry.key.span.end as usize;
            let at = key_end + text.get(key_end..)?.find(':')? + 1;
            format!("{} {scalar}{}", text.get(..at)?, text.get(at..)?)
        }
        Some(entry) => {
            let span = entry.value.span;
            let (start, end) = (span.start as usize, span.end as usize);
            format!("{}{scalar}{}", text.get(..start)?, text.get(end..)?)
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
    fn a_key_is_added_or_changed_and_other_text_stays() {
        let text = "# father\napi_endpoint: https://a:8006  # rack 3\n";
        let added = set_text(text, "fingerprint", "AA:BB").unwrap();
        assert_eq!(added, format!("{text}fingerprint: AA:BB\n"));
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
            "a line cannot be appended to a flow mapping"
        );
    }
}
