//! The elements of a layout: points, cards and lines, in whole pixels, so that output is reproducible.

use super::card_kind::CardKind;

/// A point; y grows downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) x: i64,
    pub(super) y: i64,
}

/// A rectangle by its upper left corner and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) x: i64,
    pub(super) y: i64,
    pub(super) w: i64,
    pub(super) h: i64,
}

impl Rect {
    pub(super) fn centre(self) -> Point {
        Point {
            x: self.x + self.w / 2,
            y: self.y + self.h / 2,
        }
    }
}

/// A box with text.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) rect: Rect,
    /// Its node; `None` for a host.
    pub(super) node: Option<usize>,
    pub(super) kind: CardKind,
    pub(super) label: String,
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    pub(super) hub: bool,
}

/// The meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    Child,
    Spoke,
    Peer,
    Link,
}

/// The shape of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bend {
    Straight,
    /// Right angles with round corners.
    Corners,
    /// A curve that is vertical at both ends.
    SCurve,
    /// A curve around a card in between.
    Arc,
}

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) line: Line,
    pub(super) bend: Bend,
    pub(super) points: Vec<Point>,
}
