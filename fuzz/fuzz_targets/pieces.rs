//! Cuts an input into pieces that depend only on its bytes. A seed is therefore a plain message, and every mutation also moves the
//! cuts.

/// Cuts `data` at pseudo-random places; pieces may be empty.
pub fn pieces(data: &[u8]) -> Vec<&[u8]> {
    let mut random = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    let mut pieces = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let longest = [1, 4, 40, 400][(random >> 40) as usize % 4];
        let (piece, after) = rest.split_at(((random >> 50) as usize % (longest + 1)).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Small limits, which a few hundred bytes reach, for one half of the inputs, and the defaults for the other half.
pub fn limits(data: &[u8]) -> osier_http::Limits {
    if data.iter().fold(0, |sum: u8, &b| sum.wrapping_add(b)) % 2 == 0 {
        return osier_http::Limits::default();
    }
    osier_http::Limits {
        request_line: 40,
        head_bytes: 200,
        header_count: 5,
        body: 50,
        chunk_extension_bytes: 20,
        trailer_bytes: 60,
    }
}
