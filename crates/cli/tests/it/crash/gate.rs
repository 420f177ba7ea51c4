//! A door in front of a host that counts requests, and kills the program at one of them.
//!
//! What goes through is sealed, so requests are told from answers by their direction: whatever
//! comes from the program after something came from the host is the next request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Whether the host has done what the request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum When {
    /// The request never reaches the host.
    Before,
    /// The host has answered, and the answer never reaches the program.
    After,
}

/// Counts requests of all doors of a host, and knows whom to kill at which.
#[derive(Default)]
pub(super) struct Fuse {
    requests: AtomicU64,
    /// Which request, with [`When::After`] in the lowest bit; 0 for none.
    trap: AtomicU64,
    /// The program; 0 before it is known.
    program: AtomicI32,
}

impl Fuse {
    /// Lets the n-th request from now on, counted from 1, kill the program that is started next.
    pub(super) fn arm(&self, nth: u64, when: When) {
        self.reset();
        let bit = u64::from(when == When::After);
        self.trap.store(nth << 1 | bit, Ordering::SeqCst);
    }

    /// Counts from 0 again, and kills nobody.
    pub(super) fn reset(&self) {
        self.trap.store(0, Ordering::SeqCst);
        self.requests.store(0, Ordering::SeqCst);
        self.program.store(0, Ordering::SeqCst);
    }

    /// Says which process the program is.
    pub(super) fn aim(&self, pid: u32) {
        self.program.store(pid.cast_signed(), Ordering::SeqCst);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Counts a request, and says whether it is the one.
    fn count(&self) -> Option<When> {
        let nth = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let trap = self.trap.load(Ordering::SeqCst);
        let when = if trap & 1 == 1 {
            When::After
        } else {
            When::Before
        };
        (trap >> 1 == nth).then_some(when)
    }

    async fn kill(&self) {
        // It may have called before the test learnt its number.
        let pid = loop {
            match Pid::from_raw(self.program.load(Ordering::SeqCst)) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        _ = kill_process(pid, Signal::KILL);
    }
}

/// Opens a door to an address; `is_up` is asked for each connection. Returns where it is.
pub(super) async fn open(
    host: SocketAddr,
    fuse: Arc<Fuse>,
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
            tokio::spawn(carry(program, host, fuse.clone()));
        }
    });
    address
}

async fn carry(mut program: TcpStream, mut host: TcpStream, fuse: Arc<Fuse>) {
    _ = (program.set_nodelay(true), host.set_nodelay(true));
    let (mut asked, mut told) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    // The first thing said on a connection is the handshake.
    let (mut is_asking, mut turns, mut doomed) = (false, 0, false);
    loop {
        tokio::select! {
            read = program.read(&mut asked) => {
                let Ok(n_bytes @ 1..) = read else { break };
                if !is_asking {
                    turns += 1;
                    match fuse.count().filter(|_| turns > 1) {
                        Some(When::Before) => return fuse.kill().await,
                        Some(When::After) => doomed = true,
                        None => {}
                    }
                }
                is_asking = true;
                if host.write_all(&asked[..n_bytes]).await.is_err() { break }
            }
            read = host.read(&mut told) => {
                let Ok(n_bytes @ 1..) = read else { break };
                if doomed {
                    return fuse.kill().await;
                }
                is_asking = false;
                if program.write_all(&told[..n_bytes]).await.is_err() { break }
            }
        }
    }
    if is_asking {
        // A host goes on with a request whose client is gone, so it is not cut off at once.
        _ = tokio::time::timeout(Duration::from_millis(50), host.read(&mut told)).await;
    }
}
