//! Regions: the process-wide address space that slots are carved from, and the free list of cold slots.
//!
//! `Pool` and `Stack` take slots from here when no warm stack is at hand, and give cold ones back.
//!
//! Protocol: everything that changes is behind the lock of [`SHARED`]. Other code reads the rows of the table without it, so they are
//! written in the order that `slots.rs` says. Regions are never unmapped: an ended runtime leaves its slots, without their pages, to
//! the next one.
//!
//! # Safety
//!
//! This file is an unsafe island: it maps, guards and discards memory. It keeps the invariant of the `stack` module: one `Stack` per carved
//! slot, made in `carve` and only moved from then on.
#![allow(unsafe_code)]

use super::{CLASSES, Class, Guard, Stack, platform};
use crate::slots::{GUARD_BYTES, MAX_REGIONS, REGIONS, ROWS, Region};
use corosensei::stack::valgrind::ValgrindStackRegistration;
use rustix::io::Errno;
use rustix::mm::{self, MprotectFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::mem;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The smallest region that is tried before the lack of address space is reported.
const MIN_REGION_BYTES: usize = 4 << 20;

/// One region takes at most 1/32 of the address space that a limit allows for stacks.
const PARTS: usize = 32;

static SHARED: Mutex<[[Shelf; CLASSES]; 2]> = Mutex::new([const { [const { Shelf::new() }; CLASSES] }; 2]);

/// The slots of one class and kind of guard.
struct Shelf {
    free: Vec<Stack>,
    /// Row from which new slots are carved.
    row: Option<usize>,
    /// Whether the slots of that row start inaccessible and are opened one by one.
    closed: bool,
}

/// Takes a cold stack, or carves a new one.
pub(super) fn take(class: Class, region_bytes: usize, guard: Guard) -> io::Result<Stack> {
    let mut shared = lock();
    let shelf = &mut shared[guard as usize][usize::from(class.0)];
    match shelf.free.pop() {
        Some(stack) => Ok(stack),
        None => shelf.carve(class, region_bytes, guard),
    }
}

/// Stores a stack whose pages were given back, for the next caller that needs its class.
pub(super) fn give(stack: Stack) {
    lock()[stack.guard() as usize][usize::from(stack.class().0)]
        .free
        .push(stack);
}

/// Discards the pages of `low..high`, which must lie in the usable part of a stack, below all frames on it.
pub(super) fn give_back_pages(low: usize, high: usize) {
    let start = ptr::with_exposed_provenance_mut(low);
    // SAFETY: the range is part of a slot. Either the caller (in `stack/mod.rs`) owns its only `Stack` and no coroutine runs on it, or
    // the caller runs on it itself and all frames lie above the range. So nothing refers to what is discarded.
    // Locked memory cannot be discarded. Its pages then stay.
    let _ = unsafe { platform::discard(start, high - low) };
}

/// The number of untouched pages at the low end of `low..high`, the usable part of a stack.
pub(super) fn untouched_pages(low: usize, high: usize) -> io::Result<usize> {
    let touched = platform::resident_pages(ptr::with_exposed_provenance_mut(low), high - low)?;
    Ok(touched.iter().take_while(|page| **page & 1 == 0).count())
}

impl Shelf {
    const fn new() -> Shelf {
        Shelf {
            free: Vec::new(),
            row: None,
            closed: false,
        }
    }

    fn carve(&mut self, class: Class, region_bytes: usize, guard: Guard) -> io::Result<Stack> {
        let slot_bytes = class.stack_bytes();
        let next = |region: &Region| region.carved.load(Relaxed).next_multiple_of(region.pitch.load(Relaxed));
        let room = |row: &usize| next(&REGIONS[*row]) + slot_bytes <= REGIONS[*row].bytes.load(Relaxed);
        let row = match self.row.filter(room) {
            Some(row) => row,
            None => {
                self.closed = guard == Guard::Mprotect || !light_guards_work();
                *self.row.insert(map(slot_bytes, region_bytes, self.closed)?)
            }
        };
        let region = &REGIONS[row];
        let offset = next(region);
        let slot = region.start.load(Relaxed) + offset;
        if self.closed {
            open_slot(slot, slot_bytes)
        } else {
            guard_slot(slot)
        }
        .map_err(|e| no_guard(e, slot_bytes))?;
        let usable = ptr::with_exposed_provenance_mut(slot + GUARD_BYTES);
        // Valgrind must know every stack. A slot is a stack for ever, so the registration is never removed.
        mem::forget(ValgrindStackRegistration::new(usable, slot_bytes - GUARD_BYTES));
        region.carved.store(offset + slot_bytes, Release);
        // The kernel maps nothing at the very top of the address space, so a slot's end is not zero.
        let top = NonZeroUsize::new(slot + slot_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Stack::of_slot(top, class, guard))
    }
}

fn lock() -> MutexGuard<'static, [[Shelf; CLASSES]; 2]> {
    // No code in this file panics in the middle of a change, so a poisoned lock still guards good data.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most address space of all regions: half of RLIMIT_AS. A fiber that cannot start is an error, but an allocation that finds no
/// address space ends the process.
fn most_bytes() -> usize {
    let limit = getrlimit(Resource::As).current;
    limit.map_or(usize::MAX, |bytes| usize::try_from(bytes / 2).unwrap_or(usize::MAX))
}

/// Maps a region of up to `region_bytes` and returns its row. It tries smaller ones when address space is short. Below a limit of address
/// space it takes a part of what stacks may have, because the program can use the rest only while no region holds it.
fn map(slot_bytes: usize, region_bytes: usize, closed: bool) -> io::Result<usize> {
    let row = ROWS.load(Relaxed);
    if row == MAX_REGIONS {
        let line =
            format!("all {MAX_REGIONS} regions for fiber stacks are in use: raise region_bytes ({region_bytes})");
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, line));
    }
    let least = slot_bytes.max(MIN_REGION_BYTES);
    let most = most_bytes();
    let mapped: usize = REGIONS[..row].iter().map(|region| region.bytes.load(Relaxed)).sum();
    let mut bytes = region_bytes
        .checked_next_power_of_two()
        .unwrap_or(region_bytes)
        .min((most / PARTS).checked_ilog2().map_or(0, |power| 1 << power))
        .max(least);
    let start = loop {
        let reserved = match mapped.checked_add(bytes) {
            Some(all) if all <= most => reserve(bytes, closed),
            _ => Err(Errno::NOMEM),
        };
        match reserved {
            Ok(start) => break start,
            Err(_) if bytes > least => bytes = (bytes / 2).max(least),
            Err(e) => return Err(no_address_space(e, bytes)),
        }
    };
    let region = &REGIONS[row];
    region.start.store(start, Relaxed);
    region.bytes.store(bytes, Relaxed);
    region.slot_bytes.store(slot_bytes, Relaxed);
    region.pitch.store(slot_bytes + rustix::param::page_size(), Relaxed);
    ROWS.store(row + 1, Release);
    Ok(row)
}

