//! Field blocks into fields.
//!
//! A block arrives in pieces. A piece is decoded as it is; only the bytes of an instruction that a piece cuts are held until the
//! next one. A block that exceeds the limits is decoded to its end, because the dynamic table must follow, but its further
//! fields are not reported, and strings longer than the limits are skipped without being held.

use std::mem;

use super::dynamic_table::DynamicTable;
use super::representation::{Found, LongText, NO_ENTRY, Name, Representation, Text, find};
use super::static_table::{ENTRIES, ENTRY_COUNT};
use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, huffman, lost};
use crate::h2::export::{Reader, Writer};
use crate::h2::{Error, ErrorCode};

/// The bounds of one field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLimits {
    /// The most bytes of all names and values, with 32 more for each field (SETTINGS_MAX_HEADER_LIST_SIZE).
    pub bytes: u32,
    /// The most fields. Each crumb of a cookie is one.
    pub fields: u16,
}

/// The state of a block after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// Further pieces follow.
    More,
    /// The block has ended, and every field was reported.
    Done,
    /// The block has ended. It has more bytes than the limit, so not all of its fields were reported.
    TooLarge,
    /// The same with more fields than the limit.
    TooMany,
}

/// The decoder of one connection's field blocks.
#[derive(Clone, Debug)]
pub struct Decoder {
    table: DynamicTable,
    limits: FieldLimits,
    /// The largest size that the peer may give the table: our setting, once the peer has acknowledged it.
    allowed: usize,
    /// The peer must begin its next block with a size of at most this: our setting was lower for a while.
    demanded: Option<usize>,
    block: Block,
    /// The bytes of an instruction that the last piece has cut.
    cut: Vec<u8>,
    /// The decoded strings of one field.
    text: Vec<u8>,
    skip: Skip,
    /// How often the table has changed.
    changes: u64,
}

/// The sums of a block so far.
#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: usize,
    fields: usize,
    /// `Done` for a block within the limits so far.
    status: BlockStatus,
    /// No field has come yet: the size of the table may change.
    at_start: bool,
}

impl Block {
    const START: Block = Block {
        bytes: 0,
        fields: 0,
        status: BlockStatus::Done,
        at_start: true,
    };

    /// Refuses a block that is far above the limits. Each byte of it may be a field of 4,000 bytes, so its end is not worth the work.
    #[cold]
    fn check_distance(&self, limits: FieldLimits) -> Result<(), Error> {
        let (fields, bytes) = (usize::from(limits.fields).max(16), (limits.bytes as usize).max(1024));
        if self.fields > FAR * fields || self.bytes > FAR * bytes {
            let reason = "a field block far above the limits";
            return Err(Error::new(ErrorCode::ENHANCE_YOUR_CALM, reason));
        }
        Ok(())
    }
}

/// A block with so many times the fields or the bytes of the limits ends the connection.
const FAR: usize = 16;

/// A string that is too long to hold.
#[derive(Clone, Copy, Debug, Default)]
struct Skip {
    left: usize,
    /// The string is a name: its value follows. The instruction says whether the field enters the table.
    name_indexed: Option<bool>,
    /// The name of the instruction that is being read was skipped.
    without_name: bool,
}

impl Decoder {
    /// Makes a decoder with an empty table of at most 4,096 bytes. It allocates nothing.
    pub const fn new(limits: FieldLimits) -> Decoder {
        Decoder {
            table: DynamicTable::new(DEFAULT_TABLE_SIZE as usize),
            limits,
            allowed: DEFAULT_TABLE_SIZE as usize,
            demanded: None,
            block: Block::START,
            cut: Vec::new(),
            text: Vec::new(),
            skip: Skip {
                left: 0,
                name_indexed: None,
                without_name: false,
            },
            changes: 0,
        }
    }

    /// How often the table has changed. As long as it does not, a block means the same.
    pub(in crate::h2) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether no block is open, and the next one may begin with any instruction.
    pub(in crate::h2) fn is_at_start(&self) -> bool {
        self.block.at_start && self.demanded.is_none() && self.cut.is_empty() && self.skip.left == 0
    }

    /// Writes the table and its bounds. No block is open.
    pub(in crate::h2) fn export(&self, to: &mut Writer) {
        self.table.export(to);
        to.number(self.allowed as u64);
        to.optional(self.demanded);
    }

