//! Which id each guest gets on its host.
//!
//! In: what is written, what was recorded, `settings.vmid_base`. Out: ids, or `None` for the
//! provider to choose. Precedence: written, recorded, base plus rank by name.
//! Never: two guests of one host with the same id.

use std::collections::BTreeMap;

use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::{Code, Diagnostic, Faults, Span, Spanned};

use super::origin::{Origin, Valued};

/// What is known of one node before its id is chosen.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a NodeName,
    pub(super) name_span: Span,
    pub(super) written: Option<&'a Spanned<Vmid>>,
    /// Whose guest it is: ids are unique there.
    pub(super) place: String,
}

/// Chooses the id of every node. Nodes come sorted by name, so the index is the rank.
pub(super) fn assign(
    candidates: &[Candidate<'_>],
    base: Option<&Spanned<Vmid>>,
    recorded: &BTreeMap<NodeName, Vmid>,
    faults: &mut Faults,
) -> Vec<Option<Valued<Vmid>>> {
    let mut taken: BTreeMap<(&str, Vmid), usize> = BTreeMap::new();
    let mut assigned = Vec::with_capacity(candidates.len());
    for (rank, node) in candidates.iter().enumerate() {
        let chosen = choose(node, rank, base, recorded, faults);
        if let Some(vmid) = &chosen {
            let earlier = taken.insert((node.place.as_str(), vmid.value), rank);
            if let Some(earlier) = earlier.and_then(|earlier| candidates.get(earlier)) {
                report(node, earlier, vmid, faults);
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
    faults: &mut Faults,
) -> Option<Valued<Vmid>> {
    if let Some(written) = node.written {
        return Some(Valued::from(written));
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
    if number > 999_999_999 {
        faults.push(
            Diagnostic::error(
                Code::OutOfRange,
                base.span,
                format!(
                    "`vmid_base` plus the rank of `{}` is {number}, beyond the largest vmid",
                    node.name
                ),
            )
            .hint("lower `vmid_base`: vmids go up to 999999999"),
        );
        return None;
    }
    Some(Valued::derived(
        Vmid::from_number(number),
        format!("`vmid_base` + rank {rank} by name"),
        Some(base.span),
    ))
}

fn report(node: &Candidate<'_>, earlier: &Candidate<'_>, vmid: &Valued<Vmid>, faults: &mut Faults) {
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
    faults.push(
        Diagnostic::error(
            Code::DuplicateVmid,
            place(second),
            format!(
                "vmid {} of `{}` is also that of `{}` on the same host",
                vmid.value, second.name, first.name
            ),
        )
        .label(place(first), format!("`{}` has it here", first.name))
        .hint("give one of them another vmid, or leave it out to have one chosen"),
    );
}
