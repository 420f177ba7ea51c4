//! Parameters in the query of a request.

use std::time::Duration;

use super::Call;
use crate::refusal::Refusal;

/// The longest wait for something new.
const LONGEST_WAIT: Duration = Duration::from_secs(25);

impl Call<'_> {
    /// Returns a value of the query as it was sent.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        let query = self.head.uri.query().unwrap_or_default();
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns a number of the query, 0 without one.
    pub(super) fn number(&self, key: &str) -> Result<u64, Refusal> {
        match self.text(key) {
            None => Ok(0),
            Some(value) => value
                .parse()
                .map_err(|_| Refusal::malformed(format!("`{key}` is not a number"))),
        }
    }

    /// Returns how long to wait for something new, from `wait` in the query.
    pub(super) fn wait(&self) -> Result<Duration, Refusal> {
        // The answer is sent before the time limit of the request.
        let longest = LONGEST_WAIT.min(self.app.limits().request() * 4 / 5);
        Ok(Duration::from_secs(self.number("wait")?).min(longest))
    }
}
