//! Grammars in llama.cpp's form, GBNF, written in Lark's syntax. vLLM takes them too, with `xgrammar`.
//!
//! Rules keep their places and their order; `root` is Lark's `start`, and the others get names that Lark takes.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use crate::error::GrammarError;

/// Part of a grammar.
#[derive(Debug, PartialEq)]
enum Part {
    Name(String),
    /// `::=`
    Is,
    /// A text, or an expression for one character, as Lark has them.
    Terminal(String),
    /// A sign that means the same in Lark.
    Sign(String),
}

/// Returns `true` for the text of a grammar in this form: Lark has no `::=`.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// Writes a grammar in Lark's syntax.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let parts = Reader { rest: text.chars().peekable() }.parts()?;
    let mut names: HashMap<&str, String> = HashMap::from([("root", "start".to_owned())]);
    for part in &parts {
        if let Part::Name(name) = part {
            let n = names.len();
            names.entry(name).or_insert_with(|| format!("rule_{n}"));
        }
    }
    let mut lark = String::new();
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Name(name) if parts.get(at + 1) == Some(&Part::Is) => {
                let _ = write!(lark, "\n{}:", names[name.as_str()]);
            }
            _ if lark.is_empty() => return Err(malformed("its first rule has no name".into())),
            Part::Name(name) => {
                let _ = write!(lark, " {}", names[name.as_str()]);
            }
            Part::Is if matches!(parts.get(at.wrapping_sub(1)), Some(Part::Name(_))) => {}
            Part::Is => return Err(malformed("'::=' stands behind no name".into())),
            // A repetition stands behind what it repeats.
            Part::Sign(sign) if sign.starts_with(['*', '+', '?', '{']) => lark.push_str(sign),
            Part::Sign(text) | Part::Terminal(text) => {
                let _ = write!(lark, " {text}");
            }
        }
    }
    Ok(lark + "\n")
}

fn malformed(why: String) -> GrammarError {
    GrammarError::Malformed(why)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    fn parts(mut self) -> Result<Vec<Part>, GrammarError> {
        let mut parts = Vec::new();
        while let Some(c) = self.rest.next() {
            parts.push(match c {
                c if c.is_whitespace() => continue,
                '#' => {
                    while self.rest.next_if(|c| *c != '\n').is_some() {}
                    continue;
                }
                ':' if self.rest.next_if_eq(&':').is_some() && self.rest.next_if_eq(&'=').is_some() => Part::Is,
                '"' => Part::Terminal(self.text()?),
                '[' => Part::Terminal(self.class()?),
                '.' => Part::Terminal("/./s".into()),
                '(' | ')' | '|' | '*' | '+' | '?' => Part::Sign(c.into()),
                '{' => {
                    let inner: String = std::iter::from_fn(|| self.rest.next_if(|c| *c != '}')).collect();
                    let is_range = !inner.is_empty() && inner.chars().all(|c| c.is_ascii_digit() || " ,".contains(c));
                    if !is_range || self.rest.next().is_none() {
                        return Err(malformed(format!("a repetition is {}", trunkline_quote::quoted(&inner))));
                    }
                    Part::Sign(format!("{{{}}}", inner.replace(' ', "")))
                }
                c if is_of_name(c) => {
                    let mut name = String::from(c);
                    name.extend(std::iter::from_fn(|| self.rest.next_if(|c| is_of_name(*c))));
                    Part::Name(name)
                }
                c => {
                    return Err(malformed(format!(
                        "{} stands outside of a text",
                        trunkline_quote::quoted(&c.to_string())
                    )));
                }
            });
        }
        Ok(parts)
    }

    /// Reads a text behind its first quote.
    fn text(&mut self) -> Result<String, GrammarError> {
        let mut text = String::new();
        loop {
            match self.character()? {
                (false, '"') => return Ok(serde_json::Value::String(text).to_string()),
                (_, c) => text.push(c),
            }
        }
    }

    /// Reads a class of characters behind its bracket.
    fn class(&mut self) -> Result<String, GrammarError> {
        let mut class = String::from("/[");
        if self.rest.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut is_first = true;
        loop {
            match self.character()? {
                (false, ']') if !is_first => return Ok(class + "]/"),
                (false, '-') if !is_first && self.rest.peek() != Some(&']') => class.push('-'),
                (_, c) => {
                    let _ = write!(class, "\\u{{{:X}}}", u32::from(c));
                }
            }
            is_first = false;
        }
    }

    /// Reads a character of a text or a class, and says if it was escaped.
    fn character(&mut self) -> Result<(bool, char), GrammarError> {
        let cut = || malformed("it ends within a text or a class".into());
        let c = self.rest.next().ok_or_else(cut)?;
        if c != '\\' {
            return Ok((false, c));
        }
        let escaped = match self.rest.next().ok_or_else(cut)? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' => self.code_point(2)?,
            'u' => self.code_point(4)?,
            'U' => self.code_point(8)?,
            c => c,
        };
        Ok((true, escaped))
    }

    fn code_point(&mut self, n: usize) -> Result<char, GrammarError> {
        let digits: String = std::iter::from_fn(|| self.rest.next_if(char::is_ascii_hexdigit)).take(n).collect();
        let point = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == n).and_then(char::from_u32);
        point.ok_or_else(|| malformed(format!("the escape of {} is no character", trunkline_quote::quoted(&digits))))
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_form_in_lark() {
        let gbnf = "# a list\nroot ::= \"[\" item (\", \" item)* \"]\" # its end\nitem ::= [a-z]+ |\n  Other-Item{2,3}\n\nOther-Item ::= [^\\]\\x41\"^] . \"\\\"\\u00e9\\n\" root? [-/]{1}";
        let lark = concat!(
            "\nstart: \"[\" rule_1 ( \", \" rule_1 )* \"]\"",
            "\nrule_1: /[\\u{61}-\\u{7A}]/+ | rule_2{2,3}",
            "\nrule_2: /[^\\u{5D}\\u{41}\\u{22}\\u{5E}]/ /./s \"\\\"\u{E9}\\n\" start? /[\\u{2D}\\u{2F}]/{1}\n",
        );
        assert_eq!(to_lark(gbnf).unwrap(), lark);
        assert!(is_gbnf(gbnf) && !is_gbnf(lark));
    }

    #[test]
    fn what_is_malformed_gets_one_line() {
        for (gbnf, line) in [
            ("root ::= \"a", "it ends within a text or a class"),
            ("root ::= [a", "it ends within a text or a class"),
            ("root ::= \"\\u12\"", "the escape of '12' is no character"),
            ("root ::= \"a\"{x}", "a repetition is 'x'"),
            ("root ::= \"a\"{2", "a repetition is '2'"),
            ("\"a\" root ::= b", "its first rule has no name"),
            ("root ::= ::= b", "'::=' stands behind no name"),
            ("root ::= a & b", "'&' stands outside of a text"),
            ("root := a ::= b", "':' stands outside of a text"),
        ] {
            assert_eq!(to_lark(gbnf).unwrap_err().to_string(), line, "{gbnf}");
        }
    }
}
