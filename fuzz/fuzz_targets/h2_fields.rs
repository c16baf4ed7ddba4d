//! Fuzzes the field compression of HTTP/2. An input is a row of blocks, each after a byte with its length.
//!
//! The decoder never panics, and its result does not depend on the pieces. The crate `loona-hpack` finds the same fields in every block that
//! this decoder accepts. Fields that were decoded survive the encoder and either decoder.
#![cfg_attr(fuzzing, no_main)]

#[path = "pieces.rs"]
#[allow(dead_code)] // this decoder has limits of its own
mod pieces;

use osier_fuzz::fuzz_target;
use osier_http::h2::Error;
use osier_http::h2::hpack::{BlockStatus, Decoder, Encoder, FieldLimits};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

const WIDE: FieldLimits = FieldLimits {
    bytes: 1 << 20,
    fields: u16::MAX,
};
const NARROW: FieldLimits = FieldLimits { bytes: 200, fields: 4 };

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut narrow) = (Decoder::new(WIDE), Decoder::new(NARROW));
    let (mut encoder, mut receiver) = (Encoder::new(300), Decoder::new(WIDE));
    let (mut other, mut other_receiver) = (loona_hpack::Decoder::new(), loona_hpack::Decoder::new());
    let mut rest = data;
    while let Some((&length, after)) = rest.split_first() {
        let (block, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let (mut cut, mut cut_narrow) = (decoder.clone(), narrow.clone());
        let whole = decode(&mut decoder, &[block]);
        assert_eq!(decode(&mut cut, &pieces::pieces(block)), whole);
        let few = decode(&mut narrow, &[block]);
        assert_eq!(decode(&mut cut_narrow, &pieces::pieces(block)), few);
        let Ok((_, fields)) = whole else { return };
        // A block far above the limits ends the connection.
        let Ok((_, few)) = few else { return };
        assert!(fields.starts_with(&few));
        assert!(
            few.len() <= 4
                && few
                    .iter()
                    .map(|(name, value)| name.len() + value.len() + 32)
                    .sum::<usize>()
                    <= 200
        );
        // The other decoder refuses a block of sizes only, which no rule forbids.
        if fields.is_empty() {
            return;
        }
        assert_eq!(other.decode(block).expect("a valid block"), fields);

        let mut again = Vec::new();
        encoder.begin(&mut again);
        for (name, value) in &fields {
            encoder.field(&mut again, name, value);
        }
        assert_eq!(
            decode(&mut receiver, &[&again]),
            Ok((BlockStatus::Done, fields.clone()))
        );
        assert_eq!(other_receiver.decode(&again).expect("our own block"), fields);
    }
});

fn decode(decoder: &mut Decoder, pieces: &[&[u8]]) -> Result<(BlockStatus, Fields), Error> {
    let mut fields = Vec::new();
    let mut field = |name: &[u8], value: &[u8]| fields.push((name.to_vec(), value.to_vec()));
    for piece in pieces {
        assert_eq!(decoder.decode(piece, false, &mut field)?, BlockStatus::More);
    }
    let status = decoder.decode(&[], true, &mut field)?;
    Ok((status, fields))
}
