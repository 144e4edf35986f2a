//! The tags of a template, before the library sees them.
//!
//! Three things are done to the text. `{% generation %}`, a tag of transformers that marks the answers for training, becomes `{% with %}`, a scope and no
//! more. `namespace(...)` gets another name, and stays out of other values (see [`crate::scan::prepare`]). And a tag beyond [`TOKENS_MAX`] is refused: the
//! library compiles nested expressions by recursion. The library itself cuts the text into tokens, so that both see the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use minijinja::machinery::{Token as Kind, tokenize};

use crate::syntax::{in_words, syntax};

/// Maximum number of bytes of a template; the largest in use have 20 kB.
pub(crate) const SOURCE_BYTES_MAX: usize = 1 << 18;
/// Maximum number of tokens of one tag; the longest in use have 150.
const TOKENS_MAX: usize = 1_000;
/// Function of templates for values that outlive a scope, and our name for it.
const NAMESPACE: &str = "namespace";
/// Names for one value that are followed, one set to the other.
const ALIASES_MAX: usize = 8;
pub(crate) const OWN_NAMESPACE: &str = "trunkline_namespace";

/// A name or a sign within a tag; a string counts as a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    at: usize,
    is_name: bool,
}

/// A tag `{% %}` or an expression `{{ }}`.
#[derive(Debug)]
struct Tag<'a> {
    tokens: Vec<Token<'a>>,
    is_block: bool,
}

impl<'a> Tag<'a> {
    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    /// Returns the keyword of a block tag.
    fn keyword(&self) -> &'a str {
        if self.is_block { self.text(0) } else { "" }
    }

    /// Returns `true` if the token is a variable or a function: a name that is not an attribute.
    fn is_variable(&self, at: usize) -> bool {
        self.tokens[at].is_name && (at == 0 || self.text(at - 1) != ".")
    }
}

/// Returns the source as the library is to have it.
///
/// A namespace is the one value that can hold itself, and then printing it never ends. So a template may use one as `ns.name`, and pass it to a macro under
/// the same name, but not put it into another value.
///
/// # Errors
///
/// The template is beyond a limit, or uses a namespace in another way.
pub(crate) fn prepare(source: &str) -> Result<String, String> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(format!("it has {} bytes; at most {SOURCE_BYTES_MAX} are rendered", source.len()));
    }
    let tags = tags(source)?;
    let mut changes: Vec<(Range<usize>, &str)> = Vec::new();
    let change = |token: &Token<'_>| token.at..token.at + token.text.len();
    let mut names = BTreeSet::new();
    for tag in &tags {
        match tag.keyword() {
            "generation" => changes.push((change(&tag.tokens[0]), "with")),
            "endgeneration" => changes.push((change(&tag.tokens[0]), "endwith")),
            _ => {}
        }
        for (at, token) in tag.tokens.iter().enumerate() {
            if token.text == OWN_NAMESPACE {
                return Err(format!("it uses the name {OWN_NAMESPACE}"));
            }
            let is_call = token.text == NAMESPACE && tag.is_variable(at) && tag.text(at + 1) == "(";
            if !is_call {
                continue;
            }
            let is_set = tag.keyword() == "set" && at == 3 && tag.text(2) == "=";
            let is_whole = closing(tag, at + 1) == Some(tag.tokens.len() - 1);
            if !is_set || !is_whole {
                return Err(format!("{}: a namespace must be set to a name of its own", line(source, token.at)));
            }
            names.insert(tag.text(1));
            changes.push((change(token), OWN_NAMESPACE));
        }
    }
    check_uses(source, &tags, &names)?;
    let mut out = String::new();
    let mut from = 0;
    for (range, text) in changes {
        out.push_str(&source[from..range.start]);
        out.push_str(text);
        from = range.end;
    }
    out.push_str(&source[from..]);
    Ok(out)
}

/// Checks that namespaces stay out of other values.
fn check_uses(source: &str, tags: &[Tag<'_>], names: &BTreeSet<&str>) -> Result<(), String> {
    let macros = macros(tags);
    for tag in tags {
        for (at, token) in tag.tokens.iter().enumerate() {
            if !names.contains(token.text) || !tag.is_variable(at) {
                continue;
            }
            let next = tag.text(at + 1);
            let is_set = tag.keyword() == "set" && at == 1 && next == "=" && tag.text(3) == NAMESPACE;
            let is_passed = is_parameter(tag, at) || is_argument(tag, at, &macros);
            if matches!(next, "." | "[") || is_set || is_passed {
                continue;
            }
            let place = line(source, token.at);
            return Err(format!("{place}: the namespace {} must not be put into another value", token.text));
        }
    }
    Ok(())
}

/// Returns the parameters of each macro, none for a macro that is there twice.
fn macros<'a>(tags: &[Tag<'a>]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut macros = BTreeMap::new();
    for tag in tags.iter().filter(|tag| tag.keyword() == "macro" && tag.text(2) == "(") {
        let mut parameters = Vec::new();
        let (mut depth, mut is_first) = (0, true);
        for token in &tag.tokens[3..] {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                "," if depth == 0 => is_first = true,
                name if depth == 0 && is_first => {
                    parameters.push(name);
                    is_first = false;
                }
                _ => {}
            }
        }
        macros.entry(tag.text(1)).and_modify(Vec::clear).or_insert(parameters);
    }
    macros
}

