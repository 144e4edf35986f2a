//! Lines of CSV traces: a header, fields with or without quotes, and columns found by name.

use super::row::{Row, TIME_NS_END, length, whole};
use super::{Format, LineParser};
use crate::lines::{LINE_BYTES_MAX, Lines};
use crate::trace::{Terms, TraceFault};

/// Columns of a CSV format.
pub(in crate::trace) struct Dialect {
    /// Name of the column of arrival times.
    pub time: &'static str,
    /// Name of the column of prompt lengths.
    pub input: &'static str,
    /// Name of the column of output lengths.
    pub output: &'static str,
    /// Parses a time as nanoseconds.
    pub time_ns: fn(&str) -> Option<u64>,
    /// Expected form of a timestamp.
    pub expected: &'static str,
    /// `true` if the format logs requests that failed, or were given up, with an output of 0.
    pub has_failures: bool,
}

/// Form of a timestamp in seconds.
pub(in crate::trace) const SECONDS: &str = "seconds, not negative, before the year 2116 if counted from 1970";

/// Positions of the columns. Other columns may lie between them.
pub(in crate::trace) struct Columns {
    format: Format,
    dialect: &'static Dialect,
    time: usize,
    input: usize,
    output: usize,
    /// Columns of [`Terms::FIELDS`].
    terms: [Option<usize>; 6],
    n_columns: usize,
}

/// Returns the fields of a line, without the quotes and blanks around them.
pub(in crate::trace) fn fields(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        let (field, behind) = quoted(text).unwrap_or_else(|| match text.split_once(',') {
            Some((field, behind)) => (field.trim(), Some(behind)),
            None => (text.trim(), None),
        });
        rest = behind;
        Some(field)
    })
}

/// Returns the first field of `text` and what is after its comma, if the field stands in quotes. Commas in quotes end no field; two quotes in a
/// row are one of the text, and stay two.
fn quoted(text: &str) -> Option<(&str, Option<&str>)> {
    let text = text.trim_start().strip_prefix('"')?;
    let mut from = 0;
    loop {
        let end = from + text[from..].find('"')?;
        let behind = &text[end + 1..];
        if behind.starts_with('"') {
            from = end + 2;
            continue;
        }
        let behind = behind.trim_start();
        let next = behind.strip_prefix(',');
        return (behind.is_empty() || next.is_some()).then(|| (text[..end].trim(), next));
    }
}

/// Returns `true` if a field in quotes is open at the end of a line; `is_open` says if one is at the start.
pub(in crate::trace) fn leaves_quote_open(line: &[u8], mut is_open: bool) -> bool {
    let mut rest = line;
    loop {
        if !is_open {
            rest = rest.trim_ascii_start();
            is_open = rest.first() == Some(&b'"');
            rest = rest.get(usize::from(is_open)..).unwrap_or_default();
        }
        while is_open {
            let Some(end) = rest.iter().position(|byte| *byte == b'"') else { return true };
            let is_doubled = rest.get(end + 1) == Some(&b'"');
            rest = &rest[end + 1 + usize::from(is_doubled)..];
            is_open = is_doubled;
        }
        let Some(comma) = rest.iter().position(|byte| *byte == b',') else { return false };
        rest = &rest[comma + 1..];
    }
}

/// Returns `line`, whose last field is in quotes and open, with the lines up to the one in which the field ends.
pub(in crate::trace) fn record(line: Vec<u8>, lines: &mut Lines, format: Format) -> Result<Vec<u8>, TraceFault> {
    let begun = lines.number();
    let (mut record, mut is_open) = (line, true);
    while is_open {
        let max_bytes = LINE_BYTES_MAX;
        let next = lines.next_line()?.filter(|next| (record.len() + next.len()) as u64 <= max_bytes);
        let Some(next) = next else {
            return Err(TraceFault::Malformed {
                format,
                why: format!("the quote that is open in line {begun} never ends"),
            });
        };
        record.push(b'\n');
        record.extend_from_slice(next);
        is_open = leaves_quote_open(next, true);
    }
    Ok(record)
}

