//! Content negotiation by Accept-Encoding: chooses among the available codings of a body.
//!
//! Pure functions. Weights are in thousandths, the finest step that the grammar allows.
//!
//! Source: RFC 9110 sections 12.4.2 and 12.5.3.

use std::str::FromStr;

use crate::InvalidSetting;

/// A content coding that the server produces, or finds on disk.
#[derive(Debug, PartialEq, Eq, Clone, Copy, Hash)]
#[non_exhaustive]
pub enum Coding {
    /// Brotli, `.br`.
    Brotli,
    /// Zstandard, `.zst`.
    Zstd,
    /// Gzip, `.gz`.
    Gzip,
}

impl Coding {
    /// All codings, the densest first.
    pub const ALL: &[Coding] = &Coding::EACH;

    /// The same. A variant's value is its position here, and the index into arrays of codings.
    pub(crate) const EACH: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// The file name suffix of this coding.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
            Coding::Gzip => ".gz",
        }
    }

    /// The name in Content-Encoding.
    pub fn token(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// The coding that an element of Accept-Encoding names. `x-gzip` is gzip (RFC 9110 section 8.4.1.3).
    pub(crate) fn named(name: &[u8]) -> Option<Coding> {
        let is_named = |coding: &Coding| {
            name.eq_ignore_ascii_case(coding.token().as_bytes())
                || (*coding == Coding::Gzip && name.eq_ignore_ascii_case(b"x-gzip"))
        };
        Coding::EACH.into_iter().find(is_named)
    }
}

/// Parses the name in Content-Encoding: `gzip`, `br` or `zstd`.
impl FromStr for Coding {
    type Err = InvalidSetting;

    fn from_str(name: &str) -> Result<Coding, InvalidSetting> {
        let found = Coding::EACH.into_iter().find(|coding| coding.token() == name);
        let unknown = || InvalidSetting::new(format!("unknown content coding {name:?}: use gzip, br or zstd"));
        found.ok_or_else(unknown)
    }
}

/// The outcome of the negotiation.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Choice {
    /// The plain body.
    Identity,
    /// The body in this coding.
    Encoded(Coding),
    /// Nothing: the client refuses every available form (406).
    Nothing,
}

/// Chooses among the plain body and the codings `offered`, by the lines of Accept-Encoding.
///
/// The highest weight wins. Among equal weights a coding wins over the plain body, and an earlier
/// coding over a later one. The plain body, if it is not mentioned, is acceptable with the lowest
/// preference.
pub fn choose<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone, offered: impl IntoIterator<Item = Coding>) -> Choice {
    let mut offered = offered.into_iter().peekable();
    // Nothing is refused without a weight.
    if offered.peek().is_none() && lines.clone().all(|line| !line.contains(&b';')) {
        return Choice::Identity;
    }
    let mut weights: [Option<u16>; 3] = [None; 3];
    let mut identity: Option<u16> = None;
    let mut others: Option<u16> = None;
    for element in lines.flat_map(|line| line.split(|&byte| byte == b',')) {
        let Some((name, weight)) = weighted(element) else {
            continue;
        };
        if let Some(coding) = Coding::named(name) {
            weights[coding as usize] = Some(weight);
        } else if name.eq_ignore_ascii_case(b"identity") {
            identity = Some(weight);
        } else if name == b"*" {
            others = Some(weight);
        }
    }
    let mut best = Choice::Nothing;
    let mut best_weight = 0;
    for coding in offered {
        let weight = weights[coding as usize].or(others).unwrap_or(0);
        if weight > best_weight {
            (best, best_weight) = (Choice::Encoded(coding), weight);
        }
    }
    match identity.or(others.filter(|&weight| weight == 0)) {
        Some(0) => best,
        Some(weight) if weight > best_weight => Choice::Identity,
        _ if best == Choice::Nothing => Choice::Identity,
        _ => best,
    }
}

