//! The properties of a simulated network, and the rates of its faults.

use std::time::Duration;

/// The properties of the link from one host to another.
///
/// ```
/// use osier::sim::Link;
/// use std::time::Duration;
///
/// let satellite = Link { latency: Duration::from_millis(300), bandwidth: Some(100_000), ..Link::default() };
/// assert_eq!(satellite.jitter, Link::default().jitter);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The least time that a packet takes.
    pub latency: Duration,
    /// The longest time beyond `latency`. The seed decides how much of it a packet takes.
    pub jitter: Duration,
    /// Bytes a second of each direction of each connection; `None` for no limit. Datagrams have none.
    pub bandwidth: Option<u64>,
    /// The bytes of one direction of a connection that its receiver may leave unread. A writer waits beyond that.
    pub buffer: usize,
}

impl Default for Link {
    /// 0.5 ms to 2 ms, without a limit of bandwidth, 64 KiB.
    fn default() -> Link {
        Link {
            latency: Duration::from_micros(500),
            jitter: Duration::from_micros(1500),
            bandwidth: None,
            buffer: 64 << 10,
        }
    }
}

impl Link {
    /// The link of a host to itself.
    pub(crate) fn loopback() -> Link {
        Link {
            latency: Duration::from_micros(10),
            jitter: Duration::from_micros(40),
            ..Link::default()
        }
    }
}

/// Random faults. Each number is the chance of a fault: one in so many times; 0 stands for never.
///
/// ```
/// use osier::sim::Faults;
///
/// let faults = Faults { reset: 500, ..Faults::mild() };
/// assert_eq!(Faults::none(), Faults::default());
/// # let _ = faults;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Reads of a stream that give fewer bytes than have arrived.
    pub short_read: u32,
    /// Writes of a stream that take fewer bytes than there is room for.
    pub short_write: u32,
    /// Segments of a stream that arrive in two parts.
    pub split: u32,
    /// Lost packets between two hosts. A stream sends them again after a while; a datagram is gone.
    pub loss: u32,
    /// Datagrams that arrive twice.
    pub duplicate: u32,
    /// Segments of a stream at which the connection is reset.
    pub reset: u32,
    /// Connections that are refused although a listener exists.
    pub refuse: u32,
    /// Packets at which a partition begins between the two hosts, for up to [`Faults::partition_time`].
    pub partition: u32,
    /// The longest time of such a partition; 0 stands for 10 s.
    pub partition_time: Duration,
    /// Writes to files that find the disk full.
    pub disk_full: u32,
    /// Reads, writes and syncs of files that fail.
    pub disk_error: u32,
}

impl Faults {
    /// No faults. The network still has its latency, and fibers still run in any order.
    pub fn none() -> Faults {
        Faults::default()
    }

    /// Faults of every network, which must not break a program: reads and writes are short, packets are split, lost and late.
    pub fn mild() -> Faults {
        Faults {
            short_read: 8,
            short_write: 16,
            split: 8,
            loss: 100,
            duplicate: 100,
            ..Faults::default()
        }
    }

    /// The faults of [`mild`](Faults::mild), refused and reset connections, and partitions.
    pub fn rough() -> Faults {
        Faults {
            reset: 200,
            refuse: 50,
            partition: 1000,
            ..Faults::mild()
        }
    }
}
