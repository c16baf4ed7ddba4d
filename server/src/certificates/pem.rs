//! Writes PEM (RFC 7468).

use data_encoding::BASE64;

/// The PEM block of a DER encoding.
pub fn block(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn others_read_it() {
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
