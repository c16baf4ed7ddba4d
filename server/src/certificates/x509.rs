//! Reads what a server has to know of an X.509 certificate (RFC 5280): its names, validity, issuer and public key.
//!
//! The reader checks no signature: rustls does that where it matters. It goes through the DER encoding once, from outside to
//! inside, and every length is checked against what encloses it. So any bytes give a [`Certificate`] or an error.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

/// The encoding is not that of a certificate.
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
pub struct Name(Vec<u8>);

/// A time in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const BMP_STRING: u8 = 0x1e;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]`, the version, and `[3]`, the extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// `[2]` and `[7]` of a general name.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// Object identifiers of extensions: subjectAltName and basicConstraints.
const ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// Attributes of names with a short form (RFC 4514 3, and the address that older certificates have).
const ATTRIBUTES: [(&[u8], &str); 9] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
];

impl Certificate {
    /// Reads a certificate from its DER encoding.
    ///
    /// # Errors
    /// When the encoding is not that of a certificate.
    pub fn parse(der: &[u8]) -> Result<Certificate, Malformed> {
        let mut outer = Der(der);
        let mut whole = Der(outer.take(SEQUENCE)?);
        let mut body = Der(whole.take(SEQUENCE)?);
        if body.peek() == Some(VERSION) {
            body.take(VERSION)?;
        }
        let serial = body.take(INTEGER)?;
        body.take(SEQUENCE)?;
        let issuer = Name(body.whole(SEQUENCE)?.to_vec());
        let mut validity = Der(body.take(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let subject = Name(body.whole(SEQUENCE)?.to_vec());
        let public_key = body.whole(SEQUENCE)?.to_vec();
        let mut certificate = Certificate {
            serial: serial.to_vec(),
            issuer,
            subject,
            not_before,
            not_after,
            public_key,
            names: Vec::new(),
            is_ca: false,
        };
        while let Some(tag) = body.peek() {
            let content = body.take(tag)?;
            if tag == EXTENSIONS {
                certificate.read_extensions(Der(Der(content).take(SEQUENCE)?))?;
            }
        }
        Ok(certificate)
    }

    fn read_extensions(&mut self, mut extensions: Der<'_>) -> Result<(), Malformed> {
        while extensions.peek().is_some() {
            let mut extension = Der(extensions.take(SEQUENCE)?);
            let id = extension.take(OID)?;
            if extension.peek() == Some(BOOLEAN) {
                extension.take(BOOLEAN)?;
            }
            let value = extension.take(OCTET_STRING)?;
            match id {
                ALT_NAME => self.read_names(Der(Der(value).take(SEQUENCE)?))?,
                BASIC_CONSTRAINTS => {
                    let mut constraints = Der(Der(value).take(SEQUENCE)?);
                    self.is_ca = constraints.peek() == Some(BOOLEAN) && constraints.take(BOOLEAN)? != [0];
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_names(&mut self, mut names: Der<'_>) -> Result<(), Malformed> {
        while let Some(tag) = names.peek() {
            let name = names.take(tag)?;
            match tag {
                DNS_NAME => {
                    let name = str::from_utf8(name).map_err(|_| Malformed)?;
                    self.names.push(AltName::Dns(name.to_ascii_lowercase()));
                }
                IP_ADDRESS => {
                    let ip = <[u8; 4]>::try_from(name).map(IpAddr::from);
                    let ip = ip.or_else(|_| <[u8; 16]>::try_from(name).map(IpAddr::from));
                    self.names.push(AltName::Ip(ip.map_err(|_| Malformed)?));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a client that asks for `name` accepts the certificate. `name` is a host in lower case, an address (IPv6 in
    /// brackets), or a wildcard: then every name one label below it must be accepted.
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

impl fmt::Display for AltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AltName::Dns(name) => f.write_str(name),
            AltName::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

impl Name {
    /// The value of the attribute CN, if there is one.
    pub fn common_name(&self) -> Option<String> {
        let mut attributes = self.attributes().ok()?.into_iter();
        attributes.find(|(id, _)| id == "CN").map(|(_, value)| value)
    }

    /// Short names (or dotted object identifiers) and values, in the order of the encoding.
    fn attributes(&self) -> Result<Vec<(String, String)>, Malformed> {
        let mut attributes = Vec::new();
        let mut names = Der(Der(&self.0).take(SEQUENCE)?);
        while names.peek().is_some() {
            let mut set = Der(names.take(SET)?);
            while set.peek().is_some() {
                let mut pair = Der(set.take(SEQUENCE)?);
                let id = pair.take(OID)?;
                let tag = pair.peek().ok_or(Malformed)?;
                attributes.push((attribute(id), text(tag, pair.take(tag)?)));
            }
        }
        Ok(attributes)
    }
}

/// As RFC 4514 writes a name: `CN=Ann,O=Example`, the last attribute first.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes = self.attributes().unwrap_or_default();
        for (index, (name, value)) in attributes.iter().rev().enumerate() {
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
    pub fn now() -> Time {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Time(since.map_or(0, |since| since.as_secs().cast_signed()))
    }

    /// Whole days from `earlier` to this time. Negative when this time is the earlier one.
    pub fn days_since(self, earlier: Time) -> i64 {
        self.0.saturating_sub(earlier.0).div_euclid(86_400)
    }

    /// Year, month and day.
    pub fn date(self) -> (i64, i64, i64) {
        // Years begin in March here, so that the leap day is the last of its year. An era has 400 years.
        let days = self.0.div_euclid(86_400) + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
        (era * 400 + year + i64::from(month <= 2), month, day)
    }

    /// The date and the time as OpenSSL writes them: `Nov 23 06:05:00 2026 GMT`.
    pub fn long(self) -> String {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let ((year, month, day), second) = (self.date(), self.0.rem_euclid(86_400));
        let month = usize::try_from(month - 1).ok().and_then(|month| MONTHS.get(month));
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let month = month.unwrap_or(&"");
        format!("{month} {day:2} {hour:02}:{minute:02}:{second:02} {year} GMT")
    }

    fn of_date(year: i64, month: i64, day: i64) -> Time {
        let year = year - i64::from(month <= 2);
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let day = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let day = year * 365 + year / 4 - year / 100 + day;
        Time((era * 146_097 + day - 719_468) * 86_400)
    }
}

/// The date: `2026-11-23`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// The bytes that are still to be read.
struct Der<'d>(&'d [u8]);

impl<'d> Der<'d> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which has this tag.
    fn take(&mut self, tag: u8) -> Result<&'d [u8], Malformed> {
        let (head, length) = self.head(tag)?;
        let (element, rest) = self.0.split_at_checked(head + length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(&element[head..])
    }

    /// The next element with its tag and its length.
    fn whole(&mut self, tag: u8) -> Result<&'d [u8], Malformed> {
        let (head, length) = self.head(tag)?;
        let (element, rest) = self.0.split_at_checked(head + length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(element)
    }

    /// The lengths of the next element's head and content.
    fn head(&self, tag: u8) -> Result<(usize, usize), Malformed> {
        match self.0 {
            [found, ..] if *found != tag => Err(Malformed),
            [_, short @ 0..=0x7f, ..] => Ok((2, usize::from(*short))),
            [_, 0x81, a, ..] => Ok((3, usize::from(*a))),
            [_, 0x82, a, b, ..] => Ok((4, usize::from(u16::from_be_bytes([*a, *b])))),
            // 16 MiB are more than any certificate has.
            [_, 0x83, a, b, c, ..] => Ok((5, u32::from_be_bytes([0, *a, *b, *c]) as usize)),
            _ => Err(Malformed),
        }
    }

    /// A time: the years 1950 to 2049 have two digits, others four. A certificate's times are in UTC and have seconds.
    fn time(&mut self) -> Result<Time, Malformed> {
        let (tag, years) = match self.peek() {
            Some(UTC_TIME) => (UTC_TIME, 2),
            Some(GENERALIZED_TIME) => (GENERALIZED_TIME, 4),
            _ => return Err(Malformed),
        };
        let text = self.take(tag)?.strip_suffix(b"Z").ok_or(Malformed)?;
        if text.len() != years + 10 || !text.iter().all(u8::is_ascii_digit) {
            return Err(Malformed);
        }
        let number = |digits: &[u8]| digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        let (year, rest) = text.split_at(years);
        let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
        let year = match (years, number(year)) {
            (2, year @ ..50) => 2000 + year,
            (2, year) => 1900 + year,
            (_, year) => year,
        };
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
            return Err(Malformed);
        }
        Ok(Time(
            Time::of_date(year, month, day).0 + hour * 3600 + minute * 60 + second,
        ))
    }
}

fn attribute(id: &[u8]) -> String {
    match ATTRIBUTES.iter().find(|(known, _)| *known == id) {
        Some((_, name)) => (*name).to_owned(),
        None => dotted(id),
    }
}

/// An object identifier as numbers. Numbers beyond 64 bits are cut.
fn dotted(id: &[u8]) -> String {
    let (mut numbers, mut number) = (Vec::new(), 0_u64);
    for byte in id {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            match numbers.is_empty() {
                true => numbers.extend([(number / 40).min(2), number - (number / 40).min(2) * 40]),
                false => numbers.push(number),
            }
            number = 0;
        }
    }
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    numbers.join(".")
}

fn text(tag: u8, bytes: &[u8]) -> String {
    match tag {
        BMP_STRING => {
            let units = bytes.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
            char::decode_utf16(units)
                .map(|char| char.unwrap_or('\u{fffd}'))
                .collect()
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
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
        for part in ["O=\\ A\\, \\\"B\\\"\\ ", "CN=\\#Änn\\0A", "2.5.4.5=7"] {
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
            assert_eq!((time.date(), Time::of_date(date.0, date.1, date.2)), (date, time));
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
