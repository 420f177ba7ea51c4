//! Arranges regions as panels in rows, and routes the links between them.
//!
//! Links never cross a panel: those of neighbours are drawn in the gap between them, others above the
//! panels, and from row to row in a gutter on the left.

use super::Diagram;
use super::block::{Block, rows};
use super::geometry::{Bend, Edge, Line, Point, Rect};
use super::layout::{Layout, Panel};
use super::style::{PANEL_HEAD, PANEL_NAME_SIZE, PANEL_NOTE_SIZE, PANEL_PAD};
use super::text::{self, Weight};

/// Pixels between panels, wide enough for a link.
const GAP: i64 = 56;
/// Pixels between lanes, and between the ends of links on a panel.
const LANE: i64 = 14;
/// Pixels between the lowest lane and the panels.
const LANE_FOOT: i64 = 20;

/// A link between panels that are not neighbours.
struct Detour {
    ends: [usize; 2],
    /// Where it leaves each panel.
    ports: [i64; 2],
    /// The lane above each end's row; the same lane twice when both are in one row.
    lanes: [i64; 2],
    /// Where in the gutter it changes rows.
    gutter: Option<i64>,
}

/// Arranges the trees of regions; `None` is the group without a region, which gets no frame.
pub(super) fn arrange(
    inner: Vec<(Option<usize>, Block)>,
    diagram: &Diagram,
    links: &[(usize, usize)],
    limit: i64,
) -> Layout {
    let mut panels: Vec<Panel> = inner
        .iter()
        .map(|(region, block)| panel(*region, block, diagram))
        .collect();
    let widths: Vec<i64> = panels.iter().map(|panel| panel.rect.w).collect();
    let rows = rows(&widths, GAP, limit);
    let mut row_of = vec![0; panels.len()];
    for (row, members) in rows.iter().enumerate() {
        for member in members {
            row_of[*member] = row;
        }
    }

    let (near, far): (Vec<_>, Vec<_>) = links
        .iter()
        .partition(|(a, b)| row_of[*a] == row_of[*b] && a + 1 == *b);
    let changes_row = |pair: &&&(usize, usize)| row_of[pair.0] != row_of[pair.1];
    let n_gutter = i64::try_from(far.iter().filter(changes_row).count()).unwrap_or(0);
    let gutter = if n_gutter == 0 {
        0
    } else {
        n_gutter * LANE + LANE
    };
    for members in &rows {
        let mut x = gutter;
        for member in members {
            panels[*member].rect.x = x;
            x += panels[*member].rect.w + GAP;
        }
    }

    let mut detours = detours(&far, &panels, &row_of);
    let mut y = 0;
    let mut tops = Vec::new();
    for (row, members) in rows.iter().enumerate() {
        let n_lanes = assign_lanes(&mut detours, row, &row_of);
        let above = if row == 0 { 0 } else { GAP };
        y += above
            + if n_lanes == 0 {
                0
            } else {
                n_lanes * LANE + LANE_FOOT - LANE
            };
        tops.push(y);
        let height = members
            .iter()
            .map(|member| panels[*member].rect.h)
            .max()
            .unwrap_or(0);
        for member in members {
            panels[*member].rect.y = y;
            panels[*member].rect.h = height;
        }
        y += height;
    }

    let mut layout = Layout::default();
    for ((_, block), panel) in inner.into_iter().zip(&panels) {
        let spare = (panel.rect.w - block.w) / 2;
        let (x, y) = (panel.rect.x + spare, panel.rect.y + PANEL_HEAD);
        layout.block.absorb(block, x, y);
    }
    let ends = panels.iter().map(|panel| panel.rect.x + panel.rect.w);
    layout.block.w = ends.max().unwrap_or(0);
    layout.block.h = y;
    layout
        .block
        .edges
        .extend(near.iter().map(|pair| neighbour_link(&panels, **pair)));
    layout.block.edges.extend(
        detours
            .iter()
            .map(|detour| detour_link(detour, &row_of, &tops)),
    );
    layout.panels = panels
        .into_iter()
        .filter(|panel| !panel.name.is_empty())
        .collect();
    layout
}

fn panel(region: Option<usize>, block: &Block, diagram: &Diagram) -> Panel {
    let (name, note) = region.map_or_else(Default::default, |at| {
        let region = &diagram.regions[at];
        let name = match text::clean(&region.name) {
            name if name.is_empty() => format!("region {}", at + 1),
            name => name,
        };
        let host = region.host.as_deref().unwrap_or(&diagram.host);
        let note = if host.is_empty() {
            String::new()
        } else {
            format!("on {}", text::clean(host))
        };
        (name, note)
    });
    let title = text::width(&name, PANEL_NAME_SIZE, Weight::Bold)
        + 10
        + text::width(&note, PANEL_NOTE_SIZE, Weight::Normal);
    let w = block.w.max(title) + 2 * PANEL_PAD;
    Panel {
        rect: Rect {
            x: 0,
            y: 0,
            w,
            h: block.h + PANEL_HEAD + PANEL_PAD,
        },
        name,
        note,
    }
}

