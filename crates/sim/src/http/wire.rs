//! What goes wrong on the wire: bodies that end early, connections that are reset.
//!
//! In: bytes and how they are to arrive. Out: a body and a stream for the HTTP library.
//! Never: deciding what goes wrong.

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

/// How a connection ends before its time.
#[derive(Debug, Error)]
pub(crate) enum Cut {
    /// As by a machine that forgot it.
    #[error("the connection is reset, as a fault asked")]
    Reset,
    /// As by a machine that closes it.
    #[error("the connection ends, as a fault asked")]
    End,
}

enum Stage {
    Data(Bytes),
    /// What was given must have left before the connection ends.
    Flush,
    Broken,
    Done,
}

/// The body of an answer. A half one says how long it would be, and ends before that.
pub(crate) struct Body {
    stage: Stage,
    promised: u64,
    half: bool,
}

impl Body {
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self {
            promised: bytes.len() as u64,
            stage: Stage::Data(bytes.into()),
            half: false,
        }
    }

    pub(crate) fn half(bytes: Vec<u8>) -> Self {
        let promised = bytes.len() as u64;
        let mut bytes = bytes;
        bytes.truncate(bytes.len() / 2);
        Self {
            promised,
            stage: Stage::Data(bytes.into()),
            half: true,
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Data(bytes) => {
                if self.half {
                    self.stage = Stage::Flush;
                }
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Stage::Flush => {
                self.stage = Stage::Broken;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Stage::Broken => Poll::Ready(Some(Err(Cut::End))),
            Stage::Done => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.stage {
            Stage::Data(bytes) => bytes.is_empty() && !self.half,
            Stage::Flush | Stage::Broken => false,
            Stage::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match &self.stage {
            Stage::Data(_) => self.promised,
            Stage::Flush | Stage::Broken => 1,
            Stage::Done => 0,
        })
    }
}

/// A connection that can be reset instead of closed.
pub(crate) struct Breakable {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) reset: Arc<AtomicBool>,
}

impl Drop for Breakable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // Without lingering, what closes is a reset.
            let _ = self.stream.get_ref().0.set_zero_linger();
        }
    }
}

impl AsyncRead for Breakable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Breakable {
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
