//! Combines the data key from the shares of several key groups (Shamir, GF(2^8)). Only reading is
//! supported.

use zeroize::Zeroizing;

/// Combines shares, whose last byte is the coordinate; `None` if they do not belong together.
pub(crate) fn combine(shares: &[Zeroizing<Vec<u8>>]) -> Option<Zeroizing<Vec<u8>>> {
    let length = shares.first()?.len();
    if length < 2 || shares.len() < 2 || shares.iter().any(|share| share.len() != length) {
        return None;
    }
    let coordinates: Vec<u8> = shares.iter().map(|share| share[length - 1]).collect();
    let distinct = coordinates
        .iter()
        .enumerate()
        .all(|(nth, x)| *x != 0 && !coordinates[..nth].contains(x));
    if !distinct {
        return None;
    }
    let weights: Vec<u8> = coordinates
        .iter()
        .map(|mine| weight(*mine, &coordinates))
        .collect();
    let secret = (0..length - 1).map(|at| {
        shares
            .iter()
            .zip(&weights)
            .fold(0, |sum, (share, weight)| sum ^ multiply(share[at], *weight))
    });
    Some(Zeroizing::new(secret.collect()))
}

/// Returns the Lagrange basis of one share at zero.
fn weight(mine: u8, all: &[u8]) -> u8 {
    all.iter()
        .filter(|other| **other != mine)
        .fold(1, |product, other| {
            multiply(product, multiply(*other, inverse(mine ^ other)))
        })
}

/// Multiplies in the field of AES (polynomial 0x11b), without tables or branches on secrets.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (a, 0);
    for bit in 0..8 {
        product ^= a & 0u8.wrapping_sub((b >> bit) & 1);
        a = (a << 1) ^ (0x1b & 0u8.wrapping_sub(a >> 7));
    }
    product
}

/// Inverts by raising to the power 254, since every non-zero element has order 255.
fn inverse(a: u8) -> u8 {
    (0..253).fold(a, |power, _| multiply(power, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_is_that_of_aes() {
        // The worked example of FIPS 197, section 4.2.
        assert_eq!(multiply(0x57, 0x83), 0xc1);
        assert!((1..=255).all(|a| multiply(a, inverse(a)) == 1));
    }

    #[test]
    fn two_shares_of_a_line_are_combined() {
        let share = |x: u8| {
            let y = |secret: u8, slope: u8| secret ^ multiply(slope, x);
            Zeroizing::new(vec![y(b'k', 0x35), y(b'e', 0xd1), x])
        };
        let key = combine(&[share(7), share(200)]).unwrap();
        assert_eq!(key.as_slice(), b"ke");
    }

    #[test]
    fn inconsistent_shares_are_refused() {
        let share = |bytes: &[u8]| Zeroizing::new(bytes.to_vec());
        assert!(combine(&[share(&[1, 2])]).is_none());
        assert!(combine(&[share(&[1, 2]), share(&[3, 2])]).is_none());
        assert!(combine(&[share(&[1, 2]), share(&[3, 4, 5])]).is_none());
    }
}
