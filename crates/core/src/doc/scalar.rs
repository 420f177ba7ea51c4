//! Decoders for single values: strings, numbers, names, durations. Invalid values are reported and
//! never replaced by a default.

use serde_json::json;

use super::code::Code;
use super::decode::{Context, Decode, closest};
use super::schema::Definitions;
use super::source::Span;
use super::tree::{Meaning, Scalar, Value};

impl Decode for String {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        cx.text(value).map(str::to_owned)
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string" })
    }
}

impl Decode for bool {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let Some(scalar) = value.scalar() else {
            return cx.wrong_type(value, "a boolean");
        };
        match scalar.meaning() {
            Meaning::Bool(value) => Some(value),
            Meaning::Ambiguous => {
                let meant = matches!(scalar.text.to_lowercase().as_str(), "yes" | "on");
                let shown = cx.quoted(&scalar.text);
                cx.error(
                    Code::BareYesNo,
                    value.span,
                    format!("an unquoted {shown} is a string for some YAML parsers and a boolean for others"),
                    format!("write `{meant}`"),
                );
                None
            }
            Meaning::Null | Meaning::Int(_) | Meaning::Float(_) | Meaning::Text => {
                cx.wrong_type(value, "a boolean")
            }
        }
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "boolean" })
    }
}

/// An integer between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Int<const MIN: i64, const MAX: i64>(pub i64);

impl<const MIN: i64, const MAX: i64> Decode for Int<MIN, MAX> {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let Some(scalar) = value.scalar() else {
            return cx.wrong_type(value, "an integer");
        };
        let digits = scalar.text.trim_start_matches(['+', '-']);
        let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match scalar.meaning() {
            Meaning::Int(number) if whole && digits.len() > 1 && digits.starts_with('0') => {
                let shown = cx.quoted(&scalar.text);
                cx.error(
                    Code::Malformed,
                    value.span,
                    format!(
                        "{shown} starts with a zero: some YAML parsers read it as an octal number"
                    ),
                    format!("write `{number}`"),
                );
                return None;
            }
            Meaning::Int(number) if (MIN..=MAX).contains(&number) => return Some(Self(number)),
            Meaning::Int(_) => {}
            // An integer that does not fit into 64 bits.
            Meaning::Float(_) if whole => {}
            Meaning::Float(_)
            | Meaning::Null
            | Meaning::Bool(_)
            | Meaning::Ambiguous
            | Meaning::Text => return cx.wrong_type(value, "an integer"),
        }
        let (shown, hint) = (
            cx.quoted(&scalar.text),
            format!("write a number from {MIN} to {MAX}"),
        );
        cx.error(
            Code::OutOfRange,
            value.span,
            format!("{shown} is out of range"),
            hint,
        );
        None
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    /// Creates the value from a number, clamped to the bounds.
    pub fn from_number(number: i64) -> Self {
        Self(number.clamp(MIN, MAX))
    }
}

impl<const MIN: i64, const MAX: i64> std::fmt::Display for Int<MIN, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a guest on a Proxmox VE host.
pub type Vmid = Int<100, 999_999_999>;
/// A TCP port.
pub type Port = Int<1, 65535>;
/// Seconds, up to a day.
pub type Seconds = Int<0, 86_400>;

/// Declares a string newtype with a rule and its JSON Schema pattern.
macro_rules! text_type {
    ($(#[doc = $doc:literal])+ $name:ident, $code:ident, $pattern:literal, $what:literal, $rule:expr) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Returns the value if the text follows the rule.
            pub fn new(text: &str) -> Option<Self> {
                let rule: fn(&str) -> bool = $rule;
                rule(text).then(|| Self(text.to_owned()))
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Decode for $name {
            fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
                let text = cx.text(value)?;
                let parsed = Self::new(text);
                if parsed.is_none() {
                    let message = format!("{} is not {}", cx.quoted(text), $what);
                    cx.error(Code::$code, value.span, message, text_hint(stringify!($name), text));
                }
                parsed
            }
            fn schema(_: &mut Definitions) -> serde_json::Value {
                json!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}

text_type! {
    /// The name of a node: its host name.
    NodeName, InvalidName, "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", "a host name",
    |text| {
        text.len() <= 63
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    }
}

text_type! {
    /// The random id of a site. It starts with a letter, so that YAML never parses it as a number.
    SiteId, Malformed, "^[a-z][a-z0-9]{7,31}$", "the id of a site",
    |text| {
        (8..=32).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    }
}

impl SiteId {
    /// Creates an id of 16 letters and digits (79 bits) from random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let letter = |(at, byte): (usize, &u8)| {
            // The first is a letter. 16 of the 26 keep the distribution uniform.
            let choice = if at == 0 { byte % 16 } else { byte % 32 };
            char::from(LETTERS[usize::from(choice)])
        };
        Self(bytes.iter().enumerate().map(letter).collect())
    }
}

impl serde::Serialize for SiteId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for SiteId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| serde::de::Error::custom("not the id of a site"))
    }
}

