//! Flow-control windows (RFC 9113 5.2 and 6.9).

use super::export::{Reader, Writer};
use super::limits::MAX_WINDOW;

/// The bytes that the peer may still send, on one stream or on the connection.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// Negative if our settings made the window smaller after the peer had used it.
    left: i32,
    /// Bytes that may be announced to the peer.
    credit: u32,
    /// The size that the window has when nothing waits for a handler.
    target: u32,
    /// Bytes that will not be announced again, because the window was larger. An announcement cannot be taken back.
    debt: u32,
}

impl ReceiveWindow {
    /// `granted`: the window that the peer knows. `target`: the window that it will have.
    pub(super) fn new(granted: u32, target: u32) -> ReceiveWindow {
        ReceiveWindow {
            left: fit(granted.into()),
            credit: 0,
            target,
            debt: 0,
        }
    }

    pub(super) fn export(&self, to: &mut Writer) {
        to.number(self.size() as u64);
        to.number(self.credit);
        to.number(self.target);
    }

    /// Reads the window of a connection at rest: no byte waits for a handler. It is no smaller than `least`.
    pub(super) fn import(from: &mut Reader<'_>, least: u32) -> Option<ReceiveWindow> {
        let (left, credit, target) = (from.window()?, from.number::<u32>()?, from.number::<u32>()?);
        let is_valid = credit.max(target) <= MAX_WINDOW && target >= least;
        let debt = left + i64::from(credit) - i64::from(target);
        is_valid.then(|| ReceiveWindow {
            left: fit(left),
            credit,
            target,
            debt: u32::try_from(debt).unwrap_or(0),
        })
    }

    /// The bytes that the peer may send now.
    pub(super) fn left(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }

    /// The size as the peer counts it, which may be negative.
    pub(super) fn size(&self) -> i64 {
        self.left.into()
    }

    /// Takes a frame of `length` bytes. False: the peer has sent more than the window.
    #[must_use]
    pub(super) fn charge(&mut self, length: u32) -> bool {
        let left = self.size() - i64::from(length);
        let fits = left >= 0 || length == 0;
        if fits {
            self.left = fit(left);
        }
        fits
    }

    /// The size that the window has when nothing waits for a handler.
    pub(super) fn target(&self) -> u32 {
        self.target
    }

    /// The bytes that the window still has beyond its [`target`](ReceiveWindow::target).
    pub(super) fn debt(&self) -> u32 {
        self.debt
    }

    /// Gives `count` bytes back. Returns an increment to announce, once half of the window has come together, or [`STEP`].
    pub(super) fn give(&mut self, count: u32) -> Option<u32> {
        let paid = count.min(self.debt);
        self.debt -= paid;
        self.credit += count - paid;
        if self.credit == 0 || self.credit < STEP.min(self.target / 2) {
            return None;
        }
        let increment = std::mem::take(&mut self.credit);
        self.left = fit(self.size() + i64::from(increment));
        Some(increment)
    }

    /// Makes the window larger: the next announcement has the difference. Or smaller: that many bytes less are announced.
    pub(super) fn resize(&mut self, target: u32) {
        let grown = target.saturating_sub(self.target);
        let paid = grown.min(self.debt);
        self.debt = self.debt - paid + self.target.saturating_sub(target);
        self.credit += grown - paid;
        self.target = target;
    }

    /// The peer has learned of a setting that makes the window larger or smaller by `by` bytes.
    pub(super) fn adjust(&mut self, by: i64) {
        self.left = fit(self.size() + by);
    }
}

/// No window is larger than 31 bits.
fn fit(left: i64) -> i32 {
    left.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// The most bytes that wait for an announcement. A peer far away uses the whole of a large window only if it hears often.
const STEP: u32 = 256 << 10;

/// The bytes that may still be sent, on one stream or on the connection.
#[derive(Debug)]
pub(super) struct SendWindow(i64);

/// A window beyond 2^31 - 1 (RFC 9113 6.9.1).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overflow;

impl SendWindow {
    pub(super) fn new(size: u32) -> SendWindow {
        SendWindow(i64::from(size))
    }

    /// The size, as [`of_size`](SendWindow::of_size) takes it.
    pub(super) fn size(&self) -> i64 {
        self.0
    }

    /// `None` for a size that no window has.
    pub(super) fn of_size(size: i64) -> Option<SendWindow> {
        let most = i64::from(MAX_WINDOW);
        (-most..=most).contains(&size).then_some(SendWindow(size))
    }

    /// The bytes that may be sent now.
    pub(super) fn left(&self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) fn take(&mut self, count: usize) {
        self.0 -= count as i64;
    }

    /// Makes the window larger, or smaller after a change of SETTINGS_INITIAL_WINDOW_SIZE. It may become negative (RFC 9113 6.9.2).
    pub(super) fn add(&mut self, by: i64) -> Result<(), Overflow> {
        let size = self.0 + by;
        if size > i64::from(MAX_WINDOW) {
            return Err(Overflow);
        }
        self.0 = size;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_window_is_given_back_in_halves() {
        let mut window = ReceiveWindow::new(100, 100);
        assert!(window.charge(100) && !window.charge(1) && window.charge(0));
        assert_eq!((window.give(49), window.give(1)), (None, Some(50)));
        assert!(window.charge(50) && !window.charge(1));
        window.adjust(-10);
        assert_eq!((window.give(0), window.give(100)), (None, Some(100)));
        assert!(!window.charge(91) && window.charge(90));
    }

    #[test]
    fn a_larger_window_is_announced_and_a_smaller_one_is_reached_by_and_by() {
        let mut window = ReceiveWindow::new(100, 100);
        assert!(window.charge(60));
        window.resize(150);
        assert_eq!(window.give(60), Some(110));
        assert!(window.charge(150) && !window.charge(1));
        window.resize(60);
        assert_eq!((window.give(89), window.give(30), window.debt()), (None, None, 0));
        assert_eq!(window.give(31), Some(60));
        // Growth takes back what is not paid yet.
        window.resize(20);
        window.resize(50);
        assert_eq!((window.debt(), window.left()), (10, 60));
        assert!(window.charge(60) && !window.charge(1));
        assert_eq!(window.give(60), Some(50));
    }

    #[test]
    fn an_exported_window_that_is_too_small_is_refused() {
        let mut exported = Writer(Vec::new());
        ReceiveWindow::new(100, 100).export(&mut exported);
        let import = |least| ReceiveWindow::import(&mut Reader(&exported.0), least).map(|window| window.target());
        assert_eq!((import(100), import(101)), (Some(100), None));
    }

    #[test]
    fn a_large_window_is_announced_in_steps() {
        let mut window = ReceiveWindow::new(8 << 20, 8 << 20);
        assert!(window.charge(1 << 20));
        assert_eq!((window.give(STEP - 1), window.give(1)), (None, Some(STEP)));
    }

    #[test]
    fn a_window_of_no_bytes_announces_nothing_of_nothing() {
        let mut window = ReceiveWindow::new(0, 0);
        assert_eq!((window.give(0), window.give(1)), (None, Some(1)));
    }

    #[test]
    fn a_send_window_may_be_negative_but_not_above_its_largest_size() {
        let mut window = SendWindow::new(10);
        window.take(10);
        assert_eq!(window.add(-5), Ok(()));
        assert_eq!(window.left(), 0);
        assert_eq!(window.add(i64::from(MAX_WINDOW) + 5), Ok(()));
        assert_eq!(window.add(1), Err(Overflow));
        assert_eq!(window.left(), MAX_WINDOW as usize);
    }
}