/// Returns `true` if the name at `at` is a parameter in the head of a macro, without a default.
fn is_parameter(tag: &Tag<'_>, at: usize) -> bool {
    if tag.keyword() != "macro" || at < 3 || !matches!(tag.text(at + 1), "," | ")") {
        return false;
    }
    let depth = tag.tokens[3..at].iter().fold(0, |depth, token| match token.text {
        "(" | "[" | "{" => depth + 1,
        ")" | "]" | "}" => depth - 1,
        _ => depth,
    });
    depth == 0 && (at == 3 || tag.text(at - 1) == ",")
}

/// Returns `true` if the name at `at` is all of an argument of a macro whose parameter has the same name.
fn is_argument(tag: &Tag<'_>, at: usize, macros: &BTreeMap<&str, Vec<&str>>) -> bool {
    if !matches!(tag.text(at + 1), "," | ")") || at == 0 || !matches!(tag.text(at - 1), "," | "(") {
        return false;
    }
    let (mut depth, mut position) = (0, 0);
    for before in (0..at).rev() {
        match tag.text(before) {
            ")" | "]" | "}" => depth += 1,
            "(" if depth == 0 => {
                let is_call = before > 0 && tag.is_variable(before - 1);
                let parameters = macros.get(tag.text(before.wrapping_sub(1))).filter(|_| is_call);
                return parameters.and_then(|names| names.get(position)).is_some_and(|name| *name == tag.text(at));
            }
            "[" | "{" if depth == 0 => return false,
            "(" | "[" | "{" => depth -= 1,
            "," if depth == 0 => position += 1,
            _ => {}
        }
    }
    false
}

