//! The graph of nodes and their parents, by index: depths, roots and cycles.

/// A forest of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    parents: Vec<Option<usize>>,
    depths: Vec<usize>,
    roots: Vec<usize>,
    /// For each node, its preorder number and the last one below it: a node is a descendant of
    /// another if its number is in the other's range.
    ranges: Vec<(usize, usize)>,
}

impl Graph {
    /// Makes the graph, or returns all cycles, each as the path around it.
    pub fn new(parents: Vec<Option<usize>>) -> Result<Self, Vec<Vec<usize>>> {
        /// State of a node during the walk.
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Walking,
            Depth(usize),
            InCycle,
        }
        let mut marks = vec![Mark::New; parents.len()];
        let mut cycles = Vec::new();
        for start in 0..parents.len() {
            let mut path = Vec::new();
            let mut at = Some(start);
            // Walk up to a node with a known state, then assign depths on the way back.
            let mut below = loop {
                match at.map(|node| (node, marks[node])) {
                    None => break Mark::Depth(0),
                    Some((_, Mark::Depth(depth))) => break Mark::Depth(depth + 1),
                    Some((_, Mark::InCycle)) => break Mark::InCycle,
                    Some((node, Mark::Walking)) => {
                        let from = path.iter().position(|seen| *seen == node).unwrap_or(0);
                        cycles.push(path[from..].to_vec());
                        break Mark::InCycle;
                    }
                    Some((node, Mark::New)) => {
                        marks[node] = Mark::Walking;
                        path.push(node);
                        at = parents[node].filter(|parent| *parent < parents.len());
                    }
                }
            };
            for node in path.into_iter().rev() {
                marks[node] = below;
                if let Mark::Depth(depth) = below {
                    below = Mark::Depth(depth + 1);
                }
            }
        }
        if !cycles.is_empty() {
            return Err(cycles);
        }
        let depths: Vec<usize> = marks
            .into_iter()
            .map(|mark| match mark {
                Mark::Depth(depth) => depth,
                Mark::New | Mark::Walking | Mark::InCycle => 0,
            })
            .collect();
        let (roots, ranges) = ranges(&parents, &depths);
        Ok(Self {
            parents,
            depths,
            roots,
            ranges,
        })
    }

    /// Returns the parent of a node.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.parents.get(node).copied().flatten()
    }

    /// Returns the number of ancestors of a node.
    pub fn depth(&self, node: usize) -> usize {
        self.depths.get(node).copied().unwrap_or(0)
    }

    /// Returns the nodes without a parent.
    pub fn roots(&self) -> impl Iterator<Item = usize> {
        self.parents
            .iter()
            .enumerate()
            .filter(|(_, parent)| parent.is_none())
            .map(|(node, _)| node)
    }

    /// Returns the topmost ancestor of a node, or the node itself.
    pub fn root_of(&self, node: usize) -> usize {
        self.roots.get(node).copied().unwrap_or(node)
    }

    /// Returns whether `above` is an ancestor of `node`.
    pub fn is_ancestor(&self, above: usize, node: usize) -> bool {
        let range = |node: usize| self.ranges.get(node).copied().unwrap_or_default();
        let ((first, last), (at, _)) = (range(above), range(node));
        above != node && (first..=last).contains(&at)
    }
}

/// Finds each node's root and preorder range, without recursion: the depth is not limited.
fn ranges(parents: &[Option<usize>], depths: &[usize]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let n_nodes = parents.len();
    let mut by_depth: Vec<usize> = (0..n_nodes).collect();
    by_depth.sort_by_key(|node| depths[*node]);
    let mut roots: Vec<usize> = (0..n_nodes).collect();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); n_nodes];
    for node in &by_depth {
        if let Some(parent) = parents[*node] {
            roots[*node] = roots[parent];
            children[parent].push(*node);
        }
    }
    let mut sizes = vec![1; n_nodes];
    for node in by_depth.iter().rev() {
        if let Some(parent) = parents[*node] {
            sizes[parent] += sizes[*node];
        }
    }
    let mut ranges = vec![(0, 0); n_nodes];
    let mut next_root = 0;
    for node in by_depth {
        if parents[node].is_none() {
            ranges[node] = (next_root, next_root + sizes[node] - 1);
            next_root += sizes[node];
        }
        let mut next = ranges[node].0 + 1;
        for child in &children[node] {
            ranges[*child] = (next, next + sizes[*child] - 1);
            next += sizes[*child];
        }
    }
    (roots, ranges)
}

#[cfg(test)]
mod tests {
    use super::Graph;

    #[test]
    fn nodes_are_deeper_than_their_parents() {
        let graph = Graph::new(vec![Some(2), None, Some(1), None]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|node| graph.depth(node)), [2, 0, 1, 0]);
        assert_eq!(graph.root_of(0), 1);
        assert!(graph.is_ancestor(1, 0) && !graph.is_ancestor(0, 1));
        assert!(!graph.is_ancestor(3, 0) && !graph.is_ancestor(1, 1));
    }

    #[test]
    fn a_cycle_is_returned_as_the_path_around_it() {
        let cycles = Graph::new(vec![Some(1), Some(2), Some(0), Some(0), None]).unwrap_err();
        assert_eq!(cycles, vec![vec![0, 1, 2]]);
    }

    #[test]
    fn a_node_that_is_its_own_parent_is_a_cycle_of_one() {
        assert_eq!(Graph::new(vec![Some(0)]).unwrap_err(), vec![vec![0]]);
    }
}
