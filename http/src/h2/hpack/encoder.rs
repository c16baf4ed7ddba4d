//! Fields into a field block.
//!
//! A field enters the dynamic table when the connection sends it for the second time. So the table fills with what repeats
//! (`server`, `date`, `content-type`), and with nothing that is different in each message (`content-length`, `etag`, request ids),
//! without a list of names. The first message of a connection leaves no table behind.

use super::dynamic_table::DynamicTable;
use super::static_table::{self, ENTRY_COUNT};
use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, huffman, integer};
use crate::h2::export::{Reader, Writer};

/// The encoder of one connection's field blocks.
#[derive(Clone, Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// The most bytes of the table that this side wants to use.
    wanted: usize,
    /// Sizes to tell the peer at the beginning of the next block: the lowest one in between, and the one in force.
    lowest: Option<usize>,
    announce: bool,
    /// The tags of the last literal fields, and where the next one goes.
    seen: [u32; SEEN],
    next_seen: u8,
    /// How often the encoder has changed.
    changes: u64,
}

/// How many literal fields are remembered: more than one usual head has.
const SEEN: usize = 12;

/// Values up to this length are cheaper to send than to code.
const SHORT_TEXT: usize = 3;
/// A cookie below this length could be guessed byte by byte (RFC 7541 7.1.3).
const SHORT_COOKIE: usize = 20;

/// The forms of a literal field: the bits above the index of the name, and how many bits the index has.
const INDEXED: (u8, u32) = (0x40, 6);
const NOT_INDEXED: (u8, u32) = (0x00, 4);
const NEVER_INDEXED: (u8, u32) = (0x10, 4);

impl Encoder {
    /// Makes an encoder whose table has at most `table_size` bytes. 0: no table. It allocates nothing.
    pub const fn new(table_size: u32) -> Encoder {
        let wanted = table_size as usize;
        let size = if table_size < DEFAULT_TABLE_SIZE {
            wanted
        } else {
            DEFAULT_TABLE_SIZE as usize
        };
        Encoder {
            table: DynamicTable::new(size),
            wanted,
            lowest: None,
            announce: table_size < DEFAULT_TABLE_SIZE,
            seen: [0; SEEN],
            next_seen: 0,
            changes: 0,
        }
    }

    /// How often the encoder has changed. As long as it does not, the same fields become the same block.
    pub(in crate::h2) fn changes(&self) -> u64 {
        self.changes
    }

    /// Writes the table and its bounds. The fields that it has seen once begin anew.
    pub(in crate::h2) fn export(&self, to: &mut Writer) {
        self.table.export(to);
        to.number(self.wanted as u64);
        to.optional(self.lowest);
        to.number(self.announce);
    }

    pub(in crate::h2) fn import(from: &mut Reader<'_>) -> Option<Encoder> {
        let table = DynamicTable::import(from, tag)?;
        let encoder = Encoder {
            table,
            wanted: from.size()?,
            lowest: from.optional()?,
            announce: from.flag()?,
            ..Encoder::new(0)
        };
        let most = encoder.wanted.max(DEFAULT_TABLE_SIZE as usize);
        (encoder.table.max_size() <= most).then_some(encoder)
    }

    /// Frees what is not needed between blocks.
    pub(in crate::h2) fn rest(&mut self) {
        self.table.rest();
    }

