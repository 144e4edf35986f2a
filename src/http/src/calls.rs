//! Calls of tools in the text of a model, read as the text comes.
//!
//! | name, as vLLM has it | form |
//! |---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen |
//! | `llama3_json` | the answer is `{"name": …, "parameters": {…}}`, more behind `;`, `<\|python_tag\|>` before: Llama 3 |
//! | `mistral` | `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]NAME{…}`, `[ARGS]` before the arguments: Mistral |
//!
//! Each character is looked at once, and decides together with those before it: how the text is cut into chunks has no effect. What begins
//! as a call and is none comes back as text. White space around calls is layout.

use std::str::FromStr;

use serde::de::IgnoredAny;
use trunkline_quote::quoted;

/// Form in which a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolCallParser {
    /// `hermes`.
    Hermes,
    /// `llama3_json`.
    Llama3Json,
    /// `mistral`.
    Mistral,
}

/// Names of the forms.
const NAMES: [(&str, ToolCallParser); 3] = [
    ("hermes", ToolCallParser::Hermes),
    ("llama3_json", ToolCallParser::Llama3Json),
    ("mistral", ToolCallParser::Mistral),
];

impl FromStr for ToolCallParser {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, parser)| *parser);
        found.ok_or_else(|| {
            format!("{} is no parser; there are hermes (Qwen too), llama3_json and mistral", quoted(name))
        })
    }
}

/// Call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// An object of JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// Text that ends a call of `hermes`.
const CALL_END: &str = "</tool_call>";
/// Text before the arguments of a call of `mistral`.
pub(crate) const ARGS: &str = "[ARGS]";

impl ToolCallParser {
    /// Returns the text that begins calls.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Llama3Json => "<|python_tag|>",
            Self::Mistral => "[TOOL_CALLS]",
        }
    }

    /// Returns `true` if the mark is a special token with some models, which their text has to show.
    pub(crate) fn needs_special_tokens(self) -> bool {
        self != Self::Llama3Json
    }
}

/// Place in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// In front of all text of an answer that may begin with a call.
    Front,
    /// In text.
    Outside,
    /// A call may begin, with a name or an object.
    Before,
    /// A name whose arguments follow.
    Name,
    /// Between a name and its arguments: this many bytes of `[ARGS]`.
    Args(usize),
    /// In an object, from this byte of what is held.
    Object(usize, Nesting),
    /// Behind an object: this many bytes of the end of a call, of which the text is in this range.
    Behind(usize, usize, usize),
    /// Behind a call, where another may begin.
    Between,
    /// In a list of calls.
    List,
}

/// Nesting of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Nesting {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    /// Takes a character; returns `true` if the value that began with a bracket ends.
    fn ends(&mut self, c: char) -> bool {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }
}

/// Reader of the calls in one answer.
#[derive(Debug)]
pub(crate) struct Calls {
    parser: ToolCallParser,
    phase: Phase,
    /// `true` in a list of calls, which ends with a bracket.
    in_list: bool,
    /// Text that may be of a call.
    held: String,
    /// White space at the beginning, or behind a call.
    blank: Option<String>,
    /// `true` once there was a call.
    called: bool,
}

/// Text and calls that are read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
}

impl Calls {
    pub(crate) fn new(parser: ToolCallParser) -> Self {
        let phase = if parser == ToolCallParser::Llama3Json { Phase::Front } else { Phase::Outside };
        let blank = Some(String::new());
        Self { parser, phase, in_list: false, held: String::new(), blank, called: false }
    }

    /// Begins an answer that is a list of calls, without the mark before it.
    pub(crate) fn of_list() -> Self {
        Self { phase: Phase::Before, ..Self::new(ToolCallParser::Mistral) }
    }

    /// Takes what the model wrote next.
    pub(crate) fn push(&mut self, text: &str, found: &mut Found) {
        for c in text.chars() {
            self.take(c, found);
        }
    }

