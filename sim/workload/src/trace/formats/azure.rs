//! Rows of Azure's traces, and their timestamps.

use crate::trace::format::csv::{Dialect, Times};
use crate::trace::format::{Format, Reading, Shares, TraceFormat};

/// CSV without content, as in Azure's public LLM inference traces of 2023 and 2024.
pub const AZURE: Format = Format(&TraceFormat {
    name: "azure",
    title: "Azure",
    about: "CSV: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`; 2023 and 2024",
    shares: Shares::Nothing,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Csv(Dialect {
        time: "TIMESTAMP",
        input: "ContextTokens",
        output: "GeneratedTokens",
        times: Times::Dates(timestamp_ns, "like 2023-11-16 18:15:46.6805900"),
    }),
    writing: None,
});

const YEAR_MIN: u64 = 1970;
const YEAR_MAX: u64 = 2199;

/// Parses `YYYY-MM-DD hh:mm:ss` with an optional fraction of up to nine digits and an optional `Z` or offset such as `+00:00`.
/// Returns nanoseconds since 1970.
fn timestamp_ns(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-');
    let year = number(date.next()?, 4, YEAR_MIN..=YEAR_MAX)?;
    let month = number(date.next()?, 2, 1..=12)?;
    let day = number(date.next()?, 2, 1..=days_of(year, month))?;
    if date.next().is_some() {
        return None;
    }

    let (clock, offset_s) = match rest.find(['Z', '+', '-']) {
        Some(at) => (&rest[..at], offset_s(&rest[at..])?),
        None => (rest, 0),
    };
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(clock, fraction)| (clock, Some(fraction)));
    let mut clock = clock.split(':');
    let hour = number(clock.next()?, 2, 0..=23)?;
    let minute = number(clock.next()?, 2, 0..=59)?;
    let second = number(clock.next()?, 2, 0..=60)?;
    if clock.next().is_some() {
        return None;
    }
    let fraction_ns = match fraction {
        None => 0,
        Some(digits) => {
            let n = u32::try_from(digits.len()).ok().filter(|n| (1..=9).contains(n))?;
            number(digits, digits.len(), 0..=999_999_999)? * 10u64.pow(9 - n)
        }
    };

    let long_februaries_until = |year: u64| year / 4 - year / 100 + year / 400;
    let days = 365 * (year - YEAR_MIN) + long_februaries_until(year - 1) - long_februaries_until(YEAR_MIN - 1)
        + (1..month).map(|month| days_of(year, month)).sum::<u64>()
        + (day - 1);
    let local_s = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let utc_s = local_s.checked_add_signed(-offset_s)?;
    Some(utc_s * 1_000_000_000 + fraction_ns)
}

fn offset_s(text: &str) -> Option<i64> {
    let sign = match text.as_bytes() {
        b"Z" => return Some(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let total = number(hours, 2, 0..=14)? * 3600 + number(minutes, 2, 0..=59)? * 60;
    Some(sign * total as i64)
}

fn number(text: &str, n_digits: usize, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
    let digits = text.len() == n_digits && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|n| range.contains(n))
}

fn days_of(year: u64, month: u64) -> u64 {
    let long_february = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(long_february),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::timestamp_ns;

    #[test]
    fn timestamps_are_exact() {
        // Seconds as `date -u -d ... +%s` gives them.
        for (text, s, ns) in [
            ("1970-01-01 00:00:00", 0, 0),
            ("2000-02-29 12:00:00", 951_825_600, 0),
            ("2000-03-01 00:00:00", 951_868_800, 0),
            ("2023-11-16 18:15:46.6805900", 1_700_158_546, 680_590_000),
            ("2024-05-10 00:00:00.009930+00:00", 1_715_299_200, 9_930_000),
            ("2024-05-10T02:30:00.5+02:30", 1_715_299_200, 500_000_000),
            ("2024-05-09T22:00:00Z", 1_715_292_000, 0),
            ("2024-05-09 22:00:00-02:00", 1_715_299_200, 0),
        ] {
            assert_eq!(timestamp_ns(text), Some(s * 1_000_000_000 + ns), "{text}");
        }
    }

    #[test]
    fn what_is_no_timestamp_is_refused() {
        for text in [
            "",
            "2023-11-16",
            "2023-11-16 18:15",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 18:15:46.",
            "2023-11-16 18:15:46.1234567890",
            "2023-11-16 18:15:46.12x",
            "+023-11-16 18:15:46",
            "2023-11-16 18:15:46+",
            "1700158546",
            "2023-11-16 18:15:46Z01:00",
            "1970-01-01 00:00:00+01:00",
        ] {
            assert_eq!(timestamp_ns(text), None, "{text}");
        }
    }
}
