//! Renders lines as SVG path data. The results can be concatenated into one path.

use std::fmt::Write as _;

use super::geometry::{Bend, Edge, Point};

/// Radius of the corners of lines, in pixels.
const CORNER: i64 = 9;

/// Returns the path of a line, empty for one without points.
pub(super) fn path(edge: &Edge) -> String {
    let points = &edge.points;
    let (Some(from), Some(to)) = (points.first(), points.last()) else {
        return String::new();
    };
    let ends = |middle: &str| format!("M{} {}{middle}{} {}", from.x, from.y, to.x, to.y);
    match edge.bend {
        Bend::Straight => ends("L"),
        Bend::Corners => corners(points),
        Bend::SCurve => {
            let half = i64::midpoint(from.y, to.y);
            ends(&format!("C{} {half} {} {half} ", from.x, to.x))
        }
        Bend::Arc => {
            // The control point is offset by a fifth of the length.
            let x = i64::midpoint(from.x, to.x) + (to.y - from.y) / 5;
            let y = i64::midpoint(from.y, to.y) - (to.x - from.x) / 5;
            ends(&format!("Q{x} {y} "))
        }
    }
}

/// Renders straight segments with rounded corners.
fn corners(points: &[Point]) -> String {
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        let is_collinear = |axis: fn(&Point) -> i64| {
            kept.iter()
                .rev()
                .take(2)
                .all(|before| axis(before) == axis(point))
                && kept.len() > 1
        };
        if kept.last() == Some(point) {
            continue;
        }
        if is_collinear(|p| p.x) || is_collinear(|p| p.y) {
            kept.pop();
        }
        kept.push(*point);
    }
    let mut path = String::new();
    for (at, point) in kept.iter().enumerate() {
        let command = if at == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = match (
            at.checked_sub(1).and_then(|before| kept.get(before)),
            kept.get(at + 1),
        ) {
            (Some(before), Some(after)) => {
                let (near, far) = (towards(*point, *before), towards(*point, *after));
                let Point { x, y } = point;
                write!(path, "L{} {}Q{x} {y} {} {}", near.x, near.y, far.x, far.y)
            }
            (_, _) => write!(path, "{command}{} {}", point.x, point.y),
        };
    }
    path
}

/// Returns the point where the rounding of a corner starts, towards a neighbour on the same axis.
fn towards(corner: Point, neighbour: Point) -> Point {
    let step = |distance: i64| distance.signum() * CORNER.min(distance.abs() / 2);
    Point {
        x: corner.x + step(neighbour.x - corner.x),
        y: corner.y + step(neighbour.y - corner.y),
    }
}
