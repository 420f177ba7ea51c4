//! Which id each guest gets on its host.
//!
//! In: what is written, what was recorded, `settings.vmid_base`. Out: ids, or `None` for the
//! provider to choose. Precedence: written, recorded, base plus rank by name.
//! Never: two guests of one host with the same id.

use std::collections::BTreeMap;

use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::origin::{Origin, Valued};

/// What is known of one node before its id is chosen.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a NodeName,
    pub(super) name_span: Span,
    pub(super) written: Option<&'a Spanned<Vmid>>,
    /// Whether guests have numbers where it lives; otherwise only one that is written is kept, to
    /// be refused.
    pub(super) numbered: bool,
    /// Whose guest it is: ids are unique there.
    pub(super) place: String,
}

/// Chooses the id of every node. Nodes come sorted by name, so the index is the rank.
pub(super) fn assign(
    candidates: &[Candidate<'_>],
    base: Option<&Spanned<Vmid>>,
    recorded: &BTreeMap<NodeName, Vmid>,
    faults: &mut Diagnostics,
) -> Vec<Option<Valued<Vmid>>> {
    let mut taken: BTreeMap<(&str, Vmid), usize> = BTreeMap::new();
    let mut assigned = Vec::with_capacity(candidates.len());
    let base = base.filter(|base| fits(base, candidates, recorded, faults));
    for (rank, node) in candidates.iter().enumerate() {
        let chosen = choose(node, rank, base, recorded);
        if let Some(vmid) = &chosen {
            let earlier = taken.insert((node.place.as_str(), vmid.value), rank);
            if let Some(earlier) = earlier.and_then(|earlier| candidates.get(earlier)) {
                report(node, earlier, vmid, recorded, faults);
            }
        }
        assigned.push(chosen);
    }
    assigned
}

fn choose(
    node: &Candidate<'_>,
    rank: usize,
    base: Option<&Spanned<Vmid>>,
    recorded: &BTreeMap<NodeName, Vmid>,
) -> Option<Valued<Vmid>> {
    if let Some(written) = node.written {
        return Some(Valued::from(written));
    }
    if !node.numbered {
        return None;
    }
    if let Some(recorded) = recorded.get(node.name) {
        return Some(Valued {
            value: *recorded,
            origin: Origin::Recorded,
        });
    }
    let base = base?;
    let number = base
        .value
        .0
        .saturating_add(i64::try_from(rank).unwrap_or(i64::MAX));
    Some(Valued::derived(
        Vmid::from_number(number),
        format!("`vmid_base` + rank {rank} by name"),
        Some(base.span),
    ))
}

/// Tells whether every node that needs it gets an id from the base, and reports the last that
/// does not.
fn fits(
    base: &Spanned<Vmid>,
    candidates: &[Candidate<'_>],
    recorded: &BTreeMap<NodeName, Vmid>,
    faults: &mut Diagnostics,
) -> bool {
    const LARGEST: i64 = 999_999_999;
    let beyond = (0i64..).zip(candidates).filter(|(rank, node)| {
        let own = node.written.is_some() || recorded.contains_key(node.name);
        node.numbered && !own && base.value.0.saturating_add(*rank) > LARGEST
    });
    let Some((rank, node)) = beyond.last() else {
        return true;
    };
    faults.push(
        Diagnostic::error(
            Code::OutOfRange,
            base.span,
            format!(
                "`vmid_base` plus the rank of `{}` is {}, beyond the largest vmid",
                node.name,
                base.value.0.saturating_add(rank)
            ),
        )
        .hint(format!(
            "write {} at most: vmids go up to {LARGEST}",
            LARGEST - rank
        )),
    );
    false
}

fn report(
    node: &Candidate<'_>,
    earlier: &Candidate<'_>,
    vmid: &Valued<Vmid>,
    recorded: &BTreeMap<NodeName, Vmid>,
    faults: &mut Diagnostics,
) {
    let place = |candidate: &Candidate<'_>| {
        candidate
            .written
            .map_or(candidate.name_span, |written| written.span)
    };
    // Point at the later place in the file, whichever node comes first by name.
    let (first, second) = if place(earlier) <= place(node) {
        (earlier, node)
    } else {
        (node, earlier)
    };
    let from_base = |candidate: &Candidate<'_>| {
        candidate.written.is_none() && !recorded.contains_key(candidate.name)
    };
    let (whose, hint) = if from_base(second) {
        (
            format!(", which `{}` gets from `vmid_base`,", second.name),
            "give one of them another vmid, or change `vmid_base`",
        )
    } else {
        (
            format!(" of `{}`", second.name),
            "give one of them another vmid, or leave it out to have one chosen",
        )
    };
    let here = if from_base(first) {
        format!("`{}` gets it from `vmid_base`", first.name)
    } else {
        format!("`{}` has it here", first.name)
    };
    faults.push(
        Diagnostic::error(
            Code::DuplicateVmid,
            place(second),
            format!(
                "vmid {}{whose} is also that of `{}` on the same host",
                vmid.value, first.name
            ),
        )
        .label(place(first), here)
        .hint(hint),
    );
}
