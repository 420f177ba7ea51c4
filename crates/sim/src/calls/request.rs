//! API requests and answers, independent of HTTP.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{ApiError, Output};

/// The credentials of a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    #[default]
    None,
    /// `user@realm!name=secret`.
    Token(String),
    /// A ticket, and the CSRF token that other methods than `GET` need.
    Ticket {
        /// The cookie's value.
        ticket: String,
        /// The header's value.
        csrf: Option<String>,
    },
}

/// A file uploaded with a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// The file name.
    pub name: String,
    /// The size in bytes.
    pub size: u64,
    /// Checksums by algorithm.
    pub checksums: BTreeMap<String, String>,
    /// The first bytes, which identify a qcow2 image.
    pub head: Vec<u8>,
}

/// An API request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// The path, with or without `/api2/json`, percent-decoded.
    pub path: String,
    /// Parameters of query and body.
    pub parameters: BTreeMap<String, String>,
    /// The credentials of the caller.
    pub credentials: Credentials,
    /// The uploaded file.
    pub upload: Option<Upload>,
    /// A lease scope of the driver and its fencing number, which Proxmox VE does not have.
    pub fence: Option<(String, i64)>,
}

impl Request {
    /// Creates a request.
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            ..Self::default()
        }
    }

    /// Creates a `GET` request.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Creates a `POST` request.
    pub fn post(path: &str) -> Self {
        Self::new("POST", path)
    }

    /// Creates a `PUT` request.
    pub fn put(path: &str) -> Self {
        Self::new("PUT", path)
    }

    /// Creates a `DELETE` request.
    pub fn delete(path: &str) -> Self {
        Self::new("DELETE", path)
    }

    /// Authenticates with a token, `user@realm!name=secret`.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.credentials = Credentials::Token(token.to_owned());
        self
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.parameters.insert(name.to_owned(), value.to_string());
        self
    }

    /// Returns the path after `/api2/json`.
    pub(crate) fn api_path(&self) -> &str {
        let path = self.path.strip_prefix("/api2/json").unwrap_or(&self.path);
        if path.is_empty() { "/" } else { path }
    }
}

/// How an answer is delivered to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Complete.
    #[default]
    Whole,
    /// The connection is reset.
    Reset,
    /// Nothing is sent.
    Silence,
    /// The body is not JSON.
    Garbage,
    /// Half of the body is sent.
    Truncated,
}

/// A body: a JSON value, or text for long lists, whose value would need many times the memory.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Value(Value),
    /// The text, and its value once requested.
    Text(String, OnceLock<Value>),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The reason phrase, which contains the error message.
    pub reason: String,
    /// The body; some errors have none.
    pub(crate) content: Option<Content>,
    /// How the answer is delivered.
    pub delivery: Delivery,
}

impl Answer {
    pub(crate) fn ok(output: Output) -> Self {
        let body = match output {
            Output::Data(data) => Content::Value(json!({ "data": data })),
            // An empty list has no total.
            Output::Page(data, 0) => Content::Value(json!({ "data": data })),
            Output::Page(data, total) => Content::Value(json!({ "data": data, "total": total })),
            Output::Text(data) => Content::Text(format!("{{\"data\":{data}}}"), OnceLock::new()),
        };
        Self {
            status: 200,
            reason: "OK".into(),
            content: Some(body),
            delivery: Delivery::Whole,
        }
    }

    pub(crate) fn refused(fail: ApiError) -> Self {
        let body = (!fail.without_body).then(|| {
            // Only errors raised by a method end in a newline.
            let end = if fail.status == 501 { "" } else { "\n" };
            let mut body = json!({ "data": null, "message": format!("{}{end}", fail.reason) });
            if !fail.errors.is_empty() {
                body["errors"] = json!(fail.errors);
            }
            body
        });
        Self {
            status: fail.status,
            // A reason phrase is one line.
            reason: fail.reason.lines().next().unwrap_or("").to_owned(),
            content: body.map(Content::Value),
            delivery: Delivery::Whole,
        }
    }

    pub(crate) fn undelivered(delivery: Delivery) -> Self {
        Self {
            status: 0,
            reason: String::new(),
            content: None,
            delivery,
        }
    }

    pub(crate) fn with_delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    pub(crate) fn with_data(mut self, data: Value) -> Self {
        self.content = Some(Content::Value(json!({ "data": data })));
        self
    }

    /// Returns the `data` of the body, or null.
    pub fn data(&self) -> &Value {
        static NULL: Value = Value::Null;
        self.body()
            .and_then(|body| body.get("data"))
            .unwrap_or(&NULL)
    }

    /// Returns the body; some errors have none.
    pub fn body(&self) -> Option<&Value> {
        Some(match self.content.as_ref()? {
            Content::Value(value) => value,
            Content::Text(text, parsed) => {
                parsed.get_or_init(|| serde_json::from_str(text).unwrap_or_default())
            }
        })
    }

    /// Returns the body as text.
    pub fn into_text(self) -> Option<String> {
        Some(match self.content? {
            Content::Value(value) => value.to_string(),
            Content::Text(text, _) => text,
        })
    }

    /// Whether the call succeeded and its answer was delivered.
    pub fn is_ok(&self) -> bool {
        self.status == 200 && self.delivery == Delivery::Whole
    }
}
