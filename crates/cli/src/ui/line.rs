//! Labels of output lines from several nodes; readable without colour.

use owo_colors::{AnsiColors, OwoColorize as _};

/// Colours that can be read on dark and on light ground; red is for errors.
const COLORS: [AnsiColors; 5] = [
    AnsiColors::Cyan,
    AnsiColors::Green,
    AnsiColors::Magenta,
    AnsiColors::Yellow,
    AnsiColors::Blue,
];

/// Returns the label of a node's lines.
pub(crate) fn of_node(label: &str, nth: usize, width: usize) -> String {
    let name = format!("{label:width$} |");
    format!("{} ", name.color(COLORS[nth % COLORS.len()]))
}
