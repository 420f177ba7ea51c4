//! Passes on the output of a program line by line, and limits what is kept of it.

use super::Pipe;

/// How much output of a program is kept when its lines are passed on, in bytes.
const MAX_STREAMED: usize = 256 << 10;
/// A longer line is passed on in parts.
const MAX_STREAMED_LINE: usize = 16 << 10;

/// The lines of a pipe that are passed on.
#[derive(Default)]
pub(super) struct LineBuffer {
    /// Where the next line begins.
    start: usize,
}

impl LineBuffer {
    /// Passes on the lines that are complete, and the last one at the end.
    pub(super) fn read(&mut self, pipe: &mut Pipe, line: &mut dyn FnMut(&str)) {
        while let Some(length) = pipe.text[self.start..].iter().position(|b| *b == b'\n') {
            let end = self.start + length;
            line(&String::from_utf8_lossy(&pipe.text[self.start..end]));
            self.start = end + 1;
        }
        let rest = pipe.text.len() - self.start;
        if rest > MAX_STREAMED_LINE || (pipe.file.is_none() && rest > 0) {
            line(&String::from_utf8_lossy(&pipe.text[self.start..]));
            self.start = pipe.text.len();
        }
        if self.start > MAX_STREAMED {
            let excess = self.start - MAX_STREAMED / 2;
            pipe.text.drain(..excess);
            self.start -= excess;
        }
    }
}
