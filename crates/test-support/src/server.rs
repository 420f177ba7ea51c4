//! A server that gives the answers it is told to, over TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use homestak_api::trust::{Fingerprint, provider};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What it answers.
#[derive(Clone)]
pub enum Answer {
    /// Status and body.
    Says(u16, String),
    /// Another place.
    Redirect(String),
    /// Nothing: it hangs up.
    Gone,
}

/// A server on the loopback, until the test ends.
pub struct Server {
    /// Its port.
    pub port: u16,
    /// The fingerprint of its certificate.
    pub fingerprint: String,
    /// Its certificate, as the authority that it is signed by.
    pub pem: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Gives these answers in turn, and the last one for ever.
    pub fn new(answers: Vec<Answer>) -> Self {
        Self::at(0, answers)
    }

    /// The same at a port.
    pub fn at(port: u16, answers: Vec<Answer>) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let signed = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![signed.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            fingerprint: Fingerprint::of(signed.cert.der()).to_string(),
            pem: signed.cert.pem(),
            asked: Arc::default(),
        };
        let asked = Arc::clone(&server.asked);
        std::thread::spawn(move || {
            let mut turns = 0;
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                // Whoever does not trust the certificate asks nothing.
                if let Some(head) = head(&mut stream) {
                    let answer = answers.get(turns).or(answers.last()).unwrap();
                    turns += 1;
                    asked.lock().unwrap().push(head);
                    give(&mut stream, answer);
                }
            }
        });
        server
    }

    /// Returns its address.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Returns the heads of all requests.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

type Tls = StreamOwned<ServerConnection, std::net::TcpStream>;

fn head(stream: &mut Tls) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).ok()
}

fn give(stream: &mut Tls, answer: &Answer) {
    let (status, more, body) = match answer {
        Answer::Says(status, body) => (*status, String::new(), body.as_str()),
        Answer::Redirect(place) => (302, format!("location: {place}\r\n"), ""),
        Answer::Gone => return,
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} so\r\ncontent-length: {length}\r\n{more}connection: close\r\n\r\n"
    );
    // A client that has had enough hangs up.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
    stream.conn.send_close_notify();
    let _ = stream.flush();
}
