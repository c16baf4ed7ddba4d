//! Work that a peer may cause for nothing: a bucket that fills with time, and is emptied by resets or frames without progress.

use std::time::Instant;

/// A token bucket. It is full at the start.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    burst: u32,
    per_second: u32,
    filled: Instant,
}

/// The peer has used up its budget.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Budget {
    pub(super) fn new(burst: u32, per_second: u32, now: Instant) -> Budget {
        Budget {
            left: burst,
            burst,
            per_second,
            filled: now,
        }
    }

    /// Takes `cost` units.
    pub(super) fn spend(&mut self, cost: u32, now: Instant) -> Result<(), Exhausted> {
        self.fill(now);
        self.left = self.left.checked_sub(cost).ok_or(Exhausted)?;
        Ok(())
    }

    /// Gives back `units` units.
    pub(super) fn earn(&mut self, units: u32) {
        self.left = self.left.saturating_add(units).min(self.burst);
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled).as_micros() as u64;
        let units = elapsed.saturating_mul(u64::from(self.per_second)) / 1_000_000;
        if units > 0 {
            self.earn(u32::try_from(units).unwrap_or(u32::MAX));
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_fills_with_time_and_not_above_its_burst() {
        let start = Instant::now();
        let mut budget = Budget::new(3, 2, start);
        assert_eq!(budget.spend(3, start), Ok(()));
        assert_eq!(budget.spend(1, start + Duration::from_millis(400)), Err(Exhausted));
        assert_eq!(budget.spend(1, start + Duration::from_millis(500)), Ok(()));
        assert_eq!(budget.spend(1, start + Duration::from_millis(900)), Err(Exhausted));
        budget.earn(1);
        assert_eq!(budget.spend(1, start), Ok(()));
        assert_eq!(budget.spend(3, start + Duration::from_secs(60)), Ok(()));
        assert_eq!(budget.spend(1, start + Duration::from_secs(60)), Err(Exhausted));
    }
}
