//! Bad input in messages: quoted, on one line, cut.
//!
//! A message about bad input shows the input, so that the user finds the place. Input may be a file of 100 KB in one line, or have line ends and
//! other control characters, which could forge lines of a log. So every message shows input by one of the functions here:
//!
//! ```
//! use trunkline_quote::{cut, quoted};
//!
//! assert_eq!(format!("unknown policy {}", quoted("fcsf")), "unknown policy 'fcsf'");
//! assert_eq!(quoted("a\nb").to_string(), r"'a\nb'");
//! assert_eq!(cut(&"9".repeat(300)).to_string(), "9".repeat(200) + "... (300 characters)");
//! ```

use std::fmt::{self, Display, Formatter, Write};

/// Maximum number of characters of bad input in a message.
pub const SHOWN_MAX: usize = 200;
/// Maximum number of characters of a printed message: far more than any message of ours has.
const MESSAGE_MAX: usize = 4_000;

/// Texts around a value in messages of serde: before, and behind.
const AROUND_VALUES: [(&str, &str); 7] = [
    ("unknown field `", "`, expected "),
    ("unknown field `", "`, there are no fields"),
    ("unknown variant `", "`, expected "),
    ("unknown variant `", "`, there are no variants"),
    ("invalid type: string \"", "\", expected "),
    ("invalid value: string \"", "\", expected "),
    ("invalid type: unit variant `", "`, expected "),
];

/// Input to be shown in a message.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    text: &'a str,
    quote: &'static str,
}

/// Returns input as messages show text: in single quotes, without control characters, and at most [`SHOWN_MAX`] characters.
pub fn quoted<T: AsRef<str> + ?Sized>(text: &T) -> Shown<'_> {
    Shown { text: text.as_ref(), quote: "'" }
}

/// Returns input as messages show numbers and lists: as [`quoted`] does, but without quotes.
pub fn cut<T: AsRef<str> + ?Sized>(text: &T) -> Shown<'_> {
    Shown { text: text.as_ref(), quote: "" }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { text, quote } = self;
        let end = text.char_indices().nth(SHOWN_MAX).map_or(text.len(), |(at, _)| at);
        f.write_str(quote)?;
        for c in text[..end].chars() {
            if c.is_control() { write!(f, "{}", c.escape_debug())? } else { f.write_char(c)? }
        }
        if end < text.len() {
            write!(f, "...{quote} ({} characters)", text.chars().count())
        } else {
            f.write_str(quote)
        }
    }
}

/// Returns the message of a parser built on serde, with the value cut as [`cut`] does.
pub fn of_parser(message: &str) -> String {
    let around = |(before, behind): &(&str, &str)| {
        let from = message.find(before)? + before.len();
        // The value may have anything in it, and the rest of the message has not.
        let to = from + message[from..].rfind(behind)?;
        // A message that was here before is cut already.
        (!message[from..to].ends_with(" characters)")).then_some(from..to)
    };
    let value = AROUND_VALUES.iter().find_map(around);
    value.map_or_else(
        || limited(message),
        |value| {
            format!("{}{}{}", &message[..value.start], cut(&message[value.clone()]), limited(&message[value.end..]))
        },
    )
}

/// Returns a message for a terminal or a log, cut in the middle if it is longer than any message of ours.
pub fn limited(message: &str) -> String {
    let n = message.chars().count();
    if n <= MESSAGE_MAX {
        return message.to_owned();
    }
    let head: String = message.chars().take(MESSAGE_MAX / 2).collect();
    let tail: String = message.chars().skip(n - MESSAGE_MAX / 2).collect();
    format!("{head} ... ({n} characters) ... {tail}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        _number: Option<u32>,
        _kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        A,
        B,
    }

    /// Texts that are long, and pretend to be the end of a value.
    fn long() -> [String; 4] {
        let parts = ["x", "a b ", "`, expected c", "\", expected \n"];
        parts.map(|part| part.repeat(100_000 / part.len()))
    }

    #[test]
    fn input_is_shown_on_one_line_and_not_beyond_a_limit() {
        assert_eq!(quoted("it's").to_string(), "'it's'");
        assert_eq!(quoted("\u{1b}[31m\r").to_string(), r"'\u{1b}[31m\r'");
        assert_eq!(quoted(&"ä".repeat(SHOWN_MAX)).to_string(), format!("'{}'", "ä".repeat(SHOWN_MAX)));
        let shown = quoted(&"ä".repeat(SHOWN_MAX + 1)).to_string();
        assert_eq!(shown, format!("'{}...' (201 characters)", "ä".repeat(SHOWN_MAX)));
        assert_eq!((cut("").to_string(), quoted("").to_string()), (String::new(), "''".into()));
    }

    #[test]
    fn messages_of_parsers_show_the_place_and_the_names_but_not_all_of_a_value() {
        for text in long() {
            let json = |name: &str| {
                let text = serde_json::to_string(&text).unwrap();
                let file = if name.is_empty() { format!("{{{text}: 1}}") } else { format!("{{\"{name}\": {text}}}") };
                of_parser(&serde_json::from_str::<File>(&file).unwrap_err().to_string())
            };
            let toml = |name: &str| {
                // Escapes are the same in both.
                let text = serde_json::to_string(&text).unwrap();
                let file = if name.is_empty() { format!("{text} = 1") } else { format!("{name} = {text}") };
                of_parser(toml::from_str::<File>(&file).unwrap_err().message())
            };
            for (message, names) in [
                (json(""), "`_number` or `_kind`"),
                (json("_number"), "u32"),
                (json("_kind"), "`a` or `b`"),
                (toml(""), "`_number` or `_kind`"),
                (toml("_number"), "u32"),
                (toml("_kind"), "`a` or `b`"),
            ] {
                assert!(message.contains(names) && message.contains("characters)"), "{message}");
                assert_eq!(of_parser(&message), message);
                assert!(message.chars().count() < SHOWN_MAX * 2 + 150 && !message.contains('\n'), "{message}");
            }
        }
        let known = "unknown field `x`, expected one of `a`, `b`, `c` at line 1 column 2";
        assert_eq!(of_parser(known), known);
        assert_eq!(limited(&"x".repeat(10_000)).len(), MESSAGE_MAX + " ... (10000 characters) ... ".len());
    }
}
