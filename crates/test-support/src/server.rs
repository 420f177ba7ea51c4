//! A TLS server that returns predefined responses.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use homestak_api::trust::{Fingerprint, TlsCredential, provider};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A response of the server.
#[derive(Clone)]
pub enum Response {
    /// Status and body.
    Reply(u16, String),
    /// Status, headers and body.
    Full(u16, Vec<(String, String)>, String),
    /// A redirect to a URL.
    Redirect(String),
    /// No response: the connection is closed.
    Disconnect,
    /// An endless body, sent until the client disconnects.
    Endless,
}

/// A server on the loopback interface, which runs until the test process ends.
pub struct Server {
    /// Its port.
    pub port: u16,
    /// The fingerprint of its certificate.
    pub fingerprint: String,
    /// Its self-signed certificate, to be trusted as an authority.
    pub pem: String,
    requests: Arc<Mutex<Vec<String>>>,
    endless: Arc<AtomicU64>,
}

impl Server {
    /// Starts a server that returns these responses in order, and repeats the last one.
    pub fn new(responses: Vec<Response>) -> Self {
        Self::on_port(0, responses)
    }

    /// Like [`new`](Self::new), on a given port.
    pub fn on_port(port: u16, responses: Vec<Response>) -> Self {
        let mut count = 0;
        Self::answering(port, move |_| {
            let response = responses.get(count).or(responses.last()).unwrap();
            count += 1;
            response.clone()
        })
    }

    /// Starts a server that chooses each response by the head of the request.
    pub fn answering(port: u16, mut answer: impl FnMut(&str) -> Response + Send + 'static) -> Self {
        Self::answering_bodies(port, move |head, _| answer(head))
    }

    /// Starts a server that chooses each response by the head and the body of the request.
    pub fn answering_bodies(
        port: u16,
        answer: impl FnMut(&str, &str) -> Response + Send + 'static,
    ) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let signed = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
        let credential = (vec![signed.cert.der().clone()], PrivateKeyDer::Pkcs8(key));
        Self::start(port, credential, signed.cert.pem(), answer)
    }

    /// Starts a server with a given certificate chain and key, which always returns this response. `pem`
    /// is empty.
    pub fn with_credential(credential: TlsCredential, response: Response) -> Self {
        Self::start(0, credential, String::new(), move |_, _| response.clone())
    }

    fn start(
        port: u16,
        (chain, key): TlsCredential,
        pem: String,
        mut answer: impl FnMut(&str, &str) -> Response + Send + 'static,
    ) -> Self {
        let fingerprint = Fingerprint::of(&chain[0]).to_string();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            fingerprint,
            pem,
            requests: Arc::default(),
            endless: Arc::default(),
        };
        let endless = Arc::clone(&server.endless);
        let requests = Arc::clone(&server.requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                // A client that does not trust the certificate sends no request.
                if let Some((head, body)) = request(&mut stream) {
                    let response = answer(&head, &body);
                    requests.lock().unwrap().push(head);
                    respond(&mut stream, &response, &endless);
                }
            }
        });
        server
    }

    /// Returns its address.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Returns how many bytes of endless bodies were sent.
    pub fn endless(&self) -> u64 {
        self.endless.load(Ordering::Relaxed)
    }

    /// Returns the heads of all requests.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

type Tls = StreamOwned<ServerConnection, std::net::TcpStream>;

/// Reads the head and the body of a request.
fn request(stream: &mut Tls) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).ok()?;
    // The body is read too: closing a connection with unread data resets it, and the response is lost.
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let length = lines
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, value)| value.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8_lossy(&body).into_owned()))
}

fn respond(stream: &mut Tls, response: &Response, endless: &AtomicU64) {
    let (status, more, body) = match response {
        Response::Reply(status, body) => (*status, String::new(), body.as_str()),
        Response::Full(status, headers, body) => {
            let lines = headers.iter();
            let lines = lines.map(|(name, value)| format!("{name}: {value}\r\n"));
            (*status, lines.collect(), body.as_str())
        }
        Response::Redirect(url) => (302, format!("location: {url}\r\n"), ""),
        Response::Disconnect => return,
        Response::Endless => {
            let part = [b'x'; 16 << 10];
            let mut done = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while done.is_ok() {
                done = stream.write_all(&part);
                endless.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
            return;
        }
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n{more}connection: close\r\n\r\n"
    );
    // The client may have disconnected.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
    stream.conn.send_close_notify();
    let _ = stream.flush();
}
