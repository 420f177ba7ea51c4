//! Converts values between YAML scalars, bytes to encrypt, and bytes covered by the MAC. The
//! particulars of the YAML parser of Go are confined to this file.

use homestak_core::doc::tree::Meaning;
use homestak_core::doc::{Scalar, Style};
use zeroize::Zeroizing;

use crate::cipher::{CipherError, ValueType};
use crate::timestamp;

/// A plain value, ready for encryption and the MAC.
pub(crate) struct PlainValue {
    /// Its type.
    pub(crate) kind: ValueType,
    /// The bytes to encrypt.
    pub(crate) bytes: Zeroizing<Vec<u8>>,
    /// The bytes the MAC covers.
    pub(crate) mac: Zeroizing<Vec<u8>>,
}

/// Converts a scalar to the bytes to encrypt; `None` for null, which is not encrypted.
///
/// Numbers keep their notation (`1.10`, `007`), unlike in SOPS; the MAC uses the value, so both
/// agree. A plain timestamp is a string, as in our parser.
pub(crate) fn plain(scalar: &Scalar) -> Option<PlainValue> {
    let text = || Zeroizing::new(scalar.text.clone().into_bytes());
    let form = |kind, bytes, mac: String| PlainValue {
        kind,
        bytes,
        mac: Zeroizing::new(mac.into_bytes()),
    };
    Some(match scalar.meaning() {
        Meaning::Null => return None,
        Meaning::Bool(value) => {
            let word = bool_text(value).to_owned();
            form(
                ValueType::Bool,
                Zeroizing::new(word.clone().into_bytes()),
                word,
            )
        }
        Meaning::Int(value) => {
            let decimal = value.to_string();
            let bytes = if scalar.text.contains(['x', 'o']) {
                Zeroizing::new(decimal.clone().into_bytes())
            } else {
                text()
            };
            form(ValueType::Int, bytes, decimal)
        }
        Meaning::Float(value) => form(ValueType::Float, text(), float(value)),
        Meaning::Ambiguous | Meaning::Text => form(ValueType::Str, text(), scalar.text.clone()),
    })
}

/// Converts decrypted bytes to a scalar of the same type and value.
pub(crate) fn opened(kind: ValueType, bytes: &[u8]) -> Result<(Scalar, PlainValue), CipherError> {
    let wrong = |kind| CipherError::WrongContent { kind };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong("text"))?;
    let (scalar, mac) = match kind {
        ValueType::Str | ValueType::Bytes => (Scalar::text(text), text.to_owned()),
        // A comment in a mapping has the same additional data as a value of the key of that mapping;
        // a comment must not be accepted as a value.
        ValueType::Comment => return Err(wrong("value")),
        ValueType::Time => {
            timestamp::normal_form(text).ok_or_else(|| wrong("time"))?;
            (Scalar::plain(text), text.to_owned())
        }
        ValueType::Bool => {
            let value = match text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => return Err(wrong("boolean")),
            };
            (
                Scalar::plain(value.to_string()),
                bool_text(value).to_owned(),
            )
        }
        ValueType::Int => {
            let value: i64 = text.parse().map_err(|_| wrong("integer"))?;
            (Scalar::plain(text), value.to_string())
        }
        ValueType::Float => {
            let value: f64 = text.parse().map_err(|_| wrong("number"))?;
            (Scalar::plain(float_text(text, value)), float(value))
        }
    };
    let plain = PlainValue {
        kind,
        bytes: Zeroizing::new(bytes.to_vec()),
        mac: Zeroizing::new(mac.into_bytes()),
    };
    Ok((scalar, plain))
}

/// Returns the bytes that the MAC covers for a plain value, as the YAML parser of SOPS reads it;
/// `None` for null. `Err` for a value that SOPS does not support.
pub(crate) fn mac_of_visible(scalar: &Scalar) -> Result<Option<Vec<u8>>, TooLarge> {
    let text = scalar.text.as_str();
    let word = |word: &str| Ok(Some(word.as_bytes().to_vec()));
    if scalar.style != Style::Plain {
        return word(text);
    }
    match scalar.meaning() {
        Meaning::Null => return Ok(None),
        Meaning::Bool(value) => return word(bool_text(value)),
        Meaning::Int(_) | Meaning::Float(_) | Meaning::Ambiguous | Meaning::Text => {}
    }
    match text {
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return word("+Inf"),
        "-.inf" | "-.Inf" | "-.INF" => return word("-Inf"),
        ".nan" | ".NaN" | ".NAN" => return word("NaN"),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return word(text);
    }
    if let Some(time) = timestamp::normal_form(text) {
        return word(&time);
    }
    let bare = if text.starts_with('.') {
        text.to_owned()
    } else {
        text.replace('_', "")
    };
    match integer(&bare) {
        Some(Ok(value)) => word(&value.to_string()),
        Some(Err(TooLarge)) => Err(TooLarge),
        None => match float_value(&bare) {
            Some(value) => word(&float(value)),
            None => word(text),
        },
    }
}