/// The elements of the lines of Accept-Encoding that have a weight above zero, in their order. They are names of codings, as the
/// client spells them (`x-gzip` is `gzip`), `identity` and `*`. An element with an invalid weight counts as absent.
///
/// ```
/// use osier_web::compress::accepted;
///
/// let lines = [&b"br;q=0, X-Gzip"[..], b"zstd;q=0.5"];
/// assert!(accepted(lines).eq([&b"gzip"[..], b"zstd"]));
/// ```
pub fn accepted<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    let elements = lines.into_iter().flat_map(|line| line.split(|&byte| byte == b','));
    let names = elements.filter_map(weighted).filter(|(_, weight)| *weight > 0);
    names.map(|(name, _)| Coding::named(name).map_or(name, |coding| coding.token().as_bytes()))
}

/// Splits `name` or `name;q=0.5` into the name and its weight in thousandths. Returns `None` for an
/// element with an invalid weight, which counts as absent.
pub fn weighted(element: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let Some(parameter) = parts.next() else {
        return Some((name, 1000));
    };
    let value = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    Some((name, thousandths(value)?))
}

/// Parses a weight such as `0`, `0.5` or `1.000`: at most 1, with at most three decimals.
fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, decimals) = match value {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0') * 1000;
    for (digit, unit) in decimals.iter().zip([100, 10, 1]) {
        weight += u16::from(digit.is_ascii_digit().then(|| digit - b'0')?) * unit;
    }
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Choice::{Encoded, Identity, Nothing};
    use Coding::{Brotli, Gzip, Zstd};

    const ALL: &[Coding] = Coding::ALL;
    const NONE: &[Coding] = &[];

    #[test]
    fn weights_decide() {
        for (field, present, expected) in [
            ("gzip, deflate, br, zstd", ALL, Encoded(Brotli)),
            ("gzip, zstd", ALL, Encoded(Zstd)),
            ("gzip", ALL, Encoded(Gzip)),
            ("GZIP", ALL, Encoded(Gzip)),
            ("x-gzip", ALL, Encoded(Gzip)),
            ("gzip, br", &[Gzip], Encoded(Gzip)),
            ("gzip;q=1, br;q=0.5", ALL, Encoded(Gzip)),
            ("gzip;q=0.5, br;q=0.501", ALL, Encoded(Brotli)),
            ("gzip ; q=0.8 , br ; q=0.2", ALL, Encoded(Gzip)),
            ("br;q=0", ALL, Identity),
            ("br;q=0.000, gzip", ALL, Encoded(Gzip)),
            ("*", ALL, Encoded(Brotli)),
            ("*, br;q=0", ALL, Encoded(Zstd)),
            ("*;q=0", ALL, Nothing),
            ("*;q=0", NONE, Nothing),
            ("*;q=0, gzip", ALL, Encoded(Gzip)),
            ("*;q=0, identity", ALL, Identity),
            ("identity;q=0", ALL, Nothing),
            ("identity;q=0", NONE, Nothing),
            ("identity;q=0, gzip;q=0.1", ALL, Encoded(Gzip)),
            ("identity, gzip;q=0.5", ALL, Identity),
            ("identity;q=0.5, gzip;q=0.5", ALL, Encoded(Gzip)),
            ("gzip;q=0.001", ALL, Encoded(Gzip)),
            ("deflate", ALL, Identity),
            ("gzipped, brx", ALL, Identity),
            ("", ALL, Identity),
            (",,", ALL, Identity),
            ("gzip;q=2", ALL, Identity),
            ("gzip;q=1.001", ALL, Identity),
            ("gzip;q=0.1234", ALL, Identity),
            ("gzip;q=", ALL, Identity),
            ("gzip;level=9", ALL, Identity),
            ("gzip, br", NONE, Identity),
            ("gzip, br", &[Gzip, Brotli], Encoded(Gzip)),
        ] {
            assert_eq!(
                choose([field.as_bytes()].into_iter(), present.iter().copied()),
                expected,
                "{field:?} {present:?}"
            );
        }
    }

    #[test]
    fn lines_add_up() {
        assert_eq!(choose(std::iter::empty(), Coding::EACH), Identity);
        assert_eq!(
            choose([&b"gzip;q=0.2"[..], b"zstd"].into_iter(), Coding::EACH),
            Encoded(Zstd)
        );
    }
}
