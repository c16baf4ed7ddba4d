//! The encoder of a WebSocket client's frames, which the server never needs.

/// A frame as a client sends it, under a fixed mask.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    masked_by([0x37, 0xFA, 0x21, 0x3D], first, payload)
}

/// A frame under a mask of the caller's.
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
