//! Arranges a diagram: cards, lines and panels with coordinates. Markup and colours are in `svg`.

use super::block::{Block, GAP_X, GAP_Y, Limits};
use super::card_kind::CardKind;
use super::forest::{Forest, LayoutKind};
use super::geometry::{Bend, Card, Edge, Line, Point, Rect};
use super::style::{CARD_PAD, DETAIL_SIZE, DETAIL_STEP, HEAD, LABEL_PAD, LABEL_SIZE, NAME_SIZE};
use super::text::{self, Weight};
use super::{Diagram, panel, ring};

/// Cards up to this width get the width of the widest of them, so that rows are even.
const EVEN_WIDTH: i64 = 230;
/// No card is narrower, in pixels.
const LEAST_WIDTH: i64 = 150;
/// Rows longer than this wrap, in pixels: about the width of a page.
const ROW: i64 = 1120;
/// The same for one tree among many, at least: three cards.
const LEAST_INNER_ROW: i64 = 540;
/// Pixels between the trees of two hosts.
const GAP_HOSTS: i64 = 56;

/// The frame of a region.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) rect: Rect,
    pub(super) name: String,
    /// Its host; may be empty.
    pub(super) note: String,
}

/// Everything between title and legend, from (0, 0).
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) block: Block,
    pub(super) panels: Vec<Panel>,
}

impl Layout {
    pub(super) fn of(diagram: &Diagram, forest: &Forest) -> Self {
        let mut cards = cards(diagram, forest);
        let hosts = match forest.layout {
            LayoutKind::Tiers => forest.tops_by_host(diagram),
            LayoutKind::Ring | LayoutKind::Hub | LayoutKind::Regions => Vec::new(),
        };
        let mut host_cards: Vec<_> = hosts.iter().map(|(host, _)| host_card(host)).collect();
        set_sizes(cards.iter_mut().chain(&mut host_cards));
        align_heights(&mut cards, forest);

        let area: i64 = cards
            .iter()
            .map(|card| (card.rect.w + GAP_X) * (card.rect.h + GAP_Y))
            .sum();
        // A large diagram is wider than high. Trees leave corners empty and need more space.
        let stretch = if forest.children.iter().all(Vec::is_empty) {
            2
        } else {
            3
        };
        let limit = ROW.max((stretch * area).isqrt());
        let natural = |node: &usize| Block::of(*node, forest, &cards, Limits::none()).w + GAP_X;
        // If not everything fits into one row, trees are narrower, so that several share a row.
        let limits = match forest.tops.iter().map(natural).sum::<i64>() > limit {
            true => Limits {
                outer: limit,
                inner: LEAST_INNER_ROW.max(limit * 2 / 5),
            },
            false => Limits::none(),
        };
        // A single tree gets the whole row.
        let tree = if forest.tops.len() == 1 {
            limits
        } else {
            limits.below()
        };
        let grow = |node: &usize| Block::of(*node, forest, &cards, tree);
        let grow_all = |tops: &[usize]| tops.iter().map(grow).collect::<Vec<_>>();

        let mut layout = match forest.layout {
            LayoutKind::Tiers => {
                let trees = hosts.iter().zip(host_cards).map(|((host, tops), card)| {
                    let blocks = grow_all(tops);
                    if host.is_empty() {
                        return Block::beside(blocks, GAP_X, limit);
                    }
                    let below = blocks
                        .into_iter()
                        .map(|block| (block, Line::Child))
                        .collect();
                    Block::stack(card, below, limit)
                });
                Self::from(Block::beside(trees.collect(), GAP_HOSTS, limit))
            }
            LayoutKind::Hub => Self::from(Block::beside(grow_all(&forest.tops), GAP_HOSTS, limit)),
            LayoutKind::Ring => Self::from(ring::arrange(grow_all(&forest.tops))),
            LayoutKind::Regions => {
                let groups = forest.tops_by_region(diagram.regions.len());
                let inner = groups
                    .iter()
                    .map(|(region, tops)| (*region, Block::beside(grow_all(tops), GAP_X, limit)));
                panel::arrange(inner.collect(), diagram, &forest.links, limit)
            }
        };
        layout.add_lines(forest);
        layout
    }

    /// Adds the lines between nodes of different trees.
    fn add_lines(&mut self, forest: &Forest) {
        let peers = forest.peers.iter().map(|pair| (*pair, Line::Peer));
        let cross_region = forest.cross_region.iter().map(|pair| (*pair, Line::Child));
        let spokes = match (forest.layout, forest.hub) {
            // With regions a spoke stays in its panel, and is shown by a line.
            (LayoutKind::Regions, Some(hub)) => forest
                .spokes
                .iter()
                .map(|spoke| ((hub, *spoke), Line::Spoke))
                .collect(),
            (LayoutKind::Regions | LayoutKind::Tiers | LayoutKind::Ring | LayoutKind::Hub, _) => {
                Vec::new()
            }
        };
        let mut rects = vec![None; forest.children.len()];
        for card in &self.block.cards {
            if let Some(node) = card.node {
                rects[node] = Some(card.rect);
            }
        }
        for ((a, b), line) in peers.chain(cross_region).chain(spokes) {
            let (Some(from), Some(to)) = (rects[a], rects[b]) else {
                continue;
            };
            let points = vec![from.centre(), to.centre()];
            let others = rects
                .iter()
                .flatten()
                .filter(|rect| **rect != from && **rect != to);
            let blocked = others
                .copied()
                .any(|rect| intersects(rect, points[0], points[1]));
            // On a ring, lines cross no card; elsewhere they curve around cards in between.
            let bend = match blocked && forest.layout != LayoutKind::Ring {
                true => Bend::Arc,
                false => Bend::Straight,
            };
            self.block.edges.push(Edge { line, bend, points });
        }
    }
}

