//! Parses the encodings of Proxmox VE (booleans, numbers, tags, sizes) into Rust values. A value
//! that cannot be parsed is `None`.

use std::collections::BTreeSet;

use homestak_core::foreign::ForeignText;
use serde_json::Value;

/// Reads a boolean: `1`, `0`, `"1"`, `"0"`, `"yes"`, `"on"`, `true` and their opposites.
pub fn parse_bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::Number(number) => number.as_f64().map(|number| number != 0.0),
        Value::String(text) => parse_bool_text(text),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Reads a boolean from a property string. The empty string is Perl's false.
pub fn parse_bool_text(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Some(true),
        "0" | "no" | "false" | "off" | "" => Some(false),
        _ => None,
    }
}

/// Reads a whole number that may come as a number, a float without fraction, or a text.
pub fn parse_u64(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            let whole = float >= 0.0 && float.fract() == 0.0 && float <= 9_007_199_254_740_992.0;
            // Exact: the range above is where every whole number has its own float.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the range was checked"
            )]
            whole.then_some(float as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Reads a whole number of 32 bits.
pub fn parse_u32(value: &Value) -> Option<u32> {
    parse_u64(value).and_then(|number| u32::try_from(number).ok())
}

/// Reads a text of one line; numbers come as texts or numbers, depending on the endpoint. Control
/// characters are escaped, because names are chosen by users of the host.
pub fn parse_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(ForeignText::line(text).into()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Reads a text field of an object; empty when it is missing.
pub fn text_of(object: &Value, field: &str) -> String {
    object.get(field).and_then(parse_text).unwrap_or_default()
}

/// Reads the tags of a guest.
pub fn tags_of(object: &Value) -> BTreeSet<String> {
    // Not as one line: line breaks are between tags.
    parse_tags(
        object
            .get("tags")
            .and_then(Value::as_str)
            .unwrap_or_default(),
    )
}

/// Reads tags as a set: order, case, doubles and separators differ from endpoint to endpoint.
pub fn parse_tags(text: &str) -> BTreeSet<String> {
    text.split([';', ',', ' ', '\t', '\n', '\0'])
        .filter(|tag| !tag.is_empty())
        .map(|tag| ForeignText::line(&tag.to_ascii_lowercase()).into())
        .collect()
}

/// Renders tags as the API stores them.
pub fn render_tags(tags: &BTreeSet<String>) -> String {
    tags.iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(";")
}

/// Returns whether the API accepts a text as a tag.
pub fn is_tag(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-.+".contains(&byte))
}

/// Reads a disk size such as `32G`, `1500M`, `368K` or `4194304`, in bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, shift) = match text.char_indices().next_back()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        (at, 'T' | 't') => (&text[..at], 40),
        _ => (text, 0),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    if whole.is_empty() || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bytes = whole.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    let Some(fraction) = fraction else {
        return Some(bytes);
    };
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Nine digits are finer than a byte of anything that has a fraction in practice.
    let digits = &fraction[..fraction.len().min(9)];
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    let part = digits.parse::<u128>().ok()? * (1_u128 << shift) / scale;
    bytes.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn booleans_have_several_encodings() {
        for value in [json!(1), json!("1"), json!(true), json!("yes"), json!("on")] {
            assert_eq!(parse_bool(&value), Some(true), "{value}");
        }
        for value in [json!(0), json!("0"), json!(false), json!("no"), json!("")] {
            assert_eq!(parse_bool(&value), Some(false), "{value}");
        }
        for value in [json!(null), json!([]), json!("perhaps")] {
            assert_eq!(parse_bool(&value), None, "{value}");
        }
    }

    #[test]
    fn numbers_may_be_strings() {
        assert_eq!(parse_u64(&json!("100")), Some(100));
        assert_eq!(parse_u64(&json!(512)), Some(512));
        assert_eq!(parse_u64(&json!(512.0)), Some(512));
        assert_eq!(parse_u64(&json!(0.5)), None);
        assert_eq!(parse_u64(&json!(-1)), None);
        assert_eq!(parse_u32(&json!(4_294_967_296_u64)), None);
    }

    #[test]
    fn tags_are_a_set_in_lower_case() {
        let tags = parse_tags("zz;aa,ZZ aa");
        assert_eq!(render_tags(&tags), "aa;zz");
        assert!(is_tag("homestak-m-n1.x_41"));
        assert!(!is_tag("bad tag!"));
        assert!(!is_tag("-x"));
        assert!(!is_tag(""));
    }

    #[test]
    fn recorded_sizes_are_parsed() {
        assert_eq!(parse_size("1500M"), Some(1_572_864_000));
        assert_eq!(parse_size("368K"), Some(376_832));
        assert_eq!(parse_size("32G"), Some(34_359_738_368));
        assert_eq!(parse_size("0T"), Some(0));
        assert_eq!(parse_size("1.5G"), Some(1_610_612_736));
        assert_eq!(parse_size("4194304"), Some(4_194_304));
        for bad in ["", "G", "-1G", "1.G", "x", "99999999999999999999T", "1é"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_size_in_bytes_is_parsed(bytes in any::<u64>()) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Some(bytes));
        }

        #[test]
        fn nothing_makes_the_parsers_panic(text in ".{0,40}") {
            let _ = (parse_size(&text), parse_tags(&text), parse_bool_text(&text), is_tag(&text));
        }

        #[test]
        fn tags_read_back(tags in proptest::collection::btree_set("[a-z0-9_][a-z0-9_+.-]{0,12}", 0..6)) {
            prop_assert_eq!(parse_tags(&render_tags(&tags)), tags);
        }
    }
}
