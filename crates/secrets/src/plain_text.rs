//! Decrypted text. Its memory is cleared when it is dropped.

use zeroize::Zeroizing;

/// Text with secrets, accessible only through [`PlainText::expose`].
#[derive(Clone)]
pub struct PlainText(Zeroizing<String>);

impl PlainText {
    /// Wraps the text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PlainText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainText(..)")
    }
}
