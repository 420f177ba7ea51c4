//! Tables for the terminal: aligned text without borders.

/// Renders a table; columns are as wide as their widest cell, two spaces apart.
pub(crate) fn render(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let heading = headings
        .iter()
        .map(|heading| heading.to_uppercase())
        .collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}  "));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}
