//! Chooses test cases: all of them, or a sample from a seed (`HOMESTAK_TEST_SEED`).

/// Whether everything is tried, as `make test-full` does.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
pub fn is_full() -> bool {
    std::env::var("HOMESTAK_TEST_FULL").is_ok()
}

/// Numbers from a seed (splitmix64).
pub struct Sample(u64);

impl Sample {
    /// Takes the given seed, or the first, and says which.
    #[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
    pub fn new() -> Self {
        let given = std::env::var("HOMESTAK_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(1);
        println!("repeat with HOMESTAK_TEST_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}
