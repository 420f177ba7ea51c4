//! Injected connection faults: bodies that end early, connections that are reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// How a connection ends early.
#[derive(Debug, Error)]
pub(crate) enum Disconnect {
    /// Reset, as by a machine that restarted.
    #[error("the connection is reset by an injected fault")]
    Reset,
    /// Closed.
    #[error("the connection is closed by an injected fault")]
    Close,
}

enum BodyState {
    Data(Bytes),
    /// Waits once, so that the data is sent before the connection closes.
    Flush,
    Broken,
    Done,
}

/// The body of an answer. A half body announces its full length and ends early.
pub(crate) struct Body {
    state: BodyState,
    promised: u64,
    half: bool,
}

impl Body {
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self {
            promised: bytes.len() as u64,
            state: BodyState::Data(bytes.into()),
            half: false,
        }
    }

    pub(crate) fn half(bytes: Vec<u8>) -> Self {
        let promised = bytes.len() as u64;
        let mut bytes = bytes;
        bytes.truncate(bytes.len() / 2);
        Self {
            promised,
            state: BodyState::Data(bytes.into()),
            half: true,
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Disconnect;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Disconnect>>> {
        match std::mem::replace(&mut self.state, BodyState::Done) {
            BodyState::Data(bytes) => {
                if self.half {
                    self.state = BodyState::Flush;
                }
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            BodyState::Flush => {
                self.state = BodyState::Broken;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            BodyState::Broken => Poll::Ready(Some(Err(Disconnect::Close))),
            BodyState::Done => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            BodyState::Data(bytes) => bytes.is_empty() && !self.half,
            BodyState::Flush | BodyState::Broken => false,
            BodyState::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match &self.state {
            BodyState::Data(_) => self.promised,
            BodyState::Flush | BodyState::Broken => 1,
            BodyState::Done => 0,
        })
    }
}

/// A connection that can be reset instead of closed.
pub(crate) struct ResettableStream {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) reset: Arc<AtomicBool>,
}

impl Drop for ResettableStream {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // Closing with a linger time of 0 sends a reset.
            let _ = self.stream.get_ref().0.set_zero_linger();
        }
    }
}

impl AsyncRead for ResettableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ResettableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