/// Joins neighbours in the gap between them, at the height of their titles.
fn neighbour_link(panels: &[Panel], (left, right): (usize, usize)) -> Edge {
    let (left, right) = (panels[left].rect, panels[right].rect);
    let y = left.y + PANEL_HEAD / 2;
    let points = vec![
        Point {
            x: left.x + left.w,
            y,
        },
        Point { x: right.x, y },
    ];
    Edge {
        line: Line::Link,
        bend: Bend::Straight,
        points,
    }
}

/// Chooses where each long link leaves its panels, so that as few as possible cross.
fn detours(far: &[&(usize, usize)], panels: &[Panel], row_of: &[usize]) -> Vec<Detour> {
    let mut next_gutter = 0;
    let mut detours: Vec<Detour> = Vec::new();
    for &&(a, b) in far {
        let gutter = (row_of[a] != row_of[b]).then(|| {
            next_gutter += LANE;
            next_gutter - LANE
        });
        detours.push(Detour {
            ends: [a, b],
            ports: [0, 0],
            lanes: [0, 0],
            gutter,
        });
    }
    for (at, panel) in panels.iter().enumerate() {
        let middle = panel.rect.centre().x;
        let mut here: Vec<(usize, usize, i64)> = Vec::new();
        for (index, detour) in detours.iter().enumerate() {
            for end in [0, 1] {
                if detour.ends[end] == at {
                    let other = panels[detour.ends[1 - end]].rect.centre().x;
                    let goal = detour.gutter.unwrap_or(other);
                    here.push((index, end, goal - middle));
                }
            }
        }
        // To the left the near ones come first, to the right the far ones: a far link uses a higher
        // lane and would otherwise cross the near one.
        here.sort_by_key(|(_, _, distance)| (*distance > 0, -*distance));
        let n_ports = i64::try_from(here.len()).unwrap_or(0);
        let step = LANE.min((panel.rect.w - 40) / n_ports.max(1)).max(1);
        let mut x = middle - step * (n_ports - 1) / 2;
        for (index, end, _) in here {
            detours[index].ports[end] = x;
            x += step;
        }
    }
    detours
}

/// Gives each link that runs above a row the lowest free lane; returns how many lanes there are.
fn assign_lanes(detours: &mut [Detour], row: usize, row_of: &[usize]) -> i64 {
    let mut runs: Vec<(i64, i64, usize)> = Vec::new();
    for (at, detour) in detours.iter().enumerate() {
        let [first, second] = detour.ends.map(|end| row_of[end] == row);
        let (from, to) = match (detour.gutter, first, second) {
            (None, true, true) => (detour.ports[0], detour.ports[1]),
            (Some(gutter), true, _) => (gutter, detour.ports[0]),
            (Some(gutter), _, true) => (gutter, detour.ports[1]),
            (_, _, _) => continue,
        };
        runs.push((from.min(to), from.max(to), at));
    }
    runs.sort_by_key(|(from, to, at)| (to - from, *at));
    let mut lanes: Vec<Vec<(i64, i64)>> = Vec::new();
    for (from, to, at) in runs {
        let is_free = |lane: &Vec<(i64, i64)>| {
            lane.iter()
                .all(|(start, end)| to + LANE < *start || *end + LANE < from)
        };
        let lane = lanes.iter().position(is_free).unwrap_or_else(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push((from, to));
        for end in [0, 1] {
            if row_of[detours[at].ends[end]] == row {
                detours[at].lanes[end] = i64::try_from(lane).unwrap_or(0);
            }
        }
    }
    i64::try_from(lanes.len()).unwrap_or(0)
}

fn detour_link(detour: &Detour, row_of: &[usize], tops: &[i64]) -> Edge {
    let [from, to] = [0, 1].map(|end| {
        let top = tops[row_of[detour.ends[end]]];
        let lane = top - LANE_FOOT - detour.lanes[end] * LANE;
        (
            Point {
                x: detour.ports[end],
                y: top,
            },
            lane,
        )
    });
    let mut points = vec![
        from.0,
        Point {
            x: from.0.x,
            y: from.1,
        },
    ];
    if let Some(x) = detour.gutter {
        points.extend([Point { x, y: from.1 }, Point { x, y: to.1 }]);
    }
    points.extend([Point { x: to.0.x, y: to.1 }, to.0]);
    Edge {
        line: Line::Link,
        bend: Bend::Corners,
        points,
    }
}
