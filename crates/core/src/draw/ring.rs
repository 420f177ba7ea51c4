//! Places equals on a ring: straight lines between any two of them meet no third.
//!
//! In: one block for each peer. Out: one block. What hangs on a peer grows outwards, away from
//! the lines: above the upper half, below the lower half.
//! Never: drawing the lines.

use super::block::Block;
use super::geometry::Rect;

/// Pixels between neighbours; wider than in a tree, because the line between them is the point.
const GAP: i64 = 64;
/// Pixels between the upper and the lower half.
const MIDDLE: i64 = 120;
/// How much each further card in a half lifts the middle of the arc, and the most it may.
const RISE: i64 = 56;
const MOST_RISE: i64 = 420;

/// Arranges blocks clockwise, starting at the upper left.
pub(super) fn arrange(blocks: Vec<Block>) -> Block {
    if blocks.len() < 3 {
        return Block::beside(blocks, GAP, i64::MAX / 2);
    }
    let n_upper = blocks.len() / 2;
    let mut upper = blocks;
    let mut lower = upper.split_off(n_upper);
    // Of three, two are below: there, reading order is as good as the clock, and more usual.
    if n_upper > 1 {
        lower.reverse();
    }
    for block in &mut upper {
        block.flip();
    }

    let width = length(&upper).max(length(&lower));
    let upper_places = places(&upper, width);
    let lower_places = places(&lower, width);
    // The top edge of an upper block is its height above the ring; the highest one is at 0.
    let above = |(block, place): (&Block, &Rect)| block.h + place.y;
    let ground = upper
        .iter()
        .zip(&upper_places)
        .map(above)
        .max()
        .unwrap_or(0);

    let mut whole = Block {
        w: width,
        anchor: width / 2,
        ..Block::default()
    };
    for (block, place) in upper.into_iter().zip(upper_places) {
        let y = ground - place.y - block.h;
        whole.absorb(block, place.x, y);
    }
    for (block, place) in lower.into_iter().zip(lower_places) {
        whole.absorb(block, place.x, ground + MIDDLE + place.y);
    }
    whole
}

fn length(half: &[Block]) -> i64 {
    half.iter().map(|block| block.w + GAP).sum::<i64>() - GAP
}

/// Returns for each block its left edge, and as `y` its distance outwards from the ends of the arc.
fn places(half: &[Block], width: i64) -> Vec<Rect> {
    let mut x = (width - length(half)) / 2;
    let mut places = Vec::new();
    for block in half {
        places.push(Rect {
            x,
            y: 0,
            w: block.w,
            h: block.h,
        });
        x += block.w + GAP;
    }
    let anchors: Vec<i64> = places
        .iter()
        .zip(half)
        .map(|(at, block)| at.x + block.anchor)
        .collect();
    let (Some(first), Some(last)) = (anchors.first(), anchors.last()) else {
        return places;
    };
    let rise = match i64::try_from(half.len()).unwrap_or(i64::MAX) {
        ..3 => 0,
        n_cards => n_cards
            .saturating_mul(RISE)
            .saturating_sub(RISE)
            .min(MOST_RISE),
    };
    // A parabola through the first and the last card: cards in convex position, so that a straight
    // line between two of them passes inside all others.
    let span = (last - first).max(1);
    for (place, anchor) in places.iter_mut().zip(&anchors) {
        place.y = 4 * rise * (anchor - first) * (last - anchor) / (span * span);
    }
    places
}
