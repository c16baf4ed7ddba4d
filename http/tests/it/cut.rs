//! Cuts bytes into pieces.

/// Cuts into pieces of these lengths, in turn.
pub fn cut<'b>(mut bytes: &'b [u8], lengths: &[usize]) -> Vec<&'b [u8]> {
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}
