//! Bounds of JSON schemas, and the white space between the parts of JSON.

use serde_json::{Map, Value, json};

use crate::error::GrammarError;

/// Patterns of a schema whose parts hold together, at most.
const PATTERNS_MAX: usize = 8;
/// Divisor of `multipleOf`, at most, in units of its last digit.
const DIVISOR_MAX: u32 = 1000;
/// Options of the library, in a schema.
const OPTIONS: &str = "x-guidance";
/// White space between two parts, at most: one space, or one or two ends of lines with up to 20 spaces. A model that repeats itself would go on without
/// end where the white space has none. The rule is llama.cpp's (`SPACE_RULE` in `common/json-schema-to-grammar.cpp`).
const WHITE_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Reads a schema.
pub(crate) fn read(text: &str) -> Result<Value, GrammarError> {
    let mut schema: Value = serde_json::from_str(text).map_err(|error| {
        GrammarError::Malformed(format!("it is no JSON: {}", trunkline_quote::of_parser(&error.to_string())))
    })?;
    let mut found = Found::default();
    found.walk(&schema)?;
    if found.holds_together && found.patterns > PATTERNS_MAX {
        return Err(GrammarError::TooComplex(format!(
            "it has {} patterns and formats, and parts that hold together (allOf, or $ref or anyOf alongside others); at most {PATTERNS_MAX} are allowed then",
            found.patterns
        )));
    }
    // `true` is any JSON.
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(schema) = &mut schema {
        let theirs = schema.get(OPTIONS).and_then(Value::as_object).cloned().unwrap_or_default();
        let mut options = Map::from_iter([("whitespace_pattern".to_owned(), json!(WHITE_SPACE))]);
        options.extend(theirs);
        schema.insert(OPTIONS.into(), options.into());
    }
    Ok(schema)
}

/// Parts of a schema that cost.
#[derive(Default)]
struct Found {
    patterns: usize,
    /// Some part holds alongside another one for the same value.
    holds_together: bool,
}

impl Found {
    /// Walks through a schema; the JSON of a schema is nested no more than 128 deep.
    fn walk(&mut self, value: &Value) -> Result<(), GrammarError> {
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.walk(value)),
            Value::Object(fields) => {
                let has = |name: &str| fields.contains_key(name);
                let chooses = ["anyOf", "oneOf", "$ref"].into_iter().filter(|name| has(name)).count();
                let constrains =
                    ["pattern", "format", "patternProperties", "properties", "items", "additionalProperties"];
                let alongside = constrains.into_iter().any(has);
                self.holds_together |= has("allOf") || chooses > 1 || (chooses == 1 && alongside);
                self.patterns += usize::from(has("pattern")) + usize::from(has("format"));
                self.patterns += fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
                if let Some(divisor) = fields.get("multipleOf").and_then(Value::as_f64) {
                    check_divisor(divisor)?;
                }
                let is_schema =
                    |(name, _): &(&String, &Value)| !["const", "enum", "default", "examples"].contains(&name.as_str());
                fields.iter().filter(is_schema).try_for_each(|(_, value)| self.walk(value))
            }
            _ => Ok(()),
        }
    }
}

/// Bounds the digits of a divisor: 0.25 has 25.
fn check_divisor(divisor: f64) -> Result<(), GrammarError> {
    let digits: String = format!("{divisor}").chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_matches('0');
    if digits.parse().is_ok_and(|digits: u32| digits <= DIVISOR_MAX) || digits.is_empty() {
        return Ok(());
    }
    Err(GrammarError::TooComplex(format!("multipleOf is {divisor}; its digits may be {DIVISOR_MAX} at most")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(schema: &Value) -> Option<String> {
        read(&schema.to_string()).err().map(|error| error.to_string())
    }

    fn patterns(n: usize) -> Value {
        (0..n).map(|i| json!({"type": "string", "pattern": format!(".*{i}.*")})).collect()
    }

    #[test]
    fn patterns_that_hold_together_are_few_and_others_are_not_counted() {
        let few = json!({"allOf": patterns(PATTERNS_MAX)});
        assert_eq!(fault(&few), None);
        for schema in [
            json!({"allOf": patterns(9)}),
            json!({"type": "string", "pattern": "a", "anyOf": patterns(8)}),
            json!({"$ref": "#/$defs/a", "pattern": "a", "$defs": {"a": {"anyOf": patterns(8)}}}),
            json!({"anyOf": patterns(4), "oneOf": patterns(5)}),
            json!({"items": {"allOf": [{"patternProperties": {"a": true, "b": {"format": "date"}}}, {"prefixItems": patterns(6)}]}}),
        ] {
            let told = fault(&schema).unwrap();
            assert!(told.starts_with("it is too complex: it has 9 patterns and formats"), "{told}");
        }
        let apart =
            json!({"type": "object", "properties": {"a": {"items": {"anyOf": patterns(20)}}, "b": {"$ref": "#"}}});
        assert_eq!(fault(&apart), None);
        assert_eq!(fault(&json!({"allOf": [true], "enum": [patterns(20)]})), None, "values are no schemas");
    }

    #[test]
    fn divisors_are_bounded_by_their_digits() {
        let divisor = |divisor: Value| fault(&json!({"properties": {"a": {"multipleOf": divisor}}}));
        for good in [json!(1), json!(1000), json!(0.01), json!(2.5), json!(1e6), json!(0), json!("x"), json!(-7)] {
            assert_eq!(divisor(good.clone()), None, "{good}");
        }
        for bad in [json!(1001), json!(0.1234), json!(1_000_003), json!(1e300)] {
            assert_eq!(divisor(bad.clone()).is_some(), bad != json!(1e300), "{bad}");
        }
        let line = "it is too complex: multipleOf is 10.07; its digits may be 1000 at most";
        assert_eq!(divisor(json!(10.07)), Some(line.into()));
    }

    #[test]
    fn white_space_is_ours_unless_a_schema_has_its_own() {
        let options = |schema: Value| read(&schema.to_string()).unwrap()[OPTIONS].clone();
        assert_eq!(options(json!(true)), json!({"whitespace_pattern": WHITE_SPACE}));
        let theirs =
            json!({"type": "object", "x-guidance": {"whitespace_flexible": false, "whitespace_pattern": null}});
        assert_eq!(options(theirs), json!({"whitespace_pattern": null, "whitespace_flexible": false}));
        assert_eq!(read("false").unwrap(), Value::Bool(false));
        let malformed = read("{").err().unwrap().to_string();
        assert!(malformed.starts_with("it is no JSON: EOF"), "{malformed}");
        let deep = "[".repeat(200);
        assert!(read(&deep).err().unwrap().to_string().contains("recursion limit"));
    }
}
