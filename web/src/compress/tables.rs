//! The tables of brotli encoders at quality 1, kept for the next body.
//!
//! An encoder of a text of 32 KiB takes some 400 KiB. Fresh from the allocator they are zeroed and mostly new pages: a third of the time
//! of the encoding. At quality 1 the encoder writes every entry before it reads it. At higher qualities it may not, so [`Tables`] is for
//! quality 1 alone.
//!
//! ```text
//!   encoder ─ alloc_cell ─▶ shelf of bytes, of u32 or of i32, else the allocator
//!           ─ free_cell ──▶ shelf, up to SHELF_BYTES
//! ```
//!
//! A table is charged to [`Account::COMPRESSION`] from its allocation on, in an encoder and on a shelf. While memory is short, shelves
//! keep no more tables.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use brotli::enc::BrotliAlloc;
use brotli::{Allocator, SliceWrapper, SliceWrapperMut};
use osier::memory::{self, Account, Charge, Pressure};

/// Smaller tables come from the allocator, in bytes.
const LEAST_BYTES: usize = 4 << 10;
/// Most bytes that one shelf keeps.
const SHELF_BYTES: usize = 1 << 20;

/// Free tables of the process. Their entries are those of earlier bodies.
struct Shelves {
    bytes: Vec<Table<u8>>,
    unsigned: Vec<Table<u32>>,
    signed: Vec<Table<i32>>,
}

static SHELVES: Mutex<Shelves> = Mutex::new(Shelves {
    bytes: Vec::new(),
    unsigned: Vec::new(),
    signed: Vec::new(),
});

impl Shelves {
    fn with<T: 'static, R>(with: impl FnOnce(&mut Vec<Table<T>>) -> R) -> Option<R> {
        let shelves = &mut *SHELVES.lock().unwrap_or_else(PoisonError::into_inner);
        let all: [&mut dyn Any; 3] = [&mut shelves.bytes, &mut shelves.unsigned, &mut shelves.signed];
        all.into_iter().find_map(|shelf| shelf.downcast_mut()).map(with)
    }

    /// Takes the smallest table that has room for `len` entries.
    fn take<T: 'static>(len: usize) -> Option<Table<T>> {
        Shelves::with(|shelf: &mut Vec<Table<T>>| {
            let large_enough = shelf.iter().enumerate().filter(|(_, table)| table.capacity() >= len);
            let (at, _) = large_enough.min_by_key(|(_, table)| table.capacity())?;
            Some(shelf.swap_remove(at))
        })?
    }

    fn give<T: 'static>(table: Table<T>) {
        Shelves::with(|shelf: &mut Vec<Table<T>>| {
            let entries = shelf.iter().chain([&table]).map(Table::capacity).sum::<usize>();
            if entries * size_of::<T>() <= SHELF_BYTES && memory::pressure() == Pressure::Normal {
                shelf.push(table);
            }
        });
    }
}

/// An allocator of tables, for one encoder.
pub(crate) struct Tables;

/// A table of an encoder.
#[derive(Default)]
pub(crate) struct Table<T> {
    entries: Vec<T>,
    _charge: Option<Charge>,
}

impl<T> Table<T> {
    fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}

impl<T: Clone + Default> Table<T> {
    fn new(len: usize) -> Table<T> {
        let entries = vec![T::default(); len];
        let bytes = len * size_of::<T>();
        Table {
            entries,
            _charge: (bytes > 0).then(|| Account::COMPRESSION.charge(bytes)),
        }
    }
}

impl<T> SliceWrapper<T> for Table<T> {
    fn slice(&self) -> &[T] {
        &self.entries
    }
}

impl<T> SliceWrapperMut<T> for Table<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }
}

impl<T: Clone + Default + 'static> Allocator<T> for Tables {
    type AllocatedMemory = Table<T>;

    fn alloc_cell(&mut self, len: usize) -> Table<T> {
        let kept = match len * size_of::<T>() >= LEAST_BYTES {
            true => Shelves::take(len),
            false => None,
        };
        let Some(mut table) = kept else {
            return Table::new(len);
        };
        table.entries.resize(len, T::default());
        table
    }

    fn free_cell(&mut self, table: Table<T>) {
        if table.capacity() * size_of::<T>() >= LEAST_BYTES {
            Shelves::give(table);
        }
    }
}

impl BrotliAlloc for Tables {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use brotli::CompressorWriter;
    use brotli::enc::writer::CompressorWriterCustomAlloc;

    /// A text with repetitions at many distances.
    fn text(len: usize) -> Vec<u8> {
        let words = (0_u64..).flat_map(|n| format!("{} ", n.wrapping_mul(0x9e37_79b9) % 977).into_bytes());
        words.take(len).collect()
    }

    fn fill<T: Copy + 'static>(entry: T) {
        Shelves::with(|shelf: &mut Vec<Table<T>>| shelf.iter_mut().for_each(|table| table.entries.fill(entry)));
    }

    #[test]
    fn what_earlier_bodies_have_left_changes_nothing() {
        for len in [0, 1, 100, 5000, 32_768, 65_537, 131_072, 400_000] {
            let text = text(len);
            let mut fresh = CompressorWriter::new(Vec::new(), 4096, 1, 18);
            fresh.write_all(&text).unwrap();
            let expected = fresh.into_inner();
            for _ in 0..2 {
                fill(u8::MAX);
                fill(u32::MAX);
                fill(i32::MAX);
                let buffer = Tables.alloc_cell(4096);
                let mut encoder = CompressorWriterCustomAlloc::new(Vec::new(), buffer, Tables, 1, 18);
                encoder.write_all(&text).unwrap();
                assert!(encoder.into_inner() == expected, "{len}");
            }
        }
    }

    #[test]
    fn a_shelf_is_bounded() {
        for _ in 0..3 {
            Tables.free_cell(Table::<u32>::new(SHELF_BYTES / 8));
        }
        let entries = Shelves::with(|shelf: &mut Vec<Table<u32>>| shelf.iter().map(Table::capacity).sum::<usize>());
        assert!(entries.is_some_and(|entries| entries * 4 <= SHELF_BYTES), "{entries:?}");
    }
}
