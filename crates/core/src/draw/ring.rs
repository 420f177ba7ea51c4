//! Arranges peers on a ring, so that a straight line between two of them crosses no third. Their
//! children are placed outside: above the upper half, below the lower half.

use super::block::Block;
use super::geometry::Rect;

/// Pixels between neighbours; wider than in a tree, because of the lines between them.
const GAP: i64 = 64;
/// Pixels between the upper and the lower half.
const MIDDLE: i64 = 120;
/// Height of the arc per card in a half, and its maximum.
const RISE: i64 = 56;
const MAX_RISE: i64 = 420;

/// Arranges blocks clockwise, starting at the upper left.
pub(super) fn arrange(blocks: Vec<Block>) -> Block {
    if blocks.len() < 3 {
        return Block::beside(blocks, GAP, i64::MAX / 2);
    }
    let n_upper = blocks.len() / 2;
    let mut upper = blocks;
    let mut lower = upper.split_off(n_upper);
    // Of three, two are below: there, reading order is preferred to clockwise.
    if n_upper > 1 {
        lower.reverse();
    }
    for block in &mut upper {
        block.flip();
    }

    let width = length(&upper).max(length(&lower));
    let upper_positions = positions(&upper, width);
    let lower_positions = positions(&lower, width);
    // Heights of upper blocks above the ring; the highest one is at 0.
    let above = |(block, position): (&Block, &Rect)| block.h + position.y;
    let ground = upper
        .iter()
        .zip(&upper_positions)
        .map(above)
        .max()
        .unwrap_or(0);

    let mut whole = Block {
        w: width,
        anchor: width / 2,
        ..Block::default()
    };
    for (block, position) in upper.into_iter().zip(upper_positions) {
        let y = ground - position.y - block.h;
        whole.absorb(block, position.x, y);
    }
    for (block, position) in lower.into_iter().zip(lower_positions) {
        whole.absorb(block, position.x, ground + MIDDLE + position.y);
    }
    whole
}

fn length(half: &[Block]) -> i64 {
    half.iter().map(|block| block.w + GAP).sum::<i64>() - GAP
}

/// Returns for each block its left edge, and as `y` its distance outwards from the ends of the arc.
fn positions(half: &[Block], width: i64) -> Vec<Rect> {
    let mut x = (width - length(half)) / 2;
    let mut positions = Vec::new();
    for block in half {
        positions.push(Rect {
            x,
            y: 0,
            w: block.w,
            h: block.h,
        });
        x += block.w + GAP;
    }
    let anchors: Vec<i64> = positions
        .iter()
        .zip(half)
        .map(|(at, block)| at.x + block.anchor)
        .collect();
    let (Some(first), Some(last)) = (anchors.first(), anchors.last()) else {
        return positions;
    };
    let rise = match i64::try_from(half.len()).unwrap_or(i64::MAX) {
        ..3 => 0,
        n_cards => n_cards
            .saturating_mul(RISE)
            .saturating_sub(RISE)
            .min(MAX_RISE),
    };
    // A parabola through the first and the last card: a convex arrangement, so that a line between
    // two cards passes inside all others.
    let span = (last - first).max(1);
    for (position, anchor) in positions.iter_mut().zip(&anchors) {
        position.y = 4 * rise * (anchor - first) * (last - anchor) / (span * span);
    }
    positions
}
