//! The body of an answer: bytes in memory, or a file or the output of a program that is read while it
//! is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use tokio::io::AsyncSeekExt as _;
use tokio::sync::mpsc::Receiver;
use tokio_util::io::poll_read_buf;

use crate::connections::ResponseInProgress;
use crate::share::Permit;

/// How much of a file is in memory for each client.
const PIECE: usize = 256 << 10;

/// The body of an answer.
pub(crate) enum Body {
    /// All of it is in memory.
    Bytes(Full<Bytes>),
    /// A part of a file.
    File(Box<FileBody>),
    /// The output of a program: what it has printed, and what it prints.
    Output(Option<Bytes>, Receiver<io::Result<Bytes>>),
}

/// A part of a file that is being sent.
pub(crate) struct FileBody {
    file: tokio::fs::File,
    remaining: u64,
    piece: BytesMut,
    _permit: Permit,
}

impl FileBody {
    /// Sends `length` bytes from `from` on.
    pub(crate) async fn new(
        file: std::fs::File,
        (from, length): (u64, u64),
        permit: Permit,
    ) -> io::Result<Self> {
        let mut file = tokio::fs::File::from_std(file);
        file.set_max_buf_size(PIECE);
        if from > 0 {
            // Cancel safety: the file is dropped.
            file.seek(io::SeekFrom::Start(from)).await?;
        }
        Ok(Self {
            file,
            remaining: length,
            piece: BytesMut::new(),
            _permit: permit,
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        self.piece.reserve(PIECE);
        let read = ready!(poll_read_buf(
            Pin::new(&mut self.file),
            context,
            &mut self.piece
        ));
        Poll::Ready(Some(read.and_then(|n_read| {
            if n_read == 0 {
                // The client sees that the body is not complete.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut piece = self.piece.split().freeze();
            piece.truncate(usize::try_from(self.remaining).unwrap_or(usize::MAX));
            self.remaining -= piece.len() as u64;
            Ok(Frame::data(piece))
        })))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::Bytes(Full::default())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(Full::new(bytes))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Bytes(bytes) => {
                let frame = ready!(Pin::new(bytes).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::File(file) => file.poll(context),
            Self::Output(first, rest) => {
                let next = match first.take() {
                    Some(first) => Some(Ok(first)),
                    None => ready!(rest.poll_recv(context)),
                };
                Poll::Ready(next.map(|next| next.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_end_stream(),
            Self::File(file) => file.remaining == 0,
            Self::Output(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(bytes) => bytes.size_hint(),
            Self::File(file) => SizeHint::with_exact(file.remaining),
            Self::Output(..) => SizeHint::default(),
        }
    }
}

/// A body that is dropped when hyper has taken all of it.
pub(crate) struct SentBody {
    body: Body,
    _sending: ResponseInProgress,
}

impl SentBody {
    /// Notes with `sending` when all of a body was taken.
    pub(crate) fn new(body: Body, sending: ResponseInProgress) -> Self {
        Self {
            body,
            _sending: sending,
        }
    }
}

impl http_body::Body for SentBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
