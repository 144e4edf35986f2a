//! Lines of CSV traces: a header, fields with or without quotes, and columns found by name.

use super::clock::{Clock, TimeUnit};
use super::row::{Row, length};
use super::{FileFacts, Format, LineParser, Parsed};
use crate::lines::{LINE_BYTES_MAX, Lines};
use crate::trace::{Terms, TraceFault};

/// Separators of fields, the first one that a header has.
const SEPARATORS: [char; 3] = [',', ';', '\t'];

/// Returns the separator of a file by its header.
pub(in crate::trace) fn separator(header: &[u8]) -> char {
    SEPARATORS.into_iter().find(|it| header.contains(&(*it as u8))).unwrap_or(SEPARATORS[0])
}

/// Timestamps of a CSV format.
pub(in crate::trace) enum Times {
    /// Numbers in a unit.
    In(TimeUnit),
    /// Dates, parsed as nanoseconds, and their form.
    Dates(fn(&str) -> Option<u64>, &'static str),
}

/// Columns of a CSV format.
pub(in crate::trace) struct Dialect {
    /// Name of the column of arrival times.
    pub time: &'static str,
    /// Name of the column of prompt lengths.
    pub input: &'static str,
    /// Name of the column of output lengths.
    pub output: &'static str,
    /// Form of its timestamps.
    pub times: Times,
}

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
    separator: char,
    facts: FileFacts,
}

/// Returns the fields of a line, without the quotes and blanks around them.
pub(in crate::trace) fn fields(line: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        let (field, behind) = quoted(text, separator).unwrap_or_else(|| match text.split_once(separator) {
            Some((field, behind)) => (field.trim(), Some(behind)),
            None => (text.trim(), None),
        });
        rest = behind;
        Some(field)
    })
}

/// Returns the first field of `text` and what is after its separator, if the field stands in quotes. Separators in quotes end no field; two
/// quotes in a row are one of the text, and stay two.
fn quoted(text: &str, separator: char) -> Option<(&str, Option<&str>)> {
    let text = text.trim_start_matches(' ').strip_prefix('"')?;
    let mut from = 0;
    loop {
        let end = from + text[from..].find('"')?;
        let behind = &text[end + 1..];
        if behind.starts_with('"') {
            from = end + 2;
            continue;
        }
        let behind = behind.trim_start_matches(' ');
        let next = behind.strip_prefix(separator);
        return (behind.is_empty() || next.is_some()).then(|| (text[..end].trim(), next));
    }
}

/// Returns `true` if a field in quotes is open at the end of a line; `is_open` says if one is at the start.
pub(in crate::trace) fn leaves_quote_open(line: &[u8], separator: char, mut is_open: bool) -> bool {
    let mut rest = line;
    loop {
        if !is_open {
            // A tab may be a separator.
            while let Some(behind) = rest.strip_prefix(b" ") {
                rest = behind;
            }
            is_open = rest.first() == Some(&b'"');
            rest = rest.get(usize::from(is_open)..).unwrap_or_default();
        }
        while is_open {
            let Some(end) = rest.iter().position(|byte| *byte == b'"') else { return true };
            let is_doubled = rest.get(end + 1) == Some(&b'"');
            rest = &rest[end + 1 + usize::from(is_doubled)..];
            is_open = is_doubled;
        }
        let Some(end) = rest.iter().position(|byte| *byte == separator as u8) else { return false };
        rest = &rest[end + 1..];
    }
}

/// Returns `line`, whose last field is in quotes and open, with the lines up to the one in which the field ends.
pub(in crate::trace) fn record(
    line: Vec<u8>,
    separator: char,
    lines: &mut Lines,
    format: Format,
) -> Result<Vec<u8>, TraceFault> {
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
        is_open = leaves_quote_open(next, separator, true);
    }
    Ok(record)
}

impl Columns {
    /// Finds the columns of a CSV format in a header.
    pub(in crate::trace) fn of_header(
        format: Format,
        dialect: &'static Dialect,
        unit: Option<TimeUnit>,
        line: &[u8],
    ) -> Result<Self, TraceFault> {
        let separator = separator(line);
        let header = std::str::from_utf8(line)
            .map_err(|_| TraceFault::Malformed { format, why: "the header is not text".into() })?;
        let find_any = |column: &'static str| {
            let mut found = fields(header, separator).enumerate().filter(|(_, name)| *name == column).map(|(at, _)| at);
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
            n_columns: fields(header, separator).count(),
            separator,
            facts: FileFacts {
                clock: match dialect.times {
                    Times::In(of_format) => Some(Clock::new(of_format, unit)),
                    Times::Dates(..) => None,
                },
                ..FileFacts::default()
            },
        })
    }

    fn malformed(&self, why: impl Into<String>) -> TraceFault {
        TraceFault::Malformed { format: self.format, why: why.into() }
    }
}

