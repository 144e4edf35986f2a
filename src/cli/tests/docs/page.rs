//! Parts of a page: blocks of commands, the outputs printed below, tables of figures, files; and the marks in comments, which no reader sees.
//!
//! | mark | meaning |
//! |---|---|
//! | none | commands run in every check; a `text` block is what they print |
//! | `<!-- run: long (WHY) -->` | the commands below run only in the long check |
//! | `<!-- run: data -->` | the commands below need the public data of `TRUNKLINE_DATA` |
//! | `<!-- run: needs curl -->` | the commands below need a program that not every machine has |
//! | `<!-- run: never (WHY) -->` | the commands below do not run here |
//! | `<!-- run:`, commands on lines of their own, `-->` | commands that a reader does not need |
//! | `<!-- output: figures -->` | the numbers of the table or text below are in the output of the commands above |
//! | `<!-- output: figures of NAME -->` | those of the rows of the table that begin with this name |
//! | `<!-- output: none (WHY) -->` | the text below is not compared |
//! | `<!-- file: NAME -->` | the block below is a file of that name for the commands behind |
//!
//! Conditions may be joined by commas: `<!-- run: long, data, needs jq (an hour) -->`.

/// Languages of blocks that hold no commands and no output; drawings and layouts of bytes have none.
const OTHER: [&str; 7] = ["", "toml", "json", "yaml", "python", "rust", "rust,ignore"];

/// Conditions under which commands run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    pub long: bool,
    pub data: bool,
    pub never: bool,
    /// Programs that have to be there.
    pub needs: Vec<String>,
    /// Reason of a condition, for people.
    pub why: String,
}

/// Content of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Commands(Conditions),
    /// Lines that the commands before print.
    Output,
    /// Numbers found in the output of the commands before; of a table the rows that begin so.
    Figures(String),
    /// Text that is not compared, with the reason.
    Uncompared(String),
    /// A file of that name.
    File(String),
}

/// Part of a page that a check takes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Line of the first line of the text, from 1.
    pub line: usize,
    pub content: Content,
    pub text: String,
}

/// Mark that waits for the block below.
enum Mark {
    Run(Conditions),
    Figures(String),
    Uncompared(String),
    File(String),
}

fn conditions(text: &str) -> Result<Conditions, String> {
    let (words, why) = match text.split_once('(') {
        Some((words, why)) => (words, why.trim_end().strip_suffix(')').ok_or("a reason ends in ')'")?),
        None => (text, ""),
    };
    let mut out = Conditions { why: why.into(), ..Conditions::default() };
    for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match (word, word.strip_prefix("needs ")) {
            ("long", _) => out.long = true,
            ("data", _) => out.data = true,
            ("never", _) => out.never = true,
            (_, Some(program)) => out.needs.push(program.trim().into()),
            _ => return Err(format!("unknown condition '{word}'")),
        }
    }
    if out.never && why.is_empty() { Err("never needs a reason in parentheses".into()) } else { Ok(out) }
}

fn mark(comment: &str) -> Result<Option<Mark>, String> {
    let Some((name, value)) = comment.split_once(':') else { return Ok(None) };
    let value = value.trim();
    let reason = value.strip_prefix("none (").and_then(|rest| rest.strip_suffix(')'));
    let rows = value.strip_prefix("figures").map(|rest| rest.trim_start_matches(" of "));
    Ok(Some(match (name.trim(), rows, reason) {
        ("run", ..) => Mark::Run(conditions(value)?),
        ("output", Some(rows), _) => Mark::Figures(rows.into()),
        ("output", _, Some(reason)) => Mark::Uncompared(reason.into()),
        ("file", ..) => Mark::File(value.into()),
        _ => return Err(format!("unknown mark '{comment}'")),
    }))
}

/// Reader of a page, line by line.
struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
    mark: Option<Mark>,
    parts: Vec<Part>,
}

/// Splits a page into the parts that a check takes up.
///
/// # Errors
/// If a mark is unknown or marks nothing, a block has no language, or commands stand outside of a block.
pub fn parts(page: &str) -> Result<Vec<Part>, String> {
    let mut reader = Reader { lines: page.lines().collect(), at: 0, mark: None, parts: Vec::new() };
    while reader.at < reader.lines.len() {
        let line = reader.at + 1;
        reader.next().map_err(|error| format!("line {line}: {error}"))?;
    }
    match reader.mark {
        Some(_) => Err("the last mark marks nothing".into()),
        None => Ok(reader.parts),
    }
}

