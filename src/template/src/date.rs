//! The function `strftime_now` of templates: formats a given time as C does.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Maximum number of characters of a format.
const FORMAT_MAX: usize = 256;

/// A second of a calendar, in UTC.
struct Date {
    year: i64,
    /// From 0.
    month: usize,
    day: i64,
    /// Days since the first of January.
    day_of_year: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
    /// Seconds since 1970.
    stamp: i64,
}

impl Date {
    /// The algorithm for days is Howard Hinnant's `civil_from_days`.
    fn of(time: SystemTime) -> Self {
        let stamp = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX / 2),
            Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX / 2),
        };
        let (days, second) = (stamp.div_euclid(86_400), stamp.rem_euclid(86_400));
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let from_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 2 } else { month - 10 };
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let has_366_days = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        // January and February end the year that begins in March.
        let day_of_year = if month < 2 { from_march - 306 } else { from_march + 59 + i64::from(has_366_days) };
        Self {
            year,
            month: month as usize,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7) as usize,
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
            stamp,
        }
    }

    /// Returns the number for a directive with its width and filling.
    fn number(&self, directive: char) -> Option<(i64, usize, char)> {
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match directive {
            'd' => (self.day, 2, '0'),
            'e' => (self.day, 2, ' '),
            'H' => (self.hour, 2, '0'),
            'k' => (self.hour, 2, ' '),
            'I' => (hour12, 2, '0'),
            'l' => (hour12, 2, ' '),
            'j' => (self.day_of_year + 1, 3, '0'),
            'm' => (self.month as i64 + 1, 2, '0'),
            'M' => (self.minute, 2, '0'),
            'S' => (self.second, 2, '0'),
            'y' => (self.year.rem_euclid(100), 2, '0'),
            'C' => (self.year.div_euclid(100), 2, '0'),
            'Y' => (self.year, 1, '0'),
            's' => (self.stamp, 1, '0'),
            'w' => (self.weekday as i64, 1, '0'),
            'u' => ((self.weekday as i64 + 6) % 7 + 1, 1, '0'),
            'f' => (0, 6, '0'),
            'U' => ((self.day_of_year + 7 - self.weekday as i64) / 7, 2, '0'),
            'W' => ((self.day_of_year + 7 - (self.weekday as i64 + 6) % 7) / 7, 2, '0'),
            _ => return None,
        })
    }

    /// Returns the format that a directive stands for.
    fn whole(directive: char) -> Option<&'static str> {
        Some(match directive {
            'c' => "%a %b %e %H:%M:%S %Y",
            'D' | 'x' => "%m/%d/%y",
            'F' => "%Y-%m-%d",
            'R' => "%H:%M",
            'r' => "%I:%M:%S %p",
            'T' | 'X' => "%H:%M:%S",
            _ => return None,
        })
    }

    fn write(&self, format: &str, out: &mut String) {
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let before = rest.as_str();
            let mut directive = rest.next();
            // A minus leaves out the filling.
            let is_bare = directive == Some('-');
            if is_bare {
                directive = rest.next();
            }
            let Some(directive) = directive else {
                out.push('%');
                out.push_str(before);
                return;
            };
            if let Some((number, width, fill)) = self.number(directive) {
                let digits = number.to_string();
                let missing = if is_bare { 0 } else { width.saturating_sub(digits.len()) };
                out.extend(std::iter::repeat_n(fill, missing));
                out.push_str(&digits);
            } else if let Some(format) = Self::whole(directive) {
                self.write(format, out);
            } else {
                self.word(directive, out);
            }
        }
    }

    fn word(&self, directive: char, out: &mut String) {
        match directive {
            'a' => out.push_str(&DAYS[self.weekday][..3]),
            'A' => out.push_str(DAYS[self.weekday]),
            'b' | 'h' => out.push_str(&MONTHS[self.month][..3]),
            'B' => out.push_str(MONTHS[self.month]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            // The offset and the name of the zone: Python's `datetime.now()` has neither.
            'z' | 'Z' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                let _ = write!(out, "%{other}");
            }
        }
    }
}

/// Returns `time`, in UTC, by `format`; a format is cut at [`FORMAT_MAX`] characters.
pub(crate) fn strftime(time: SystemTime, format: &str) -> String {
    let format: String = format.chars().take(FORMAT_MAX).collect();
    let mut out = String::new();
    Date::of(time).write(&format, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn dates_are_those_of_python() {
        // From `datetime.fromtimestamp(t, UTC).strftime(...)` of Python 3.11.
        let all = "%a %A %b %B %d %-d %e %m %-m %y %Y %H %-H %I %-I %p %M %S %j %-j %U %W %w %u %C %F %T %D %R %%";
        for (seconds, printed) in [
            (
                0,
                "Thu Thursday Jan January 01 1  1 01 1 70 1970 00 0 12 12 AM 00 00 001 1 00 00 4 4 19 1970-01-01 00:00:00 01/01/70 00:00 %",
            ),
            (
                951_782_400 + 13 * 3_600 + 62,
                "Tue Tuesday Feb February 29 29 29 02 2 00 2000 13 13 01 1 PM 01 02 060 60 09 09 2 2 20 2000-02-29 13:01:02 02/29/00 13:01 %",
            ),
            (
                1_735_603_200,
                "Tue Tuesday Dec December 31 31 31 12 12 24 2024 00 0 12 12 AM 00 00 366 366 52 53 2 2 20 2024-12-31 00:00:00 12/31/24 00:00 %",
            ),
            (
                1_772_323_200,
                "Sun Sunday Mar March 01 1  1 03 3 26 2026 00 0 12 12 AM 00 00 060 60 09 08 0 7 20 2026-03-01 00:00:00 03/01/26 00:00 %",
            ),
        ] {
            assert_eq!(at(seconds, all), printed);
        }
        assert_eq!(at(0, "a%"), "a%");
        assert_eq!(at(0, "%-"), "%-");
        assert_eq!(strftime(UNIX_EPOCH - Duration::from_secs(1), "%F %T"), "1969-12-31 23:59:59");
        assert_eq!(at(0, &"x".repeat(1000)).len(), FORMAT_MAX);
    }
}
