//! Units of the timestamps of a file: that of the format, one that the user gives, or one that the first timestamp says.

use std::fmt;
use std::str::FromStr;

use super::row::TIME_NS_END;
use crate::UnknownName;

/// Unit of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds, `s`.
    Seconds,
    /// Milliseconds, `ms`.
    Milliseconds,
    /// Microseconds, `us`.
    Microseconds,
    /// Nanoseconds, `ns`.
    Nanoseconds,
}

/// Seconds since 1970 of the years 2001 to 2099: a first timestamp within, in some unit, is a date.
const DATES_S: std::ops::Range<f64> = 1e9..4.1e9;

/// Fewest requests by which a file looks too fast.
const REQUESTS_MIN: u64 = 21;
/// Shortest time of so many requests that is believed, nanoseconds.
const SPAN_NS_MIN: u64 = 1_000_000_000;
/// Highest rate that is believed of timestamps with fractions, requests per second.
const RATE_MAX: f64 = 200.0;

impl TimeUnit {
    /// All units with their abbreviations, words, and digits of a fraction down to a nanosecond.
    const ALL: [(Self, &'static str, &'static str, u32); 4] = [
        (Self::Seconds, "s", "seconds", 9),
        (Self::Milliseconds, "ms", "milliseconds", 6),
        (Self::Microseconds, "us", "microseconds", 3),
        (Self::Nanoseconds, "ns", "nanoseconds", 0),
    ];

    fn row(self) -> (&'static str, &'static str, u32) {
        let (_, name, words, digits) = Self::ALL[self as usize];
        (name, words, digits)
    }

    /// Returns the abbreviation, as on the command line.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns the permitted form of a timestamp.
    pub(in crate::trace) fn expected(self) -> &'static str {
        match self {
            Self::Seconds => "seconds, not negative, before the year 2116 if counted from 1970",
            Self::Milliseconds => "milliseconds, not negative, before the year 2116 if counted from 1970",
            Self::Microseconds => "microseconds, not negative, before the year 2116 if counted from 1970",
            Self::Nanoseconds => "nanoseconds, not negative, before the year 2116 if counted from 1970",
        }
    }

    /// Parses a time as nanoseconds: decimal digits exactly, numbers with an exponent or more digits to the nearest nanosecond.
    pub(in crate::trace) fn ns(self, text: &str) -> Option<u64> {
        let (_, _, digits) = self.row();
        exact_ns(text, digits).or_else(|| rounded_ns(text, digits)).filter(|ns| *ns < TIME_NS_END)
    }

    /// Returns the unit in which a first timestamp is a date of this century, if it is one in any; else this one.
    fn of_first(self, text: &str) -> Self {
        let value = text.parse::<f64>().unwrap_or(0.0);
        let is_date = |unit: &Self| DATES_S.contains(&(value / 10f64.powi(9 - unit.row().2 as i32)));
        // A name such as `arrival_time_ns` says the unit, and small numbers of nanoseconds are likely.
        if self == Self::Nanoseconds {
            self
        } else {
            Self::ALL.map(|(unit, ..)| unit).into_iter().find(is_date).unwrap_or(self)
        }
    }
}

fn exact_ns(text: &str, n_digits: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = if n_digits == 0 { fraction.trim_end_matches('0') } else { fraction };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.is_empty() || fraction.len() > n_digits as usize {
        return None;
    }
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(10u64.pow(n_digits))?;
    let fraction_ns = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    whole_ns.checked_add(fraction_ns * 10u64.pow(n_digits - fraction.len() as u32))
}

fn rounded_ns(text: &str, n_digits: u32) -> Option<u64> {
    let ns = text.parse::<f64>().ok()? * 10f64.powi(n_digits as i32);
    (0.0..TIME_NS_END as f64).contains(&ns).then(|| ns.round() as u64)
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

impl FromStr for TimeUnit {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = || Self::ALL.iter().map(|(_, name, ..)| *name);
        Self::ALL.iter().find(|(_, of, ..)| *of == name).map(|(unit, ..)| *unit).ok_or_else(|| UnknownName {
            kind: "time unit",
            name: name.into(),
            known: known().collect(),
        })
    }
}

/// Reader of the timestamps of one file, which have one unit.
#[derive(Clone, Copy, Debug)]
pub(in crate::trace) struct Clock {
    /// Unit of the format.
    of_format: TimeUnit,
    /// Unit that is given, or else found with the first timestamp.
    unit: Option<TimeUnit>,
    is_given: bool,
    has_fractions: bool,
}

impl Clock {
    /// Creates the clock of a format with a unit, unless another one is given.
    pub(in crate::trace) fn new(of_format: TimeUnit, given: Option<TimeUnit>) -> Self {
        Self { of_format, unit: given, is_given: given.is_some(), has_fractions: false }
    }

    /// Returns the unit, as far as it is known.
    pub(in crate::trace) fn unit(&self) -> TimeUnit {
        self.unit.unwrap_or(self.of_format)
    }

    /// Returns the unit that the user gives.
    pub(in crate::trace) fn given(&self) -> Option<TimeUnit> {
        self.unit.filter(|_| self.is_given)
    }

    /// Parses a timestamp as nanoseconds; the first one decides the unit, if none is given.
    pub(in crate::trace) fn ns(&mut self, text: &str) -> Option<u64> {
        let unit = *self.unit.get_or_insert_with(|| self.of_format.of_first(text));
        self.has_fractions |=
            text.split_once('.').is_some_and(|(_, fraction)| fraction.bytes().any(|digit| digit != b'0'));
        unit.ns(text)
    }

