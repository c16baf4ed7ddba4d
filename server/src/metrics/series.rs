//! The counters of one route.
//!
//! A series has a cell for each worker, which only that worker writes. A record is a few plain loads and stores: it
//! takes no lock, and writes no cache line that another core writes. A reader adds the cells up. Its sums may mix
//! slightly different moments.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use osier_web::upstream::Latency;
use osier_web::{Phase, Served};

/// The status codes that every route counts separately. Alarms look at the errors, and clients of some backends can
/// provoke any number of others.
const ALWAYS: [u16; 5] = [200, 500, 502, 503, 504];

/// The most status codes that a route counts separately.
const CODES: usize = 20;

/// The bounds of [`Latency`] in nanoseconds.
const BOUNDS: [u64; Latency::BOUNDS.len()] = nanos(Latency::BOUNDS);

/// The bounds of phases in nanoseconds.
const PHASE_NANOS: [u64; PHASE_BOUNDS.len()] = nanos(PHASE_BOUNDS);

const fn nanos<const N: usize>(bounds: [Duration; N]) -> [u64; N] {
    let mut nanos = [0; N];
    let mut index = 0;
    while index < N {
        nanos[index] = bounds[index].as_nanos() as u64;
        index += 1;
    }
    nanos
}

/// The counters of one route.
pub struct Series {
    /// The status codes in the order of their first requests. 0 in a free slot. A taken slot never changes.
    codes: [AtomicU16; CODES],
    cells: Box<[Cell]>,
}

/// The counters of one worker, on cache lines of their own.
#[derive(Default)]
#[repr(align(64))]
pub struct Cell {
    /// Requests by the slot of their status code. The last number counts those whose code found no slot.
    codes: [AtomicU64; CODES + 1],
    received: AtomicU64,
    sent: AtomicU64,
    nanos: AtomicU64,
    times: [AtomicU64; BOUNDS.len() + 1],
    /// The phases. [`Phase::Run`] is the difference to the whole time, which is 0 for a request that never suspends.
    phases: [PhaseCell; Phase::ALL.len()],
}

/// The times of one phase.
#[derive(Default)]
struct PhaseCell {
    nanos: AtomicU64,
    times: [AtomicU64; PHASE_BOUNDS.len() + 1],
}

/// The upper bounds of the buckets of a phase. There are fewer of them than for whole requests, because there are ten
/// phases.
pub const PHASE_BOUNDS: [Duration; 6] = [
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// The sums of a series.
#[derive(Default)]
pub struct Sum {
    /// Requests by status code, without those that no request has. 200 is the first, also without such requests.
    pub codes: Vec<(u16, u64)>,
    /// Requests whose code found no slot.
    pub other_codes: u64,
    /// Bytes of request bodies.
    pub received: u64,
    /// Bytes of response bodies.
    pub sent: u64,
    pub nanos: u64,
    /// Requests by time, in the buckets of [`Latency`].
    pub times: [u64; BOUNDS.len() + 1],
    pub phases: [PhaseSum; Phase::ALL.len()],
}

/// The sums of a phase, over the requests in which it has taken time. For [`Phase::Run`], over all requests.
#[derive(Default)]
pub struct PhaseSum {
    pub nanos: u64,
    /// Requests by time, in the buckets of [`PHASE_BOUNDS`].
    pub times: [u64; PHASE_BOUNDS.len() + 1],
}

/// The numbers of one served request, without its phases.
pub struct Record {
    pub status: u16,
    pub received: u64,
    pub sent: u64,
    pub nanos: u64,
}

impl From<&Served<'_>> for Record {
    #[inline]
    fn from(served: &Served<'_>) -> Record {
        Record {
            status: served.status().as_u16(),
            received: served.received(),
            sent: served.bytes(),
            nanos: nanos_of(served.duration()),
        }
    }
}

impl Series {
    /// A series with counters for `workers` workers.
    pub fn new(workers: usize) -> Series {
        let codes: [AtomicU16; CODES] = Default::default();
        for (slot, code) in codes.iter().zip(ALWAYS) {
            slot.store(code, Ordering::Relaxed);
        }
        Series {
            codes,
            cells: (0..workers.max(1)).map(|_| Cell::default()).collect(),
        }
    }

    /// Counts a served request and its phases. It must run on a worker, as a server's `on_request` does: counts from
    /// other threads may be lost.
    #[inline]
    pub fn record_served(&self, served: &Served<'_>) {
        let record = Record::from(served);
        let cell = self.record(&record);
        match served.queued() {
            Some(queued) => cell.add_phase(Phase::Worker, nanos_of(queued)),
            None => cell.add_phases(served, record.nanos),
        }
    }

