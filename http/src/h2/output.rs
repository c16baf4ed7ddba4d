//! The frames that wait to be written.

/// The output of a connection: bytes from `start` on are not written yet.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    start: usize,
    /// An upper bound of the waiting bytes that only answer frames of the peer.
    answers: usize,
}

impl Output {
    pub(super) const fn new() -> Output {
        Output {
            bytes: Vec::new(),
            start: 0,
            answers: 0,
        }
    }

    /// The vector to append frames to.
    pub(super) fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a frame that the peer has caused, such as the answer to a PING.
    pub(super) fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.answers += self.bytes.len() - before;
    }

    /// Whether the peer makes this endpoint answer, but does not read.
    pub(super) fn is_flooded(&self) -> bool {
        self.answers > MOST_ANSWERS
    }

    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Drops the first `count` bytes, which are written.
    pub(super) fn advance(&mut self, count: usize) {
        let before = self.len();
        self.start += count;
        assert!(self.start <= self.bytes.len(), "advance() beyond the output");
        match self.len() {
            0 => {
                self.bytes.clear();
                (self.start, self.answers) = (0, 0);
            }
            left => self.answers = (self.answers as u64 * left as u64).div_ceil(before as u64) as usize,
        }
        if self.start > MOST_WRITTEN {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Takes `buffer` as the place of the output if it is larger and nothing waits.
    pub(super) fn lend(&mut self, mut buffer: Vec<u8>) {
        if self.len() == 0 && self.bytes.capacity() < buffer.capacity() {
            buffer.clear();
            (self.bytes, self.start) = (buffer, 0);
        }
    }

    /// Gives the memory away if nothing waits.
    pub(super) fn reclaim(&mut self) -> Option<Vec<u8>> {
        (self.len() == 0 && self.bytes.capacity() > 0).then(|| std::mem::take(&mut self.bytes))
    }
}

/// The most bytes of answers that wait.
const MOST_ANSWERS: usize = 32 << 10;

/// The most written bytes that stay before the others.
const MOST_WRITTEN: usize = 64 << 10;
