//! Reads the memory, CPU time, threads and descriptors of the process from /proc.
//!
//! The files in /proc are opened at start. They stay readable when the process changes its user or its root folder, and
//! under Landlock.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Bytes for the line of /proc/self/stat, more than it has.
const STAT_BYTES: usize = 2048;

/// Open files of /proc.
pub struct Files {
    stat: File,
    /// The folder of descriptors. The lock guards its position.
    descriptors: Mutex<Dir>,
    /// The start of the process in seconds since 1970. Computed once: the clocks differ a little more each time, and a
    /// change would look like a restart.
    start_seconds: f64,
}

/// The numbers at one moment.
#[derive(Debug)]
pub struct Numbers {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub threads: u64,
    /// Seconds since 1970.
    pub start_seconds: f64,
    pub open_descriptors: u64,
    /// None without a limit.
    pub max_descriptors: Option<u64>,
}

impl Files {
    /// Opens the files.
    pub fn open() -> io::Result<Files> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        let mut files = Files {
            stat: File::open("/proc/self/stat")?,
            descriptors: Mutex::new(Dir::new(folder)?),
            start_seconds: 0.0,
        };
        let since_boot = files.stat()?.start_ticks as f64 / clock_ticks_per_second() as f64;
        let (now, up) = (SystemTime::now(), seconds(ClockId::Boottime));
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        files.start_seconds = now - up + since_boot;
        Ok(files)
    }

    /// Reads the resident memory and the address space, in bytes.
    ///
    /// # Blocks the thread
    /// For some microseconds.
    pub fn memory(&self) -> io::Result<(u64, u64)> {
        let stat = self.stat()?;
        Ok((stat.resident_pages * page_size() as u64, stat.virtual_bytes))
    }

    /// Reads the numbers.
    ///
    /// # Blocks the thread
    /// For some microseconds, or longer before Linux 6.2 if many descriptors are open.
    pub fn read(&self) -> io::Result<Numbers> {
        let stat = self.stat()?;
        Ok(Numbers {
            cpu_seconds: seconds(ClockId::ProcessCPUTime),
            resident_bytes: stat.resident_pages * page_size() as u64,
            virtual_bytes: stat.virtual_bytes,
            threads: stat.threads,
            start_seconds: self.start_seconds,
            open_descriptors: self.open_descriptors()?,
            max_descriptors: getrlimit(Resource::Nofile).current,
        })
    }

    fn stat(&self) -> io::Result<Stat> {
        let mut line = [0; STAT_BYTES];
        let length = self.stat.read_at(&mut line, 0)?;
        Stat::parse(&line[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn open_descriptors(&self) -> io::Result<u64> {
        let mut folder = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        // Linux 6.2 and later report the number as the size of the folder.
        match folder.stat()?.st_size {
            count @ 1.. => return Ok(count as u64),
            _ => folder.rewind(),
        }
        let mut count = 0;
        while let Some(entry) = folder.read() {
            let name = entry?;
            count += u64::from(!name.file_name().to_bytes().starts_with(b"."));
        }
        Ok(count)
    }
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The numbers in /proc/self/stat; see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the line. The name of the process, in parentheses, may hold spaces and parentheses.
    fn parse(line: &[u8]) -> Option<Stat> {
        let line = std::str::from_utf8(&line[line.iter().rposition(|byte| *byte == b')')? + 1..]).ok()?;
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // The first field behind the name is the third of the line.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Stat {
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read_whatever_the_name() {
        let line = b"7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 0 900 4096 5 18446744073709551615 1\n";
        let stat = Stat {
            threads: 3,
            start_ticks: 900,
            virtual_bytes: 4096,
            resident_pages: 5,
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse(b"7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn the_numbers_are_those_of_this_process() {
        let files = Files::open().unwrap();
        let before = files.read().unwrap();
        let _more: Vec<File> = (0..5).map(|_| File::open("/dev/null").unwrap()).collect();
        let after = files.read().unwrap();
        // Other tests open and close files meanwhile.
        let by_hand = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        assert!(after.open_descriptors.abs_diff(by_hand) < 50, "{after:?} {by_hand}");
        assert!(after.cpu_seconds >= before.cpu_seconds && after.threads >= 1);
        assert!((before.start_seconds - after.start_seconds).abs() < f64::EPSILON);
        assert!(after.resident_bytes > 1 << 20 && after.virtual_bytes >= after.resident_bytes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(
            (now - 3600.0..now + 1.0).contains(&after.start_seconds),
            "{after:?} {now}"
        );
    }
}
