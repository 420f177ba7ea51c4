//! Quotes commands for the shell of a node.

pub use homestak_core::shell::quote_if_needed as quote;

/// Returns the shell line for a command. A single argument is a shell line already, such as
/// `uptime | tail -1`; several are quoted.
pub fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => {
            let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
            words.join(" ")
        }
    }
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
