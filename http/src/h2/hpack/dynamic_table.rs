//! The fields that one direction of a connection has indexed (RFC 7541 2.3.2 and 4).
//!
//! The names and values lie in one vector, in the order of their insertion. Evicting an entry only moves the beginning; an
//! insertion that finds no room moves the live bytes to the front, or grows the vector by a little.
//!
//! ```text
//!   bytes:    ░░░ evicted ░░░│name value│name value│name value│  free  │
//!                             ▲ oldest                ▲ newest: index 1 of the table
//! ```

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD;
use crate::h2::export::{Reader, Writer};

#[derive(Clone, Debug)]
pub(super) struct DynamicTable {
    bytes: Vec<u8>,
    /// The oldest entry comes first.
    entries: VecDeque<Entry>,
    /// The size as the RFC counts it: with 32 bytes an entry.
    size: usize,
    max_size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u32,
    name: u32,
    value: u32,
    /// A hash of name and value by which an encoder finds the entry.
    tag: u32,
}

/// The steps by which the vector of names and values grows.
const GROWTH: usize = 128;

/// The most memory beyond that of its entries that a table at rest keeps, in bytes.
const SPARE: usize = 512;

impl DynamicTable {
    pub const fn new(max_size: usize) -> DynamicTable {
        DynamicTable {
            bytes: Vec::new(),
            entries: VecDeque::new(),
            size: 0,
            max_size,
        }
    }

    pub fn max_size(&self) -> usize {
        self.max_size
    }