    /// Counts a request, as if it had never suspended. Returns the worker's counters, which the phases are added to.
    #[inline]
    pub fn record(&self, record: &Record) -> &Cell {
        let worker = osier::fiber::worker().unwrap_or(0);
        let cell = self
            .cells
            .get(worker)
            .unwrap_or_else(|| &self.cells[worker % self.cells.len()]);
        add(&cell.codes[self.slot(record.status)], 1);
        add(&cell.received, record.received);
        add(&cell.sent, record.sent);
        add(&cell.nanos, record.nanos);
        add(&cell.times[BOUNDS.partition_point(|bound| *bound < record.nanos)], 1);
        cell
    }

    /// Adds up the counters of all workers.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        let mut codes = [0; CODES + 1];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for cell in &self.cells {
            for (sum, counter) in codes.iter_mut().zip(&cell.codes) {
                *sum += load(counter);
            }
            sum.received += load(&cell.received);
            sum.sent += load(&cell.sent);
            // Wraps after 584 years of serving.
            sum.nanos = sum.nanos.wrapping_add(load(&cell.nanos));
            for (sum, counter) in sum.times.iter_mut().zip(&cell.times) {
                *sum += load(counter);
            }
            for (sum, cell) in sum.phases.iter_mut().zip(&cell.phases) {
                sum.nanos = sum.nanos.wrapping_add(load(&cell.nanos));
                for (sum, counter) in sum.times.iter_mut().zip(&cell.times) {
                    *sum = sum.wrapping_add(load(counter));
                }
            }
        }
        sum.add_whole_times_to_run();
        let known = self.codes.iter().map(|code| code.load(Ordering::Relaxed));
        sum.codes = known
            .zip(codes)
            .filter(|(code, count)| *code == 200 || *count > 0)
            .collect();
        sum.other_codes = codes[CODES];
        sum
    }

    /// The slot of a status code. The first request with this code takes a free one.
    #[inline]
    fn slot(&self, status: u16) -> usize {
        let has = |slot: &AtomicU16| match slot.load(Ordering::Relaxed) {
            0 => Series::take(slot, status),
            known => known == status,
        };
        self.codes.iter().position(has).unwrap_or(CODES)
    }

    /// Takes a free slot. False if another worker has just taken it for another code.
    #[cold]
    fn take(slot: &AtomicU16, status: u16) -> bool {
        match slot.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == status,
        }
    }
}

impl Cell {
    /// Counts the time of a request in a phase, if it is not zero. Most times fall into the first bucket.
    #[inline]
    pub fn add_phase(&self, phase: Phase, nanos: u64) {
        let cell = &self.phases[phase as usize];
        add(&cell.nanos, nanos);
        match nanos {
            0 => {}
            _ if nanos <= PHASE_NANOS[0] => add(&cell.times[0], 1),
            _ => cell.add_to_bucket(nanos),
        }
    }

    /// Counts the phases of a request that took `whole` nanoseconds.
    #[inline(never)]
    fn add_phases(&self, served: &Served<'_>, whole: u64) {
        let times = served.times();
        for (phase, time) in times.iter().filter(|(phase, _)| *phase != Phase::Run) {
            self.add_phase(phase, nanos_of(time));
        }
        self.correct_run(whole, nanos_of(times.get(Phase::Run)));
    }

    /// Notes that a request which took `whole` nanoseconds ran for `run` of them.
    fn correct_run(&self, whole: u64, run: u64) {
        let cell = &self.phases[Phase::Run as usize];
        add(&cell.nanos, run.wrapping_sub(whole));
        add(&cell.times[phase_bucket(whole)], u64::MAX);
        add(&cell.times[phase_bucket(run)], 1);
    }
}

impl PhaseCell {
    #[inline(never)]
    fn add_to_bucket(&self, nanos: u64) {
        add(&self.times[phase_bucket(nanos)], 1);
    }
}

impl Sum {
    /// Computes the times of [`Phase::Run`] from their differences to the whole times. A sum that mixes two moments may
    /// lack a whole time, so no result falls below zero.
    fn add_whole_times_to_run(&mut self) {
        let run = &mut self.phases[Phase::Run as usize];
        run.nanos = self.nanos.saturating_add_signed(run.nanos as i64);
        let mut whole = [0; PHASE_BOUNDS.len() + 1];
        for (bucket, requests) in self.times.iter().enumerate() {
            let bound = BOUNDS.get(bucket).copied().unwrap_or(u64::MAX);
            whole[phase_bucket(bound)] += requests;
        }
        for (times, whole) in run.times.iter_mut().zip(whole) {
            *times = whole.saturating_add_signed(*times as i64);
        }
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.times.iter().sum()
    }
}