/// Returns whether a plain key is a string for the YAML parser of SOPS, which accepts only
/// strings as keys.
pub(crate) fn is_text(key: &str) -> bool {
    let seen = mac_of_visible(&Scalar::plain(key));
    let word = matches!(
        Scalar::plain(key).meaning(),
        Meaning::Text | Meaning::Ambiguous
    );
    word && timestamp::normal_form(key).is_none() && seen == Ok(Some(key.as_bytes().to_vec()))
}

/// An integer between 2^63 and 2^64, which SOPS refuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// Parses an integer like Go's `ParseInt` with base 0: `017` is octal.
fn integer(text: &str) -> Option<Result<i64, TooLarge>> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    let signed = if text.starts_with('-') {
        i64::from_str_radix(&format!("-{digits}"), base)
    } else {
        i64::from_str_radix(digits, base)
    };
    match signed {
        Ok(value) => Some(Ok(value)),
        Err(_) if text == lower && u64::from_str_radix(digits, base).is_ok() => Some(Err(TooLarge)),
        Err(_) => None,
    }
}

fn float_value(text: &str) -> Option<f64> {
    let numeric = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if numeric { text.parse().ok() } else { None }
}

fn bool_text(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Formats a number like Go's `FormatFloat(v, 'f', -1, 64)`: shortest digits, no exponent.
fn float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    value.to_string()
}

/// Formats a decrypted number so that it parses as a float.
fn float_text(text: &str, value: f64) -> String {
    match Scalar::plain(text).meaning() {
        Meaning::Float(_) => text.to_owned(),
        _ if value.is_nan() => ".nan".into(),
        _ if value.is_infinite() => if value > 0.0 { ".inf" } else { "-.inf" }.into(),
        Meaning::Int(_) => format!("{text}.0"),
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(scalar: &Scalar) -> (ValueType, String, String) {
        let plain = plain(scalar).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (plain.kind, text(&plain.bytes), text(&plain.mac))
    }

    #[test]
    fn values_have_the_byte_format_of_sops() {
        let plain = |text: &str| sealed(&Scalar::plain(text));
        assert_eq!(
            plain("true"),
            (ValueType::Bool, "True".into(), "True".into())
        );
        assert_eq!(plain("42"), (ValueType::Int, "42".into(), "42".into()));
        assert_eq!(plain("0x10"), (ValueType::Int, "16".into(), "16".into()));
        assert_eq!(plain("007"), (ValueType::Int, "007".into(), "7".into()));
        assert_eq!(
            plain("1.50"),
            (ValueType::Float, "1.50".into(), "1.5".into())
        );
        assert_eq!(plain("1e21").2, "1000000000000000000000");
        assert_eq!(plain("yes"), (ValueType::Str, "yes".into(), "yes".into()));
        let quoted = sealed(&Scalar::text("42"));
        assert_eq!(quoted, (ValueType::Str, "42".into(), "42".into()));
        assert!(super::plain(&Scalar::plain("~")).is_none());
    }

    #[test]
    fn decrypted_values_parse_as_the_same_type() {
        let text = |kind, bytes: &str| opened(kind, bytes.as_bytes()).unwrap().0;
        assert!(text(ValueType::Float, "3") == Scalar::plain("3.0"));
        assert!(text(ValueType::Float, "-0") == Scalar::plain("-0.0"));
        assert!(text(ValueType::Bool, "True") == Scalar::plain("true"));
        assert!(text(ValueType::Str, "3") == Scalar::text("3"));
        assert_eq!(text(ValueType::Float, "+Inf").text, ".inf");
        let time = text(ValueType::Time, "2026-01-31T12:00:00Z");
        assert_eq!(
            (time.text.as_str(), time.style),
            ("2026-01-31T12:00:00Z", Style::Plain)
        );
        assert!(opened(ValueType::Int, b"3.5").is_err());
        assert!(opened(ValueType::Comment, b"x").is_err());
        assert!(opened(ValueType::Bool, b"yes").is_err());
    }

    #[test]
    fn plain_values_are_covered_as_parsed_by_go() {
        for (text, bytes) in [
            ("0644", "420"),
            ("08", "8"),
            ("1_000", "1000"),
            ("0o17", "15"),
            ("-0b11", "-3"),
            ("0x1F", "31"),
            ("1.50", "1.5"),
            (".5", "0.5"),
            ("2024-01-02", "2024-01-02T00:00:00Z"),
            ("10.0.12.1", "10.0.12.1"),
            ("yes", "yes"),
            ("True", "True"),
            ("FALSE", "False"),
            (".inf", "+Inf"),
            ("99999999999999999999", "100000000000000000000"),
            ("52:54:00", "52:54:00"),
        ] {
            let got = mac_of_visible(&Scalar::plain(text)).unwrap().unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), bytes, "{text}");
        }
        assert_eq!(mac_of_visible(&Scalar::plain("")), Ok(None));
        assert!(
            ["a", "yes", "a1", "-x", "10.0.12.1"]
                .into_iter()
                .all(is_text)
        );
        let others = [
            "1",
            "true",
            "1_0",
            "0x1",
            "2024-01-02",
            "2024-01-02T00:00:00Z",
            "~",
            "1.5",
        ];
        assert!(!others.into_iter().any(is_text));
        let odd = mac_of_visible(&Scalar::plain("18446744073709551615"));
        assert_eq!(odd, Err(TooLarge));
    }
}
