//! Timestamps of YAML 1.1 and SOPS, converted to the one format that SOPS uses.

/// Parses a timestamp like the YAML parser of SOPS; returns it as Go formats it (RFC 3339).
pub(crate) fn normal_form(text: &str) -> Option<String> {
    let (date, fraction, rest) = parse(text)?;
    Some(match fraction.trim_end_matches('0') {
        "" => format!("{date}{rest}"),
        fraction => format!("{date}.{fraction}{rest}"),
    })
}

/// Parses a timestamp with zone; returns it in seconds, as the MAC is bound to it.
pub(crate) fn to_the_second(text: &str) -> Option<String> {
    let (date, _, zone) = parse(text)?;
    text.contains(['T', 't']).then(|| format!("{date}{zone}"))
}

/// Returns date and time, the digits of the fraction, and the zone.
fn parse(text: &str) -> Option<(String, &str, String)> {
    let bytes = text.as_bytes();
    if bytes.len() < 5 || !bytes[..4].iter().all(u8::is_ascii_digit) || bytes[4] != b'-' {
        return None;
    }
    let year = &text[..4];
    let (month, rest) = number(&text[5..], 1, 12)?;
    let (day, rest) = number(rest.strip_prefix('-')?, 1, 31)?;
    if day > days(year.parse().ok()?, month) {
        return None;
    }
    let date = format!("{year}-{month:02}-{day:02}");
    if rest.is_empty() {
        return Some((format!("{date}T00:00:00"), "", "Z".into()));
    }
    let zoned = rest.starts_with(['T', 't']);
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (hour, rest) = number(rest, 0, 23)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 0, 59)?;
    let (second, rest) = number(rest.strip_prefix(':')?, 0, 59)?;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) if digits(rest) > 0 => rest.split_at(digits(rest)),
        Some(_) => return None,
        None => ("", rest),
    };
    let zone = match (zoned, rest) {
        (false, "") | (true, "Z" | "+00:00" | "-00:00") => "Z".into(),
        (true, zone) => offset(zone)?,
        (false, _) => return None,
    };
    let date = format!("{date}T{hour:02}:{minute:02}:{second:02}");
    Some((date, fraction.get(..9).unwrap_or(fraction), zone))
}

/// Parses one or two leading digits.
fn number(text: &str, least: u32, most: u32) -> Option<(u32, &str)> {
    let length = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(length);
    let value = digits.parse().ok()?;
    (least..=most).contains(&value).then_some((value, rest))
}

fn offset(zone: &str) -> Option<String> {
    let bytes = zone.as_bytes();
    let shaped = bytes.len() == 6 && matches!(bytes[0], b'+' | b'-') && bytes[3] == b':';
    if !shaped || !zone.is_ascii() {
        return None;
    }
    let hours: u32 = zone[1..3].parse().ok()?;
    let minutes: u32 = zone[4..].parse().ok()?;
    (hours < 24 && minutes < 60).then(|| zone.to_owned())
}

fn days(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted_like_in_go() {
        for (text, form) in [
            ("2024-02-29", "2024-02-29T00:00:00Z"),
            ("2024-1-2", "2024-01-02T00:00:00Z"),
            ("2024-01-02 3:04:05.120", "2024-01-02T03:04:05.12Z"),
            ("2024-01-02T03:04:05+00:00", "2024-01-02T03:04:05Z"),
            ("2024-01-02t03:04:05-05:30", "2024-01-02T03:04:05-05:30"),
        ] {
            assert_eq!(normal_form(text).as_deref(), Some(form), "{text}");
        }
    }

    #[test]
    fn other_text_is_not_a_timestamp() {
        for text in [
            "",
            "2024",
            "2024-13-01",
            "2023-02-29",
            "2024-01-02T03:04:05",
            "2024-01-02 03:04:05Z",
            "10.0.12.1",
            "2024-01-02x",
        ] {
            assert_eq!(normal_form(text), None, "{text}");
        }
    }

    #[test]
    fn timestamps_are_truncated_to_seconds() {
        let cut = to_the_second("2024-01-02T03:04:05.9Z");
        assert_eq!(cut.as_deref(), Some("2024-01-02T03:04:05Z"));
        assert_eq!(to_the_second("2024-01-02"), None);
    }
}
