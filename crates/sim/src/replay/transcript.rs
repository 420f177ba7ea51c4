//! Reads recorded exchanges.
//!
//! In: a file with one JSON object per line. Out: rows, with a time each.
//! Never: judging them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One recorded exchange.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    /// The line in its file, from one.
    #[serde(skip)]
    pub(crate) line: usize,
    #[serde(default)]
    pub(crate) flow: Option<String>,
    #[serde(default)]
    pub(crate) note: Option<String>,
    /// When it was sent. Rows without a time were sent one after the other.
    #[serde(default)]
    pub(crate) t0: Option<f64>,
    #[serde(default)]
    pub(crate) token: Option<String>,
    pub(crate) method: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) params: Value,
    #[serde(default)]
    pub(crate) req_headers: Option<BTreeMap<String, String>>,
    pub(crate) status: u16,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) seconds: f64,
    #[serde(default)]
    pub(crate) body: Value,
    #[serde(default)]
    pub(crate) lab_artifact: Value,
}

/// What tells whether a row is replayed.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    flow: Option<String>,
    status: Value,
}

/// The flow of rows that name none.
const BASIC: &str = "basic";

/// The method of rows that are commands run on the host.
const COMMAND: &str = "HOST";

/// A file that comes with a recorded upload.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedFile {
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) name: String,
    pub(crate) size: u64,
}

impl Row {
    pub(crate) fn flow(&self) -> &str {
        self.flow.as_deref().unwrap_or(BASIC)
    }

    pub(crate) fn note(&self) -> &str {
        self.note.as_deref().unwrap_or("")
    }

    pub(crate) fn is_artifact(&self) -> bool {
        !matches!(self.lab_artifact, Value::Null | Value::Bool(false))
    }

    /// Whether it is a command that was run on the host as root, and no call.
    pub(crate) fn is_command(&self) -> bool {
        self.method == COMMAND
    }

    /// Whether it is not sent: a command, or a change that only the test set-up refused.
    pub(crate) fn is_left_out(&self) -> bool {
        let refused = self.is_artifact() && self.method != "GET" && self.status >= 400;
        self.is_command() || refused
    }

    pub(crate) fn data(&self) -> &Value {
        &self.body["data"]
    }

    /// Returns the path without prefix and query.
    pub(crate) fn api_path(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or("");
        path.strip_prefix("/api2/json").unwrap_or(path)
    }

    /// Returns the task a path names.
    pub(crate) fn upid(&self) -> Option<&str> {
        self.api_path()
            .split('/')
            .find(|part| part.starts_with("UPID:"))
    }

    /// Returns the task that was started.
    pub(crate) fn started(&self) -> Option<&str> {
        let data = self.data().as_str()?;
        (self.status == 200 && data.starts_with("UPID:")).then_some(data)
    }

    /// Returns one parameter as a text.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        self.parameters().remove(name)
    }

    /// Returns query and body together, as texts.
    pub(crate) fn parameters(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        if let Some((_, query)) = self.path.split_once('?') {
            for pair in query.split('&') {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                all.insert(key.to_owned(), value.to_owned());
            }
        }
        if let Some(object) = self.params.as_object() {
            for (key, value) in object {
                all.insert(key.clone(), text_of(value));
            }
        }
        all
    }

    /// Reads the description of an upload: `multipart: content=iso, {...} filename=a.iso (1 bytes)`.
    pub(crate) fn file(&self) -> Option<RecordedFile> {
        let text = self.params.as_str()?.strip_prefix("multipart:")?;
        let mut file = RecordedFile::default();
        let cleaned: String = text.chars().filter(|c| !"{}'()".contains(*c)).collect();
        let cleaned = cleaned.replace(',', " ").replace(": ", "=");
        let mut last_number = 0_u64;
        for word in cleaned.split_whitespace() {
            match word.split_once('=') {
                Some(("filename", name)) => name.clone_into(&mut file.name),
                Some((key, value)) => {
                    file.fields.insert(key.to_owned(), value.to_owned());
                }
                None if word == "bytes" => file.size = last_number,
                None => {
                    if let Some(kib) = word.strip_suffix("KiB") {
                        file.size = kib.parse::<u64>().unwrap_or(0) << 10;
                    }
                    last_number = word.parse().unwrap_or(last_number);
                }
            }
        }
        Some(file)
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => u8::from(*flag).to_string(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Reads the rows of some flows of a file, of all when none is named. A line that is no exchange
/// is an error with its number. What was done on a connection that stayed open is left out.
pub(crate) fn read(path: &Path, flows: &[String]) -> std::io::Result<Vec<Row>> {
    let text = fs_err::read_to_string(path)?;
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |error| {
            let words = format!("{}:{}: {error}", path.display(), at + 1);
            std::io::Error::new(std::io::ErrorKind::InvalidData, words)
        };
        let head: Head = serde_json::from_str(line).map_err(wrong)?;
        let flow = head.flow.as_deref().unwrap_or(BASIC);
        let wanted = flows.is_empty() || flows.iter().any(|name| name == flow);
        if wanted && !head.status.is_null() {
            let mut row: Row = serde_json::from_str(line).map_err(wrong)?;
            row.line = at + 1;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What a UPID says.
#[derive(Clone, Debug)]
pub(crate) struct UpidParts {
    pub(crate) node: String,
    /// Hundredths of a second since boot.
    pub(crate) ticks: f64,
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) identity: String,
}

/// Splits a UPID.
pub(crate) fn upid_parts(upid: &str) -> Option<UpidParts> {
    let parts: Vec<&str> = upid.split(':').collect();
    let [_, node, _, ticks, _, kind, id, identity, _] = parts[..] else {
        return None;
    };
    Some(UpidParts {
        node: node.to_owned(),
        ticks: u64::from_str_radix(ticks, 16).ok()? as f64,
        kind: kind.to_owned(),
        id: id.to_owned(),
        identity: identity.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_an_upload_is_read() {
        let row: Row = serde_json::from_value(serde_json::json!({
            "method": "POST", "path": "/api2/json/x", "status": 200,
            "params": "multipart: content=import, {'checksum-algorithm': 'sha256', 'checksum': 'ab'} filename=a.qcow2 (77 bytes)",
        }))
        .unwrap();
        let file = row.file().unwrap();
        assert_eq!((file.name.as_str(), file.size), ("a.qcow2", 77));
        assert_eq!(file.fields["checksum"], "ab");
        assert_eq!(file.fields["content"], "import");
    }
}
