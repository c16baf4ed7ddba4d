//! The times of renewals: pure functions of a certificate's validity, of what the issuer suggests (RFC 9773), and of
//! past failures.

use std::time::Duration;

/// The first pause after a failure. Each further failure doubles it, up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(2 * 24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// The part of a lifetime over which renewals are spread.
const SPREAD: f64 = 0.02;

/// A certificate's validity, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub begins: i64,
    pub ends: i64,
}

/// The time in which an issuer wants a certificate to be renewed, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub begins: i64,
    pub ends: i64,
}

/// The time of the renewal, in seconds since 1970: a point in the issuer's window, else a little after two thirds of
/// the lifetime. `chance` is between 0 and 1, and the same for a certificate each time.
pub fn renewal(validity: Validity, window: Option<Window>, chance: f64) -> i64 {
    let spread = |begins: i64, length: i64| begins.saturating_add((length.max(0) as f64 * chance) as i64);
    if let Some(window) = window {
        let length = window.ends.saturating_sub(window.begins);
        // A window that goes on after the end of the certificate is the issuer's mistake.
        return spread(window.begins, length).min(latest(validity));
    }
    let lifetime = validity.ends.saturating_sub(validity.begins).max(0);
    let two_thirds = validity.begins.saturating_add(lifetime / 3 * 2);
    spread(two_thirds, (lifetime as f64 * SPREAD) as i64)
}

/// The last time at which a renewal may begin: a tenth of the lifetime is left for failures.
fn latest(validity: Validity) -> i64 {
    let lifetime = validity.ends.saturating_sub(validity.begins).max(0);
    validity.ends.saturating_sub(lifetime / 10)
}

/// The pause after so many failures in a row. It doubles with each failure, up to an eighth of `left`, or up to an hour
/// if that is more. `left` are the seconds for which the old certificate is still valid. `chance` makes the pause
/// longer by a quarter at most. The pause is at least `asked`, the time for which the issuer wants to be left alone.
pub fn pause(failures: u32, left: Option<u64>, asked: Option<Duration>, chance: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let longest = left.map_or(LONGEST_PAUSE, |left| {
        Duration::from_secs(left / 8).clamp(HOUR, LONGEST_PAUSE)
    });
    let pause = doubled.min(longest);
    pause.mul_f64(1.0 + chance / 4.0).max(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;
    const NINETY: Validity = Validity {
        begins: 0,
        ends: 90 * DAY,
    };

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
        assert_eq!(renewal(NINETY, None, 0.0), 60 * DAY);
        let latest = renewal(NINETY, None, 1.0);
        assert!((61 * DAY..62 * DAY).contains(&latest), "{latest}");
        let six_days = Validity {
            begins: 0,
            ends: 6 * DAY,
        };
        assert_eq!(renewal(six_days, None, 0.0), 4 * DAY);
    }

    #[test]
    fn the_issuers_window_counts_before_that() {
        let window = Window {
            begins: 10 * DAY,
            ends: 12 * DAY,
        };
        assert_eq!(renewal(NINETY, Some(window), 0.5), 11 * DAY);
        // A revocation is announced by a window that has passed: renew at once.
        let passed = Window {
            begins: -2 * DAY,
            ends: -DAY,
        };
        assert!(renewal(NINETY, Some(passed), 0.9) < 0);
        let too_late = Window {
            begins: 100 * DAY,
            ends: 200 * DAY,
        };
        assert_eq!(renewal(NINETY, Some(too_late), 0.5), 81 * DAY);
    }

    #[test]
    fn impossible_times_do_no_harm() {
        let reversed = Validity {
            begins: i64::MAX,
            ends: i64::MIN,
        };
        let window = Window {
            begins: i64::MAX,
            ends: i64::MIN,
        };
        for chance in [0.0, 1.0] {
            let _ = renewal(reversed, None, chance);
            let _ = renewal(reversed, Some(window), chance);
        }
    }

    #[test]
    fn pauses_grow_to_days_and_respect_the_issuer() {
        assert_eq!(pause(1, None, None, 0.0), Duration::from_secs(60));
        assert_eq!(pause(4, None, None, 0.0), Duration::from_secs(480));
        assert_eq!(pause(40, None, None, 0.0), LONGEST_PAUSE);
        // Two days are left of one that is valid for six.
        assert_eq!(pause(40, Some(48 * 3600), None, 0.0), 6 * HOUR);
        assert_eq!(pause(40, Some(0), None, 0.0), HOUR);
        assert_eq!(pause(4, Some(0), None, 0.0), Duration::from_secs(480));
        assert_eq!(
            pause(1, None, Some(Duration::from_secs(3600)), 1.0),
            Duration::from_secs(3600)
        );
        assert_eq!(pause(1, None, None, 1.0), Duration::from_secs(75));
    }
}
