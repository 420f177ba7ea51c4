//! Splits Rust lines into code and comments, blanks out strings, and marks test code. This is not a
//! parser: it only keeps strings from being taken for code.

use crate::tree::File;

/// Marks a line that breaks a rule for a reason.
const MARKER: &str = "tidy: ";

/// One line.
pub(super) struct Line<'t> {
    /// Its number, from 1.
    pub(super) number: usize,
    /// The whole line.
    pub(super) text: &'t str,
    /// Code without strings and comments. Empty in files that are not Rust.
    pub(super) code: String,
    /// Text of comments; the whole line in files that are not Rust.
    pub(super) comment: String,
    /// Whether it is test code.
    pub(super) test: bool,
    /// Whether it states a reason to break a rule.
    pub(super) excused: bool,
}

/// Splits a file into lines.
pub(super) fn lines(file: &File) -> Vec<Line<'_>> {
    let rust = file.is_rust();
    let parts = if rust {
        split(&file.text)
    } else {
        let whole = |line: &str| (String::new(), line.to_owned());
        file.text.lines().map(whole).collect()
    };
    let mut lines: Vec<Line<'_>> = file
        .text
        .lines()
        .zip(parts)
        .enumerate()
        .map(|(index, (text, (code, comment)))| Line {
            number: index + 1,
            text,
            code,
            comment,
            test: file.is_test(),
            excused: false,
        })
        .collect();
    mark_tests(&mut lines);
    mark_excused(&mut lines);
    lines
}

/// Returns the position of a whole word in text. A word that starts or ends with punctuation may be
/// next to anything there.
pub(super) fn find_word(text: &str, word: &str) -> Option<usize> {
    let part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).map(|(at, _)| at).find(|at| {
        let starts = !word.starts_with(part) || !text[..*at].ends_with(part);
        let ends = !word.ends_with(part) || !text[at + word.len()..].starts_with(part);
        starts && ends
    })
}

/// What the scanner is inside of.
enum State {
    Code,
    Comment,
    Block(usize),
    Text,
    RawText(usize),
}

/// Splits Rust into code and comment, line by line.
fn split(text: &str) -> Vec<(String, String)> {
    let letters: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    let (mut code, mut comment) = (String::new(), String::new());
    let mut state = State::Code;
    let mut index = 0;
    while index < letters.len() {
        let rest = &letters[index..];
        let mut taken = 1;
        if rest[0] == '\n' {
            lines.push((std::mem::take(&mut code), std::mem::take(&mut comment)));
            if matches!(state, State::Comment) {
                state = State::Code;
            }
            index += 1;
            continue;
        }
        match state {
            State::Code => {
                if rest.starts_with(&['/', '/']) {
                    state = State::Comment;
                } else if rest.starts_with(&['/', '*']) {
                    state = State::Block(1);
                    taken = 2;
                } else if rest[0] == '"' {
                    state = State::Text;
                    code.push('"');
                } else if let Some((hashes, length)) = raw_start(&letters, index) {
                    state = State::RawText(hashes);
                    code.push('"');
                    taken = length;
                } else if let Some(length) = letter_literal(rest) {
                    code.push_str("' '");
                    taken = length;
                } else {
                    code.push(rest[0]);
                }
            }
            State::Comment => comment.push(rest[0]),
            State::Block(depth) => {
                if rest.starts_with(&['*', '/']) {
                    state = if depth == 1 {
                        State::Code
                    } else {
                        State::Block(depth - 1)
                    };
                    taken = 2;
                } else if rest.starts_with(&['/', '*']) {
                    state = State::Block(depth + 1);
                    taken = 2;
                } else {
                    comment.push(rest[0]);
                }
            }
            State::Text => {
                if rest[0] == '\\' {
                    // An escaped newline is left to the next iteration, which counts lines.
                    taken = if rest.get(1) == Some(&'\n') { 1 } else { 2 };
                } else if rest[0] == '"' {
                    state = State::Code;
                    code.push('"');
                }
            }
            State::RawText(hashes) => {
                let closes = rest[0] == '"'
                    && rest.len() > hashes
                    && rest[1..=hashes].iter().all(|letter| *letter == '#');
                if closes {
                    state = State::Code;
                    code.push('"');
                    taken = 1 + hashes;
                }
            }
        }
        index += taken;
    }
    lines.push((code, comment));
    lines
}

