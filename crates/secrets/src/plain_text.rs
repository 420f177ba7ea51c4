//! Text that holds secrets.
//!
//! In: decrypted text. Out: the text, only through [`PlainText::expose`].
//! Never: `Display`, or a `Debug` that shows it; the memory is cleared when dropped.

use zeroize::Zeroizing;

/// Text that holds secrets. Review looks for calls of [`PlainText::expose`].
#[derive(Clone)]
pub struct PlainText(Zeroizing<String>);

impl PlainText {
    /// Takes hold of the text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PlainText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainText(..)")
    }
}
