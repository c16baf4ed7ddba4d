//! Passes the certificate that a client has shown on to applications: as `SSL_CLIENT_*` to FastCGI, and as
//! `Client-Cert` (RFC 9440) to the backends of a proxy.

use std::io;

use data_encoding::BASE64;
use osier_web::Request;
use osier_web::fastcgi::RequestParams;

use crate::certificates::pem;
use crate::certificates::x509::Certificate;

/// The fields of RFC 9440. They are removed from what a client has sent.
const FIELDS: [&str; 2] = ["client-cert", "client-cert-chain"];

/// Adds the certificate of the client to a request, and removes forged fields.
///
/// # Errors
/// When the fields of the request cannot be changed. The request must be refused then.
pub fn forward(request: &mut Request<'_>) -> io::Result<()> {
    let tls = request.tls();
    let is_tls = tls.is_some();
    let shown = tls.and_then(|tls| tls.peer_certificates().next().map(<[u8]>::to_vec));
    let field = shown.iter().map(|der| (FIELDS[0], format!(":{}:", BASE64.encode(der))));
    request.replace_headers(&FIELDS, field)?;
    if is_tls {
        request.extensions_mut().insert(RequestParams(params(shown.as_deref())));
    }
    Ok(())
}

/// The parameters that Apache's mod_ssl sets, in its forms.
fn params(shown: Option<&[u8]>) -> Vec<(&'static str, Vec<u8>)> {
    let Some(der) = shown else {
        return vec![("SSL_CLIENT_VERIFY", b"NONE".to_vec())];
    };
    let mut params = vec![
        ("SSL_CLIENT_VERIFY", b"SUCCESS".to_vec()),
        ("SSL_CLIENT_CERT", pem::block("CERTIFICATE", der).into_bytes()),
    ];
    if let Ok(read) = Certificate::parse(der) {
        params.extend([
            ("SSL_CLIENT_S_DN", read.subject.to_string().into_bytes()),
            ("SSL_CLIENT_I_DN", read.issuer.to_string().into_bytes()),
            ("SSL_CLIENT_M_SERIAL", serial(&read.serial).into_bytes()),
            ("SSL_CLIENT_V_START", read.not_before.long().into_bytes()),
            ("SSL_CLIENT_V_END", read.not_after.long().into_bytes()),
        ]);
    }
    params
}

/// A serial number in hexadecimal digits, without the zero that DER puts before a number whose first bit is set.
fn serial(number: &[u8]) -> String {
    let number = match number {
        [0, rest @ ..] if !rest.is_empty() => rest,
        number => number,
    };
    number.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_has_no_sign() {
        assert_eq!(serial(&[0, 0xab, 1]), "AB01");
        assert_eq!(serial(&[0]), "00");
    }
}
