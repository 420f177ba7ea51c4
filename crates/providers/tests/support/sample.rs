//! Chooses test cases: all of them, or a sample from a seed (`HOMESTAK_TEST_SEED`).

use homestak_test_support::random::Random;

/// Whether all cases are tested, as by `make test-full`.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
pub fn is_full() -> bool {
    std::env::var("HOMESTAK_TEST_FULL").is_ok()
}

/// Returns numbers from the given or the first seed, and prints it.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
pub fn random() -> Random {
    let given = std::env::var("HOMESTAK_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or(1);
    println!("repeat with HOMESTAK_TEST_SEED={seed}");
    Random(seed)
}