fn reserve(bytes: usize, closed: bool) -> Result<usize, Errno> {
    let access = if closed {
        ProtFlags::empty()
    } else {
        ProtFlags::READ | ProtFlags::WRITE
    };
    // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, access, platform::STACK_MAPPING)? };
    platform::refuse_huge_pages(start, bytes);
    Ok(start.expose_provenance())
}

/// Makes the low end of an accessible slot the guard.
fn guard_slot(slot: usize) -> Result<(), Errno> {
    let start = ptr::with_exposed_provenance_mut(slot);
    // SAFETY: the slot is being carved: nobody uses it yet.
    unsafe { platform::install_guard(start, GUARD_BYTES) }.or_else(|_| {
        // Memory that was locked after the region was made refuses the light guard.
        // SAFETY: as above.
        unsafe { mm::mprotect(start, GUARD_BYTES, MprotectFlags::empty()) }
    })
}

/// Makes an inaccessible slot usable, except for its low end.
fn open_slot(slot: usize, slot_bytes: usize) -> Result<(), Errno> {
    let usable = ptr::with_exposed_provenance_mut(slot + GUARD_BYTES);
    // SAFETY: the slot is being carved: nobody uses it yet.
    unsafe {
        mm::mprotect(
            usable,
            slot_bytes - GUARD_BYTES,
            MprotectFlags::READ | MprotectFlags::WRITE,
        )
    }
}

/// Whether the kernel has guards that cost no mapping, for memory mapped now. A page is guarded and then read, because neither the
/// kernel's version nor the answer of madvise is enough: locked memory refuses such guards, and the emulator qemu-user accepts every
/// advice but sets no guard.
fn light_guards_work() -> bool {
    let page = rustix::param::page_size();
    let Ok(start) = reserve(page, false) else { return false };
    let start = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the page was mapped above and nothing points into it.
    unsafe {
        let works = platform::install_guard(start, page).is_ok() && platform::is_guarded(start);
        let _ = mm::munmap(start, page);
        works
    }
}

fn no_address_space(e: Errno, bytes: usize) -> io::Error {
    let line = format!(
        "cannot map {bytes} bytes for fiber stacks: {e}; the limit is RLIMIT_AS (`ulimit -v`), {}, RLIMIT_MEMLOCK after \
         mlockall, or CommitLimit with vm.overcommit_memory=2: raise it, run fewer fibers, or lower stack_bytes",
        map_limit()
    );
    io::Error::new(io::ErrorKind::OutOfMemory, line)
}

fn no_guard(e: Errno, slot_bytes: usize) -> io::Error {
    let line = format!(
        "cannot guard a fiber stack of {slot_bytes} bytes: {e}; guards made by mprotect need two mappings per stack and \
         the limit is {}: raise it by sysctl, run fewer fibers, or use Guard::Auto on Linux 6.13 or later",
        map_limit()
    );
    io::Error::new(io::ErrorKind::OutOfMemory, line)
}

fn map_limit() -> String {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let limit = limit.trim();
    format!(
        "vm.max_map_count ({})",
        if limit.is_empty() { "unknown here" } else { limit }
    )
}
