//! The topology as a picture: one SVG without anything from outside, for light and dark pages.
//!
//! In: a [`Topology`]. Out: SVG 1.1 text with title, description, cards, lines and a legend.
//! Never: deciding where cards are (that is `scene`).

use super::block::Block;
use super::forest::{Forest, subtitle};
use super::geometry::{Card, Edge, Line, Point};
use super::kind::Kind;
use super::path::path;
use super::scene::{Panel, Scene};
use super::style::{
    CARD_PAD, CARD_RADIUS, DETAIL_STEP, HEAD, HUB_RING, LABEL_HEIGHT, LABEL_PAD, LABEL_SIZE,
    LEGEND_SIZE, LEGEND_STEP, MARGIN, PANEL_PAD, ROOT_CLASS, SUBTITLE_SIZE, TITLE_HEIGHT,
    TITLE_SIZE, sheet,
};
use super::text::{self, Weight, xml};
use super::{Topology, describe};

/// Narrower than this, a picture is scaled up to unreadable size by some viewers, in pixels.
const LEAST_WIDTH: i64 = 460;

/// Renders the topology as SVG.
pub fn svg(topology: &Topology) -> String {
    let forest = Forest::of(topology);
    let mut scene = Scene::of(topology, &forest);
    let title = text::clean(&topology.name);
    let words: Vec<_> = subtitle(topology, forest.shape)
        .iter()
        .map(|w| text::clean(w))
        .collect();
    let under = words.join(" · ");

    let content = scene.block.w.max(LEAST_WIDTH - 2 * MARGIN);
    let (keys, keys_size) = legend(&scene.block, content);
    let inner = content
        .max(keys_size.x)
        .max(text::width(&title, TITLE_SIZE, Weight::Bold))
        .max(text::width(&under, SUBTITLE_SIZE, Weight::Normal));
    let left = MARGIN + (inner - scene.block.w) / 2;
    scene.block.shift(left, TITLE_HEIGHT + MARGIN / 2);
    for panel in &mut scene.panels {
        panel.rect.x += left;
        panel.rect.y += TITLE_HEIGHT + MARGIN / 2;
    }
    let rule_y = TITLE_HEIGHT + MARGIN / 2 + scene.block.h + MARGIN;
    let (width, height) = (inner + 2 * MARGIN, rule_y + keys_size.y + 22);

    let mut out = Out::default();
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
        xml(&describe::describe(topology, &forest))
    ));
    out.line(&format!("<style>\n{}</style>", sheet()));
    let (sheet_w, sheet_h) = (width - 1, height - 1);
    out.line(&format!(
        "<rect class=\"sheet\" x=\"0.5\" y=\"0.5\" width=\"{sheet_w}\" height=\"{sheet_h}\" rx=\"14\"/>"
    ));
    out.text("title", MARGIN, MARGIN + 18, &title);
    out.text("subtitle", MARGIN, MARGIN + 39, &under);
    scene.panels.iter().for_each(|panel| out.panel(panel));
    // Later elements cover earlier ones: lines first, the loudest last, then the cards.
    for line in [Line::Link, Line::Peer, Line::Child, Line::Spoke] {
        let edges: Vec<_> = scene
            .block
            .edges
            .iter()
            .filter(|edge| edge.line == line)
            .collect();
        // Lines from one card are one path: drawn one by one, the piece they share looks thicker.
        let same_start = |a: &&Edge, b: &&Edge| a.points.first() == b.points.first();
        edges
            .chunk_by(same_start)
            .for_each(|bundle| out.edges(line, bundle));
    }
    scene
        .block
        .cards
        .sort_by_key(|card| (card.node.is_some(), card.node));
    scene.block.cards.iter().for_each(|card| out.card(card));
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
struct Key {
    at: Point,
    sign: Sign,
}

enum Sign {
    Kind(Kind),
    Line(Line),
}

impl Sign {
    fn words(&self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.meaning(),
            Self::Line(Line::Child) => "parent and child",
            Self::Line(Line::Spoke) => "spoke",
            Self::Line(Line::Peer) => "peers",
            Self::Line(Line::Link) => "region link",
        }
    }

    /// Width of the little picture.
    fn width(&self) -> i64 {
        match self {
            Self::Kind(_) => 18,
            Self::Line(_) => 28,
        }
    }
}

/// Explains what occurs in the picture, and nothing else. Returns the entries and their extent.
fn legend(block: &Block, limit: i64) -> (Vec<Key>, Point) {
    let kinds = Kind::ALL
        .into_iter()
        .filter(|kind| block.cards.iter().any(|c| c.kind == *kind));
    let lines = [Line::Child, Line::Spoke, Line::Peer, Line::Link];
    let lines = lines
        .into_iter()
        .filter(|line| block.edges.iter().any(|e| e.line == *line));
    let mut at = Point { x: 0, y: 0 };
    let mut extent = Point { x: 0, y: 0 };
    let mut keys = Vec::new();
    for sign in kinds.map(Sign::Kind).chain(lines.map(Sign::Line)) {
        let width = sign.width() + 7 + text::width(sign.words(), LEGEND_SIZE, Weight::Normal);
        if at.x > 0 && at.x + width > limit {
            at = Point {
                x: 0,
                y: at.y + LEGEND_STEP,
            };
        }
        keys.push(Key { at, sign });
        extent = Point {
            x: extent.x.max(at.x + width),
            y: at.y + LEGEND_STEP,
        };
        at.x += width + 20;
    }
    (keys, extent)
}

#[derive(Default)]
struct Out {
    text: String,
}

impl Out {
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
        // The note follows the name wherever the reader's font lets it end.
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

    fn key(&mut self, key: &Key, left: i64, top: i64) {
        let (x, y) = (left + key.at.x, top + key.at.y);
        match &key.sign {
            Sign::Kind(kind) => {
                let class = kind.class();
                self.line(&format!(
                    "<rect class=\"swatch {class}\" x=\"{x}\" y=\"{}\" width=\"18\" height=\"12\" rx=\"3\"/>",
                    y + 2
                ));
            }
            Sign::Line(line) => {
                let (class, end, y) = (line_class(*line), x + 28, y + 8);
                self.line(&format!(
                    "<path class=\"edge {class}\" d=\"M{x} {y}H{end}\"/>"
                ));
            }
        }
        self.text("key", x + key.sign.width() + 7, y + 12, key.sign.words());
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
