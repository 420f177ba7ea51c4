//! Names before the lines of many nodes; colour alone does not tell them apart.

use owo_colors::{AnsiColors, OwoColorize as _};

/// Colours that can be read on dark and on light ground; red is for errors.
const COLORS: [AnsiColors; 5] = [
    AnsiColors::Cyan,
    AnsiColors::Green,
    AnsiColors::Magenta,
    AnsiColors::Yellow,
    AnsiColors::Blue,
];

/// Returns what stands before the lines of a node.
pub(crate) fn of_node(label: &str, nth: usize, width: usize) -> String {
    let name = format!("{label:width$} |");
    format!("{} ", name.color(COLORS[nth % COLORS.len()]))
}