text_type! {
    /// The name of a document: its file name without `.yaml`.
    Name, InvalidName, "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", "a name",
    |text| {
        text.len() <= 128
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    }
}

text_type! {
    /// The name of a user on a node.
    UserName, InvalidName, "^[a-z_][a-z0-9_-]{0,31}$", "a user name",
    |text| {
        text.len() <= 32
            && text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
    }
}

text_type! {
    /// The name of a Debian package, optionally with `=version`.
    Package, Malformed, "^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?$", "a package name",
    |text| {
        let (name, version) = text.split_once('=').unwrap_or((text, "0"));
        let (name, architecture) = name.split_once(':').unwrap_or((name, "any"));
        let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        name.len() >= 2
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'.' | b'-'))
            && word(architecture)
            && !version.is_empty()
            && version.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b':' | b'~' | b'-'))
    }
}

text_type! {
    /// The name of a systemd unit, with or without its suffix.
    Unit, Malformed, "^[A-Za-z0-9:_.@\\\\-]+$", "the name of a unit",
    |text| {
        !text.is_empty()
            && text.len() <= 255
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'.' | b'@' | b'\\' | b'-'))
    }
}

text_type! {
    /// A time zone of the tz database, such as `Europe/Berlin`.
    TimeZone, Malformed, "^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$", "a time zone",
    |text| {
        let parts: Vec<_> = text.split('/').collect();
        parts.len() <= 3
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && parts.iter().all(|part| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'+' | b'-'))
            })
    }
}

text_type! {
    /// A DNS domain.
    Domain, InvalidName, "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$", "a domain name",
    |text| {
        text.len() <= 253
            && text.split('.').all(|label| {
                !label.is_empty()
                    && label.len() <= 63
                    && !label.starts_with('-')
                    && !label.ends_with('-')
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            })
    }
}

text_type! {
    /// An `https://` or `http://` address with a host.
    Url, Malformed, "^https?://(\\[[0-9A-Fa-f:.]+\\]|[^\\s/:?#\\[\\]]+)(:[0-9]+)?([/?#]\\S*)?$", "an http(s) URL",
    |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        rest.is_some_and(|rest| {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let (host, port) = match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
                Some((host, port)) => (host, port.strip_prefix(':').unwrap_or("1")),
                None => authority.split_once(':').unwrap_or((authority, "1")),
            };
            !host.is_empty() && port.parse::<u16>().is_ok() && !rest.contains(char::is_whitespace)
        })
    }
}

text_type! {
    /// The URL of a server: `https://ADDRESS:PORT`, without a path.
    ServerAddress, Malformed, "^https://(\\[[0-9A-Fa-f:.]+\\]|[^\\s/:?#@\\[\\]]+)(:[0-9]+)?/?$", "the URL of a server",
    |text| {
        let rest = text.strip_prefix("https://");
        let address = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        address.is_some_and(|address| !address.contains(['/', '?', '#', '@'])) && Url::new(text).is_some()
    }
}

text_type! {
    /// An absolute path, or `USER@HOST:PATH` for one on another machine.
    PublishTarget, Malformed, "^([A-Za-z0-9_][A-Za-z0-9._-]*@([A-Za-z0-9][A-Za-z0-9._-]*|\\[[0-9A-Fa-f:.]+\\]):)?/[^\\s]+$", "a directory",
    |text| {
        let word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let (place, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let is_path = path.len() > 1 && !path.contains(|c: char| c.is_whitespace() || c.is_control());
        let Some(place) = place.strip_suffix(':') else {
            return place.is_empty() && is_path;
        };
        let Some((user, host)) = place.split_once('@') else {
            return false;
        };
        let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match v6 {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => word(host) && !host.starts_with('_'),
        };
        is_path && word(user) && is_host
    }
}

text_type! {
    /// The absolute path of a git repository.
    RepoPath, Malformed, "^/[^\\x00-\\x1f\\x7f]+$", "the path of a repository",
    |text| text.starts_with('/') && text.len() > 1 && !text.contains(char::is_control)
}

text_type! {
    /// A checksum such as `sha256:` and 64 hexadecimal digits.
    Checksum, Malformed, "^(sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$", "a checksum",
    |text| {
        let hex = |digits: &str, length: usize| digits.len() == length && digits.bytes().all(|b| b.is_ascii_hexdigit());
        text.strip_prefix("sha256:").is_some_and(|digits| hex(digits, 64))
            || text.strip_prefix("sha512:").is_some_and(|digits| hex(digits, 128))
    }
}

text_type! {
    /// A duration such as `30s`, `15m`, `1h` or `7d`.
    Duration, Malformed, "^[1-9][0-9]{0,8}[smhd]$", "a duration",
    |text| {
        let digits = text.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or_default();
        (1..=9).contains(&digits.len()) && !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit())
    }
}