    pub(in crate::h2) fn import(limits: FieldLimits, from: &mut Reader<'_>) -> Option<Decoder> {
        let table = DynamicTable::import(from, |_, _| 0)?;
        let decoder = Decoder {
            table,
            allowed: from.size()?,
            demanded: from.optional()?,
            ..Decoder::new(limits)
        };
        let is_possible = decoder.table.max_size() <= decoder.allowed || decoder.demanded.is_some();
        is_possible.then_some(decoder)
    }

    /// Sets the largest size of the table: our SETTINGS_HEADER_TABLE_SIZE, when the peer acknowledges it.
    pub fn set_max_table_size(&mut self, bytes: u32) {
        self.allowed = bytes as usize;
        if self.allowed < self.table.max_size() {
            self.demanded = Some(self.demanded.map_or(self.allowed, |lowest| lowest.min(self.allowed)));
        }
    }

    /// Decodes a piece of a block. `field` gets each name and value, in order.
    ///
    /// # Errors
    /// COMPRESSION_ERROR for a malformed block, and ENHANCE_YOUR_CALM for one that has 16 times the fields or the bytes of the limits.
    /// Do not use the decoder after an error.
    pub fn decode(
        &mut self,
        mut piece: &[u8],
        last: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<BlockStatus, Error> {
        while !piece.is_empty() {
            if self.skip.left > 0 {
                piece = self.skip(piece);
            } else if self.cut.is_empty() {
                piece = self.whole_instructions(piece, field)?;
            } else {
                piece = self.cut_instruction(piece, field)?;
            }
        }
        if !last {
            return Ok(BlockStatus::More);
        }
        if self.skip.left > 0 || !self.cut.is_empty() {
            return Err(lost("a field block ends inside an instruction"));
        }
        if self.demanded.is_some() && self.block.at_start {
            return Err(UPDATE_MISSING);
        }
        let block = mem::replace(&mut self.block, Block::START);
        Ok(block.status)
    }

    /// Frees what is not needed between blocks.
    pub fn rest(&mut self) {
        self.table.rest();
        self.text = Vec::new();
        if self.cut.is_empty() {
            self.cut = Vec::new();
        }
    }

    /// Decodes the instructions of a piece. Keeps the one that the piece cuts. Returns what must be skipped.
    fn whole_instructions<'p>(
        &mut self,
        mut piece: &'p [u8],
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<&'p [u8], Error> {
        while !piece.is_empty() {
            match find(piece, self.longest())? {
                Found::Whole(instruction, used) => {
                    self.apply(instruction, field)?;
                    piece = &piece[used..];
                }
                Found::Missing(_) => {
                    self.cut.extend_from_slice(piece);
                    return Ok(&[]);
                }
                Found::Long(long) => {
                    self.begin_skip(long)?;
                    return Ok(&piece[long.before..]);
                }
            }
        }
        Ok(piece)
    }

