//! Reads what the server has to know of an X.509 certificate: its names, validity, issuer and public key.
//!
//! x509-parser decodes the certificate. Signatures are not checked here: rustls does that where it matters. This module
//! adds the text of a distinguished name (RFC 4514), the comparison of names, and times.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use osier_web::files::calendar::Utc;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::oid_registry::OID_PKIX_ACCESS_DESCRIPTOR_CA_ISSUERS;
use x509_parser::prelude::{
    CertificateRevocationList, FromDer, GeneralName, ParsedExtension, X509Certificate, X509Extension, X509Name,
};

/// The error for an encoding that is not that of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is not an X.509 certificate")
    }
}

/// The parts of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Serial number, big-endian.
    pub serial: Vec<u8>,
    pub issuer: Name,
    pub subject: Name,
    pub not_before: Time,
    pub not_after: Time,
    /// The subject's public key with its algorithm, in DER.
    pub public_key: Vec<u8>,
    /// The names that it is for. The common name of the subject is none of them: clients ignore it.
    pub names: Vec<AltName>,
    /// Whether it may sign other certificates.
    pub is_ca: bool,
    /// Identifier of the key that has signed it.
    pub authority_key: Option<Vec<u8>>,
    /// URL of the certificate that has signed it, if it names one.
    pub issuer_at: Option<String>,
}

/// A name that a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AltName {
    /// A name in lower case, perhaps with `*.` in front.
    Dns(String),
    Ip(IpAddr),
}

/// The distinguished name of a subject or an issuer. Names are equal when their encodings are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    encoding: Vec<u8>,
    /// Short names (or dotted object identifiers) and values, in the order of the encoding.
    attributes: Vec<(String, String)>,
}

/// A time in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Certificate {
    /// Reads a certificate from its DER encoding.
    ///
    /// # Errors
    /// When the encoding is not that of a certificate.
    pub fn parse(der: &[u8]) -> Result<Certificate, Malformed> {
        let (_, read) = X509Certificate::from_der(der).map_err(|_| Malformed)?;
        let names = read.subject_alternative_name().map_err(|_| Malformed)?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        Ok(Certificate {
            serial: read.raw_serial().to_vec(),
            issuer: Name::new(read.issuer()),
            subject: Name::new(read.subject()),
            not_before: Time(read.validity().not_before.timestamp()),
            not_after: Time(read.validity().not_after.timestamp()),
            public_key: read.public_key().raw.to_vec(),
            names: names.filter_map(alt_name).collect(),
            is_ca: read.is_ca(),
            authority_key: read.extensions().iter().find_map(authority_key),
            issuer_at: read.extensions().iter().find_map(issuer_at),
        })
    }

    /// Whether a client that asks for `name` accepts the certificate. `name` is a host in lower case, an address (IPv6
    /// in brackets), or a wildcard: then every name one label below it must be accepted.
    pub fn is_for(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if let Ok(ip) = bare.unwrap_or(name).parse::<IpAddr>() {
            return self.names.contains(&AltName::Ip(ip));
        }
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|known| match known {
            AltName::Ip(_) => false,
            AltName::Dns(known) => match known.strip_prefix("*.") {
                Some(wild) => parent == Some(wild),
                None => known == name,
            },
        })
    }
}

/// The time of the list that follows a list of revoked certificates, if it names one.
///
/// # Errors
/// When the encoding is not that of a list.
pub fn next_update(list: &[u8]) -> Result<Option<Time>, Malformed> {
    let (_, list) = CertificateRevocationList::from_der(list).map_err(|_| Malformed)?;
    Ok(list.next_update().map(|next| Time(next.timestamp())))
}

/// The name of the authority that a list of revoked certificates is for. `None` if the list is for a part of its
/// certificates.
pub fn issuer_of_list(list: &[u8]) -> Option<Vec<u8>> {
    let (_, list) = CertificateRevocationList::from_der(list).ok()?;
    let is_part = |extension: &X509Extension<'_>| {
        matches!(
            extension.parsed_extension(),
            ParsedExtension::IssuingDistributionPoint(_)
        )
    };
    (!list.extensions().iter().any(is_part)).then(|| list.issuer().as_raw().to_vec())
}

fn authority_key(extension: &X509Extension<'_>) -> Option<Vec<u8>> {
    match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
        _ => None,
    }
}

fn issuer_at(extension: &X509Extension<'_>) -> Option<String> {
    let ParsedExtension::AuthorityInfoAccess(access) = extension.parsed_extension() else {
        return None;
    };
    access.iter().find_map(|described| match &described.access_location {
        GeneralName::URI(url)
            if described.access_method == OID_PKIX_ACCESS_DESCRIPTOR_CA_ISSUERS && url.starts_with("http") =>
        {
            Some(url.escape_default().to_string())
        }
        _ => None,
    })
}

impl fmt::Display for AltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AltName::Dns(name) => f.write_str(name),
            AltName::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

/// A name that clients compare. Others, such as addresses for mail, are left out.
fn alt_name(name: &GeneralName<'_>) -> Option<AltName> {
    match name {
        GeneralName::DNSName(name) => Some(AltName::Dns(name.to_ascii_lowercase())),
        GeneralName::IPAddress(ip) => {
            let v4 = <[u8; 4]>::try_from(*ip).map(IpAddr::from);
            let ip = v4.or_else(|_| <[u8; 16]>::try_from(*ip).map(IpAddr::from));
            ip.ok().map(AltName::Ip)
        }
        _ => None,
    }
}

