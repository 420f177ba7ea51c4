//! Reads recordings: files with one exchange per line, as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One recorded exchange.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    /// The line in its file, from 1.
    #[serde(skip)]
    pub(crate) line: usize,
    #[serde(default)]
    pub(crate) flow: Option<String>,
    #[serde(default)]
    pub(crate) note: Option<String>,
    /// When it was sent, in seconds since the epoch.
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

/// The fields that decide whether a row is replayed.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    flow: Option<String>,
    status: Value,
}

/// The flow of rows without one.
const BASIC: &str = "basic";

/// The method of rows that are commands on the host.
const COMMAND: &str = "HOST";

/// The file of a recorded upload.
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

    /// Whether it is a command run as root on the host, not a call.
    pub(crate) fn is_command(&self) -> bool {
        self.method == COMMAND
    }

    /// Whether it is not sent: a command, or a change that failed because of the test setup.
    pub(crate) fn is_skipped(&self) -> bool {
        let refused = self.is_artifact() && self.method != "GET" && self.status >= 400;
        self.is_command() || refused
    }

    pub(crate) fn data(&self) -> &Value {
        &self.body["data"]
    }

    /// Returns the path without its prefix and query.
    pub(crate) fn api_path(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or("");
        path.strip_prefix("/api2/json").unwrap_or(path)
    }

    /// Returns the UPID in the path.
    pub(crate) fn upid(&self) -> Option<&str> {
        self.api_path()
            .split('/')
            .find(|part| part.starts_with("UPID:"))
    }

    /// Returns the UPID of the task that the call started.
    pub(crate) fn started(&self) -> Option<&str> {
        let data = self.data().as_str()?;
        (self.status == 200 && data.starts_with("UPID:")).then_some(data)
    }

    /// Returns one parameter as a string.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        self.parameters().remove(name)
    }

    /// Returns the parameters of query and body as strings.
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

/// Reads the rows of the given flows, or of all flows. Rows without a status, such as websocket
/// traffic, are skipped.
pub(crate) fn read(path: &Path, flows: &[String]) -> std::io::Result<Vec<Row>> {
    let text = fs_err::read_to_string(path)?;
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let invalid = |error| {
            let message = format!("{}:{}: {error}", path.display(), at + 1);
            std::io::Error::new(std::io::ErrorKind::InvalidData, message)
        };
        let head: Head = serde_json::from_str(line).map_err(invalid)?;
        let flow = head.flow.as_deref().unwrap_or(BASIC);
        let wanted = flows.is_empty() || flows.iter().any(|name| name == flow);
        if wanted && !head.status.is_null() {
            let mut row: Row = serde_json::from_str(line).map_err(invalid)?;
            row.line = at + 1;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The parts of a UPID.
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
    fn parses_the_description_of_an_upload() {
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