    /// Takes from the piece what the cut instruction needs next, and decodes the instruction when it is whole.
    fn cut_instruction<'p>(
        &mut self,
        piece: &'p [u8],
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<&'p [u8], Error> {
        let mut cut = mem::take(&mut self.cut);
        let mut rest = piece;
        loop {
            match find(&cut, self.longest())? {
                Found::Missing(missing) => {
                    let (taken, after) = rest.split_at(missing.min(rest.len()));
                    cut.extend_from_slice(taken);
                    rest = after;
                    if taken.is_empty() {
                        break;
                    }
                }
                Found::Whole(instruction, _) => {
                    self.apply(instruction, field)?;
                    cut.clear();
                    break;
                }
                Found::Long(long) => {
                    cut.clear();
                    self.begin_skip(long)?;
                    break;
                }
            }
        }
        self.cut = cut;
        Ok(rest)
    }

    /// The most bytes of a string that is held. A longer one exceeds the limits, and is larger than the table even as a Huffman
    /// code, whose symbols have at most 30 bits.
    #[inline]
    fn longest(&self) -> usize {
        (self.limits.bytes as usize).max(4 * self.allowed)
    }

    #[cold]
    fn begin_skip(&mut self, long: LongText) -> Result<(), Error> {
        self.begin_fields()?;
        self.block.status = BlockStatus::TooLarge;
        self.skip.left = long.length;
        if long.is_name {
            self.skip.name_indexed = Some(long.indexed);
            return Ok(());
        }
        self.skip.without_name = false;
        if long.indexed {
            self.changes += 1;
            self.table.clear();
        }
        Ok(())
    }

    #[cold]
    fn skip<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let (skipped, rest) = piece.split_at(self.skip.left.min(piece.len()));
        self.skip.left -= skipped.len();
        if self.skip.left == 0
            && let Some(indexed) = self.skip.name_indexed.take()
        {
            // The value follows, as that of an instruction with an empty name.
            self.cut.extend_from_slice(&[if indexed { 0x40 } else { 0 }, 0]);
            self.skip.without_name = true;
        }
        rest
    }

    #[inline]
    fn apply(&mut self, instruction: Representation<'_>, field: &mut impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        if let Representation::MaxSize(bytes) = instruction {
            return self.resize(bytes);
        }
        self.begin_fields()?;
        match instruction {
            Representation::Indexed(index) => {
                let (name, value) = entry(&self.table, index)?;
                report(&mut self.block, self.limits, name, value, field)?;
            }
            Representation::Literal { name, value, indexed } => self.literal(name, value, indexed, field)?,
            Representation::MaxSize(_) => {}
        }
        Ok(())
    }

    /// Fields begin: the size of the table may not change any more.
    #[inline]
    fn begin_fields(&mut self) -> Result<(), Error> {
        if self.block.at_start && self.demanded.is_some() {
            return Err(UPDATE_MISSING);
        }
        self.block.at_start = false;
        Ok(())
    }

    fn literal(
        &mut self,
        name: Name<'_>,
        value: Text<'_>,
        indexed: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Error> {
        self.changes += u64::from(indexed);
        let Decoder { table, text, .. } = self;
        text.clear();
        // A string that is no Huffman code stays where it is. The table may change, so its names are copied.
        let plain_name: &[u8] = match name {
            Name::Index(index @ 1..=ENTRY_COUNT) => ENTRIES[index - 1].0.as_bytes(),
            Name::Index(index) => {
                text.extend_from_slice(entry(table, index)?.0);
                &[]
            }
            Name::Text(Text { bytes, huffman: false }) => bytes,
            Name::Text(Text { bytes, huffman: true }) => {
                huffman::decode(bytes, text)?;
                &[]
            }
        };
        let name_end = text.len();
        if value.huffman {
            huffman::decode(value.bytes, text)?;
        }
        let (decoded_name, decoded_value) = text.split_at(name_end);
        let name = if name_end == 0 { plain_name } else { decoded_name };
        let value = if value.huffman { decoded_value } else { value.bytes };
        if mem::take(&mut self.skip.without_name) {
            if indexed {
                table.clear();
            }
            return Ok(());
        }
        report(&mut self.block, self.limits, name, value, field)?;
        if indexed {
            table.insert(name, value, 0);
        }
        Ok(())
    }

    fn resize(&mut self, bytes: usize) -> Result<(), Error> {
        if !self.block.at_start {
            return Err(lost("a new size of the table stands after a field"));
        }
        if bytes > self.allowed || self.demanded.is_some_and(|lowest| bytes > lowest) {
            return Err(lost("a size of the table is above the setting"));
        }
        self.demanded = None;
        self.changes += 1;
        self.table.set_max_size(bytes);
        Ok(())
    }
}

const UPDATE_MISSING: Error = lost("a field block does not begin with the smaller size of the table");

/// The name and the value that an index stands for.
#[inline]
fn entry(table: &DynamicTable, index: usize) -> Result<(&[u8], &[u8]), Error> {
    let Some(place) = index.checked_sub(1) else {
        return Err(NO_ENTRY);
    };
    match ENTRIES.get(place) {
        Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
        None => table.get(place - ENTRIES.len()).ok_or(NO_ENTRY),
    }
}

/// Counts a field, and reports it if it is within the limits.
#[inline]
fn report(
    block: &mut Block,
    limits: FieldLimits,
    name: &[u8],
    value: &[u8],
    field: &mut impl FnMut(&[u8], &[u8]),
) -> Result<(), Error> {
    block.fields += 1;
    block.bytes = block.bytes.saturating_add(name.len() + value.len() + ENTRY_OVERHEAD);
    if block.fields > usize::from(limits.fields) || block.bytes > limits.bytes as usize {
        if block.status == BlockStatus::Done {
            let has_too_many = block.fields > usize::from(limits.fields);
            block.status = [BlockStatus::TooLarge, BlockStatus::TooMany][usize::from(has_too_many)];
        }
        return block.check_distance(limits);
    }
    if block.status == BlockStatus::Done {
        field(name, value);
    }
    Ok(())
}
