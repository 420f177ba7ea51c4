//! Tables for the terminal.
//!
//! In: headings and rows. Out: aligned text without borders.
//! Never: colour that carries meaning alone.

use comfy_table::{ContentArrangement, Table};

/// Renders a table; columns are as wide as their widest cell.
pub(crate) fn render(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.fold(String::new(), |text, line| text + &line + "\n")
}
