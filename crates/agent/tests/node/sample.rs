//! How much is tried: all of it, or a sample that a seed can repeat.
//!
//! In: `HOMESTAK_TEST_FULL`, `HOMESTAK_TEST_SEED`. Out: which cases.
//! Never: chance; two runs of one tree try the same, and another seed tries others.

/// Whether everything is tried, as `make test-full` does.
pub fn is_full() -> bool {
    std::env::var_os("HOMESTAK_TEST_FULL").is_some()
}

/// Returns so many of the numbers below `end`, spread over all of them; every one of them in a full
/// run.
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