    /// Sets the largest size that the peer accepts: its SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_max_table_size(&mut self, bytes: u32) {
        let size = self.wanted.min(bytes as usize);
        if size == self.table.max_size() {
            return;
        }
        self.lowest = Some(self.lowest.map_or(size, |lowest| lowest.min(size)));
        self.announce = true;
        self.changes += 1;
        self.table.set_max_size(size);
    }

    /// Begins a block. Call it before the first field of each block.
    #[inline]
    pub fn begin(&mut self, to: &mut Vec<u8>) {
        if self.announce {
            self.announce_size(to);
        }
    }

    #[cold]
    fn announce_size(&mut self, to: &mut Vec<u8>) {
        self.announce = false;
        self.changes += 1;
        let size = self.table.max_size();
        if let Some(lowest) = self.lowest.take().filter(|lowest| *lowest < size) {
            integer::write(to, lowest, 5, 0x20);
        }
        integer::write(to, size, 5, 0x20);
    }

    /// Writes `:status`, which must be the first field of a response.
    #[inline]
    pub fn status(&mut self, to: &mut Vec<u8>, status: u16) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                return self.field(to, b":status", &digits);
            }
        };
        to.push(0x80 | index);
    }

    /// Writes a field. The name must be in lower case; names and values are not checked.
    pub fn field(&mut self, to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        if is_secret(name, value) {
            return self.literal(to, NEVER_INDEXED, static_table::by_name(name), name, value);
        }
        let tag = tag(name, value);
        if let Some(index) = self.table.find(tag, name, value) {
            return integer::write(to, ENTRY_COUNT + 1 + index, 7, 0x80);
        }
        let known = static_table::by_name(name);
        if let Some(index) = known.and_then(|first| static_table::by_value(first, value)) {
            return integer::write(to, index, 7, 0x80);
        }
        let form = if self.enters(tag, name.len() + value.len()) {
            INDEXED
        } else {
            NOT_INDEXED
        };
        self.literal(to, form, known, name, value);
        if form == INDEXED {
            self.table.insert(name, value, tag);
        }
    }

    /// Whether a literal field enters the table: the connection sends it again, and it leaves room for others.
    #[inline]
    fn enters(&mut self, tag: u32, bytes: usize) -> bool {
        if bytes + ENTRY_OVERHEAD > self.table.max_size() / 2 {
            return false;
        }
        self.changes += 1;
        if self.seen.contains(&tag) {
            return true;
        }
        self.seen[usize::from(self.next_seen)] = tag;
        self.next_seen = (self.next_seen + 1) % SEEN as u8;
        false
    }

    #[inline]
    fn literal(&self, to: &mut Vec<u8>, (bits, prefix): (u8, u32), known: Option<usize>, name: &[u8], value: &[u8]) {
        let index = known.or_else(|| Some(ENTRY_COUNT + 1 + self.table.find_name(name)?));
        match index {
            Some(index) => integer::write(to, index, prefix, bits),
            None => {
                to.push(bits);
                text(to, name);
            }
        }
        text(to, value);
    }
}

/// Writes a string, as a Huffman code where that is shorter.
#[inline]
fn text(to: &mut Vec<u8>, text: &[u8]) {
    if text.len() > SHORT_TEXT {
        let coded = huffman::encoded_len(text);
        if coded < text.len() {
            integer::write(to, coded, 7, 0x80);
            return huffman::encode(text, to);
        }
    }
    integer::write(to, text.len(), 7, 0);
    to.extend_from_slice(text);
}

/// Whether no hop may index the field: an attacker who adds fields of his own could guess it from the length of blocks.
#[inline]
fn is_secret(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"authorization" | b"proxy-authorization" | b"set-cookie" => true,
        b"cookie" => value.len() < SHORT_COOKIE,
        _ => false,
    }
}

/// A hash of a field, which is never 0: of the lengths, and of eight bytes at either end of the value.
#[inline]
fn tag(name: &[u8], value: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let lengths = (name.len() as u64) << 32 | value.len() as u64;
    let name_end = name
        .last_chunk::<4>()
        .map_or(0, |end| u64::from(u32::from_le_bytes(*end)));
    let (first, last) = match (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (value.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)), 0),
    };
    let hash = (lengths ^ name_end << 20).wrapping_mul(FACTOR) ^ first;
    let hash = (hash.wrapping_mul(FACTOR) ^ hash >> 29 ^ last).wrapping_mul(FACTOR);
    (hash >> 32) as u32 | 1
}
