//! Writes PEM (RFC 7468) and base64.

/// A PEM block.
pub fn block(label: &str, der: &[u8]) -> String {
    let text = base64(der);
    let mut block = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        block.push_str(line);
        block.push('\n');
        rest = after;
    }
    block + &format!("-----END {label}-----\n")
}

/// Base64 with padding (RFC 4648 section 4).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let bits = piece.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - piece.len()));
        for at in 0..4 {
            text.push(match at <= piece.len() {
                true => char::from(ALPHABET[bits >> (18 - 6 * at) & 63]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn others_read_it() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        for length in [1, 47, 48, 49, 300] {
            let bytes: Vec<u8> = (0..=255).cycle().take(length).collect();
            let pem = block("CERTIFICATE", &bytes);
            assert!(pem.lines().all(|line| line.len() <= 64), "{pem}");
            assert_eq!(
                &*CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(),
                bytes.as_slice()
            );
        }
    }
}
