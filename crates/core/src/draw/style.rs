//! Sizes in pixels and the style sheet of the SVG, light and dark, without external resources.

use std::fmt::Write as _;

use super::card_kind::CardKind;

/// Space around the diagram.
pub(super) const MARGIN: i64 = 28;
pub(super) const TITLE_SIZE: i64 = 20;
pub(super) const SUBTITLE_SIZE: i64 = 13;
/// Height of title and subtitle with the space below them.
pub(super) const TITLE_HEIGHT: i64 = 74;

/// Space between the border of a card and its text.
pub(super) const CARD_PAD: i64 = 13;
pub(super) const CARD_RADIUS: i64 = 10;
/// Height of the line with name and kind.
pub(super) const HEAD: i64 = 38;
pub(super) const NAME_SIZE: i64 = 14;
pub(super) const LABEL_SIZE: i64 = 10;
/// Space left and right of the text in the label of the kind.
pub(super) const LABEL_PAD: i64 = 7;
pub(super) const LABEL_HEIGHT: i64 = 17;
pub(super) const DETAIL_SIZE: i64 = 12;
/// From one line of details to the next.
pub(super) const DETAIL_STEP: i64 = 17;
/// Distance between a hub and the ring around it.
pub(super) const HUB_RING: i64 = 5;

pub(super) const PANEL_PAD: i64 = 20;
pub(super) const PANEL_HEAD: i64 = 48;
pub(super) const PANEL_NAME_SIZE: i64 = 15;
pub(super) const PANEL_NOTE_SIZE: i64 = 12;

pub(super) const LEGEND_SIZE: i64 = 11;
pub(super) const LEGEND_STEP: i64 = 22;

/// The class on the root element. Rules are limited to it, because an inlined SVG shares its
/// style sheet with the page around it.
pub(super) const ROOT_CLASS: &str = "homestak-topology";

/// Rules that hold on any background.
const SHAPES: &[(&str, &str)] = &[
    (
        "text",
        "font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",\"Noto Sans\",Arial,sans-serif",
    ),
    (".title", "font-size:20px;font-weight:700"),
    (".subtitle", "font-size:13px"),
    (".name", "font-size:14px;font-weight:600"),
    (".detail", "font-size:12px"),
    (
        ".label",
        "font-size:10px;font-weight:700;text-anchor:middle",
    ),
    (".panel-name", "font-size:15px;font-weight:700"),
    (".panel-note", "font-size:12px;font-weight:400"),
    (".key", "font-size:11px"),
    (".card,.ring,.swatch", "stroke-width:1.5"),
    (".ring", "fill:none"),
    (".host .card,.host.swatch", "stroke-dasharray:5 3"),
    (
        ".edge",
        "fill:none;stroke-linecap:round;stroke-linejoin:round",
    ),
    (".edge.child", "stroke-width:1.75"),
    (".edge.spoke", "stroke-width:2.75"),
    (".edge.peer", "stroke-width:2.25"),
    (".edge.link", "stroke-width:2.25;stroke-dasharray:7 5"),
];

/// Colours of everything that is not a card: selector, property, light, dark.
const COLOURS: &[(&str, &str, &str, &str)] = &[
    (".sheet", "fill", "#ffffff", "#0d1117"),
    (".sheet", "stroke", "#e2e8f0", "#2a313c"),
    (".title,.name,.panel-name", "fill", "#0f172a", "#e8edf4"),
    (
        ".subtitle,.detail,.panel-note,.key",
        "fill",
        "#52606f",
        "#9aa7b6",
    ),
    (".label", "fill", "#ffffff", "#0d1117"),
    (".panel", "fill", "#f6f8fb", "#131923"),
    (".panel", "stroke", "#cfd8e3", "#323c4a"),
    (".rule", "stroke", "#e2e8f0", "#2a313c"),
    (".edge.child", "stroke", "#94a3b8", "#64748b"),
    (".edge.spoke,.ring", "stroke", "#0284c7", "#38bdf8"),
    (".hub-pill", "fill", "#0284c7", "#38bdf8"),
    (".edge.peer", "stroke", "#db2777", "#f472b6"),
    (".edge.link", "stroke", "#4f46e5", "#818cf8"),
    (".dot", "fill", "#4f46e5", "#818cf8"),
];

/// Returns the style sheet. The browser or viewer chooses light or dark.
pub(super) fn sheet() -> String {
    let mut css = String::new();
    for (selectors, body) in SHAPES {
        rule(&mut css, selectors, body);
    }
    for (selectors, property, light, _) in COLOURS {
        rule(&mut css, selectors, &format!("{property}:{light}"));
    }
    for kind in CardKind::ALL {
        let colours = kind.light();
        card_rules(&mut css, kind, colours.fill, colours.stroke);
    }
    css.push_str("@media (prefers-color-scheme:dark){\n");
    for (selectors, property, _, dark) in COLOURS {
        rule(&mut css, selectors, &format!("{property}:{dark}"));
    }
    for kind in CardKind::ALL {
        let colours = kind.dark();
        card_rules(&mut css, kind, colours.fill, colours.stroke);
    }
    css.push_str("}\n");
    css
}

fn card_rules(css: &mut String, kind: CardKind, fill: &str, stroke: &str) {
    let class = kind.class();
    let card = format!(".{class} .card,.{class}.swatch");
    rule(css, &card, &format!("fill:{fill};stroke:{stroke}"));
    rule(css, &format!(".{class} .pill"), &format!("fill:{stroke}"));
}

fn rule(css: &mut String, selectors: &str, body: &str) {
    let limited: Vec<_> = selectors
        .split(',')
        .map(|one| format!(".{ROOT_CLASS} {one}"))
        .collect();
    // Writing to a string cannot fail.
    let _ = writeln!(css, "{}{{{body}}}", limited.join(","));
}
