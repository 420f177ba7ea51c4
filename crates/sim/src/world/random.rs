//! Random values from a seed, so that runs can be repeated.

/// A splitmix64 generator, which is small, fast and sufficient for a simulation.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0.0..1.0`.
    pub(crate) fn fraction(&mut self) -> f64 {
        let bits = u32::try_from(self.next() >> 32).unwrap_or(0);
        f64::from(bits) / (f64::from(u32::MAX) + 1.0)
    }

    pub(crate) fn uuid(&mut self) -> String {
        let bytes = (u128::from(self.next()) << 64) | u128::from(self.next());
        uuid::Builder::from_random_bytes(bytes.to_be_bytes())
            .into_uuid()
            .to_string()
    }

    pub(crate) fn hex(&mut self, digits: usize) -> String {
        let mut text = String::new();
        while text.len() < digits {
            text.push_str(&format!("{:016x}", self.next()));
        }
        text.truncate(digits);
        text
    }

    /// Returns a MAC address with the prefix of Proxmox.
    pub(crate) fn mac(&mut self) -> String {
        let bits = self.next();
        format!(
            "BC:24:11:{:02X}:{:02X}:{:02X}",
            bits & 0xff,
            (bits >> 8) & 0xff,
            (bits >> 16) & 0xff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_identifiers() {
        assert_eq!(Random::new(7).uuid(), Random::new(7).uuid());
        assert_ne!(Random::new(7).uuid(), Random::new(8).uuid());
    }
}