impl Reader<'_> {
    fn next(&mut self) -> Result<(), String> {
        let line = self.lines[self.at];
        if let Some(language) = line.strip_prefix("```") {
            let (at, text) = self.until(|line| line == "```");
            return self.block(language, at, text);
        }
        if line.starts_with("<!--") {
            return self.comment();
        }
        if line.starts_with('|')
            && let Some(Mark::Figures(_)) = self.mark
        {
            return self.table();
        }
        self.at += 1;
        if self.mark.is_some() && !line.trim().is_empty() {
            return Err("the mark above marks no block".into());
        }
        let bare = line.strip_prefix("    ").unwrap_or_default();
        if ["trunkline ", "cargo ", "TRUNKLINE_"].iter().any(|word| bare.starts_with(word)) {
            return Err("commands stand in a block of sh".into());
        }
        Ok(())
    }

    /// Takes the lines up to the one that ends a block, which is left out.
    fn until(&mut self, end: impl Fn(&str) -> bool) -> (usize, String) {
        let from = self.at + 1;
        let to = (from..self.lines.len()).find(|at| end(self.lines[*at])).unwrap_or(self.lines.len());
        self.at = to + 1;
        (from, self.lines[from..to].join("\n"))
    }

    fn push(&mut self, at: usize, content: Content, text: String) -> Result<(), String> {
        self.parts.push(Part { line: at + 1, content, text });
        Ok(())
    }

    /// Takes the rows of a table with a mark: head, line, and the rows that begin as the mark says.
    fn table(&mut self) -> Result<(), String> {
        let Some(Mark::Figures(name)) = self.mark.take() else { return Err("a table has figures".into()) };
        let from = self.at;
        while self.lines.get(self.at).is_some_and(|line| line.starts_with('|')) {
            self.at += 1;
        }
        let rows = &self.lines[from..self.at];
        let cell = |row: &str| row.trim_start_matches('|').trim_start().replace('`', "");
        let wanted = |(i, row): &(usize, &&str)| *i < 2 || cell(row).starts_with(&name);
        let text: Vec<&str> = rows.iter().enumerate().filter(wanted).map(|(_, row)| *row).collect();
        if text.len() < 3 {
            return Err(format!("no row begins with '{name}'"));
        }
        self.push(from, Content::Figures(name), text.join("\n"))
    }

    fn comment(&mut self) -> Result<(), String> {
        let line = self.lines[self.at].trim_start_matches("<!--");
        if let Some((comment, _)) = line.split_once("-->") {
            self.at += 1;
            if let Some(mark) = mark(comment.trim())?
                && self.mark.replace(mark).is_some()
            {
                return Err("the mark above marks no block".into());
            }
            return Ok(());
        }
        let (at, text) = self.until(|line| line.starts_with("-->"));
        match mark(line.trim())? {
            Some(Mark::Run(conditions)) => self.push(at, Content::Commands(conditions), text),
            _ => Err("a mark of several lines has commands".into()),
        }
    }

    fn block(&mut self, language: &str, at: usize, text: String) -> Result<(), String> {
        let content = match (language, self.mark.take()) {
            ("sh", None) => Content::Commands(Conditions::default()),
            ("sh", Some(Mark::Run(conditions))) => Content::Commands(conditions),
            ("text", None) => Content::Output,
            ("text", Some(Mark::Figures(name))) if name.is_empty() => Content::Figures(name),
            ("text", Some(Mark::Uncompared(reason))) => Content::Uncompared(reason),
            (_, Some(Mark::File(name))) => Content::File(name),
            (language, None) if OTHER.contains(&language) => return Ok(()),
            (language, None) => return Err(format!("'{language}' is not a language of a block here")),
            (language, Some(_)) => return Err(format!("the mark above does not go with a block of '{language}'")),
        };
        self.push(at, content, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_marks() {
        let page = "# A\n\n```sh\na\n```\n\n```text\nb\n...\n```\n<!-- run: long, needs jq (an hour) -->\n```sh\nc\n```\n\
                    <!-- run:\nhidden\n-->\n<!-- output: figures of d -->\n| d | 1 |\n|---|---|\n| c | 2 |\n| `d`, e | 3 |\n\n<!-- file: e.toml -->\n```toml\nf = 1\n```\n\
                    ```yaml\ng: 1\n```\n<!-- output: none (a drawing) -->\n```text\nh\n```\n";
        let parts = parts(page).unwrap();
        let none = Conditions::default();
        let long = Conditions { long: true, needs: vec!["jq".into()], why: "an hour".into(), ..none.clone() };
        let wanted = [
            (4, Content::Commands(none.clone()), "a"),
            (8, Content::Output, "b\n..."),
            (13, Content::Commands(long), "c"),
            (16, Content::Commands(none), "hidden"),
            (19, Content::Figures("d".into()), "| d | 1 |\n|---|---|\n| `d`, e | 3 |"),
            (26, Content::File("e.toml".into()), "f = 1"),
            (33, Content::Uncompared("a drawing".into()), "h"),
        ];
        let wanted = wanted.map(|(line, content, text)| Part { line, content, text: text.into() });
        assert_eq!(parts, wanted);
    }

    #[test]
    fn nothing_escapes() {
        for (page, error) in [
            ("<!-- run: lnog -->\n```sh\na\n```", "line 1: unknown condition 'lnog'"),
            ("<!-- run: never -->\n```sh\na\n```", "line 1: never needs a reason in parentheses"),
            ("<!-- run: long -->\nprose\n", "line 2: the mark above marks no block"),
            ("<!-- run: long -->\n<!-- run: long -->\n", "line 2: the mark above marks no block"),
            ("<!-- run: long -->\n", "the last mark marks nothing"),
            ("<!-- run: long -->\n```text\na\n```", "line 2: the mark above does not go with a block of 'text'"),
            ("<!-- output: figures of c -->\n| a | b |\n|---|---|\n| d | 1 |", "line 2: no row begins with 'c'"),
            ("```console\n$ a\n```", "line 1: 'console' is not a language of a block here"),
            ("prose\n\n    trunkline serve\n", "line 3: commands stand in a block of sh"),
        ] {
            assert_eq!(parts(page).unwrap_err(), error, "{page}");
        }
    }
}
