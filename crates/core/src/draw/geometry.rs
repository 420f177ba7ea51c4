//! What a picture consists of before it is markup: points, cards and lines.
//!
//! In: nothing. Out: types in whole pixels, so that every machine draws the same bytes.
//! Never: arranging anything.

use super::kind::Kind;

/// A place; y grows downwards.
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
    /// The node it stands for; none for a host.
    pub(super) node: Option<usize>,
    pub(super) kind: Kind,
    pub(super) label: String,
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    pub(super) hub: bool,
}

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    Child,
    Spoke,
    Peer,
    Link,
}

/// How a line gets from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bend {
    Straight,
    /// Right angles with round corners.
    Corners,
    /// Leaves and arrives vertically.
    Swing,
    /// Curves around something in the way.
    Bow,
}

/// A line on its way.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) line: Line,
    pub(super) bend: Bend,
    pub(super) points: Vec<Point>,
}
