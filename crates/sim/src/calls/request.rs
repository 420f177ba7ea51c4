//! A call and its answer, before they become bytes.
//!
//! In: method, path, parameters, who asks. Out: status, reason phrase, body, how it is delivered.
//! Never: sockets.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{Fail, Output};

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Nobody.
    #[default]
    None,
    /// `user@realm!name=secret`.
    Token(String),
    /// A ticket, and the CSRF token that changes need.
    Ticket {
        /// The cookie's value.
        ticket: String,
        /// The header's value.
        csrf: Option<String>,
    },
}

/// A file that comes with a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// The name the sender gave it.
    pub name: String,
    /// How many bytes.
    pub size: u64,
    /// SHA-256 and the others that were asked for, by algorithm.
    pub checksums: BTreeMap<String, String>,
    /// The first bytes, which tell a qcow2 image from something else.
    pub head: Vec<u8>,
}

/// A call.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// The path, with or without `/api2/json`, percent-decoded.
    pub path: String,
    /// Query and body together.
    pub parameters: BTreeMap<String, String>,
    /// Who asks.
    pub credentials: Credentials,
    /// A file.
    pub upload: Option<Upload>,
    /// A scope of the driver, and the number under which it holds it. Proxmox VE knows no such thing.
    pub fence: Option<(String, i64)>,
}

impl Request {
    /// Makes a call.
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            ..Self::default()
        }
    }

    /// Makes a call that reads.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Makes a call that starts or creates something.
    pub fn post(path: &str) -> Self {
        Self::new("POST", path)
    }

    /// Makes a call that changes something.
    pub fn put(path: &str) -> Self {
        Self::new("PUT", path)
    }

    /// Makes a call that removes something.
    pub fn delete(path: &str) -> Self {
        Self::new("DELETE", path)
    }

    /// Asks as a token, `user@realm!name=secret`.
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

    /// Returns the path behind `/api2/json`.
    pub(crate) fn api_path(&self) -> &str {
        let path = self.path.strip_prefix("/api2/json").unwrap_or(&self.path);
        if path.is_empty() { "/" } else { path }
    }
}

/// How an answer reaches whoever asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Whole.
    #[default]
    Whole,
    /// The connection is cut.
    Reset,
    /// Nothing comes.
    Silence,
    /// Something that is not JSON comes.
    Garbage,
    /// Half of it comes.
    Truncated,
}

/// A body: a tree, or a text for lists so long that their tree would be many times as large.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Value(Value),
    /// The text, and its tree once someone has asked for it.
    Text(String, OnceLock<Value>),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The reason phrase, where Proxmox VE puts its errors.
    pub reason: String,
    /// The body; some refusals have none.
    pub(crate) content: Option<Content>,
    /// How it arrives.
    pub delivery: Delivery,
}

impl Answer {
    pub(crate) fn ok(output: Output) -> Self {
        let body = match output {
            Output::Data(data) => Content::Value(json!({ "data": data })),
            // No total is shown where there is nothing.
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

    pub(crate) fn refused(fail: Fail) -> Self {
        let body = (!fail.silent).then(|| {
            // Only what a method raised ends in a newline.
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

    pub(crate) fn delivered(mut self, delivery: Delivery) -> Self {
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

    /// Returns the body; some refusals have none.
    pub fn body(&self) -> Option<&Value> {
        Some(match self.content.as_ref()? {
            Content::Value(value) => value,
            Content::Text(text, parsed) => {
                parsed.get_or_init(|| serde_json::from_str(text).unwrap_or_default())
            }
        })
    }

    /// Turns it into the body as it is sent.
    pub fn into_text(self) -> Option<String> {
        Some(match self.content? {
            Content::Value(value) => value.to_string(),
            Content::Text(text, _) => text,
        })
    }

    /// Whether it was done.
    pub fn is_ok(&self) -> bool {
        self.status == 200 && self.delivery == Delivery::Whole
    }
}
