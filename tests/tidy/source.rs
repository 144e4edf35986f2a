//! Source files split into the parts that the rules look at: functions, structs, doc comments, paths.
//!
//! The sources are formatted by rustfmt, so an item ends at the first line that has its indentation and a closing brace.

/// Parts of a declaration that may stand before its keyword.
const QUALIFIERS: [&str; 6] = ["pub ", "const ", "async ", "unsafe ", "extern \"C\" ", "default "];

/// A name, and the number of lines or fields under that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sized {
    pub n: usize,
    pub name: String,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Strips visibility and qualifiers from a trimmed line.
fn declaration(mut line: &str) -> &str {
    loop {
        if let Some(rest) = line.strip_prefix("pub(") {
            line = rest.split_once(") ").map_or("", |(_, rest)| rest);
            continue;
        }
        match QUALIFIERS.iter().find_map(|qualifier| line.strip_prefix(qualifier)) {
            Some(rest) => line = rest,
            None => return line,
        }
    }
}

/// Returns the line at which the item that begins at line `from` ends.
fn end_of_item(lines: &[&str], from: usize) -> usize {
    let closing = |line: &str| indent(line) == indent(lines[from]) && line.trim_start().starts_with('}');
    for (at, line) in lines.iter().enumerate().skip(from) {
        let text = line.trim_end();
        let whole = at == from && text.ends_with('}');
        if whole || (at > from && closing(line)) || (text.ends_with(';') && indent(line) == indent(lines[from])) {
            return at;
        }
    }
    lines.len() - 1
}

/// Returns the source without items under `#[cfg(test)]`.
pub fn without_tests(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim();
        if line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test") {
            let item = (at..lines.len()).find(|at| !lines[*at].trim().starts_with("#[")).unwrap_or(at);
            at = end_of_item(&lines, item) + 1;
            continue;
        }
        out.push_str(lines[at]);
        out.push('\n');
        at += 1;
    }
    out
}

/// Returns all functions with a body, by number of lines.
pub fn functions(text: &str) -> Vec<Sized> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = Vec::new();
    for (from, line) in lines.iter().enumerate() {
        let Some(rest) = declaration(line.trim_start()).strip_prefix("fn ") else { continue };
        let to = end_of_item(&lines, from);
        if lines[to].trim_end().ends_with('}') {
            out.push(Sized { n: to - from + 1, name: identifier(rest).to_owned() });
        }
    }
    out
}

/// Returns all structs with named fields, by number of fields.
pub fn structs(text: &str) -> Vec<Sized> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = Vec::new();
    for (from, line) in lines.iter().enumerate() {
        let Some(rest) = declaration(line.trim_start()).strip_prefix("struct ") else { continue };
        if !line.ends_with('{') {
            continue;
        }
        let field = |inner: &&&str| {
            let text = declaration(inner.trim_start());
            let name = identifier(text);
            indent(inner) == indent(line) + 4 && !name.is_empty() && text[name.len()..].starts_with(": ")
        };
        let n = lines[from..end_of_item(&lines, from)].iter().filter(field).count();
        out.push(Sized { n, name: identifier(rest).to_owned() });
    }
    out
}

/// A doc comment, its lines joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doc {
    /// `true` for `//!`, which documents the enclosing module.
    pub inner: bool,
    pub text: String,
}

/// Returns all doc comments.
pub fn docs(text: &str) -> Vec<Doc> {
    let mut out: Vec<Doc> = Vec::new();
    let mut open = false;
    for line in text.lines().map(str::trim_start) {
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        match comment {
            Some(text) if open => {
                let doc = out.last_mut().expect("a comment is open");
                doc.text.push(' ');
                doc.text.push_str(text.trim());
            }
            Some(text) => out.push(Doc { inner: line.starts_with("//!"), text: text.trim().to_owned() }),
            None => {}
        }
        open = comment.is_some();
    }
    out
}

/// Returns the words of a doc comment in lower case; code and links count as one word each.
pub fn words(doc: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut closing = None;
    for c in doc.chars() {
        match closing {
            Some(end) if c == end => closing = None,
            Some(_) => {}
            None if c == '`' => closing = Some('`'),
            None if c == '[' => closing = Some(']'),
            None => {
                plain.push(c);
                continue;
            }
        }
        plain.push('x');
    }
    let is_word = |c: char| c.is_ascii_alphabetic() || c == '\'';
    plain.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// Returns the parts of all identifiers outside comments and strings, in lower case: `set_aside` has `set` and `aside`.
pub fn identifier_parts(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut part = String::new();
        // Every second piece between quotes is a string.
        for code in line.split('"').step_by(2) {
            for c in code.chars().chain(std::iter::once(' ')) {
                if !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && !part.ends_with(|c: char| c.is_uppercase())) {
                    out.push(std::mem::take(&mut part).to_ascii_lowercase());
                }
                if c.is_ascii_alphabetic() {
                    part.push(c);
                }
            }
        }
    }
    out.retain(|part| !part.is_empty());
    out
}

/// Returns the code without comments and the contents of strings.
pub fn code_of(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let lines = lines.map(|line| line.split(" // ").next().unwrap_or(line)).collect::<Vec<_>>().join("\n");
    // Every second piece between quotes is a string.
    lines.replace("\\\"", "").replace("'\"'", "").split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// Returns the keywords and names of code.
pub fn identifiers(code: &str) -> Vec<&str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').collect()
}