impl Name {
    fn new(name: &X509Name<'_>) -> Name {
        let attributes = name.iter_attributes().map(|attribute| {
            let id = attribute.attr_type();
            let name = oid2abbrev(id, oid_registry()).map_or_else(|_| id.to_id_string(), str::to_owned);
            let value = attribute.as_str().map(str::to_owned);
            let value = value.unwrap_or_else(|_| String::from_utf8_lossy(attribute.as_slice()).into_owned());
            (name, value)
        });
        Name {
            encoding: name.as_raw().to_vec(),
            attributes: attributes.collect(),
        }
    }

    /// The value of the attribute CN, if there is one.
    pub fn common_name(&self) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes.find(|(id, _)| id == "CN").map(|(_, value)| value.as_str())
    }
}

/// As RFC 4514 writes a name: `CN=Ann,O=Example`, the last attribute first.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.attributes.iter().rev().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}=")?;
            let last = value.chars().count().saturating_sub(1);
            for (at, char) in value.chars().enumerate() {
                let is_edge = (at == 0 && matches!(char, ' ' | '#')) || (at == last && char == ' ');
                match char {
                    ',' | '+' | '"' | '\\' | '<' | '>' | ';' => write!(f, "\\{char}")?,
                    _ if is_edge => write!(f, "\\{char}")?,
                    _ if char.is_ascii_control() => write!(f, "\\{:02X}", u32::from(char))?,
                    _ => write!(f, "{char}")?,
                }
            }
        }
        Ok(())
    }
}

impl Time {
    /// The present time of the system's clock.
    pub fn now() -> Time {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Time(since.map_or(0, |since| since.as_secs().cast_signed()))
    }

    /// Whole days from `earlier` to this time. Negative when this time is the earlier one.
    pub fn days_since(self, earlier: Time) -> i64 {
        self.0.saturating_sub(earlier.0).div_euclid(86_400)
    }

    /// Year, month and day.
    pub fn date(self) -> (i64, u8, u8) {
        let Utc { year, month, day, .. } = Utc::from_unix(self.0);
        (year, month, day)
    }

    /// The date and the time as OpenSSL writes them: `Nov 23 06:05:00 2026 GMT`.
    pub fn long(self) -> String {
        let Utc {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = Utc::from_unix(self.0);
        let month = Utc::MONTHS[usize::from(month) - 1];
        format!("{month} {day:2} {hour:02}:{minute:02}:{second:02} {year} GMT")
    }
}

/// The date: `2026-11-23`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let names = ["Example.org".to_owned(), "*.example.net".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params
            .subject_alt_names
            .push(SanType::IpAddress("192.0.2.1".parse().unwrap()));
        params
            .subject_alt_names
            .push(SanType::IpAddress("2001:db8::1".parse().unwrap()));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, " A, \"B\" ");
        params.distinguished_name.push(DnType::CommonName, "#Änn\n");
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![2, 5, 4, 5]), "7");
        params.not_before = rcgen::date_time_ymd(2026, 2, 28);
        params.not_after = rcgen::date_time_ymd(2050, 3, 1);
        change(&mut params);
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
    }

    #[test]
    fn a_certificate_is_read() {
        let read = Certificate::parse(&made(|_| {})).unwrap();
        assert_eq!(read.subject, read.issuer);
        // rcgen writes attributes in its own order.
        let name = read.subject.to_string();
        for part in ["O=\\ A\\, \\\"B\\\"\\ ", "CN=\\#Änn\\0A", "serialNumber=7"] {
            assert!(name.contains(part), "{name}");
        }
        assert_eq!(
            (read.not_before.to_string(), read.not_after.to_string()),
            ("2026-02-28".into(), "2050-03-01".into())
        );
        assert_eq!(read.names.len(), 4);
        assert!(!read.is_ca);
        let authority = made(|params| params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
        assert!(Certificate::parse(&authority).unwrap().is_ca);
    }

    #[test]
    fn names_are_compared_as_clients_do() {
        let read = Certificate::parse(&made(|_| {})).unwrap();
        for name in [
            "example.org",
            "a.example.net",
            "*.example.net",
            "192.0.2.1",
            "[2001:db8::1]",
        ] {
            assert!(read.is_for(name), "{name}");
        }
        for name in [
            "a.example.org",
            "example.net",
            "a.b.example.net",
            "*.example.org",
            "192.0.2.2",
            "[::1]",
            "",
        ] {
            assert!(!read.is_for(name), "{name}");
        }
    }

    #[test]
    fn dates() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((2000, 2, 29), 11_016),
            ((2100, 2, 28), 47_540),
            ((2100, 3, 1), 47_541),
            ((1950, 1, 1), -7305),
        ] {
            let time = Time(days * 86_400);
            assert_eq!(time.date(), date);
        }
        assert_eq!(Time(1_767_225_600 + 3661).long(), "Jan  1 01:01:01 2026 GMT");
        assert_eq!(Time(86_399).days_since(Time(0)), 0);
        assert_eq!(Time(0).days_since(Time(1)), -1);
    }

    proptest! {
        #[test]
        fn damaged_certificates_are_no_trouble(at in 0..4000_usize, byte: u8, cut in 0..4000_usize) {
            let mut der = made(|_| {});
            let (at, cut) = (at % der.len(), cut % der.len());
            der[at] = byte;
            for der in [&der[..], &der[..cut]] {
                if let Ok(read) = Certificate::parse(der) {
                    let _ = (read.subject.to_string(), read.not_after.to_string(), read.is_for("example.org"));
                }
            }
        }
    }
}
