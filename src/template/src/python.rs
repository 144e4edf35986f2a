//! Methods of Python's values that the library does not have, or where it differs from Python.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::guard::weigh_both;
use crate::printed::printed;

/// Largest width to which a text is filled.
const WIDTH_MAX: usize = 1 << 10;

/// Calls a method of a value.
///
/// # Errors
///
/// The value has no such method, or not with these arguments.
pub(crate) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = of_text(text, name, args)?
    {
        return Ok(result);
    }
    if name == "format" && value.as_str().is_some_and(is_wide) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the format has a width of more than four digits, or one that is an argument",
        ));
    }
    // `count` compares.
    for argument in args {
        weigh_both(state, value, argument)?;
    }
    unknown_method_callback(state, value, name, args)
}

/// Returns `true` if a format of `str.format` asks for widths that the library does not limit.
fn is_wide(format: &str) -> bool {
    let (mut is_field, mut digits, mut before) = (false, 0, ' ');
    for c in format.chars() {
        match c {
            '{' if is_field && before != '{' => return true,
            '{' => is_field = !is_field,
            '}' => is_field = false,
            _ => {}
        }
        digits = if is_field && c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return true;
        }
        before = c;
    }
    false
}

/// Returns `true` for the characters that Python strips: four separators more than Unicode's white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Strips a text at the start and at the end, of spaces or of `chars`.
fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let is_stripped = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(is_stripped) } else { text };
    if end { text.trim_end_matches(is_stripped) } else { text }
}

/// Returns a text without spaces at the ends, as `str.strip` does.
pub(crate) fn stripped(text: &str) -> &str {
    strip(text, None, true, true)
}

/// Returns a text without spaces at the end, as `str.rstrip` does.
pub(crate) fn stripped_behind(text: &str) -> &str {
    strip(text, None, false, true)
}

/// The filter `trim`.
pub(crate) fn trim(value: Value, chars: Option<&str>) -> String {
    strip(value.as_str().unwrap_or(&text(value.clone())), chars, true, true).to_owned()
}

/// The filter `string`.
pub(crate) fn text(value: Value) -> String {
    printed(&value).unwrap_or_else(|| value.to_string())
}

/// The filter `int`: 0 for a text that is not a number, where the library fails.
pub(crate) fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    filters::int(state, value, default, base, named).or_else(|error| otherwise(error, Value::from(0)))
}

/// The filter `float`: 0.0 for a text that is not a number.
pub(crate) fn float(state: &State, value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    filters::float(state, value, default, named).or_else(|error| otherwise(error, Value::from(0.0)))
}

fn otherwise(error: Error, value: Value) -> Result<Value, Error> {
    if error.kind() == ErrorKind::OutOfFuel { Err(error) } else { Ok(value) }
}

/// The test `sequence`: Python asks for a length and for items, which texts and maps have, too.
pub(crate) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

/// The test `iterable`: the library has a loop over nothing, and Python refuses one.
pub(crate) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `callable`.
pub(crate) fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}

/// Calls the methods of texts that are here; `None` for others.
fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, name != "rstrip", name != "lstrip"))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (between,): (&str,) = from_args(args)?;
            partition(text, between, name == "partition")?
        }
        "rsplit" => {
            let (between, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most =
                most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> = match between {
                Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                Some(between) => text.rsplitn(most, between).collect(),
                None => words_behind(text, most),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if name == "index" { text.find(part) } else { text.rfind(part) };
            let found = found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..found].chars().count())
        }
        "zfill" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            Value::from(filled(text, name, width.min(WIDTH_MAX), fill))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        _ => return Ok(None),
    }))
}

/// Returns the text before, the separator, and the text behind, as a tuple.
fn partition(text: &str, between: &str, is_first: bool) -> Result<Value, Error> {
    if between.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let parts = if is_first { text.split_once(between) } else { text.rsplit_once(between) };
    let parts = match parts {
        Some((before, behind)) => [before, between, behind],
        None if is_first => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(minijinja::value::Tuple::from(parts.map(Value::from))))
}

/// Returns the last words of a text and then the rest, `most` in all, from the end.
fn words_behind(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), stripped_behind(text));
    while !rest.is_empty() {
        let cut = rest.rfind(is_space).filter(|_| words.len() + 1 < most);
        let Some(cut) = cut else {
            words.push(rest);
            break;
        };
        let (before, behind) = rest.split_at(cut);
        words.push(strip(behind, None, true, false));
        rest = stripped_behind(before);
    }
    words
}

fn filled(text: &str, name: &str, width: usize, fill: Option<char>) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let fill = |with: char| std::iter::repeat_n(fill.unwrap_or(with), missing).collect::<String>();
    match name {
        "ljust" => text.to_owned() + &fill(' '),
        "rjust" => fill(' ') + text,
        _ => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", fill('0'))
        }
    }
}