/// Returns the texts in quotes.
pub fn texts(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n").replace("\\\"", "`").split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the first value that a format shows in single quotes of its own; empty without one.
pub fn quoted_by_hand(format: &str) -> &str {
    let values = format.match_indices("'{").filter_map(|(at, _)| {
        let name = format[at + 2..].split_once("}'")?.0;
        let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        is_name.then(|| &format[at..at + name.len() + 4])
    });
    values.into_iter().next().unwrap_or_default()
}

/// Returns the module paths that the code of a file names after `root` (`crate` or `super`), as in `["a", "b"]`.
pub fn paths(text: &str, root: &str) -> Vec<Vec<String>> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let needle = format!("{root}::");
    let mut out = Vec::new();
    for (at, _) in code.match_indices(&needle) {
        let before = code[..at].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            path(&code[at + needle.len()..], &mut Vec::new(), &mut out);
        }
    }
    out
}

/// Reads one path, or a group of paths in braces, and returns the number of bytes read.
fn path(text: &str, prefix: &mut Vec<String>, out: &mut Vec<Vec<String>>) -> usize {
    let depth = prefix.len();
    let mut at = 0;
    loop {
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += text[at..].len() - text[at..].trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
                if text[at..].is_empty() || text[at..].starts_with('}') {
                    at = (at + 1).min(text.len());
                    break;
                }
                let read = path(&text[at..], prefix, out);
                at += read;
                // What a path does not read, such as `as x` or `*`.
                at += text[at..].find([',', '}']).unwrap_or(text.len() - at);
            }
            break;
        }
        let name = identifier(&text[at..]);
        if name.is_empty() {
            break;
        }
        prefix.push(name.to_owned());
        at += name.len();
        if !text[at..].starts_with("::") {
            out.push(prefix.clone());
            break;
        }
        at += 2;
    }
    if text[..at].ends_with("::") {
        out.push(prefix.clone());
    }
    prefix.truncate(depth);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_structs_are_measured_without_tests() {
        let source = "pub(crate) struct A {\n    pub a: u32,\n    /// b: no field\n    b: Vec<u8>,\n}\n\nimpl A {\n    \
                      pub const fn one(&self) -> u32 {\n        1\n    }\n\n    fn two(&self) {}\n}\n\ntrait T {\n    \
                      fn declared(&self);\n}\n\n#[cfg(test)]\nmod tests {\n    fn unseen() {\n    }\n}\n";
        let text = without_tests(source);
        assert!(!text.contains("unseen"));
        let sized = |n, name: &str| Sized { n, name: name.into() };
        assert_eq!(functions(&text), [sized(3, "one"), sized(1, "two")]);
        assert_eq!(structs(&text), [sized(2, "A")]);
        assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests;\nb\n"), "a\nb\n");
    }

    #[test]
    fn docs_are_joined_and_their_words_counted() {
        let docs = docs("//! One\n//! two.\n\n/// Three [`four`] `it that`.\nfn f() {}\n");
        assert_eq!(
            docs.iter().map(|doc| (doc.inner, &doc.text[..])).collect::<Vec<_>>(),
            [(true, "One two."), (false, "Three [`four`] `it that`."),]
        );
        assert!(words(&docs[1].text).iter().all(|word| word == "three" || word.starts_with('x')));
        assert_eq!(
            identifier_parts("let SetAside = set_aside(\"dear\"); // x"),
            ["let", "set", "aside", "set", "aside", "x"]
        );
    }

    #[test]
    fn code_is_told_from_comments_and_strings() {
        for code in ["unsafe { x }", "unsafe impl Send for A {}", "pub unsafe fn a() {}", "unsafe extern \"C\" {}"] {
            assert!(identifiers(&code_of(code)).contains(&"unsafe"), "{code}");
        }
        for code in ["// unsafe {", "let a = \"unsafe {\";", "#[expect(unsafe_code)]", "let unsafe_files = 1;"] {
            assert!(!identifiers(&code_of(code)).contains(&"unsafe"), "{code}");
        }
    }

    #[test]
    fn values_in_quotes_of_a_format_are_found() {
        assert_eq!(texts("f(\"a\", 'b');\n// \"c\"\nf(\"d \\\"e\\\"\")"), ["a", "d `e`"]);
        assert_eq!(["'{a}'", "x '{}' y", "'{0}'"].map(quoted_by_hand), ["'{a}'", "'{}'", "'{0}'"]);
        assert_eq!(["{a}", "'a'", "'{{x}}'", "'{a}:{b}'"].map(quoted_by_hand), [""; 4]);
    }

    #[test]
    fn paths_are_read_through_groups() {
        let source =
            "use crate::{a::{self, b::C}, d as e};\nuse crate::f::*;\n// crate::g\nlet x = crate::h::i(super::j);\n";
        let joined: Vec<_> = paths(source, "crate").iter().map(|path| path.join("::")).collect();
        assert_eq!(joined, ["a::self", "a::b::C", "d", "f", "h::i"]);
        assert_eq!(paths(source, "super"), [["j"]]);
    }
}
