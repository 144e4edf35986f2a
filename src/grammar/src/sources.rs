//! Bounds of the texts of grammars, checked before the library sees one.
//!
//! The library bounds its own work by fuel, but counts none within a single operation, and cannot be stopped while it compiles. What makes single operations
//! large is refused here: texts that are long, expressions that must hold together (each doubles the states of the others), and divisors of numbers (each
//! remainder is a state). Measured with llguidance 1.9.1 on one core: 8 patterns that hold together take 3 ms, 12 take 74 ms, 16 take 5 s, and 24 did not end;
//! multiples of 997 take 7 ms, of 10,007 47 ms, of 1,000,003 9 s.

use serde_json::Value;
use trunkline_port::{Grammar, GrammarKind};

use crate::error::GrammarError;
use crate::{gbnf, schema};

/// Bytes of a grammar, at most.
pub const BYTES_MAX: usize = 64 << 10;
/// Schemas within a grammar, at most: as many as a request may have tools, in OpenAI's API.
const SCHEMAS_MAX: usize = 128;

/// A text within the bounds.
#[cfg_attr(not(feature = "llguidance"), expect(dead_code, reason = "only the library reads it"))]
pub(crate) enum Source {
    /// A schema, with the rules for white space.
    Schema(Value),
    Regex(String),
    Lark(String),
}

/// Checks the text of a grammar.
pub(crate) fn check(grammar: &Grammar) -> Result<Source, GrammarError> {
    let text = grammar.text();
    if text.len() > BYTES_MAX {
        return Err(GrammarError::TooLong { bytes: text.len(), max: BYTES_MAX });
    }
    match grammar.kind {
        GrammarKind::JsonSchema => schema::read(text).map(Source::Schema),
        GrammarKind::Regex => Ok(Source::Regex(text.to_owned())),
        GrammarKind::Lark if gbnf::is_gbnf(text) => gbnf::to_lark(text).map(Source::Lark),
        GrammarKind::Lark => lark(text).map(Source::Lark),
    }
}

/// Returns a grammar with the rules for the white space of its schemas. Refuses what Lark does not have and the library adds: expressions that hold
/// together, and grammars within grammars, but for schemas, `%json {…}`, each within the bounds of schemas. What follows from different schemas never holds
/// together.
fn lark(text: &str) -> Result<String, GrammarError> {
    let (mut out, mut copied, mut schemas) = (String::new(), 0, 0);
    let mut rest = text.char_indices().peekable();
    while let Some((_, c)) = rest.next() {
        match c {
            '"' | '/' if c == '/' && rest.peek().is_some_and(|(_, c)| *c == '/') => {
                while rest.next_if(|(_, c)| *c != '\n').is_some() {}
            }
            '"' | '/' => {
                // A string or an expression ends at the next such sign without a backslash before it.
                while let Some((_, within)) = rest.next_if(|(_, c)| *c != '\n') {
                    match within {
                        '\\' => drop(rest.next()),
                        _ if within == c => break,
                        _ => {}
                    }
                }
            }
            '&' => return Err(unlike_lark("'&'")),
            '~' => {
                while rest.next_if(|(_, c)| *c == ' ').is_some() {}
                if !rest.peek().is_some_and(|(_, c)| c.is_ascii_digit()) {
                    return Err(unlike_lark("'~' before an expression"));
                }
            }
            '%' => {
                let is_of_name = |(_, c): &(usize, char)| c.is_ascii_alphanumeric() || *c == '_';
                let name: String = std::iter::from_fn(|| rest.next_if(is_of_name)).map(|(_, c)| c).collect();
                if name == "json" && schemas < SCHEMAS_MAX {
                    let from = rest.peek().map_or(text.len(), |(at, _)| *at);
                    let len = schema_len(&text[from..])?;
                    out.push_str(&text[copied..from]);
                    out.push_str(&format!(" {}", schema::read(&text[from..from + len])?));
                    (copied, schemas) = (from + len, schemas + 1);
                    while rest.next_if(|(at, _)| *at < copied).is_some() {}
                } else if !["ignore", "import", "declare", "override", "llguidance"].contains(&name.as_str()) {
                    let times = if name == "json" { format!(" more than {SCHEMAS_MAX} times") } else { String::new() };
                    return Err(unlike_lark(&format!("{}{times}", trunkline_quote::quoted(&format!("%{name}")))));
                }
            }
            _ => {}
        }
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Returns the bytes of the object of JSON at the beginning of a text, with the white space before it.
fn schema_len(text: &str) -> Result<usize, GrammarError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Map<String, Value>>();
    match values.next() {
        Some(Ok(_)) => Ok(values.byte_offset()),
        _ => Err(GrammarError::Malformed("it has %json without an object of JSON behind it".into())),
    }
}

fn unlike_lark(what: &str) -> GrammarError {
    GrammarError::Malformed(format!("it has {what}, which is not supported"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: GrammarKind, text: &str) -> Result<(), String> {
        check(&Grammar::new(kind, text)).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn what_costs_too_much_is_refused_wherever_it_stands() {
        let lark = |text: &str| of(GrammarKind::Lark, text);
        let harmless = "// a & b\nstart: \"a & ~b %json\" /[&~]\\/%lark/ X~3..5 ~ 2 // ~x\n%import common.INT\n%ignore \" \"\nX: \"\\\"&\"\ny: %json {\"a\": \"& } %x\"} \"b\"";
        assert_eq!(lark(harmless), Ok(()));
        for (text, what) in [
            ("start: X\nX: /a/ & /b/", "'&'"),
            ("start: X\nX: ~/a/", "'~' before an expression"),
            ("start: \"\\\\\" & \"\"", "'&'"),
            ("start: \"open\n & /b/", "'&'"),
            ("start: %json {} %json [1]", "%json without an object of JSON behind it"),
            ("start: %json {} & /b/", "'&'"),
            ("start: %json [1]", "%json without an object of JSON behind it"),
            ("start: %lark { start: \"a\" }", "'%lark'"),
            ("start: %regex {}", "'%regex'"),
            ("start: % {}", "'%'"),
        ] {
            let told = lark(text).unwrap_err();
            assert!(told.starts_with(&format!("it has {what}")), "{text}: {told}");
        }
        let schemas = |n| format!("start: {}", "%json {} ".repeat(n));
        assert_eq!(lark(&schemas(SCHEMAS_MAX)), Ok(()));
        assert!(lark(&schemas(SCHEMAS_MAX + 1)).unwrap_err().starts_with("it has '%json' more than 128 times"));
        assert_eq!(lark("root ::= \"a & ~b\" %json"), Err("'%' stands outside of a text".into()));
        let costly = lark(r#"start: %json {"multipleOf": 1000003}"#).unwrap_err();
        assert!(costly.starts_with("it is too complex: multipleOf"), "{costly}");
        let long = of(GrammarKind::Regex, &"a".repeat(BYTES_MAX + 1)).unwrap_err();
        assert_eq!(long, "it has 65537 bytes; at most 65536 are allowed");
        assert_eq!(of(GrammarKind::Regex, &"a".repeat(BYTES_MAX)), Ok(()));
    }
}
