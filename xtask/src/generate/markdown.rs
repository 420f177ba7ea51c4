//! Writes Markdown in the style of this project: one sentence per line, tables with escaped cells.

use std::fmt::Write as _;

/// A page that is being written.
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Starts a page with its title and the note that it is generated.
    pub(super) fn new(title: &str) -> Self {
        Self {
            text: format!("# {title}\n\n<!-- Written by `cargo xtask gen`. Do not edit. -->\n"),
        }
    }

    /// Adds a heading.
    pub(super) fn heading(&mut self, level: usize, text: &str) {
        _ = writeln!(self.text, "\n{} {text}", "#".repeat(level));
    }

    /// Adds a paragraph, one sentence per line.
    pub(super) fn paragraph(&mut self, text: &str) {
        let lines = sentences(text).join("\n");
        if !lines.is_empty() {
            _ = writeln!(self.text, "\n{lines}");
        }
    }

    /// Adds a block of code.
    pub(super) fn code(&mut self, text: &str) {
        _ = writeln!(self.text, "\n```text\n{}\n```", text.trim_end());
    }

    /// Adds a table.
    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        self.text.push('\n');
        self.text += &line(&mut head.iter().map(|cell| (*cell).to_owned()));
        self.text += &line(&mut head.iter().map(|_| "---".to_owned()));
        for row in rows {
            self.text += &line(&mut row.iter().map(|cell| escape(cell)));
        }
    }

    /// Returns the finished page.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// Splits text into sentences. A sentence ends with a mark and a space that no lower-case letter
/// follows.
fn sentences(text: &str) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(' ') {
        let ended = text[..at].ends_with(['.', '!', '?']);
        let continues = text[at + 1..].starts_with(|next: char| next.is_lowercase());
        if ended && !continues {
            sentences.push(text[start..at].to_owned());
            start = at + 1;
        }
    }
    if start < text.len() {
        sentences.push(text[start..].to_owned());
    }
    sentences
}

/// Escapes text for a cell of a table.
fn escape(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sentence_has_its_own_line() {
        assert_eq!(
            sentences("One, e.g. this. `Two` is here.  Is three? Yes"),
            ["One, e.g. this.", "`Two` is here.", "Is three?", "Yes"]
        );
    }

    #[test]
    fn bars_in_cells_do_not_end_the_cell() {
        let mut page = Page::new("t");
        page.table(&["a"], &[vec!["x|y".into()]]);
        assert!(page.finish().ends_with("\n| a |\n| --- |\n| x\\|y |\n"));
    }
}
