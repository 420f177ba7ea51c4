//! A proxy in front of a host that counts requests and kills the program at one of them.
//!
//! The traffic is encrypted, so requests are recognised by direction: data from the program after
//! data from the host is the next request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Whether the program is killed before or after the host executes the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum When {
    /// The request never reaches the host.
    Before,
    /// The host has answered, and the answer never reaches the program.
    After,
}

/// Counts the requests of all proxies of a host, and kills the program at one of them.
#[derive(Default)]
pub(super) struct KillTrigger {
    requests: AtomicU64,
    /// Which request, with [`When::After`] in the lowest bit; 0 for none.
    target: AtomicU64,
    /// The program; 0 before it is known.
    program: AtomicI32,
}

impl KillTrigger {
    /// Sets the n-th request, counted from 1, to kill the program that is started next.
    pub(super) fn arm(&self, nth: u64, when: When) {
        self.reset();
        let bit = u64::from(when == When::After);
        self.target.store(nth << 1 | bit, Ordering::SeqCst);
    }

    /// Resets the count, and kills nothing.
    pub(super) fn reset(&self) {
        self.target.store(0, Ordering::SeqCst);
        self.requests.store(0, Ordering::SeqCst);
        self.program.store(0, Ordering::SeqCst);
    }

    /// Sets the process id of the program.
    pub(super) fn set_program(&self, pid: u32) {
        self.program.store(pid.cast_signed(), Ordering::SeqCst);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Counts a request, and returns whether it is the target.
    fn count(&self) -> Option<When> {
        let nth = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let target = self.target.load(Ordering::SeqCst);
        let when = if target & 1 == 1 {
            When::After
        } else {
            When::Before
        };
        (target >> 1 == nth).then_some(when)
    }

    async fn kill(&self) {
        // It may send requests before its process id is set.
        let pid = loop {
            match Pid::from_raw(self.program.load(Ordering::SeqCst)) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        _ = kill_process(pid, Signal::KILL);
    }
}

/// Starts a proxy to an address and returns its own; `is_up` is called for each connection.
pub(super) async fn start(
    host: SocketAddr,
    trigger: Arc<KillTrigger>,
    is_up: impl Fn() -> bool + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((program, _)) = listener.accept().await {
            if !is_up() {
                continue;
            }
            let Ok(host) = TcpStream::connect(host).await else {
                continue;
            };
            tokio::spawn(forward(program, host, trigger.clone()));
        }
    });
    address
}

async fn forward(mut program: TcpStream, mut host: TcpStream, trigger: Arc<KillTrigger>) {
    _ = (program.set_nodelay(true), host.set_nodelay(true));
    let (mut request, mut response) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    // The first data on a connection is the TLS handshake.
    let (mut awaiting_response, mut n_requests, mut kill_on_response) = (false, 0, false);
    loop {
        tokio::select! {
            read = program.read(&mut request) => {
                let Ok(n_bytes @ 1..) = read else { break };
                if !awaiting_response {
                    n_requests += 1;
                    match trigger.count().filter(|_| n_requests > 1) {
                        Some(When::Before) => return trigger.kill().await,
                        Some(When::After) => kill_on_response = true,
                        None => {}
                    }
                }
                awaiting_response = true;
                if host.write_all(&request[..n_bytes]).await.is_err() { break }
            }
            read = host.read(&mut response) => {
                let Ok(n_bytes @ 1..) = read else { break };
                if kill_on_response {
                    return trigger.kill().await;
                }
                awaiting_response = false;
                if program.write_all(&response[..n_bytes]).await.is_err() { break }
            }
        }
    }
    if awaiting_response {
        // A host continues a request whose client disconnected, so the connection is closed later.
        _ = tokio::time::timeout(Duration::from_millis(50), host.read(&mut response)).await;
    }
}
