//! The disks of the hosts: their faults, and the choices of a crash.

use std::io;

use rustix::io::Errno;

use super::Net;
use crate::sim::choices::{About, Choices};
use crate::sim::disk::{Disk, Number};

/// A call on a file that may fail by chance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFault {
    Read,
    Write,
    Sync,
}

impl Net {
    /// Gives a new host the disk of another one, or a disk of its own.
    pub(crate) fn add_disk(&mut self, host: usize, shared: Option<usize>) {
        let disk = match shared {
            Some(other) => self.hosts[other].disk,
            None => {
                self.disks.push(Disk::new());
                self.disks.len() - 1
            }
        };
        self.hosts[host].disk = disk;
    }

    /// The disk of a host.
    pub(crate) fn disk(&mut self, host: usize) -> &mut Disk {
        &mut self.disks[self.hosts[host].disk]
    }

    /// Whether the program of a host still runs that has seen this count.
    pub(crate) fn is_alive(&self, host: usize, life: u32) -> bool {
        life % 2 == 1 && self.hosts[host].life == life
    }

    /// The error of a call that fails by chance.
    pub(crate) fn file_fault(&mut self, host: usize, call: FileFault) -> io::Result<()> {
        let (full, broken) = (self.faults.disk_full, self.faults.disk_error);
        if call == FileFault::Write && self.choices.once_in(About::Fault, full) {
            self.note(host, format_args!("fault: disk full"));
            return Err(Errno::NOSPC.into());
        }
        if self.choices.once_in(About::Fault, broken) {
            self.note(host, format_args!("fault: disk error"));
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    /// Notes a sync that fails by chance.
    pub(crate) fn fail_sync(&mut self, host: usize, number: Number) {
        let Net { choices, disks, .. } = self;
        disks[self.hosts[host].disk].fail_sync(number, &mut |most| draw_up_to(choices, most));
    }

    /// Puts values in an order from the seed.
    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        let positions = 1..u32::try_from(values.len()).expect("a directory has few entries");
        for at in positions.rev() {
            let drawn = self.choices.draw(About::Order, at + 1);
            values.swap(at as usize, (at - drawn) as usize);
        }
    }

    /// Ends the host's use of its disk: its program has ended, now or before.
    pub(super) fn close_files(&mut self, host: usize) {
        let life = &mut self.hosts[host].life;
        *life = life.next_multiple_of(2);
        self.disk(host).close_all(host);
    }

    /// The host's disk loses what was not synced, unless another host still uses it.
    pub(crate) fn lose_unsynced(&mut self, host: usize) -> io::Result<()> {
        let disk = self.hosts[host].disk;
        if self.hosts.iter().any(|other| other.disk == disk && other.up) {
            return Ok(());
        }
        let Net { choices, disks, .. } = self;
        let lost = disks[disk].crash(&mut |most| draw_up_to(choices, most))?;
        if lost > 0 {
            self.note(host, format_args!("unsynced changes lost: {lost}"));
        }
        Ok(())
    }
}

fn draw_up_to(choices: &mut Choices, most: usize) -> usize {
    let bound = u32::try_from(most).unwrap_or(u32::MAX).saturating_add(1);
    choices.draw(About::Disk, bound) as usize
}
