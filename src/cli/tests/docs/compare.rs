//! Comparison of a page with what its commands printed.

/// Output that a command may print beyond what is shown when it differs, lines.
const SHOWN: usize = 40;

/// Folds whitespace, and leaves out the time before a line of a log.
fn folded(line: &str) -> String {
    let is_time = |word: &str| word.len() > 20 && word.ends_with('Z') && word.starts_with(|c: char| c.is_ascii_digit());
    let words = line.split_whitespace().enumerate();
    words.filter(|(i, word)| *i > 0 || !is_time(word)).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// Returns `true` if a line is as the page says; `…` on the page stands for any text.
fn equal(page: &str, printed: &str) -> bool {
    let mut parts = page.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Compares lines, whitespace folded and empty lines left out. A line `...` of the page stands for any lines; a line that ends in `…` and one that begins
/// with it are one line, too long for the page.
///
/// # Errors
/// The first line of the page that the commands did not print at that place, or the first line that the page does not have.
pub fn lines(page: &str, printed: &str) -> Result<(), String> {
    let fold = |text: &str| text.lines().map(folded).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let (page, printed) = (fold(&fold(page).join("\n").replace("…\n…", "")), fold(printed));
    let shown = || printed.iter().take(SHOWN).map(|line| format!("      | {line}\n")).collect::<String>();
    let mut at = 0;
    let mut free = false;
    for run in page.split_inclusive(|line| line == "...") {
        let (run, open) = match run.split_last() {
            Some((last, before)) if last == "..." => (before, true),
            _ => (run, false),
        };
        let fits = |from: usize| {
            let rest = &printed[from..];
            run.iter().zip(rest).take_while(|(page, printed)| equal(page, printed)).count()
        };
        let last = if free { printed.len() } else { at };
        let fitting = || (at..=last).filter(|from| fits(*from) == run.len());
        // Lines that may stand in several places stand at the end if the page ends with them.
        let at_the_end = |from: &usize| !open && from + run.len() == printed.len();
        let found = fitting().find(at_the_end).or_else(|| fitting().next());
        let Some(found) = found else {
            let missing = &run[(at..=last).map(fits).max().unwrap_or(0)];
            return Err(format!("    the page says\n      | {missing}\n    the commands print\n{}", shown()));
        };
        at = found + run.len();
        free = open;
    }
    match printed.get(at) {
        Some(line) if !free => {
            Err(format!("    the page ends, and the commands print on\n      | {line}\n    all of it\n{}", shown()))
        }
        _ => Ok(()),
    }
}

/// Number as written: the value, and the digits after the point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    value: f64,
    digits: i32,
}

/// Returns all numbers of a text. Commas between digits group thousands.
fn numbers(text: &str) -> Vec<(Number, &str)> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        if !digit(at) {
            at += 1;
            continue;
        }
        let from = at;
        let mut point = None;
        while digit(at)
            || (bytes.get(at) == Some(&b',') && (at + 1..at + 4).all(digit))
            || (bytes.get(at) == Some(&b'.') && digit(at + 1) && point.is_none())
        {
            if bytes[at] == b'.' {
                point = Some(at);
            }
            at += 1;
        }
        // A part of a name, as in `p50` or `h100-80g`, is not a figure.
        let named = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if !named(text[..from].chars().next_back()) && !named(text[at..].chars().next()) {
            let value = text[from..at].replace(',', "").parse().unwrap_or(f64::NAN);
            out.push((Number { value, digits: point.map_or(0, |point| (at - point - 1) as i32) }, &text[from..]));
        }
        at = at.max(from + 1);
    }
    out
}

/// Returns the factors from a printed number to one with this unit; none for multiples of another figure.
fn factors(unit: &str) -> Option<&'static [f64]> {
    Some(match unit.split(|c: char| !c.is_alphanumeric() && c != '%').find(|word| !word.is_empty()) {
        Some("%") => &[1.0, 100.0],
        Some("ms") => &[1.0, 1e3],
        Some("million") => &[1e-6],
        Some("times") => return None,
        _ => &[1.0],
    })
}

