//! Quotes words for shells.

/// Quotes a word, whatever it contains.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Quotes a word unless a shell reads it unchanged anyway, so that command lines stay readable.
pub fn quote_if_needed(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    quote(word)
}
