//! The encoder of a client's frames: for the tests over a socket, and for those of the decoder and its fuzzer, which include this file.

/// A frame as a client sends it.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    masked_by([0x37, 0xFA, 0x21, 0x3D], first, payload)
}

/// Under a mask of the caller's.
pub fn masked_by(mask: [u8; 4], first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..=125 => bytes.push(0x80 | length as u8),
        length @ 126..=0xFFFF => {
            bytes.push(0x80 | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    bytes
}
