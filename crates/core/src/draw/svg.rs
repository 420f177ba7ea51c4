//! Renders a diagram as SVG without external resources, for light and dark pages.

use super::block::Block;
use super::card_kind::CardKind;
use super::forest::{Forest, subtitle};
use super::geometry::{Card, Edge, Line, Point};
use super::layout::{Layout, Panel};
use super::path::path;
use super::style::{
    CARD_PAD, CARD_RADIUS, DETAIL_STEP, HEAD, HUB_RING, LABEL_HEIGHT, LABEL_PAD, LABEL_SIZE,
    LEGEND_SIZE, LEGEND_STEP, MARGIN, PANEL_PAD, ROOT_CLASS, SUBTITLE_SIZE, TITLE_HEIGHT,
    TITLE_SIZE, sheet,
};
use super::text::{self, Weight, xml};
use super::{Diagram, describe};

/// The minimum width in pixels: some viewers scale up narrower images.
const LEAST_WIDTH: i64 = 460;

/// Renders the diagram as SVG.
pub fn svg(diagram: &Diagram) -> String {
    let forest = Forest::of(diagram);
    let mut layout = Layout::of(diagram, &forest);
    let title = text::clean(&diagram.name);
    let words: Vec<_> = subtitle(diagram, forest.layout)
        .iter()
        .map(|w| text::clean(w))
        .collect();
    let under = words.join(" · ");

    let content = layout.block.w.max(LEAST_WIDTH - 2 * MARGIN);
    let (keys, keys_size) = legend(&layout.block, content);
    let inner = content
        .max(keys_size.x)
        .max(text::width(&title, TITLE_SIZE, Weight::Bold))
        .max(text::width(&under, SUBTITLE_SIZE, Weight::Normal));
    let left = MARGIN + (inner - layout.block.w) / 2;
    layout.block.shift(left, TITLE_HEIGHT + MARGIN / 2);
    for panel in &mut layout.panels {
        panel.rect.x += left;
        panel.rect.y += TITLE_HEIGHT + MARGIN / 2;
    }
    let rule_y = TITLE_HEIGHT + MARGIN / 2 + layout.block.h + MARGIN;
    let (width, height) = (inner + 2 * MARGIN, rule_y + keys_size.y + 22);

    let mut out = SvgWriter::default();
    out.line(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{ROOT_CLASS}\" role=\"img\" \
         width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">"
    ));
    out.line(&format!(
        "<title>{}</title>",
        xml(&format!("{title}: {under}"))
    ));
    out.line(&format!(
        "<desc>{}</desc>",
        xml(&describe::describe(diagram, &forest))
    ));
    out.line(&format!("<style>\n{}</style>", sheet()));
    let (sheet_w, sheet_h) = (width - 1, height - 1);
    out.line(&format!(
        "<rect class=\"sheet\" x=\"0.5\" y=\"0.5\" width=\"{sheet_w}\" height=\"{sheet_h}\" rx=\"14\"/>"
    ));
    out.text("title", MARGIN, MARGIN + 18, &title);
    out.text("subtitle", MARGIN, MARGIN + 39, &under);
    layout.panels.iter().for_each(|panel| out.panel(panel));
    // Later elements cover earlier ones: lines first, the most prominent last, then the cards.
    for line in [Line::Link, Line::Peer, Line::Child, Line::Spoke] {
        let edges: Vec<_> = layout
            .block
            .edges
            .iter()
            .filter(|edge| edge.line == line)
            .collect();
        // Lines from one card are one path: otherwise the segment they share looks thicker.
        let same_start = |a: &&Edge, b: &&Edge| a.points.first() == b.points.first();
        edges
            .chunk_by(same_start)
            .for_each(|bundle| out.edges(line, bundle));
    }
    layout
        .block
        .cards
        .sort_by_key(|card| (card.node.is_some(), card.node));
    layout.block.cards.iter().for_each(|card| out.card(card));
    let rule_end = width - MARGIN;
    out.line(&format!(
        "<line class=\"rule\" x1=\"{MARGIN}\" y1=\"{rule_y}\" x2=\"{rule_end}\" y2=\"{rule_y}\"/>"
    ));
    keys.iter()
        .for_each(|key| out.key(key, MARGIN, rule_y + 12));
    out.line("</svg>");
    out.text
}

/// One entry of the legend.
struct LegendEntry {
    at: Point,
    sign: LegendSymbol,
}

enum LegendSymbol {
    Kind(CardKind),
    Line(Line),
}

impl LegendSymbol {
    fn label(&self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.label(),
            Self::Line(Line::Child) => "parent and child",
            Self::Line(Line::Spoke) => "spoke",
            Self::Line(Line::Peer) => "peers",
            Self::Line(Line::Link) => "region link",
        }
    }

    /// Width of the symbol.
    fn width(&self) -> i64 {
        match self {
            Self::Kind(_) => 18,
            Self::Line(_) => 28,
        }
    }
}

