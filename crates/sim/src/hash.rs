//! The two old hashes that Proxmox VE still speaks: SHA-1 for digests, MD5 and SHA-1 for uploads.
//!
//! In: bytes. Out: the hash in hexadecimal.
//! Never: anything that must resist an attacker; neither of them does any more.

use std::fmt::Write as _;

/// Cuts a message into blocks of 64 bytes, with its length in bits at the end.
fn blocks(message: &[u8], length: [u8; 8]) -> Vec<u8> {
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend(length);
    padded
}

fn bits(message: &[u8]) -> u64 {
    (message.len() as u64).wrapping_mul(8)
}

fn word(bytes: &[u8]) -> [u8; 4] {
    let mut word = [0; 4];
    word.copy_from_slice(bytes);
    word
}

fn hex(bytes: impl Iterator<Item = u8>) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the SHA-1 of a message.
pub(crate) fn sha1(message: &[u8]) -> String {
    let mut state: [u32; 5] = [
        0x6745_2301,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0,
    ];
    for block in blocks(message, bits(message).to_be_bytes()).chunks_exact(64) {
        let mut schedule = [0_u32; 80];
        for (slot, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
            *slot = u32::from_be_bytes(word(bytes));
        }
        for at in 16..80 {
            let mixed = schedule[at - 3] ^ schedule[at - 8] ^ schedule[at - 14] ^ schedule[at - 16];
            schedule[at] = mixed.rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, value) in schedule.iter().enumerate() {
            let (mix, constant) = match at {
                0..20 => ((b & c) | (!b & d), 0x5a82_7999),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc_u32),
                _ => (b ^ c ^ d, 0xca62_c1d6),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(mix)
                .wrapping_add(e)
                .wrapping_add(constant)
                .wrapping_add(*value);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (slot, value) in state.iter_mut().zip([a, b, c, d, e]) {
            *slot = slot.wrapping_add(value);
        }
    }
    hex(state.into_iter().flat_map(u32::to_be_bytes))
}

/// How far each of the four rounds turns, by step.
const TURNS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];

/// Returns the MD5 of a message.
pub(crate) fn md5(message: &[u8]) -> String {
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in blocks(message, bits(message).to_le_bytes()).chunks_exact(64) {
        let values: Vec<u32> = block
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes(word(bytes)))
            .collect();
        let [mut a, mut b, mut c, mut d] = state;
        for at in 0..64_usize {
            let (mix, index) = match at / 16 {
                0 => ((b & c) | (!b & d), at),
                1 => ((d & b) | (!d & c), (5 * at + 1) % 16),
                2 => (b ^ c ^ d, (3 * at + 5) % 16),
                _ => (c ^ (b | !d), (7 * at) % 16),
            };
            // The constants are the sine of the step, as the definition has it.
            let constant = ((at as f64 + 1.0).sin().abs() * 4_294_967_296.0) as u32;
            let sum = a
                .wrapping_add(mix)
                .wrapping_add(constant)
                .wrapping_add(values[index]);
            let next = b.wrapping_add(sum.rotate_left(TURNS[at / 16][at % 4]));
            (a, d, c, b) = (d, c, b, next);
        }
        for (slot, value) in state.iter_mut().zip([a, b, c, d]) {
            *slot = slot.wrapping_add(value);
        }
    }
    hex(state.into_iter().flat_map(u32::to_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_messages_have_their_known_hashes() {
        assert_eq!(sha1(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(md5(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(sha1(long), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(md5(long), "8215ef0796a20bcaaae116d3876c664a");
    }
}