impl Columns {
    /// Finds the columns of a CSV format in a header.
    pub(in crate::trace) fn of_header(
        format: Format,
        dialect: &'static Dialect,
        line: &[u8],
    ) -> Result<Self, TraceFault> {
        let header = std::str::from_utf8(line)
            .map_err(|_| TraceFault::Malformed { format, why: "the header is not text".into() })?;
        let find_any = |column: &'static str| {
            let mut found = fields(header).enumerate().filter(|(_, name)| *name == column).map(|(at, _)| at);
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(TraceFault::RepeatedColumn { column }),
                (first, None) => Ok(first),
            }
        };
        let find = |column: &'static str| {
            find_any(column)?
                .ok_or_else(|| TraceFault::MissingColumn { column, header: header.chars().take(200).collect() })
        };
        let mut terms = [None; Terms::FIELDS.len()];
        for (at, column) in terms.iter_mut().zip(Terms::FIELDS) {
            *at = find_any(column)?;
        }
        Ok(Self {
            format,
            dialect,
            time: find(dialect.time)?,
            input: find(dialect.input)?,
            output: find(dialect.output)?,
            terms,
            n_columns: fields(header).count(),
        })
    }

    fn malformed(&self, why: impl Into<String>) -> TraceFault {
        TraceFault::Malformed { format: self.format, why: why.into() }
    }
}

impl LineParser for Columns {
    fn parse(&mut self, line: &[u8]) -> Result<Option<Row>, TraceFault> {
        let line = std::str::from_utf8(line).map_err(|_| self.malformed("not text"))?;
        let (mut time, mut input, mut output) = ("", "", "");
        let mut terms = Terms::default();
        let mut n_columns = 0;
        for (i, field) in fields(line).enumerate() {
            n_columns = i + 1;
            if i == self.time {
                time = field;
            } else if i == self.input {
                input = field;
            } else if i == self.output {
                output = field;
            } else if let Some(term) = self.terms.iter().position(|column| *column == Some(i)) {
                terms.set(Terms::FIELDS[term], field)?;
            }
        }
        if n_columns != self.n_columns {
            return Err(self.malformed(format!("{n_columns} fields where the header has {}", self.n_columns)));
        }
        let dialect = self.dialect;
        let at_ns = (dialect.time_ns)(time).ok_or_else(|| TraceFault::BadTimestamp {
            field: dialect.time,
            value: if time.is_empty() { "empty".into() } else { time.into() },
            expected: dialect.expected,
        })?;
        if dialect.has_failures && whole(output) == "0" {
            return Ok(None);
        }
        let (input_tokens, output_tokens) = (length(dialect.input, input)?, length(dialect.output, output)?);
        Ok(Some(Row { terms, ..Row::without_content(at_ns, input_tokens, output_tokens) }))
    }
}

/// Parses seconds as nanoseconds: decimal digits exactly, numbers with an exponent to the nearest nanosecond.
pub(in crate::trace) fn seconds_ns(text: &str) -> Option<u64> {
    exact_ns(text).or_else(|| rounded_ns(text)).filter(|ns| *ns < TIME_NS_END)
}

fn exact_ns(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.is_empty() || fraction.len() > 9 {
        return None;
    }
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    let fraction_ns = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    whole_ns.checked_add(fraction_ns * 10u64.pow(9 - fraction.len() as u32))
}

fn rounded_ns(text: &str) -> Option<u64> {
    let ns = text.parse::<f64>().ok()? * 1e9;
    (0.0..TIME_NS_END as f64).contains(&ns).then(|| ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_stand_in_quotes_with_commas() {
        let of = |line| fields(line).collect::<Vec<_>>();
        assert_eq!(of("1, \"a, \"\"b\"\", c\" ,\" 2 \""), ["1", "a, \"\"b\"\", c", "2"]);
        assert_eq!(of("\"\",\"\",x"), ["", "", "x"]);
        assert_eq!(of("a\",\"b,\"c\"d,"), ["a\"", "\"b", "\"c\"d", ""], "quotes within a field are text");
    }

    #[test]
    fn a_field_in_quotes_may_be_open_at_the_end_of_a_line() {
        let open = |line: &str| leaves_quote_open(line.as_bytes(), false);
        for line in ["", "1,2", "\"a\",2", " \"a, b\" ,2", "\"a\"\"\"", "a\",2", "5\" disk,1", "\"a\"b,2", "1,\"\""] {
            assert!(!open(line), "{line}");
        }
        for line in ["1,\"", "1, \"a, b", "\"a\"\"", "\"a\",\"b\"\",2"] {
            assert!(open(line), "{line}");
        }
        let goes_on = |line: &str| leaves_quote_open(line.as_bytes(), true);
        assert!(goes_on("") && goes_on("a, b") && goes_on("a\",\"b") && goes_on("\"\""));
        assert!(!goes_on("\"") && !goes_on("a\",2") && !goes_on("\"\" \""));
    }

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
            assert_eq!(seconds_ns(text), Some(ns), "{text}");
        }
        for text in ["", ".", "-1", "nan", "inf", "1e10", "4700000000", "1.2.3", "0x10", "5 s"] {
            assert_eq!(seconds_ns(text), None, "{text}");
        }
    }
}
