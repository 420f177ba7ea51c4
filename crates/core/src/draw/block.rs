//! A node with its descendants as one movable block, in which cards do not overlap.

use super::forest::Forest;
use super::geometry::{Bend, Card, Edge, Line, Point};

/// Pixels between neighbours.
pub(super) const GAP_X: i64 = 22;
/// Pixels between a card and the row below it; the lines between them bend half-way.
pub(super) const GAP_Y: i64 = 44;
/// The same below a hub, whose lines are curves and need more space.
const GAP_HUB: i64 = 68;
/// Space on the left for the line to the second and later rows.
const TRUNK: i64 = 26;
/// Distance between parallel lines to spokes and to children.
const CHILD_LINE_OFFSET: i64 = 7;

/// How long rows may get before they wrap, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Directly below the current card.
    pub(super) outer: i64,
    /// Further down.
    pub(super) inner: i64,
}

impl Limits {
    /// Rows of any length.
    pub(super) fn none() -> Self {
        // Far from the end of the range, because lengths are added to it.
        Self {
            outer: i64::MAX / 4,
            inner: i64::MAX / 4,
        }
    }

    /// The limits one level down.
    pub(super) fn below(self) -> Self {
        Self {
            outer: self.inner,
            ..self
        }
    }
}

/// Cards and lines in a rectangle from (0, 0).
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) w: i64,
    pub(super) h: i64,
    /// The middle of the topmost card.
    pub(super) anchor: i64,
    pub(super) cards: Vec<Card>,
    pub(super) edges: Vec<Edge>,
}

impl Block {
    /// Arranges a node and its descendants.
    pub(super) fn of(node: usize, forest: &Forest, cards: &[Card], limits: Limits) -> Self {
        let below = forest.below(node).into_iter().map(|(child, spoke)| {
            let line = if spoke { Line::Spoke } else { Line::Child };
            (Self::of(child, forest, cards, limits.below()), line)
        });
        Self::stack(cards[node].clone(), below.collect(), limits.outer)
    }

    /// Arranges blocks below a card, in as many rows as the limit requires, with lines.
    pub(super) fn stack(mut card: Card, below: Vec<(Self, Line)>, limit: i64) -> Self {
        let has_spokes = below.iter().any(|(_, line)| *line == Line::Spoke);
        let gap = if has_spokes { GAP_HUB } else { GAP_Y };
        let (blocks, lines): (Vec<_>, Vec<_>) = below.into_iter().unzip();
        let rows = rows(
            &blocks.iter().map(|block| block.w).collect::<Vec<_>>(),
            GAP_X,
            limit,
        );
        let wraps = rows.len() > 1;
        let indent = if wraps { TRUNK } else { 0 };

        // Positions are computed with the left edge of the first row at 0, then shifted right if the
        // card extends to the left of it.
        let mut whole = Self::default();
        let mut bends = Vec::new();
        let mut heads = Vec::new();
        let mut y = card.rect.h + gap;
        let mut rest = blocks.into_iter();
        for row in &rows {
            let mut x = indent;
            let mut height = 0;
            for block in rest.by_ref().take(row.len()) {
                heads.push(Point {
                    x: x + block.anchor,
                    y,
                });
                bends.push(y - gap / 2);
                height = height.max(block.h);
                let next = x + block.w + GAP_X;
                whole.absorb(block, x, y);
                x = next;
            }
            whole.w = whole.w.max(x - GAP_X);
            y += height + gap;
        }
        whole.h = if rows.is_empty() {
            card.rect.h
        } else {
            y - gap
        };

        whole.anchor = match (heads.first(), heads.last()) {
            (Some(first), Some(last)) if !wraps => {
                let middle = i64::midpoint(first.x, last.x);
                // A straight line to the middle child is preferred to an exact centre.
                let child = heads[heads.len() / 2].x;
                let is_near = heads.len() % 2 == 1 && (child - middle).abs() < card.rect.w / 2;
                if is_near { child } else { middle }
            }
            (Some(_), Some(_)) => whole.w / 2,
            _ => card.rect.w / 2,
        };
        let foot = Point {
            x: whole.anchor,
            y: card.rect.h,
        };
        let first_row = rows.first().map_or(0, Vec::len);
        for (at, (head, line)) in heads.iter().zip(&lines).enumerate() {
            let offset = if has_spokes && *line == Line::Child {
                CHILD_LINE_OFFSET
            } else {
                0
            };
            let edge = if *line == Line::Spoke && !wraps {
                Edge {
                    line: *line,
                    bend: Bend::SCurve,
                    points: vec![foot, *head],
                }
            } else {
                let mut points = vec![foot];
                if at >= first_row {
                    let first_bend = card.rect.h + gap / 2 + offset;
                    let trunk = offset;
                    points.push(Point {
                        x: foot.x,
                        y: first_bend,
                    });
                    points.push(Point {
                        x: trunk,
                        y: first_bend,
                    });
                    points.push(Point {
                        x: trunk,
                        y: bends[at] + offset,
                    });
                } else {
                    points.push(Point {
                        x: foot.x,
                        y: bends[at] + offset,
                    });
                }
                points.push(Point {
                    x: head.x,
                    y: bends[at] + offset,
                });
                points.push(*head);
                Edge {
                    line: *line,
                    bend: Bend::Corners,
                    points,
                }
            };
            whole.edges.push(edge);
        }

        card.rect.x = whole.anchor - card.rect.w / 2;
        card.rect.y = 0;
        let right = card.rect.x + card.rect.w;
        let overhang = (-card.rect.x).max(0);
        whole.cards.push(card);
        whole.w = whole.w.max(right);
        whole.shift(overhang, 0);
        whole.anchor += overhang;
        whole.w += overhang;
        whole
    }