/// Returns legend entries for what occurs in the diagram, and their extent.
fn legend(block: &Block, limit: i64) -> (Vec<LegendEntry>, Point) {
    let kinds = CardKind::ALL
        .into_iter()
        .filter(|kind| block.cards.iter().any(|c| c.kind == *kind));
    let lines = [Line::Child, Line::Spoke, Line::Peer, Line::Link];
    let lines = lines
        .into_iter()
        .filter(|line| block.edges.iter().any(|e| e.line == *line));
    let mut at = Point { x: 0, y: 0 };
    let mut extent = Point { x: 0, y: 0 };
    let mut keys = Vec::new();
    for sign in kinds
        .map(LegendSymbol::Kind)
        .chain(lines.map(LegendSymbol::Line))
    {
        let width = sign.width() + 7 + text::width(sign.label(), LEGEND_SIZE, Weight::Normal);
        if at.x > 0 && at.x + width > limit {
            at = Point {
                x: 0,
                y: at.y + LEGEND_STEP,
            };
        }
        keys.push(LegendEntry { at, sign });
        extent = Point {
            x: extent.x.max(at.x + width),
            y: at.y + LEGEND_STEP,
        };
        at.x += width + 20;
    }
    (keys, extent)
}

#[derive(Default)]
struct SvgWriter {
    text: String,
}

impl SvgWriter {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn text(&mut self, class: &str, x: i64, y: i64, text: &str) {
        if !text.is_empty() {
            let text = xml(text);
            self.line(&format!(
                "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"
            ));
        }
    }

    fn panel(&mut self, panel: &Panel) {
        let rect = panel.rect;
        self.line(&format!(
            "<rect class=\"panel\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"14\"/>",
            rect.x, rect.y, rect.w, rect.h
        ));
        let (x, y) = (rect.x + PANEL_PAD, rect.y + 30);
        let (name, note) = (xml(&panel.name), xml(&panel.note));
        // The note follows the name, whatever its width in the viewer's font.
        self.line(&format!(
            "<text class=\"panel-name\" x=\"{x}\" y=\"{y}\">{name}\
             <tspan class=\"panel-note\" dx=\"9\">{note}</tspan></text>"
        ));
    }

    fn card(&mut self, card: &Card) {
        let rect = card.rect;
        let right = rect.x + rect.w - CARD_PAD;
        let class = card.kind.class();
        self.line(&format!("<g class=\"{class}\">"));
        self.line(&format!(
            "<rect class=\"card\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{CARD_RADIUS}\"/>",
            rect.x, rect.y, rect.w, rect.h
        ));
        self.text("name", rect.x + CARD_PAD, rect.y + 24, &card.name);
        if !card.label.is_empty() {
            let width = text::width(&card.label, LABEL_SIZE, Weight::Bold) + 2 * LABEL_PAD;
            let (x, y) = (right - width, rect.y + (HEAD - LABEL_HEIGHT) / 2);
            self.pill("pill", x, y, width);
            self.text("label", x + width / 2, y + 12, &card.label);
        }
        let mut y = rect.y + HEAD + 8;
        for line in &card.lines {
            self.text("detail", rect.x + CARD_PAD, y, line);
            y += DETAIL_STEP;
        }
        if card.hub {
            self.hub(card);
        }
        self.line("</g>");
    }

    fn hub(&mut self, card: &Card) {
        let rect = card.rect;
        self.line(&format!(
            "<rect class=\"ring\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>",
            rect.x - HUB_RING,
            rect.y - HUB_RING,
            rect.w + 2 * HUB_RING,
            rect.h + 2 * HUB_RING,
            CARD_RADIUS + HUB_RING
        ));
        let y = rect.y - HUB_RING - LABEL_HEIGHT / 2;
        let width = text::width("hub", LABEL_SIZE, Weight::Bold) + 2 * LABEL_PAD;
        self.pill("hub-pill", rect.centre().x - width / 2, y, width);
        self.text("label", rect.centre().x, y + 12, "hub");
    }

    fn pill(&mut self, class: &str, x: i64, y: i64, width: i64) {
        self.line(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{LABEL_HEIGHT}\" rx=\"8\"/>"
        ));
    }

    fn edges(&mut self, line: Line, bundle: &[&Edge]) {
        let class = line_class(line);
        let paths: String = bundle.iter().map(|edge| path(edge)).collect();
        self.line(&format!("<path class=\"edge {class}\" d=\"{paths}\"/>"));
        if line == Line::Link {
            let ends = bundle
                .iter()
                .flat_map(|edge| [edge.points.first(), edge.points.last()]);
            for Point { x, y } in ends.flatten() {
                self.line(&format!(
                    "<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>"
                ));
            }
        }
    }

    fn key(&mut self, key: &LegendEntry, left: i64, top: i64) {
        let (x, y) = (left + key.at.x, top + key.at.y);
        match &key.sign {
            LegendSymbol::Kind(kind) => {
                let class = kind.class();
                self.line(&format!(
                    "<rect class=\"swatch {class}\" x=\"{x}\" y=\"{}\" width=\"18\" height=\"12\" rx=\"3\"/>",
                    y + 2
                ));
            }
            LegendSymbol::Line(line) => {
                let (class, end, y) = (line_class(*line), x + 28, y + 8);
                self.line(&format!(
                    "<path class=\"edge {class}\" d=\"M{x} {y}H{end}\"/>"
                ));
            }
        }
        self.text("key", x + key.sign.width() + 7, y + 12, key.sign.label());
    }
}

fn line_class(line: Line) -> &'static str {
    match line {
        Line::Child => "child",
        Line::Spoke => "spoke",
        Line::Peer => "peer",
        Line::Link => "link",
    }
}
