//! The fields that every connection knows (RFC 7541 appendix A).

/// The number of entries. Higher indexes belong to the dynamic table.
pub(super) const ENTRY_COUNT: usize = 61;

/// The name and the value of each entry. Index 1 comes first.
#[rustfmt::skip]
pub(super) static ENTRIES: [(&str, &str); ENTRY_COUNT] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The index of the first entry that has the name.
#[inline]
pub(super) fn by_name(name: &[u8]) -> Option<usize> {
    let index = usize::from(BY_HASH[hash(name)?]);
    let (entry, _) = ENTRIES[index.checked_sub(1)?];
    (entry.as_bytes() == name).then_some(index)
}

/// The index of the entry that has the value, among those that have the name of the entry at `first`.
#[inline]
pub(super) fn by_value(first: usize, value: &[u8]) -> Option<usize> {
    let (name, _) = ENTRIES[first - 1];
    let same = ENTRIES[first - 1..].iter().take_while(|(other, _)| *other == name);
    let found = same
        .map(|(_, value)| value.as_bytes())
        .position(|other| other == value)?;
    Some(first + found)
}

/// Hashes the length of a name and three of its bytes. No two names of the table collide. `None` for an empty name.
#[inline]
const fn hash(name: &[u8]) -> Option<usize> {
    if name.is_empty() {
        return None;
    }
    let key = u32::from_le_bytes([name.len() as u8, name[0], name[name.len() / 2], name[name.len() - 1]]);
    Some((key.wrapping_mul(0xfe44_63a7) >> 25) as usize)
}

/// The index of the name with this hash, or 0.
static BY_HASH: [u8; 128] = {
    let mut table = [0; 128];
    let mut i = ENTRIES.len();
    while i > 0 {
        let name = ENTRIES[i - 1].0.as_bytes();
        let Some(hash) = hash(name) else {
            panic!("a name is empty")
        };
        let taken = table[hash] as usize;
        assert!(
            taken == 0 || same(name, ENTRIES[taken - 1].0.as_bytes()),
            "two names collide"
        );
        table[hash] = i as u8;
        i -= 1;
    }
    table
};

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_value() {
        for (i, (name, value)) in ENTRIES.iter().enumerate() {
            let first = by_name(name.as_bytes()).unwrap();
            assert_eq!(ENTRIES.iter().position(|(other, _)| other == name), Some(first - 1));
            assert_eq!(by_value(first, value.as_bytes()), Some(i + 1));
        }
        for absent in ["", "x", ":statu", "datf", "x-content-type"] {
            assert_eq!(by_name(absent.as_bytes()), None);
        }
        assert_eq!(by_value(8, b"302"), None);
    }
}