/// Returns the number of hashes and the length of `r#"`, `br"` and similar, if one starts here.
fn raw_start(letters: &[char], index: usize) -> Option<(usize, usize)> {
    let before = index.checked_sub(1).map(|before| letters[before]);
    if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
        return None;
    }
    let rest = &letters[index..];
    let prefix = usize::from(matches!(rest[0], 'b' | 'c'));
    if rest.get(prefix) != Some(&'r') {
        return None;
    }
    let hashes = rest[prefix + 1..]
        .iter()
        .take_while(|letter| **letter == '#')
        .count();
    let quote = prefix + 1 + hashes;
    (rest.get(quote) == Some(&'"')).then_some((hashes, quote + 1))
}

/// Returns the length of a character literal, if one starts here and it is not a lifetime.
fn letter_literal(rest: &[char]) -> Option<usize> {
    if rest[0] != '\'' {
        return None;
    }
    if rest.get(1) == Some(&'\\') {
        let end = rest.iter().skip(3).position(|letter| *letter == '\'')?;
        return Some(end + 4);
    }
    (rest.get(2) == Some(&'\'')).then_some(3)
}

/// Marks items with `#[cfg(test)]`.
fn mark_tests(lines: &mut [Line<'_>]) {
    let mut depth = 0_usize;
    let mut waiting = false;
    for line in lines {
        let starts = line.code.contains("#[cfg(test)]");
        waiting |= starts;
        line.test |= waiting || depth > 0;
        for letter in line.code.chars() {
            match letter {
                '{' if waiting || depth > 0 => {
                    waiting = false;
                    depth += 1;
                }
                '}' if depth > 0 => depth -= 1,
                ';' if waiting => waiting = false,
                _ => {}
            }
        }
    }
}

/// Marks lines with a reason, on the line itself or alone on the line before.
fn mark_excused(lines: &mut [Line<'_>]) {
    let mut before = false;
    for line in lines {
        let here = line
            .comment
            .split_once(MARKER)
            .is_some_and(|(_, reason)| reason.split_whitespace().count() >= 3);
        line.excused = here || before;
        before = here && line.code.trim().is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        split(text).into_iter().map(|(code, _)| code).collect()
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code("a(\"b // c\"); // d"), ["a(\"\"); "]);
        assert_eq!(code("a /* b /* c */ d */ e"), ["a  e"]);
        assert_eq!(code("r#\"a\"b\"# c"), ["\"\" c"]);
        assert_eq!(code("for \"\\\"x\" in"), ["for \"\" in"]);
        assert_eq!(code("\"a \\\n b\" c"), ["\"", "\" c"]);
    }

    #[test]
    fn lifetimes_are_not_character_literals() {
        assert_eq!(code("fn f<'a>(x: &'a str) {"), ["fn f<'a>(x: &'a str) {"]);
        assert_eq!(code("x == '\"' || y == '\\''"), ["x == ' ' || y == ' '"]);
    }

    #[test]
    fn items_with_cfg_test_are_test_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let file = File::new("crates/x/src/y.rs", text);
        let tests: Vec<bool> = lines(&file).iter().map(|line| line.test).collect();
        assert_eq!(tests, [false, true, true, true, true, false]);
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let text = "a; // tidy: looked up, never iterated\nb; // tidy: x\n// tidy: a b c\nd;\ne;\n";
        let file = File::new("crates/x/src/y.rs", text);
        let excused: Vec<bool> = lines(&file).iter().map(|line| line.excused).collect();
        assert_eq!(excused, [true, false, true, true, false]);
    }

    #[test]
    fn only_whole_words_are_found() {
        assert_eq!(find_word("a rand b", "rand"), Some(2));
        assert_eq!(find_word("random", "rand"), None);
        assert_eq!(find_word("x::now()", "::now("), Some(1));
    }
}