impl LineParser for Columns {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let line = std::str::from_utf8(line).map_err(|_| self.malformed("not text"))?;
        let (mut time, mut input, mut output) = ("", "", "");
        let mut terms = Terms::default();
        let mut n_columns = 0;
        for (i, field) in fields(line, self.separator).enumerate() {
            n_columns = i + 1;
            if i == self.time {
                time = field;
            } else if i == self.input {
                input = field;
            } else if i == self.output {
                output = field;
            } else if let Some(term) = self.terms.iter().position(|column| *column == Some(i)) {
                terms.set(Terms::FIELDS[term], field, &mut self.facts.names)?;
            }
        }
        if n_columns != self.n_columns {
            return Err(self.malformed(format!("{n_columns} fields where the header has {}", self.n_columns)));
        }
        let dialect = self.dialect;
        let (at_ns, expected) = match (&mut self.facts.clock, &dialect.times) {
            (Some(clock), _) => (clock.ns(time), clock.unit().expected()),
            (None, Times::Dates(parse, expected)) => (parse(time), *expected),
            (None, Times::In(_)) => unreachable!("a unit has a clock"),
        };
        let at_ns = at_ns.ok_or_else(|| TraceFault::BadTimestamp {
            field: dialect.time,
            value: if time.is_empty() { "empty".into() } else { time.into() },
            expected,
        })?;
        let (input_tokens, output_tokens) = (length(dialect.input, input)?, length(dialect.output, output)?);
        Ok(Parsed::Request(Row { terms, ..Row::without_content(at_ns, input_tokens, output_tokens) }))
    }

    fn facts(&self) -> Option<&FileFacts> {
        Some(&self.facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_stand_in_quotes_with_commas() {
        let of = |line| fields(line, ',').collect::<Vec<_>>();
        assert_eq!(of("1, \"a, \"\"b\"\", c\" ,\" 2 \""), ["1", "a, \"\"b\"\", c", "2"]);
        assert_eq!(of("\"\",\"\",x"), ["", "", "x"]);
        assert_eq!(of("a\",\"b,\"c\"d,"), ["a\"", "\"b", "\"c\"d", ""], "quotes within a field are text");
        assert_eq!(fields("1,5; \"a;b\" ;2", ';').collect::<Vec<_>>(), ["1,5", "a;b", "2"]);
        assert_eq!(fields("1\t\"a\tb\"\t2", '\t').collect::<Vec<_>>(), ["1", "a\tb", "2"]);
        assert_eq!(fields("1\t\t \"a\tb\"\t", '\t').collect::<Vec<_>>(), ["1", "", "a\tb", ""]);
        assert_eq!(["a,b;c", "a;b c", "a\tb", "a"].map(|header| separator(header.as_bytes())), [',', ';', '\t', ',']);
    }

    #[test]
    fn a_field_in_quotes_may_be_open_at_the_end_of_a_line() {
        let open = |line: &str| leaves_quote_open(line.as_bytes(), ',', false);
        for line in ["", "1,2", "\"a\",2", " \"a, b\" ,2", "\"a\"\"\"", "a\",2", "5\" disk,1", "\"a\"b,2", "1,\"\""] {
            assert!(!open(line), "{line}");
        }
        for line in ["1,\"", "1, \"a, b", "\"a\"\"", "\"a\",\"b\"\",2"] {
            assert!(open(line), "{line}");
        }
        assert!(leaves_quote_open(b"1\t\t\"a\t", '\t', false));
        assert!(!leaves_quote_open(b"1\t\t\"a\"\t\"b\"", '\t', false));
        let goes_on = |line: &str| leaves_quote_open(line.as_bytes(), ',', true);
        assert!(goes_on("") && goes_on("a, b") && goes_on("a\",\"b") && goes_on("\"\""));
        assert!(!goes_on("\"") && !goes_on("a\",2") && !goes_on("\"\" \""));
    }
}