/// Returns the token that closes the bracket at `open`.
fn closing(tag: &Tag<'_>, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for at in open..tag.tokens.len() {
        match tag.text(at) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn line(source: &str, at: usize) -> String {
    format!("line {}", source[..at].matches('\n').count() + 1)
}

/// Returns `true` if a template has a loop over the content of a message, and so takes a list of parts.
///
/// vLLM looks for such loops, too. A loop over `message.content`, over a name set to that, or over the parameter of a macro that is called with that, counts;
/// a loop over parts of a text, as in `message.content.split(...)`, does not.
pub(crate) fn takes_parts(source: &str) -> bool {
    let Ok(tags) = tags(source) else { return false };
    let macros = macros(&tags);
    let mut names = BTreeSet::from(["content"]);
    // A name may be set to a name that is set further down: macros stand first.
    for _ in 0..ALIASES_MAX {
        let known = names.len();
        for tag in &tags {
            if tag.keyword() == "set" && tag.text(2) == "=" && ends_in_content(tag, 3, tag.tokens.len(), &names) {
                names.insert(tag.text(1));
            }
            for at in 1..tag.tokens.len() {
                let parameters =
                    macros.get(tag.text(at - 1)).filter(|_| tag.text(at) == "(" && tag.keyword() != "macro");
                if let Some(parameters) = parameters
                    && let Some(parameter) = parameters.first()
                    && ends_in_content(tag, at + 1, first_argument(tag, at), &names)
                {
                    names.insert(parameter);
                }
            }
        }
        if names.len() == known {
            break;
        }
    }
    tags.iter().filter(|tag| tag.keyword() == "for").any(|tag| {
        let of = (0..tag.tokens.len()).find(|at| tag.text(*at) == "in").map_or(tag.tokens.len(), |at| at + 1);
        let end = (of..tag.tokens.len()).find(|at| tag.text(*at) == "if").unwrap_or(tag.tokens.len());
        ends_in_content(tag, of, end, &names)
    })
}

/// Returns the end of the first argument of a call whose bracket is at `open`.
fn first_argument(tag: &Tag<'_>, open: usize) -> usize {
    let mut depth = 0;
    for at in open + 1..tag.tokens.len() {
        match tag.text(at) {
            "," | ")" if depth == 0 => return at,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tag.tokens.len()
}

/// Returns `true` if the tokens from `from` to `to` are a path that ends in the content of a message: `a.content`, `a['content']`, or a name for it.
fn ends_in_content(tag: &Tag<'_>, from: usize, to: usize, names: &BTreeSet<&str>) -> bool {
    let path: Vec<&str> = (from..to).map(|at| tag.text(at)).collect();
    match path.as_slice() {
        [name] => names.contains(name),
        [.., ".", "content"] | [.., "[", "'content'" | "\"content\"", "]"] => {
            path.iter().all(|token| token.chars().all(is_of_a_path))
        }
        _ => false,
    }
}

fn is_of_a_path(c: char) -> bool {
    c.is_alphanumeric() || "_.[]'\"-+".contains(c)
}

/// Returns the tags, as the library itself finds them.
fn tags(source: &str) -> Result<Vec<Tag<'_>>, String> {
    let mut tags: Vec<Tag<'_>> = Vec::new();
    for found in tokenize(source, false, syntax()) {
        let (kind, span) = found.map_err(|error| in_words(&error))?;
        let at = span.start_offset as usize;
        match kind {
            Kind::TemplateData(_) | Kind::VariableEnd | Kind::BlockEnd => continue,
            Kind::VariableStart | Kind::BlockStart => {
                tags.push(Tag { tokens: Vec::new(), is_block: matches!(kind, Kind::BlockStart) });
                continue;
            }
            _ => {}
        }
        let Some(tag) = tags.last_mut() else { continue };
        if tag.tokens.len() == TOKENS_MAX {
            return Err(format!("{}: the tag has more than {TOKENS_MAX} tokens", line(source, at)));
        }
        let text = &source[at..span.end_offset as usize];
        tag.tokens.push(Token { text, at, is_name: matches!(kind, Kind::Ident(_)) });
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_answers_becomes_a_scope() {
        for (source, prepared) in [
            ("a{%- generation -%}b{% endgeneration %}", "a{%- with -%}b{% endwith %}"),
            ("{# {% generation %} #}{{ '{% generation %}' }}", "{# {% generation %} #}{{ '{% generation %}' }}"),
            ("{% raw %}{% generation %}{%- endraw %}{%generation%}", "{% raw %}{% generation %}{%- endraw %}{%with%}"),
            ("{{ {'a': {'b': 1}}.a }}{% generation %}", "{{ {'a': {'b': 1}}.a }}{% with %}"),
            ("{{ generation }}{ % generation %}", "{{ generation }}{ % generation %}"),
            ("{% if x == '\\'%}' %}{% generation %}", "{% if x == '\\'%}' %}{% with %}"),
        ] {
            assert_eq!(prepare(source).as_deref(), Ok(prepared), "{source}");
        }
    }

    #[test]
    fn a_namespace_stays_out_of_other_values() {
        for source in [
            "{% set ns = namespace(a=1, b=[(1)]) %}{% set ns.a = ns['b'] %}{{ ns.a }}{{ x.ns }}",
            "{% macro f(a, ns) %}{{ ns.a }}{% endmacro %}{% set ns = namespace(a=1) %}{{ f([1, 2], ns) }}",
            "{% macro f(namespace='') %}{{ '' + namespace + '' }}{% endmacro %}",
            "{% set ns = namespace() %}{{ 'ns, ns' }}",
        ] {
            assert!(prepare(source).is_ok(), "{source}");
        }
        for source in [
            "{% set ns = namespace() %}{% set ns.a = ns %}",
            "{% set ns = namespace() %}{% set a = [ns] %}",
            "{% set ns = namespace() %}{% set a = (ns,) %}",
            "{% set ns = namespace() %}{{ ns }}",
            "{% macro f(a=ns) %}{% endmacro %}{% set ns = namespace() %}",
            "{% macro f(a=(1, ns)) %}{% endmacro %}{% set ns = namespace() %}",
            "{% raw %}{% endraw x %}{{ '{% endraw %}{% set ns = namespace() %}{{ [ns] }}",
            "{% set ns = namespace() %}{{ f(a=ns) }}",
            "{% set ns = namespace() %}{{ f(ns) }}",
            "{% macro f(a) %}{% endmacro %}{% set ns = namespace() %}{{ f(ns) }}",
            "{% macro f(a) %}{% endmacro %}{% macro f(ns) %}{% endmacro %}{% set ns = namespace() %}{{ f(ns) }}",
            "{% macro f(a, ns) %}{% endmacro %}{% set ns = namespace() %}{{ f(ns, 1) }}",
            "{% macro f(ns) %}{% endmacro %}{% set ns = namespace() %}{{ x.f(ns) }}",
            "{% macro f(ns) %}{% endmacro %}{% set ns = namespace() %}{{ f([ns]) }}",
            "{% macro f(ns) %}{{ [ns] }}{% endmacro %}{% set ns = namespace() %}{{ f(ns) }}",
            "{% set ns = namespace() or 1 %}",
            "{% set a, ns = namespace() %}",
            "{% for ns in [namespace()] %}{% endfor %}",
            "{{ namespace() }}",
            "{% set n = trunkline_namespace() %}",
        ] {
            assert!(prepare(source).is_err(), "{source}");
        }
    }

    #[test]
    fn templates_and_tags_have_limits() {
        let long = "a".repeat(SOURCE_BYTES_MAX + 1);
        assert_eq!(prepare(&long).unwrap_err(), "it has 262145 bytes; at most 262144 are rendered");
        let wide = "a\n{{ 1".to_owned() + &"+1".repeat(TOKENS_MAX) + " }}";
        assert_eq!(prepare(&wide).unwrap_err(), "line 2: the tag has more than 1000 tokens");
    }
}
