//! Streams files to a storage as multipart forms, in the part order the server requires.
//!
//! Aborted when there is no progress, not after a fixed time. Files are never read into memory as a whole.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use homestak_engine::ports::ErrorClass;
use reqwest::multipart::{Form, Part};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::ReaderStream;

use super::error::{PveError, Reason};
use super::requests::ApiCall;

/// Bytes read at once.
const CHUNK: usize = 256 << 10;
/// The order that the server's parser requires; any other is rejected without a message.
const ORDER: [&str; 3] = ["content", "checksum-algorithm", "checksum"];

/// What is sent.
pub(super) enum Upload {
    /// A few bytes. They may hold a token, so there is no `Debug`.
    Bytes(Vec<u8>),
    /// A file here.
    File(PathBuf),
}

/// The progress of an upload.
#[derive(Clone, Default)]
pub(super) struct UploadProgress(Arc<AtomicU64>);

impl Upload {
    /// Creates the form.
    pub(super) async fn into_form(
        self,
        call: &ApiCall,
    ) -> Result<(Form, UploadProgress), PveError> {
        let mut form = Form::new();
        for name in ORDER {
            if let Some((_, value)) = call.params().iter().find(|(known, _)| *known == name) {
                form = form.text(name, value.clone());
            }
        }
        let file_name = call
            .params()
            .iter()
            .find(|(name, _)| *name == "filename")
            .map(|(_, value)| value.clone())
            .ok_or_else(|| PveError::bug("an upload without a file name"))?;
        let progress = UploadProgress::default();
        let part = match self {
            Self::Bytes(bytes) => Part::bytes(bytes),
            Self::File(path) => {
                let unreadable = |error: std::io::Error| {
                    let detail = format!("cannot read `{}`: {error}", path.display());
                    PveError::new(ErrorClass::Refused, Reason::Other, detail)
                };
                let file = tokio::fs::File::open(&path).await.map_err(unreadable)?;
                let bytes = file.metadata().await.map_err(unreadable)?.len();
                let counted = CountingReader {
                    file,
                    progress: progress.clone(),
                };
                let stream = ReaderStream::with_capacity(counted, CHUNK);
                Part::stream_with_length(reqwest::Body::wrap_stream(stream), bytes)
            }
        };
        let part = part
            .file_name(file_name)
            .mime_str("application/octet-stream")
            .map_err(|_| PveError::bug("an invalid media type"))?;
        Ok((form.part("filename", part), progress))
    }
}

impl UploadProgress {
    /// Returns when there was no progress for `stall`. Cancel-safe: it only reads.
    pub(super) async fn wait_for_stall(&self, clock: &SharedClock, stall: Duration) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            clock.sleep(stall).await;
            let now = self.0.load(Ordering::Relaxed);
            if now == seen {
                return;
            }
            seen = now;
        }
    }
}

struct CountingReader {
    file: tokio::fs::File,
    progress: UploadProgress,
}

impl AsyncRead for CountingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.file).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.progress.0.fetch_add(read as u64, Ordering::Relaxed);
        result
    }
}