    /// Returns what a user should know of the unit, of a file of so many requests within `span_ns`.
    pub(in crate::trace) fn remark(&self, requests: u64, span_ns: u64) -> Option<String> {
        let (of_format, unit) = (self.of_format, self.unit());
        if self.is_given {
            return None;
        }
        if unit != of_format {
            return Some(format!(
                "the timestamps are read in {unit}: only so are they dates of this century; --time-unit {} reads them in {of_format}",
                of_format.as_str()
            ));
        }
        let span_s = span_ns as f64 / 1e9;
        let is_fast = span_ns < SPAN_NS_MIN || self.has_fractions && requests as f64 > RATE_MAX * span_s;
        (unit == TimeUnit::Milliseconds && requests >= REQUESTS_MIN && span_ns > 0 && is_fast).then(|| {
            format!(
                "{requests} requests in {span_s:.3} s: are the timestamps in seconds? They are read in {unit}; \
                 say which by --time-unit s or --time-unit ms"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (text, ns) in [
            ("0", 0),
            ("5", 5_000_000_000),
            ("19440110.0", 19_440_110_000_000_000),
            ("3554.123456789", 3_554_123_456_789),
            ("0.1", 100_000_000),
            ("4.999999999e-05", 50_000),
            ("1.0000000004", 1_000_000_000),
            ("999999999.999999999", 999_999_999_999_999_999),
            ("1757000000.5", 1_757_000_000_500_000_000),
        ] {
            assert_eq!(TimeUnit::Seconds.ns(text), Some(ns), "{text}");
        }
        for text in ["", ".", "-1", "nan", "inf", "1e10", "4700000000", "1.2.3", "0x10", "5 s"] {
            assert_eq!(TimeUnit::Seconds.ns(text), None, "{text}");
        }
    }

    #[test]
    fn other_units_are_exact_too() {
        for (unit, text, ns) in [
            (TimeUnit::Milliseconds, "1790000000000.123456", 1_790_000_000_000_123_456),
            (TimeUnit::Microseconds, "1.5", 1500),
            (TimeUnit::Nanoseconds, "12.0", 12),
            (TimeUnit::Nanoseconds, "4611686018427387903", (1 << 62) - 1),
            (TimeUnit::Nanoseconds, "1.6", 2),
        ] {
            assert_eq!(unit.ns(text), Some(ns), "{text} {unit}");
        }
        assert_eq!(TimeUnit::Nanoseconds.ns("4611686018427387904"), None);
    }

    #[test]
    fn a_first_timestamp_that_is_a_date_says_the_unit_once() {
        let read = |of_format, text: &str| {
            let mut clock = Clock::new(of_format, None);
            (clock.ns(text), clock.remark(2, 1).is_some())
        };
        let date_ns = Some(1_790_000_000_000_000_000);
        assert_eq!(read(TimeUnit::Milliseconds, "1790000000"), (date_ns, true));
        assert_eq!(read(TimeUnit::Milliseconds, "1790000000000"), (date_ns, false));
        assert_eq!(read(TimeUnit::Seconds, "1790000000"), (date_ns, false));
        assert_eq!(read(TimeUnit::Seconds, "1790000000000.0"), (date_ns, true));
        assert_eq!(read(TimeUnit::Seconds, "1790000000000000"), (date_ns, true));
        assert_eq!(read(TimeUnit::Milliseconds, "1790000000000000000"), (date_ns, true));
        assert_eq!(read(TimeUnit::Nanoseconds, "1790000000"), (Some(1_790_000_000), false));
        assert_eq!(read(TimeUnit::Milliseconds, "999999999"), (Some(999_999_999_000_000), false));
        let mut given = Clock::new(TimeUnit::Milliseconds, Some(TimeUnit::Milliseconds));
        assert_eq!((given.ns("1790000000"), given.remark(99, 1)), (Some(1_790_000_000_000_000), None));
        let mut clock = Clock::new(TimeUnit::Milliseconds, None);
        assert_eq!((clock.ns("5"), clock.ns("1790000000")), (Some(5_000_000), Some(1_790_000_000_000_000)));
    }

    #[test]
    fn milliseconds_that_are_too_fast_are_doubted() {
        let doubted = |first: &str, requests, span_ns| {
            let mut clock = Clock::new(TimeUnit::Milliseconds, None);
            clock.ns(first);
            clock.remark(requests, span_ns).is_some()
        };
        assert!(doubted("0.75", 240, 179_250_000), "seconds with fractions");
        assert!(doubted("0", 240, 180_000_000), "whole seconds");
        assert!(doubted("0.75", 30_000, 90_000_000_000));
        assert!(!doubted("0", 90_000, 90_000_000_000), "a request each millisecond");
        assert!(!doubted("0", 240, 0), "all at once");
        assert!(!doubted("0.75", 20, 15_000_000), "too few to say");
        assert!(!doubted("0.75", 240, 179_250_000_000));
    }

    #[test]
    fn units_have_names() {
        for (unit, name, ..) in TimeUnit::ALL {
            assert_eq!((name.parse::<TimeUnit>().unwrap(), unit.as_str()), (unit, name));
        }
        assert_eq!("h".parse::<TimeUnit>().unwrap_err().to_string(), "unknown time unit 'h'; there are: s, ms, us, ns");
    }
}
