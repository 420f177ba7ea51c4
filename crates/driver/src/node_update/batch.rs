//! The order of a staged update.

/// Returns batches of nodes, by their indices: deeper nodes first, at most `at_once` together.
///
/// Nodes of different depths are never in the same batch: restarting a node ends the guests on it.
pub(super) fn batches(depths: &[(usize, usize)], at_once: usize) -> Vec<Vec<usize>> {
    let mut nodes = depths.to_vec();
    nodes.sort_by_key(|(index, depth)| (std::cmp::Reverse(*depth), *index));
    let levels = nodes.chunk_by(|one, next| one.1 == next.1);
    let batches = levels.flat_map(|level| level.chunks(at_once.max(1)));
    batches
        .map(|batch| batch.iter().map(|(index, _)| *index).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::batches;

    #[test]
    fn children_come_before_parents_and_never_with_them() {
        let nodes = [(0, 0), (1, 1), (2, 1), (3, 2), (4, 0)];
        assert_eq!(batches(&nodes, 1), [[3], [1], [2], [0], [4]]);
        let two = batches(&nodes, 2);
        assert_eq!(two, [vec![3], vec![1, 2], vec![0, 4]]);
        assert_eq!(batches(&nodes, 64), two);
    }

    #[test]
    fn no_nodes_make_no_batches() {
        assert_eq!(batches(&[], 1), Vec::<Vec<usize>>::new());
        assert_eq!(batches(&[(5, 0)], 0), [[5]]);
    }
}