impl Duration {
    /// Returns the duration in seconds.
    pub fn seconds(&self) -> u64 {
        let (digits, unit) = self.0.split_at(self.0.len().saturating_sub(1));
        let seconds = match unit {
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => 1,
        };
        digits.parse::<u64>().unwrap_or(0) * seconds
    }
}

text_type! {
    /// A network bridge on the host, such as `vmbr0`.
    Bridge, Malformed, "^[A-Za-z][A-Za-z0-9_.-]{0,14}$", "the name of a bridge",
    |text| {
        (1..=15).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
    }
}

/// Returns a hint about the format of a string, with a suggestion where possible.
fn text_hint(kind: &str, text: &str) -> String {
    match kind {
        "NodeName" => {
            let lower: String = text
                .trim()
                .to_lowercase()
                .chars()
                .map(|c| {
                    if c == '_' || c == ' ' || c == '.' {
                        '-'
                    } else {
                        c
                    }
                })
                .collect();
            match NodeName::new(&lower) {
                Some(guess) => format!("did you mean `{guess}`? Use lower-case letters, digits and hyphens"),
                None => "use lower-case letters, digits and hyphens, start with a letter, 63 characters at most".into(),
            }
        }
        "SiteId" => {
            "restore the id of the site from git, or from the tag `homestak-s-ID` of its guests; \
             if the site has no guests, remove the line and the next `apply` writes a new id"
                .into()
        }
        "Name" => "use letters, digits, `.`, `_` and `-`; start with a letter or digit".into(),
        "UserName" => "use lower-case letters, digits, `_` and `-`; 32 characters at most".into(),
        "Package" => "write the name as `apt install` takes it, one package per item".into(),
        "Unit" => "write the name as `systemctl` takes it, such as `nginx` or `ssh.socket`".into(),
        "TimeZone" => "write a name of the tz database, such as `Europe/Berlin` or `UTC`".into(),
        "Domain" => {
            "write labels of letters, digits and hyphens joined by dots, such as `lab.example`"
                .into()
        }
        "Url" => "write it in full, such as `https://192.0.2.10:8006`".into(),
        "ServerAddress" => {
            "write `https://ADDRESS:PORT`, such as `https://192.0.2.10:44443`: the server uses TLS, and \
             its URL has no path"
                .into()
        }
        "RepoPath" => "write an absolute path, such as `/srv/repos/tools`".into(),
        "PublishTarget" => {
            "write an absolute path, or `USER@HOST:PATH` for a directory on another machine".into()
        }
        "Checksum" => "write `sha256:` and 64 hexadecimal digits, or `sha512:` and 128".into(),
        "Duration" => "write a number and a unit: `30s`, `15m`, `1h` or `7d`".into(),
        "Bridge" => "write an interface name of up to 15 characters, such as `vmbr0`".into(),
        _ => "see the reference for the format".into(),
    }
}

/// Reports a string that is not one of the choices.
pub fn unknown_choice(word: &str, words: &[&str], span: Span, cx: &mut Context<'_>) {
    let shown = cx.quoted(word);
    // Words that YAML parsers disagree on are shown with the quotes they need.
    let written = |word: &str| match Scalar::plain(word).meaning() {
        Meaning::Text => format!("`{word}`"),
        Meaning::Null
        | Meaning::Bool(_)
        | Meaning::Int(_)
        | Meaning::Float(_)
        | Meaning::Ambiguous => format!("`\"{word}\"`"),
    };
    let all = words
        .iter()
        .map(|word| written(word))
        .collect::<Vec<_>>()
        .join(", ");
    let hint = closest(word, words.iter().copied()).map_or_else(
        || format!("write one of {all}"),
        |near| format!("did you mean {}? The choices are {all}", written(&near)),
    );
    cx.error(
        Code::UnknownChoice,
        span,
        format!("{shown} is not one of the choices"),
        hint,
    );
}

/// A supported schema version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions<const MIN: i64, const MAX: i64>(pub i64);

/// The schema version of a document with a single version.
pub type Version<const V: i64> = Versions<V, V>;

impl<const MIN: i64, const MAX: i64> Decode for Versions<MIN, MAX> {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        match value.scalar().map(super::tree::Scalar::meaning) {
            Some(Meaning::Int(version)) if (MIN..=MAX).contains(&version) => Some(Self(version)),
            Some(Meaning::Int(version)) => {
                let message = format!("schema version {version} is not supported");
                cx.error(
                    Code::SchemaVersion,
                    value.span,
                    message,
                    if version > MAX {
                        format!("write `schema_version: {MAX}`, or use a newer homestak that reads {version}")
                    } else {
                        format!("write `schema_version: {MAX}`")
                    },
                );
                None
            }
            _ => cx.wrong_type(value, "an integer"),
        }
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        if MIN == MAX {
            json!({ "const": MAX })
        } else {
            json!({ "enum": (MIN..=MAX).collect::<Vec<_>>() })
        }
    }
}

/// Any value, unchanged.
impl Decode for Value {
    fn decode(value: &Value, _: &mut Context<'_>) -> Option<Self> {
        Some(value.clone())
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({})
    }
}