    /// Arranges blocks next to each other, in as many rows as the limit requires.
    pub(super) fn beside(blocks: Vec<Self>, gap: i64, limit: i64) -> Self {
        let rows = rows(
            &blocks.iter().map(|block| block.w).collect::<Vec<_>>(),
            gap,
            limit,
        );
        let mut whole = Self::default();
        let mut rest = blocks.into_iter();
        for row in rows {
            let mut x = 0;
            let y = if whole.h == 0 { 0 } else { whole.h + GAP_Y };
            for block in rest.by_ref().take(row.len()) {
                let next = x + block.w;
                whole.absorb(block, x, y);
                whole.w = whole.w.max(next);
                x = next + gap;
            }
        }
        whole.anchor = whole.w / 2;
        whole
    }

    /// Adds the cards and lines of a block at a position.
    pub(super) fn absorb(&mut self, mut block: Self, x: i64, y: i64) {
        block.shift(x, y);
        self.h = self.h.max(y + block.h);
        self.cards.append(&mut block.cards);
        self.edges.append(&mut block.edges);
    }

    /// Moves everything.
    pub(super) fn shift(&mut self, x: i64, y: i64) {
        for card in &mut self.cards {
            card.rect.x += x;
            card.rect.y += y;
        }
        for point in self.edges.iter_mut().flat_map(|edge| &mut edge.points) {
            point.x += x;
            point.y += y;
        }
    }

    /// Flips the block vertically.
    pub(super) fn flip(&mut self) {
        for card in &mut self.cards {
            card.rect.y = self.h - card.rect.y - card.rect.h;
        }
        for point in self.edges.iter_mut().flat_map(|edge| &mut edge.points) {
            point.y = self.h - point.y;
        }
    }
}

/// Splits widths into rows of about equal length; returns the indices of each row.
pub(super) fn rows(widths: &[i64], gap: i64, limit: i64) -> Vec<Vec<usize>> {
    let total: i64 = widths.iter().map(|width| width + gap).sum::<i64>() - gap;
    let n_rows = (total + limit - 1) / limit.max(1);
    // Rows of equal length are preferred to full rows and a short last one.
    let enough = total / n_rows.max(1);
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut length = 0;
    for (at, width) in widths.iter().enumerate() {
        match rows.last_mut() {
            Some(row) if length + gap + width <= limit && length < enough => {
                row.push(at);
                length += gap + width;
            }
            _ => {
                rows.push(vec![at]);
                length = *width;
            }
        }
    }
    rows
}