    /// The entry at an index; 0 is the newest.
    #[inline]
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(self.entries.len().checked_sub(index + 1)?)?;
        let (at, name, value) = (entry.at as usize, entry.name as usize, entry.value as usize);
        Some(self.bytes[at..at + name + value].split_at(name))
    }

    /// The index of an entry with this name and value. If two entries have one tag, only the older one is found.
    #[inline]
    pub fn find(&self, tag: u32, name: &[u8], value: &[u8]) -> Option<usize> {
        let at = self.entries.iter().position(|entry| entry.tag == tag)?;
        let index = self.entries.len() - 1 - at;
        (self.get(index) == Some((name, value))).then_some(index)
    }

    /// The index of an entry with this name.
    pub fn find_name(&self, name: &[u8]) -> Option<usize> {
        (0..self.entries.len()).find(|&index| self.get(index).is_some_and(|(other, _)| other == name))
    }

    /// Adds an entry, and evicts the oldest ones until it fits. An entry larger than the table empties it.
    pub fn insert(&mut self, name: &[u8], value: &[u8], tag: u32) {
        let length = name.len() + value.len();
        let size = length + ENTRY_OVERHEAD;
        if size > self.max_size {
            return self.clear();
        }
        self.evict(self.max_size - size);
        self.make_room(length);
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry {
            at,
            name: name.len() as u32,
            value: value.len() as u32,
            tag,
        });
        self.size += size;
    }

    /// Sets the largest size, and evicts the oldest entries until the rest fits.
    pub fn set_max_size(&mut self, bytes: usize) {
        self.max_size = bytes;
        self.evict(bytes);
        if bytes == 0 {
            *self = DynamicTable::new(0);
        }
    }

    /// Writes the largest size, and the entries from the oldest one on.
    pub fn export(&self, to: &mut Writer) {
        to.number(self.max_size as u64);
        to.number(self.entries.len() as u64);
        for (name, value) in (0..self.entries.len()).rev().filter_map(|index| self.get(index)) {
            to.field(name, value);
        }
    }

    /// The table that [`export`](DynamicTable::export) has written. `tag` makes the tag of an entry.
    pub fn import(from: &mut Reader<'_>, tag: fn(&[u8], &[u8]) -> u32) -> Option<DynamicTable> {
        let mut table = DynamicTable::new(from.size()?);
        let count: usize = from.number()?;
        for _ in 0..count {
            let (name, value) = from.field()?;
            table.insert(name, value, tag(name, value));
        }
        // An entry that did not fit was evicted, or has evicted others.
        (table.entries.len() == count).then_some(table)
    }

    pub fn clear(&mut self) {
        self.evict(0);
    }

    fn evict(&mut self, most: usize) {
        while self.size > most {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= (entry.name + entry.value) as usize + ENTRY_OVERHEAD;
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Makes room for `length` more bytes. The vector never grows beyond the size of the table.
    fn make_room(&mut self, length: usize) {
        if self.bytes.len() + length <= self.bytes.capacity() {
            return;
        }
        let evicted = self.evicted();
        let live = self.bytes.len() - evicted;
        if evicted > live / 2 || self.bytes.len() + length > self.max_size {
            self.drop_evicted();
        }
        let wanted = self.bytes.len() + length;
        if wanted > self.bytes.capacity() {
            let most = wanted.next_multiple_of(GROWTH).min(self.max_size.max(wanted));
            self.bytes.reserve_exact(most - self.bytes.len());
        }
    }

    /// The bytes of evicted entries at the front. Without an entry there are no bytes.
    fn evicted(&self) -> usize {
        self.entries.front().map_or(0, |oldest| oldest.at as usize)
    }

    /// Moves the live bytes to the front.
    fn drop_evicted(&mut self) {
        let evicted = self.evicted();
        self.bytes.drain(..evicted);
        for entry in &mut self.entries {
            entry.at -= evicted as u32;
        }
    }

    /// Gives back the memory of evicted entries, if it is worth the work.
    pub fn rest(&mut self) {
        let spare = self.bytes.capacity() - self.bytes.len() + self.evicted();
        let entries = self.entries.capacity() - self.entries.len();
        if spare + entries * size_of::<Entry>() > SPARE {
            self.drop_evicted();
            self.bytes.shrink_to_fit();
            self.entries.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &DynamicTable) -> Vec<String> {
        let names = (0..).map_while(|index| table.get(index));
        names
            .map(|(name, _)| String::from_utf8(name.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let mut table = DynamicTable::new(3 * 34);
        for name in ["a", "b", "c", "d"] {
            table.insert(name.as_bytes(), b"v", 0);
        }
        assert_eq!(names(&table), ["d", "c", "b"]);
        table.set_max_size(2 * 34 + 33);
        assert_eq!(names(&table), ["d", "c"]);
        table.insert(&[b'x'; 69], b"", 0);
        assert_eq!(names(&table), ["x".repeat(69)]);
        table.insert(&[b'x'; 70], b"", 0);
        assert!(names(&table).is_empty());
        table.set_max_size(0);
        table.insert(b"", b"", 0);
        assert!(names(&table).is_empty());
    }

    #[test]
    fn entries_of_any_sizes_stay_whole_within_the_memory_of_the_table() {
        let mut table = DynamicTable::new(1000);
        let mut expected: VecDeque<(Vec<u8>, Vec<u8>)> = VecDeque::new();
        let mut random = 1_u32;
        for i in 0..2000_u32 {
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let (name, value) = ((random >> 16) % 40, (random >> 22) % 400);
            let (name, value) = (vec![i as u8; name as usize], vec![!i as u8; value as usize]);
            table.insert(&name, &value, i);
            expected.push_front((name, value));
            while expected.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() > 1000 {
                expected.pop_back();
            }
            for (index, (name, value)) in expected.iter().enumerate() {
                assert_eq!(table.get(index), Some((&name[..], &value[..])));
            }
            assert_eq!(table.get(expected.len()), None);
            assert_eq!(table.find(i, &expected[0].0, &expected[0].1), Some(0));
            assert!(table.bytes.capacity() <= 1000);
        }
    }

    #[test]
    fn a_table_at_rest_gives_back_the_memory_of_evicted_entries() {
        let mut table = DynamicTable::new(4096);
        (0..100).for_each(|_| table.insert(b"a", b"b", 0));
        table.insert(b"name", &[b'v'; 3000], 7);
        table.insert(b"other", b"value", 8);
        table.set_max_size(200);
        let held = |table: &DynamicTable| table.bytes.capacity() + table.entries.capacity() * size_of::<Entry>();
        assert!(held(&table) > 3000, "{table:?}");
        table.rest();
        assert!(held(&table) <= SPARE, "{} bytes", held(&table));
        assert_eq!(table.find(8, b"other", b"value"), Some(0));
        table.insert(b"next", b"one", 9);
        assert_eq!(names(&table), ["next", "other"]);
        // A little is kept: the next entry would need it again.
        let before = held(&table);
        table.rest();
        assert_eq!(held(&table), before);
    }

    #[test]
    fn an_unused_table_holds_no_memory() {
        let table = DynamicTable::new(4096);
        assert_eq!((table.bytes.capacity(), table.entries.capacity()), (0, 0));
    }
}