impl From<Block> for Layout {
    fn from(block: Block) -> Self {
        Self {
            block,
            panels: Vec::new(),
        }
    }
}

fn cards(diagram: &Diagram, forest: &Forest) -> Vec<Card> {
    let card = |(at, node): (usize, &super::DiagramNode)| {
        let mut lines: Vec<String> = node.details.iter().map(|line| text::detail(line)).collect();
        lines.extend(
            forest
                .host_note(diagram, at)
                .map(|host| format!("on {}", text::clean(host))),
        );
        Card {
            rect: Rect {
                x: 0,
                y: 0,
                w: 0,
                h: 0,
            },
            node: Some(at),
            kind: CardKind::of(&node.kind),
            label: text::detail(&node.kind),
            name: text::clean(&node.name),
            lines,
            hub: forest.hub == Some(at),
        }
    };
    diagram.nodes.iter().enumerate().map(card).collect()
}

fn host_card(host: &str) -> Card {
    Card {
        rect: Rect {
            x: 0,
            y: 0,
            w: 0,
            h: 0,
        },
        node: None,
        kind: CardKind::Host,
        label: "host".to_owned(),
        name: text::clean(host),
        lines: Vec::new(),
        hub: false,
    }
}

/// Sets the sizes of cards and breaks their details into lines.
fn set_sizes<'c>(cards: impl Iterator<Item = &'c mut Card>) {
    let mut cards: Vec<_> = cards.collect();
    let heads: Vec<i64> = cards.iter().map(|card| head_width(card)).collect();
    let even = heads
        .iter()
        .copied()
        .filter(|width| *width <= EVEN_WIDTH)
        .max()
        .unwrap_or(0);
    for (card, head) in cards.iter_mut().zip(&heads) {
        let width = (*head).max(even).max(LEAST_WIDTH);
        card.lines = text::flow(&card.lines, width - 2 * CARD_PAD, DETAIL_SIZE);
        let widest = card
            .lines
            .iter()
            .map(|line| text::width(line, DETAIL_SIZE, Weight::Normal));
        card.rect.w = width.max(widest.max().unwrap_or(0) + 2 * CARD_PAD);
        let n_lines = i64::try_from(card.lines.len()).unwrap_or(0);
        card.rect.h = HEAD
            + if n_lines == 0 {
                0
            } else {
                n_lines * DETAIL_STEP + 6
            };
    }
}

/// Gives neighbours the same height.
fn align_heights(cards: &mut [Card], forest: &Forest) {
    let below = (0..cards.len()).map(|node| forest.below(node));
    let mut groups: Vec<Vec<usize>> = below
        .map(|group| group.into_iter().map(|(node, _)| node).collect())
        .collect();
    groups.push(forest.tops.clone());
    for group in groups {
        let height = group
            .iter()
            .map(|node| cards[*node].rect.h)
            .max()
            .unwrap_or(0);
        for node in group {
            cards[node].rect.h = height;
        }
    }
}

fn head_width(card: &Card) -> i64 {
    let name = text::width(&card.name, NAME_SIZE, Weight::Bold);
    let label = text::width(&card.label, LABEL_SIZE, Weight::Bold) + 2 * LABEL_PAD;
    name + 10 + label + 2 * CARD_PAD
}

/// Returns whether a line intersects a rectangle (Liang-Barsky clipping in integers).
fn intersects(rect: Rect, from: Point, to: Point) -> bool {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    let sides = [
        (-dx, from.x - rect.x),
        (dx, rect.x + rect.w - from.x),
        (-dy, from.y - rect.y),
        (dy, rect.y + rect.h - from.y),
    ];
    // The part of the line inside, as fractions of its length.
    let (mut enter, mut leave) = ((0, 1), (1, 1));
    for (slope, room) in sides {
        if slope == 0 {
            if room < 0 {
                return false;
            }
            continue;
        }
        let cut = (room * slope.signum(), slope.abs());
        let later = |a: (i64, i64), b: (i64, i64)| {
            i128::from(a.0) * i128::from(b.1) > i128::from(b.0) * i128::from(a.1)
        };
        if slope < 0 && later(cut, enter) {
            enter = cut;
        } else if slope > 0 && later(leave, cut) {
            leave = cut;
        }
        if later(enter, leave) {
            return false;
        }
    }
    true
}
