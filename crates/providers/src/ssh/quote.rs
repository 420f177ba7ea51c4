//! Quotes commands for the shell of a node.

/// Returns the line for a command. One word is a line of the shell already, such as
/// `uptime | tail -1`; several are handed over as they are.
pub fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => {
            let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
            words.join(" ")
        }
    }
}

/// Writes a word so that a shell takes it as it is.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        shell_line(&words)
    }

    #[test]
    fn one_word_is_a_shell_line_and_several_are_quoted() {
        assert_eq!(line(&["uptime | tail -1"]), "uptime | tail -1");
        assert_eq!(
            line(&["echo", "a b", "$HOME", "it's", ""]),
            "echo 'a b' '$HOME' 'it'\\''s' ''"
        );
        assert_eq!(line(&["ls", "-l", "/etc"]), "ls -l /etc");
    }
}