    /// Ends the text: a call without its end is one, and half an object is text.
    pub(crate) fn finish(&mut self, found: &mut Found) {
        match self.phase {
            Phase::Behind(from, to, _) => self.call(from, to, found),
            // What separates calls, without a further one.
            Phase::Between | Phase::List if self.called => {
                if !self.held.trim_start().starts_with([',', ';']) {
                    self.give_back(found);
                }
            }
            _ => self.give_back(found),
        }
        if !self.called {
            found.text.push_str(&self.blank.take().unwrap_or_default());
        }
    }

    fn take(&mut self, c: char, found: &mut Found) {
        self.held.push(c);
        match self.phase {
            Phase::Front => self.front(c, found),
            Phase::Outside => self.outside(found),
            Phase::Before => self.before(c, found),
            Phase::Name => self.name(c, found),
            Phase::Args(n) => self.args(c, n, found),
            Phase::Object(from, nesting) => self.object(c, from, nesting, found),
            Phase::Behind(from, to, n) => self.behind(c, (from, to), n, found),
            Phase::Between => self.between(c, found),
            Phase::List => self.list(c, found),
        }
    }

    /// Gives what is held back as text, and goes on in text.
    fn give_back(&mut self, found: &mut Found) {
        self.phase = Phase::Outside;
        self.in_list = false;
        let held = std::mem::take(&mut self.held);
        self.text(&held, found);
    }

    fn text(&mut self, text: &str, found: &mut Found) {
        match &mut self.blank {
            Some(blank) if text.trim_start().is_empty() => blank.push_str(text),
            blank => {
                found.text.push_str(&blank.take().unwrap_or_default());
                found.text.push_str(text);
            }
        }
    }

    /// Gives what is held as text, as it is no call, and looks at its last `again` bytes again: they may begin one.
    fn reject(&mut self, again: usize, found: &mut Found) {
        let last = self.held.split_off(self.held.len() - again);
        self.give_back(found);
        last.chars().for_each(|c| self.take(c, found));
    }

    /// Takes the call whose object is in a range of what is held; text if it is none.
    fn call(&mut self, from: usize, to: usize, found: &mut Found) {
        let object = &self.held[from..to];
        let call = match self.phase {
            Phase::Object(..) if self.parser == ToolCallParser::Mistral && !self.in_list => {
                let name = self.held[self.parser.mark().len()..from].trim_end().trim_end_matches(ARGS).trim();
                is_json(object).then(|| Call { name: name.to_owned(), arguments: object.to_owned() })
            }
            _ => call_of(object),
        };
        let Some(call) = call else { return self.give_back(found) };
        found.calls.push(call);
        self.held.clear();
        self.blank = Some(String::new());
        self.called = true;
        self.phase = if self.in_list { Phase::List } else { Phase::Between };
    }

    fn front(&mut self, c: char, found: &mut Found) {
        if c == '{' {
            self.begin_object();
        } else if !c.is_whitespace() {
            self.phase = Phase::Outside;
            self.outside(found);
        }
    }

    fn begin_object(&mut self) {
        let nesting = Nesting { depth: 1, ..Nesting::default() };
        self.phase = Phase::Object(self.held.len() - 1, nesting);
    }

    /// Holds what may be the mark, and gives the text before it.
    fn outside(&mut self, found: &mut Found) {
        let mark = self.parser.mark();
        let is_begin = |from: usize| mark.starts_with(&self.held[from..]);
        let from = self.held.char_indices().map(|(at, _)| at).find(|at| is_begin(*at)).unwrap_or(self.held.len());
        let text: String = self.held.drain(..from).collect();
        self.text(&text, found);
        if self.held.len() == mark.len() {
            self.phase = Phase::Before;
        }
    }

    fn before(&mut self, c: char, found: &mut Found) {
        match c {
            '{' if self.parser != ToolCallParser::Mistral => self.begin_object(),
            '[' if self.parser == ToolCallParser::Mistral => (self.in_list, self.phase) = (true, Phase::List),
            c if c.is_whitespace() => {}
            c if self.parser == ToolCallParser::Mistral && is_of_name(c) => self.phase = Phase::Name,
            c => self.reject(c.len_utf8(), found),
        }
    }

