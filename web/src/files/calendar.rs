//! UTC calendar dates from seconds since 1970, for log lines and listings. The `httpdate` crate
//! makes the dates in HTTP fields.
//!
//! Source: the era arithmetic of Howard Hinnant, "chrono-compatible low-level date algorithms". An
//! era of 400 years starts on 1 March, so that the leap day is the last of its year.

/// A moment in UTC, to the second.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Utc {
    /// Year, negative before year 0.
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
}

impl Utc {
    /// English month names, as in the Common Log Format.
    pub const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];

    /// Splits a number of seconds since 1970.
    pub fn from_unix(seconds: i64) -> Utc {
        let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let shifted = days + 719_468; // days since 0000-03-01
        let (era, in_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * in_year + 2) / 153;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        Utc {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month: month as u8,
            day: (in_year - (153 * from_march + 2) / 5 + 1) as u8,
            hour: (in_day / 3_600) as u8,
            minute: (in_day / 60 % 60) as u8,
            second: (in_day % 60) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn known_moments() {
        for (seconds, expected) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (-1, (1969, 12, 31, 23, 59, 59)),
            (784_111_777, (1994, 11, 6, 8, 49, 37)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
            (253_402_300_799, (9999, 12, 31, 23, 59, 59)),
        ] {
            let utc = Utc::from_unix(seconds);
            assert_eq!(
                (utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second),
                expected,
                "{seconds}"
            );
        }
    }

    #[test]
    fn agrees_with_httpdate_every_nine_days() {
        for seconds in (0..253_402_300_799i64).step_by(9 * 86_400 + 12_345) {
            let theirs = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds as u64));
            let utc = Utc::from_unix(seconds);
            let month = Utc::MONTHS[usize::from(utc.month) - 1];
            let ours = format!(
                "{:02} {month} {:04} {:02}:{:02}:{:02} GMT",
                utc.day, utc.year, utc.hour, utc.minute, utc.second
            );
            assert!(theirs.ends_with(&ours), "{theirs} is not {ours}");
        }
    }
}
