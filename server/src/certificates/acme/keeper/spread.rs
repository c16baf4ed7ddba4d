//! Pauses. They differ by name, so that many certificates do not come to an issuer at once.

use std::time::Duration;

use crate::certificates::acme::jose::sha256;

/// The time that each certificate gets, if all are to be ordered anew because the settings have changed.
const EACH: Duration = Duration::from_secs(2);

/// The longest time for all of them.
const ALL: Duration = Duration::from_secs(12 * 60 * 60);

/// A number between 0 and 1, the same for a name each time.
pub fn chance(name: &str) -> f64 {
    let hash = sha256(name.as_bytes());
    f64::from(u16::from_be_bytes([hash[0], hash[1]])) / f64::from(u16::MAX)
}

/// When a certificate that is still good is ordered anew, of `count`: missing ones come before it, and issuers limit what they take.
pub fn among(count: usize, name: &str) -> Duration {
    let all = EACH.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).min(ALL);
    all.mul_f64(chance(name))
}

/// The minutes of a pause, rounded up.
pub fn minutes(pause: Duration) -> u64 {
    pause.as_secs().div_ceil(60)
}
