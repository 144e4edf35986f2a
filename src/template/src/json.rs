//! The filter `tojson`, as transformers has it: Python's `json.dumps`, without the escapes for HTML that Jinja adds.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::printed::float;

/// Maximum number of containers within containers.
const DEPTH_MAX: usize = 200;
/// Bytes of output that cost as much as one step of a template.
const BYTES_PER_FUEL: usize = 4;
/// Maximum number of spaces of one level of indentation.
const INDENT_MAX: i64 = 32;

/// The parameters of `json.dumps`.
struct Style {
    ascii: bool,
    /// Text of one level of indentation.
    indent: Option<String>,
    between: String,
    behind_key: String,
    sorted: bool,
}

struct Writer<'a> {
    style: &'a Style,
    out: String,
    depth: usize,
    /// Bytes not paid for yet.
    charged: usize,
    state: &'a State<'a, 'a>,
}

/// Returns a value as JSON: `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// # Errors
///
/// The value has no form in JSON, or a parameter is wrong.
pub(crate) fn tojson(state: &State, value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let parameter = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let given: Option<Value> = named.get(name)?;
        Ok(positional.get(at).cloned().or(given).filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ascii = parameter(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = parameter(1, "indent")?.map(|value| indentation(&value)).transpose()?;
    let separators = parameter(2, "separators")?;
    let sorted = parameter(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let (between, behind_key) = match separators {
        Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let style = Style { ascii, indent, between, behind_key, sorted };
    let mut writer = Writer { style: &style, out: String::new(), depth: 0, charged: 0, state };
    writer.value(value)?;
    writer.charge()?;
    Ok(writer.out)
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let n = value.as_i64().filter(|n| *n <= INDENT_MAX);
    let n = n.ok_or_else(|| wrong(format!("the indent of tojson must be a text, or at most {INDENT_MAX} spaces")))?;
    Ok(" ".repeat(usize::try_from(n).unwrap_or(0).min(INDENT_MAX as usize)))
}

fn text_at(pair: &Value, at: usize) -> Result<String, Error> {
    let text = pair.get_item_by_index(at)?;
    text.as_str().map(str::to_owned).ok_or_else(|| wrong("the separators of tojson must be a pair of texts"))
}

impl Writer<'_> {
    /// Pays for what was written since the last call.
    fn charge(&mut self) -> Result<(), Error> {
        let bytes = self.out.len() - self.charged;
        self.charged = self.out.len();
        self.state.consume_fuel((bytes / BYTES_PER_FUEL) as u64 + 1)
    }

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => return Err(wrong(format!("a value of type {kind} has no form in JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
        } else if let Ok(number) = f64::try_from(value.clone()) {
            self.out.push_str(&match number {
                _ if number.is_nan() => "NaN".to_owned(),
                _ if number.is_infinite() => (if number > 0.0 { "Infinity" } else { "-Infinity" }).to_owned(),
                _ => float(number),
            });
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.open('[')?;
        let mut n = 0;
        for item in value.try_iter()? {
            self.item(n == 0)?;
            self.value(&item)?;
            n += 1;
        }
        self.close(']', n == 0);
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        self.open('{')?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sorted {
            keys.sort();
        }
        for (n, key) in keys.iter().enumerate() {
            self.item(n == 0)?;
            match key.kind() {
                ValueKind::String => self.text(key.as_str().unwrap_or_default()),
                ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                    self.out.push('"');
                    self.value(key)?;
                    self.out.push('"');
                }
                kind => return Err(wrong(format!("a key of type {kind} has no form in JSON"))),
            }
            self.out.push_str(&self.style.behind_key);
            self.value(&value.get_item(key)?)?;
        }
        self.close('}', keys.is_empty());
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(wrong(format!("tojson was given more than {DEPTH_MAX} containers within each other")));
        }
        self.out.push(bracket);
        self.charge()
    }

    fn item(&mut self, is_first: bool) -> Result<(), Error> {
        if !is_first {
            self.out.push_str(&self.style.between);
        }
        self.line();
        self.charge()
    }

    fn close(&mut self, bracket: char, is_empty: bool) {
        self.depth -= 1;
        if !is_empty {
            self.line();
        }
        self.out.push(bracket);
    }

    fn line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }
}