    fn name(&mut self, c: char, found: &mut Found) {
        match c {
            '{' => self.begin_object(),
            '[' => self.phase = Phase::Args(1),
            c if is_of_name(c) => {}
            c => self.reject(c.len_utf8(), found),
        }
    }

    fn args(&mut self, c: char, n: usize, found: &mut Found) {
        match c {
            c if ARGS[n..].starts_with(c) => self.phase = Phase::Args(n + 1),
            '{' if n == ARGS.len() => self.begin_object(),
            c if n == ARGS.len() && c.is_whitespace() => {}
            c => self.reject(if n < ARGS.len() { n } else { 0 } + c.len_utf8(), found),
        }
    }

    fn object(&mut self, c: char, from: usize, mut nesting: Nesting, found: &mut Found) {
        let is_end = nesting.ends(c);
        if !is_end {
            self.phase = Phase::Object(from, nesting);
        } else if self.parser == ToolCallParser::Hermes {
            self.phase = Phase::Behind(from, self.held.len(), 0);
        } else {
            self.call(from, self.held.len(), found);
        }
    }

    fn behind(&mut self, c: char, object: (usize, usize), n: usize, found: &mut Found) {
        if CALL_END[n..].starts_with(c) {
            self.phase = Phase::Behind(object.0, object.1, n + 1);
            if n + 1 == CALL_END.len() {
                self.call(object.0, object.1, found);
            }
        } else if n > 0 || !c.is_whitespace() {
            self.reject(n + c.len_utf8(), found);
        }
    }

    fn between(&mut self, c: char, found: &mut Found) {
        let so_far = self.held.trim_start();
        match c {
            '{' if so_far.starts_with(';') => self.begin_object(),
            ';' if self.parser == ToolCallParser::Llama3Json && so_far == ";" => {}
            c if c.is_whitespace() => {}
            c => self.reject(c.len_utf8(), found),
        }
    }

    fn list(&mut self, c: char, found: &mut Found) {
        match c {
            '{' => self.begin_object(),
            // A list without calls is none.
            ']' if self.held.starts_with(self.parser.mark()) => self.give_back(found),
            ']' => {
                self.held.clear();
                (self.in_list, self.phase) = (false, Phase::Between);
            }
            ',' => {}
            c if c.is_whitespace() => {}
            c => self.reject(c.len_utf8(), found),
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Returns the call that an object describes.
fn call_of(object: &str) -> Option<Call> {
    if !is_json(object) {
        return None;
    }
    let fields = fields(object)?;
    let value = |keys: &[&str]| fields.iter().find(|(key, _)| keys.contains(&&**key)).map(|(_, value)| *value);
    let name: String = serde_json::from_str(value(&["name"])?).ok()?;
    let arguments = match value(&["arguments", "parameters"]) {
        None | Some("null") => "{}".to_owned(),
        Some(object) if object.starts_with('{') => object.to_owned(),
        // Some models put the object into a text.
        Some(text) => {
            serde_json::from_str::<String>(text).ok().filter(|text| text.starts_with('{') && is_json(text))?
        }
    };
    Some(Call { name, arguments })
}

/// Returns the keys of an object of valid JSON with the texts of their values.
fn fields(object: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = object.strip_prefix('{')?.trim_start();
    let mut fields = Vec::new();
    while !rest.starts_with('}') {
        let mut keys = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let key = keys.next()?.ok()?;
        rest = rest[keys.byte_offset()..].trim_start().strip_prefix(':')?.trim_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        let (value, behind) = rest.split_at(values.byte_offset());
        fields.push((key, value));
        let behind = behind.trim_start();
        rest = behind.strip_prefix(',').unwrap_or(behind).trim_start();
    }
    Some(fields)
}

#[cfg(test)]
mod tests;
