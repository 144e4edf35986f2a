//! Values as Python prints them, where the library prints another text: numbers with an exponent, also within lists and objects.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::{Tuple, ValueKind};

use crate::objects::fields;

/// Returns a value as Python prints it; `None` if the library prints the same.
pub(crate) fn printed(value: &Value) -> Option<String> {
    let has_fraction = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    if has_fraction(value) {
        return f64::try_from(value.clone()).ok().map(float);
    }
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map).then(|| ())?;
    let mut out = String::new();
    nested(value, &mut out);
    Some(out)
}

/// Writes a value within a container, whose depth has a limit.
fn nested(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float));
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>();
            let (open, close) = match tuple.map(|tuple| tuple.len()) {
                None => ('[', "]"),
                Some(1) => ('(', ",)"),
                Some(_) => ('(', ")"),
            };
            out.push(open);
            for (n, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                nested(&item, out);
            }
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (n, (key, item)) in fields(value).enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                nested(&key, out);
                out.push_str(": ");
                nested(&item, out);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Writes a text in quotes.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_escaped(c) => {
                let _ = match u32::from(c) {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Returns `true` for characters that Python does not print: controls, formats, spaces but the plain one, and private ones. Unassigned ones are not listed.
fn is_escaped(c: char) -> bool {
    let formats = matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}');
    let private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}');
    c.is_control() || formats || private || (c.is_whitespace() && c != ' ')
}

/// Returns a number as Python's `repr` does: the shortest digits that read back, and an exponent from 1e16 and below 1e-4.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return (if number > 0.0 { "inf" } else { "-inf" }).to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_python_prints_them() {
        for (number, printed) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e300, "1e+300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), printed);
        }
    }
}
