//! The Huffman code of RFC 7541 5.2 and appendix B.
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols. So the lengths say everything, and all
//! tables follow from them at compile time. The decoder looks up twelve bits at once, which are two usual bytes or one. Longer codes
//! are found by the first length whose codes reach that far.

use super::lost;
use crate::h2::Error;

/// The symbol that ends a string. It must not stand in one.
const EOS: usize = 256;
const SYMBOLS: usize = 257;
const LONGEST: u32 = 30;

/// The bits of each symbol's code: the last column of RFC 7541 appendix B.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,];

/// The symbols in the order of their codes, and the place where each length begins.
const ORDER: ([u16; SYMBOLS], [u16; LONGEST as usize + 2]) = {
    let mut order = [0; SYMBOLS];
    let mut starts = [0; LONGEST as usize + 2];
    let (mut length, mut at) = (0, 0);
    while length <= LONGEST {
        starts[length as usize] = at as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as u32 == length {
                order[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    starts[length as usize] = at as u16;
    (order, starts)
};

static SYMBOL_IN_ORDER: [u16; SYMBOLS] = ORDER.0;

/// The code of each symbol, aligned to the least significant bit.
static CODES: [u32; SYMBOLS] = CODES_AND_ENDS.0;

/// The first window of 30 bits that begins with no code of at most the length that is the index.
static ENDS: [u32; LONGEST as usize + 1] = CODES_AND_ENDS.1;

const CODES_AND_ENDS: ([u32; SYMBOLS], [u32; LONGEST as usize + 1]) = {
    let (mut codes, mut ends) = ([0; SYMBOLS], [0; LONGEST as usize + 1]);
    let (mut length, mut at, mut code) = (0, 0, 0);
    while length <= LONGEST {
        while at < ORDER.1[length as usize + 1] as usize {
            codes[ORDER.0[at] as usize] = code;
            code += 1;
            at += 1;
        }
        ends[length as usize] = code << (LONGEST - length);
        code <<= 1;
        length += 1;
    }
    (codes, ends)
};

/// The bits of one look-up.
const SHORT: u32 = 12;

/// The symbols whose codes lie whole in twelve bits.
///
/// ```text
///   0 │ bits of both codes (4) │ bits of the first code (4) │ number of symbols: 0, 1 or 2 (2) │ second symbol (8) │ first symbol (8)
/// ```
static BY_PREFIX: [u32; 1 << SHORT] = {
    let mut table = [0; 1 << SHORT];
    let mut first = 0;
    while first < EOS {
        let length = LENGTHS[first] as u32;
        if length <= SHORT {
            let free = SHORT - length;
            let at = (CODES_AND_ENDS.0[first] << free) as usize;
            let alone = first as u32 | 1 << 16 | length << 18 | length << 22;
            let mut i = 0;
            while i < 1 << free {
                table[at + i] = alone;
                i += 1;
            }
            let mut second = 0;
            while free >= SHORTEST && second < EOS {
                let more = LENGTHS[second] as u32;
                if more <= free {
                    let at = at + ((CODES_AND_ENDS.0[second] as usize) << (free - more));
                    let both = first as u32 | (second as u32) << 8 | 2 << 16 | length << 18 | (length + more) << 22;
                    let mut i = 0;
                    while i < 1 << (free - more) {
                        table[at + i] = both;
                        i += 1;
                    }
                }
                second += 1;
            }
        }
        first += 1;
    }
    table
};

/// The bits of the shortest code.
const SHORTEST: u32 = 5;

/// The length of a string's code in bytes.
#[inline]
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends a string's code, padded with ones.
pub(super) fn encode(text: &[u8], to: &mut Vec<u8>) {
    let (mut window, mut bits) = (0_u64, 0);
    for &byte in text {
        let symbol = usize::from(byte);
        window = window << LENGTHS[symbol] | u64::from(CODES[symbol]);
        bits += u32::from(LENGTHS[symbol]);
        if bits >= 32 {
            bits -= 32;
            to.extend_from_slice(&((window >> bits) as u32).to_be_bytes());
        }
    }
    let padding = bits.wrapping_neg() % 8;
    window = window << padding | ((1 << padding) - 1);
    bits += padding;
    to.extend_from_slice(&((window << (32 - bits)) as u32).to_be_bytes()[..bits as usize / 8]);
}

/// Appends the string of a code.
///
/// # Errors
/// EOS in the string, and padding that is longer than seven bits or not all ones.
pub(super) fn decode(code: &[u8], to: &mut Vec<u8>) -> Result<(), Error> {
    let start = to.len();
    // A look-up writes two bytes, also where it finds one symbol.
    to.resize(start + code.len() * 8 / SHORTEST as usize + 2, 0);
    let end = start + decode_into(code, &mut to[start..])?;
    to.truncate(end);
    Ok(())
}

/// The look-ups in one word of 64 bits, of which at least 57 are fresh.
const LOOKUPS: u32 = 4;

/// Writes the string to the beginning of `to`, which has room for it. Returns its length.
fn decode_into(code: &[u8], to: &mut [u8]) -> Result<usize, Error> {
    let (mut bit, mut at) = (0, 0);
    while let Some(word) = code[bit / 8..].first_chunk() {
        let mut word = u64::from_be_bytes(*word) << (bit % 8);
        let mut found = BY_PREFIX[(word >> (64 - SHORT)) as usize];
        if found == 0 {
            let (symbol, length) = rare_symbol((word >> (64 - LONGEST)) as u32)?;
            to[at] = symbol;
            at += 1;
            bit += length as usize;
            continue;
        }
        for _ in 0..LOOKUPS {
            let [first, second, count, _] = found.to_le_bytes();
            to[at..at + 2].copy_from_slice(&[first, second]);
            at += usize::from(count & 3);
            let length = found >> 22;
            word <<= length;
            bit += length as usize;
            found = BY_PREFIX[(word >> (64 - SHORT)) as usize];
        }
    }
    // Fewer than eight bytes are left.
    let rest = &code[bit / 8..];
    let window = rest.iter().fold(0, |window, &byte| window << 8 | u64::from(byte));
    let mut bits = (rest.len() * 8 - bit % 8) as u32;
    loop {
        let ones = (1 << bits) - 1;
        if bits < 8 && window & ones == ones {
            return Ok(at);
        }
        let next = match bits.checked_sub(LONGEST) {
            Some(after) => window >> after,
            None => window << (LONGEST - bits) | ((1 << (LONGEST - bits)) - 1),
        };
        let (symbol, length) = first_symbol(next as u32 & WINDOW)?;
        bits = bits.checked_sub(length).ok_or(PADDING)?;
        to[at] = symbol;
        at += 1;
    }
}

const PADDING: Error = lost("wrong padding of a Huffman string");

/// The mask of 30 bits.
const WINDOW: u32 = (1 << LONGEST) - 1;

/// The symbol whose code begins a window of 30 bits, and the length of the code. EOS is an error.
#[inline(always)]
fn first_symbol(window: u32) -> Result<(u8, u32), Error> {
    match BY_PREFIX[(window >> (LONGEST - SHORT)) as usize] {
        0 => rare_symbol(window),
        found => Ok((found as u8, found >> 18 & 15)),
    }
}

#[cold]
fn rare_symbol(window: u32) -> Result<(u8, u32), Error> {
    let mut length = SHORT + 1;
    while length < LONGEST && window >= ENDS[length as usize] {
        length += 1;
    }
    // Counted from the end of the length's codes, which is the beginning of the longer ones.
    let before_end = (ENDS[length as usize] - 1 - window) >> (LONGEST - length);
    let end = usize::from(ORDER.1[length as usize + 1]);
    let symbol = SYMBOL_IN_ORDER[end - 1 - before_end as usize];
    Ok((
        u8::try_from(symbol).map_err(|_| lost("EOS in a Huffman string"))?,
        length,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some rows of RFC 7541 appendix B, of every length that is rare and some that are not.
    #[test]
    fn codes_are_those_of_the_rfc() {
        for (symbol, code, length) in [
            (0, 0x1ff8, 13),
            (1, 0x7f_ffd8, 23),
            (10, 0x3fff_fffc, 30),
            (22, 0x3fff_fffe, 30),
            (32, 0x14, 6),
            (48, 0x0, 5),
            (60, 0x7ffc, 15),
            (92, 0x7_fff0, 19),
            (97, 0x3, 5),
            (122, 0x7b, 7),
            (124, 0x7fc, 11),
            (126, 0x1ffd, 13),
            (127, 0xfff_fffc, 28),
            (195, 0x7_fff1, 19),
            (249, 0xfff_fffe, 28),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!((CODES[symbol], LENGTHS[symbol]), (code, length), "symbol {symbol}");
        }
    }

    #[test]
    fn every_byte_is_decoded_as_it_was_encoded() {
        for first in 0..=255 {
            for second in 0..=255 {
                let text = [first, second, b'a', first];
                let (mut code, mut decoded) = (Vec::new(), Vec::new());
                encode(&text, &mut code);
                assert_eq!(code.len(), encoded_len(&text));
                decode(&code, &mut decoded).unwrap();
                assert_eq!(decoded, text);
            }
        }
        for length in 0..100 {
            let text: Vec<u8> = (0..length).map(|i: u8| i.wrapping_mul(31)).collect();
            let (mut code, mut decoded) = (Vec::new(), Vec::new());
            encode(&text, &mut code);
            decode(&code, &mut decoded).unwrap();
            assert_eq!(decoded, text);
        }
    }

    #[test]
    fn wrong_padding_and_eos_are_refused() {
        let decode = |code: &[u8]| {
            let mut text = Vec::new();
            decode(code, &mut text).map(|()| text)
        };
        assert_eq!(decode(&[0x07]), Ok(b"0".to_vec())); // five bits of 0, three ones
        assert!(decode(&[0x06]).is_err());
        assert!(decode(&[0x00]).is_err());
        assert_eq!(decode(&[0xf8, 0x07]), Ok(b"&0".to_vec()));
        assert!(decode(&[0xff]).is_err(), "eight bits of padding");
        assert!(decode(&[0x07, 0xff]).is_err(), "eleven bits of padding");
        assert!(decode(&[0xff; 4]).is_err(), "EOS");
        assert!(decode(&[0x07, 0xff, 0xff, 0xff, 0xff]).is_err(), "EOS after a symbol");
        assert!(decode(&[0xff; 40]).is_err());
    }
}
