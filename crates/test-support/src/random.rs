//! Numbers from a seed (SplitMix64), so that a test with random choices can be repeated.

/// A generator; its seed is its first state.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `end`, or 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Picks one of several, if there are any.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let end = u64::try_from(of.len()).unwrap();
        let at = (end > 0).then(|| self.below(end))?;
        of.get(usize::try_from(at).unwrap())
    }

    /// Returns true once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