/// Returns the figures of a table or text that are not numbers of the output, rounded to as many digits. In a table the first column and the head name
/// things.
pub fn figures_missing(page: &str, printed: &str) -> Vec<String> {
    let printed: Vec<f64> = numbers(printed).into_iter().map(|(number, _)| number.value).collect();
    let is_found = |(number, rest): &(Number, &str)| {
        let half = 0.5 * 10f64.powi(-number.digits) * (1.0 + 1e-9);
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c == '.');
        let unit: String = after.chars().take(12).collect();
        let is_printed = |factor: &f64| printed.iter().any(|value| (value * factor - number.value).abs() <= half);
        factors(&unit).is_none_or(|factors| factors.iter().any(is_printed))
    };
    let mut cells: Vec<&str> = Vec::new();
    let rows: Vec<&str> = page.lines().collect();
    if rows.first().is_some_and(|row| row.starts_with('|')) {
        for row in &rows[2.min(rows.len())..] {
            cells.extend(row.trim_matches('|').split('|').skip(1));
        }
    } else {
        cells = rows;
    }
    let missing =
        |cell: &str| numbers(cell).iter().filter(|number| !is_found(number)).map(|_| cell.trim().to_owned()).next();
    cells.into_iter().filter_map(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_in_order() {
        let printed = "2026-11-28T19:59:53.870967Z  a  1\n\nb 2\nc 3.5 s\nd\n";
        for page in [
            "a 1\nb 2\nc 3.5 s\nd",
            "...\nc 3.5 s\nd",
            "a 1\n...",
            "a 1\n...\nd",
            "a 1\nb 2\nc … s\nd",
            "…\n...\n…",
            "a 1\nb 2\nc 3.5 …\n… s\nd",
        ] {
            assert_eq!(lines(page, printed), Ok(()), "{page}");
        }
        for (page, reason) in [
            ("a 1\nb 3\n...", "the page says\n      | b 3"),
            ("a 1\nc 3.5 s\n...", "the page says\n      | c 3.5 s"),
            ("...\nd\nc 3.5 s", "the page says\n      | c 3.5 s"),
            ("b 2\n...", "the page says\n      | b 2"),
            ("a 1\nb 2", "the commands print on\n      | c 3.5 s"),
            ("a 1\n...\nb 2\nc … ms\nd", "the page says\n      | c … ms"),
            ("a 1\nb 2\nc 3.5 s\nd\ne", "the page says\n      | e"),
        ] {
            let error = lines(page, printed).unwrap_err();
            assert!(error.contains(reason), "{page}: {error}");
        }
        assert!(lines("a", "").is_err() && lines("", "a").is_err());
    }

    #[test]
    fn figures_are_found_as_rounded() {
        let printed = "{\"hits\": 0.05182, \"n\": 11147776, \"ttft\": 0.9551, \"p99\": 7.0411} hits 11,066,880 tokens";
        let table = |cells: &str| format!("| router | hits | p50 |\n|---|---|---|\n| `p99=1000` | {cells} |");
        for cells in
            ["5.18 % | 0.955", "**5.2 %** | 7.04", "11,147,776 | 955 ms", "11.1 million | 3.3 times, 0.9551", "word | "]
        {
            assert_eq!(figures_missing(&table(cells), printed), Vec::<String>::new(), "{cells}");
        }
        for (cells, missing) in [
            ("5.20 % | 0.955", "5.20 %"),
            ("0.9552 | 7", "0.9552"),
            ("11,147,777 | ", "11,147,777"),
            ("5.18 | ", "5.18"),
        ] {
            assert_eq!(figures_missing(&table(cells), printed), [missing], "{cells}");
        }
        assert_eq!(figures_missing("hits 5.18 %\nTTFT 0.956", printed), ["TTFT 0.956"]);
    }
}
