//! Which cases are tested: all of them with `HOMESTAK_TEST_FULL`, else a sample that
//! `HOMESTAK_TEST_SEED` selects. The same seed selects the same cases.

/// Whether all cases are tested, as by `make test-full`.
pub fn is_full() -> bool {
    std::env::var_os("HOMESTAK_TEST_FULL").is_some()
}

/// Returns `n_wanted` numbers below `end`, evenly distributed; all of them in a full run.
pub fn some(n_wanted: usize, end: usize) -> Vec<usize> {
    if is_full() || n_wanted >= end {
        return (0..end).collect();
    }
    let given = std::env::var("HOMESTAK_TEST_SEED").ok();
    let given = given.and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or(1);
    println!("repeat with HOMESTAK_TEST_SEED={seed}");
    let shift = usize::try_from(seed).unwrap() % end;
    let mut chosen: Vec<usize> = (0..n_wanted)
        .map(|nth| (shift + nth * end / n_wanted) % end)
        .collect();
    chosen.sort_unstable();
    chosen
}
