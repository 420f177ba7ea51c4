//! A client that sends exactly the bytes it is given, over TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use homestak_api::trust::TlsCredential;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::site::TestSite;

/// An open connection.
pub(crate) struct RawClient {
    stream: TlsStream<TcpStream>,
    read: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl RawAnswer {
    /// Returns the first header of a name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// Returns code and message of a refusal in the form of its endpoint.
    pub(crate) fn refusal(&self) -> (String, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let [code, message] = match self.header("content-type") {
            Some("application/problem+json") => {
                assert_eq!(body["status"], self.status, "{}", self.body);
                [&body["code"], &body["detail"]]
            }
            _ => [&body["error"]["code"], &body["error"]["message"]],
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(code), text(message))
    }
}

impl RawClient {
    /// Connects with an optional certificate.
    pub(crate) async fn connect(site: &TestSite, own: Option<TlsCredential>) -> Self {
        let connected = Self::try_connect(site, site.tls(own)).await;
        connected.expect("a TLS connection")
    }

    pub(crate) async fn try_connect(
        site: &TestSite,
        config: rustls::ClientConfig,
    ) -> std::io::Result<Self> {
        Self::connect_from([127, 0, 0, 1].into(), site, config).await
    }

    /// Connects from one of this machine's addresses.
    pub(crate) async fn connect_from(
        from: IpAddr,
        site: &TestSite,
        config: rustls::ClientConfig,
    ) -> std::io::Result<Self> {
        Self::connect_to(from, site.address(), config).await
    }

    /// The same to an address of a server that listens on several.
    pub(crate) async fn connect_to(
        from: IpAddr,
        address: SocketAddr,
        config: rustls::ClientConfig,
    ) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(address).await?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
        Ok(Self {
            stream: stream.await?,
            read: Vec::new(),
        })
    }

    /// Returns the certificate of the server.
    pub(crate) fn server_certificate(&self) -> Vec<u8> {
        let shown = self.stream.get_ref().1.peer_certificates();
        shown.expect("a chain")[0].to_vec()
    }

    /// Sends bytes. The server may have closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        if self.stream.write_all(bytes).await.is_ok() {
            _ = self.stream.flush().await;
        }
    }

    async fn more(&mut self) -> bool {
        let mut part = [0; 16 << 10];
        match self.stream.read(&mut part).await {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.read.extend_from_slice(&part[..count]);
                true
            }
        }
    }

    /// Reads an answer; `None` when the connection ends before it.
    pub(crate) async fn answer(&mut self, is_head: bool) -> Option<RawAnswer> {
        let end = loop {
            let found = self.read.windows(4).position(|part| part == b"\r\n\r\n");
            match found {
                Some(at) => break at + 4,
                None if self.more().await => {}
                None => return None,
            }
        };
        let head = String::from_utf8(self.read.drain(..end).collect()).expect("ASCII");
        let mut answer = RawAnswer {
            status: head.get(9..12)?.parse().expect("a status"),
            head,
            body: String::new(),
        };
        let length = answer.header("content-length").unwrap_or("0");
        let length: usize = length.parse().expect("a length");
        if !is_head && length > 0 {
            while self.read.len() < length {
                assert!(self.more().await, "the answer is cut: {}", answer.head);
            }
            let body = self.read.drain(..length).collect();
            answer.body = String::from_utf8(body).expect("text");
        }
        Some(answer)
    }

    /// Sends a request, and reads its answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Option<RawAnswer> {
        self.send(request).await;
        self.answer(request.starts_with(b"HEAD ")).await
    }

    /// Returns whether the server closes the connection without sending anything more.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.more().await
    }
}

/// Returns the bytes of a request. A body is JSON unless a header sets another type.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let has = |wanted: &str| {
        headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case(wanted))
    };
    if method == "POST" && !has("content-type") {
        text.push_str("content-type: application/json\r\n");
    }
    if !body.is_empty() && !has("content-length") && !has("transfer-encoding") {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    (text + "\r\n" + body).into_bytes()
}