/// The bucket of a phase for a time.
fn phase_bucket(nanos: u64) -> usize {
    PHASE_NANOS.partition_point(|bound| *bound < nanos)
}

#[inline]
fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(status: u16, nanos: u64) -> Record {
        Record {
            status,
            received: 1,
            sent: 10,
            nanos,
        }
    }

    #[test]
    fn codes_are_counted_exactly_and_bounded() {
        let series = Series::new(2);
        for status in 200..200 + 2 * CODES as u16 {
            series.record(&record(status, 0));
            series.record(&record(200, 0));
        }
        let sum = series.sum();
        let separate = CODES - ALWAYS.len() + 1;
        assert_eq!(sum.codes.len(), separate);
        assert_eq!(sum.codes[..2], [(200, 2 * CODES as u64 + 1), (201, 1)]);
        assert_eq!(sum.requests(), 4 * CODES as u64);
        assert_eq!(sum.other_codes, (2 * CODES - separate) as u64);
        assert_eq!((sum.received, sum.sent), (4 * CODES as u64, 40 * CODES as u64));
    }

    #[test]
    fn clients_that_provoke_many_codes_hide_no_error() {
        let series = Series::new(1);
        for status in (400..440).chain(ALWAYS[1..].iter().copied()) {
            series.record(&record(status, 0));
        }
        let sum = series.sum();
        assert_eq!(sum.codes[..5], [(200, 0), (500, 1), (502, 1), (503, 1), (504, 1)]);
    }

    #[test]
    fn times_fall_into_the_buckets_of_the_upstreams() {
        let series = Series::new(1);
        for nanos in [0, 25_000, 25_001, 1_000_000, u64::MAX] {
            series.record(&record(200, nanos));
            let bucket = Latency::bucket(std::time::Duration::from_nanos(nanos));
            assert!(series.sum().times[bucket] > 0, "{nanos}");
        }
        assert_eq!(series.sum().times.iter().sum::<u64>(), 5);
        assert_eq!(series.sum().times[0], 2);
    }

    #[test]
    fn phases_fall_into_their_buckets() {
        for nanos in [1, 100_000, 100_001, 1_000_000, 10_000_000_000, 10_000_000_001, u64::MAX] {
            let series = Series::new(1);
            series.record(&record(200, 0)).add_phase(Phase::Sleep, nanos);
            let sum = series.sum();
            let bucket = PHASE_BOUNDS.partition_point(|bound| *bound < Duration::from_nanos(nanos));
            assert_eq!((sum.phases[Phase::Sleep as usize].nanos, sum.requests()), (nanos, 1));
            assert_eq!(sum.phases[Phase::Sleep as usize].times[bucket], 1, "{nanos}");
            let others = Phase::ALL.iter().copied().filter(|phase| *phase != Phase::Run);
            let others = others.flat_map(|phase| sum.phases[phase as usize].times);
            assert_eq!(others.sum::<u64>(), 1);
        }
    }

    #[test]
    fn each_bucket_of_a_phase_ends_where_one_of_the_requests_does() {
        assert!(PHASE_NANOS.iter().all(|bound| BOUNDS.contains(bound)));
    }

    #[test]
    fn a_request_runs_for_its_whole_time_unless_it_has_suspended() {
        let series = Series::new(2);
        let whole = [0, 25_001, 100_000, 100_001, 2_000_000, 20_000_000_000];
        let (mut nanos, mut times) = (0, [0; PHASE_BOUNDS.len() + 1]);
        let mut ran = |run: u64| {
            nanos += run;
            times[PHASE_NANOS.partition_point(|bound| *bound < run)] += 1;
        };
        for whole in whole {
            series.record(&record(200, whole));
            ran(whole);
            for run in [0, whole / 2, whole / 1000] {
                series.record(&record(200, whole)).correct_run(whole, run);
                ran(run);
            }
        }
        let sum = series.sum();
        let run = &sum.phases[Phase::Run as usize];
        assert_eq!((run.nanos, run.times), (nanos, times));
        assert_eq!(run.times.iter().sum::<u64>(), sum.requests());
    }
}
