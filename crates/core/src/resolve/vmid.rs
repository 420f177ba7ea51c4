//! Assigns vmids: the one written in the manifest, else the recorded one, else `vmid_base` plus the rank
//! by name, else none, and the provider chooses. Two guests of one host never get the same.

use std::collections::BTreeMap;

use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::origin::{Origin, WithOrigin};

/// A node that needs a vmid.
pub(super) struct VmidCandidate<'a> {
    pub(super) name: &'a NodeName,
    pub(super) name_span: Span,
    pub(super) written: Option<&'a Spanned<Vmid>>,
    /// Whether its host numbers its guests; otherwise only a written vmid is kept, to be refused later.
    pub(super) numbered: bool,
    /// The host or node it runs on, within which vmids are unique.
    pub(super) scope: String,
}

/// Assigns the vmid of every node. Nodes are sorted by name, so the index is the rank.
pub(super) fn assign(
    candidates: &[VmidCandidate<'_>],
    base: Option<&Spanned<Vmid>>,
    recorded: &BTreeMap<NodeName, Vmid>,
    diagnostics: &mut Diagnostics,
) -> Vec<Option<WithOrigin<Vmid>>> {
    let mut taken: BTreeMap<(&str, Vmid), usize> = BTreeMap::new();
    let mut assigned = Vec::with_capacity(candidates.len());
    let base = base.filter(|base| fits(base, candidates, recorded, diagnostics));
    for (rank, node) in candidates.iter().enumerate() {
        let chosen = choose(node, rank, base, recorded);
        if let Some(vmid) = &chosen {
            let earlier = taken.insert((node.scope.as_str(), vmid.value), rank);
            if let Some(earlier) = earlier.and_then(|earlier| candidates.get(earlier)) {
                report_duplicate(node, earlier, vmid, recorded, diagnostics);
            }
        }
        assigned.push(chosen);
    }
    assigned
}

fn choose(
    node: &VmidCandidate<'_>,
    rank: usize,
    base: Option<&Spanned<Vmid>>,
    recorded: &BTreeMap<NodeName, Vmid>,
) -> Option<WithOrigin<Vmid>> {
    if let Some(written) = node.written {
        return Some(WithOrigin::from(written));
    }
    if !node.numbered {
        return None;
    }
    if let Some(recorded) = recorded.get(node.name) {
        return Some(WithOrigin {
            value: *recorded,
            origin: Origin::Recorded,
        });
    }
    let base = base?;
    let number = base
        .value
        .0
        .saturating_add(i64::try_from(rank).unwrap_or(i64::MAX));
    Some(WithOrigin::derived(
        Vmid::from_number(number),
        format!("`vmid_base` + rank {rank} by name"),
        Some(base.span),
    ))
}

/// Returns whether `vmid_base` is small enough for all nodes that need it, and reports it otherwise.
fn fits(
    base: &Spanned<Vmid>,
    candidates: &[VmidCandidate<'_>],
    recorded: &BTreeMap<NodeName, Vmid>,
    diagnostics: &mut Diagnostics,
) -> bool {
    const LARGEST: i64 = 999_999_999;
    let beyond = (0i64..).zip(candidates).filter(|(rank, node)| {
        let own = node.written.is_some() || recorded.contains_key(node.name);
        node.numbered && !own && base.value.0.saturating_add(*rank) > LARGEST
    });
    let Some((rank, node)) = beyond.last() else {
        return true;
    };
    diagnostics.push(
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
            "use at most {}: the largest vmid is {LARGEST}",
            LARGEST - rank
        )),
    );
    false
}

fn report_duplicate(
    node: &VmidCandidate<'_>,
    earlier: &VmidCandidate<'_>,
    vmid: &WithOrigin<Vmid>,
    recorded: &BTreeMap<NodeName, Vmid>,
    diagnostics: &mut Diagnostics,
) {
    let span = |candidate: &VmidCandidate<'_>| {
        candidate
            .written
            .map_or(candidate.name_span, |written| written.span)
    };
    // Report the one that is later in the file, whichever comes first by name.
    let (first, second) = if span(earlier) <= span(node) {
        (earlier, node)
    } else {
        (node, earlier)
    };
    let from_base = |candidate: &VmidCandidate<'_>| {
        candidate.written.is_none() && !recorded.contains_key(candidate.name)
    };
    let (whose, hint) = if from_base(second) {
        (
            format!(", which `{}` gets from `vmid_base`,", second.name),
            "set another vmid for one of them, or change `vmid_base`",
        )
    } else {
        (
            format!(" of `{}`", second.name),
            "set another vmid for one of them, or remove it to have one assigned",
        )
    };
    let here = if from_base(first) {
        format!("`{}` gets it from `vmid_base`", first.name)
    } else {
        format!("used by `{}` here", first.name)
    };
    diagnostics.push(
        Diagnostic::error(
            Code::DuplicateVmid,
            span(second),
            format!(
                "vmid {}{whose} is also used by `{}` on the same host",
                vmid.value, first.name
            ),
        )
        .label(span(first), here)
        .hint(hint),
    );
}
