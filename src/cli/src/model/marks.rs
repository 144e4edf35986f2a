//! Marks around the turns of a chat, found in a model's chat template.
//!
//! A session appends turns, and a template renders a whole conversation: the marks are the texts between the messages of rendered conversations, and
//! MUST be the same in longer ones. A template that changes earlier turns has no marks.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, bail};
use trunkline_quote::quoted;
use trunkline_template::{ChatSource, ChatTemplate, Conversation, Value};

/// Texts of messages that are looked for in rendered conversations.
const SYSTEM: &str = "sys7Q";
const ASKED: &str = "ask7Q";
const ANSWER: &str = "say7Q";
const MORE: &str = "more7Q";
/// An answer with reasoning.
const REASONED: &str = "<think>\nwhy7Q\n</think>\n\nsay7Q";
const REASON: &str = "why7Q";

/// Texts before and behind a text.
type Around = (String, String);

/// Marks of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Beginning of a session without a system text.
    opening: String,
    /// Around the system text; `None` if the template has it elsewhere.
    system: Option<Around>,
    /// Around each line. White space before the first may be left out: its length, with and without a system text.
    turn: Around,
    first: [usize; 2],
    /// Around what is said alongside the turns.
    around: Around,
    /// `true` if the template leaves reasoning out of earlier turns, which a session keeps.
    pub(crate) forgets_reasoning: bool,
}

/// Renders conversations.
struct Renderer(ChatTemplate);

impl Renderer {
    fn render(&self, messages: &[(&str, &str)], asks: bool) -> anyhow::Result<String> {
        let message = |(role, text): &(&str, &str)| Value::from_pairs([("role", *role), ("content", *text)]);
        let mut conversation = Conversation::new(messages.iter().map(message).collect(), SystemTime::now());
        conversation.add_generation_prompt = asks;
        Ok(self.0.render(&conversation)?)
    }
}

impl Marks {
    /// Finds the marks of the model in a Hugging Face folder or a GGUF file.
    ///
    /// # Errors
    /// If there is no template, or it changes earlier turns.
    pub(crate) fn of_model(path: &Path) -> anyhow::Result<Self> {
        let source = ChatSource::read(path)?;
        let shown = quoted(&path.display().to_string()).to_string();
        Self::of(source.with_context(|| format!("the model {shown} has no chat template"))?)
    }

    /// Finds the marks in the templates of a model.
    ///
    /// # Errors
    /// If a template is malformed, or it changes earlier turns.
    pub(crate) fn of(source: ChatSource) -> anyhow::Result<Self> {
        let token = |name: &str| {
            let found = source.tokens.iter().find(|(known, _)| known == name);
            found.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let (begin, end) = (token("bos_token"), token("eos_token"));
        let renderer = Renderer(ChatTemplate::new(source)?);
        let one = renderer.render(&[("user", ASKED)], true)?;
        let two = renderer.render(&[("user", ASKED), ("assistant", ANSWER), ("user", MORE)], true)?;
        // A space in front of the answer is a part of what the model writes.
        let rest = two.strip_prefix(&one).and_then(|rest| rest.trim_start().strip_prefix(ANSWER));
        let around = rest.and_then(|rest| rest.split_once(MORE)).zip(one.split_once(ASKED));
        let Some(((before, behind), (first, _))) = around.filter(|((_, b), (_, of_first))| b == of_first) else {
            bail!(
                "the chat template changes earlier turns, and a session keeps them; --template plain and chatml do not"
            );
        };
        // The token that ends an answer is a part of the answer.
        let before = before.strip_prefix(&end).unwrap_or(before);
        let (opening, skipped) =
            split(first, before).context("the chat template begins a conversation unlike other turns")?;
        let system = Self::system(&renderer, (before, behind))?;
        let around = match &system {
            Some(((system_before, system_behind), _)) => {
                let system_before = system_before.strip_prefix(&begin).unwrap_or(system_before);
                (lead(before).to_owned() + system_before, system_behind.clone())
            }
            // As a line that asks for nothing.
            None => {
                let silent = renderer.render(&[("user", ASKED)], false)?;
                (before.to_owned(), silent.split_once(ASKED).map_or("", |(_, behind)| behind).to_owned())
            }
        };
        let reasoned = renderer.render(&[("user", ASKED), ("assistant", REASONED), ("user", MORE)], true)?;
        Ok(Self {
            opening: opening.to_owned(),
            first: [system.as_ref().map_or(0, |(_, skipped)| *skipped), skipped],
            system: system.map(|(around, _)| around),
            turn: (before.to_owned(), behind.to_owned()),
            around,
            forgets_reasoning: !reasoned.contains(REASON),
        })
    }

    /// Finds the marks around a system text, and the white space that the turn behind it leaves out.
    fn system(renderer: &Renderer, turn: (&str, &str)) -> anyhow::Result<Option<(Around, usize)>> {
        // Some templates refuse a system text.
        let Ok(text) = renderer.render(&[("system", SYSTEM), ("user", ASKED)], true) else { return Ok(None) };
        let found = text.split_once(SYSTEM).and_then(|(before, rest)| Some((before, rest.split_once(ASKED)?)));
        let Some((before, (between, _))) = found.filter(|(_, (_, behind))| *behind == turn.1) else { return Ok(None) };
        Ok(split(between, turn.0)
            .map(|(system_behind, skipped)| ((before.to_owned(), system_behind.to_owned()), skipped)))
    }

    /// Returns the beginning of a session.
    ///
    /// # Errors
    /// If the template has no place of its own for the system text.
    pub(crate) fn begin(&self, system: &str) -> anyhow::Result<String> {
        match (&self.system, system) {
            (_, "") => Ok(self.opening.clone()),
            (Some((before, behind)), text) => Ok([before, text, behind].concat()),
            (None, _) => bail!("the chat template has no place of its own for --system; say it in the first line"),
        }
    }

    /// Returns the text of a turn, the first of a session if `first`, behind a system text if `has_system`.
    pub(crate) fn turn(&self, line: &str, first: bool, has_system: bool) -> String {
        let skipped = if first { self.first[usize::from(!has_system)] } else { 0 };
        [&self.turn.0[skipped..], line, &self.turn.1].concat()
    }

    /// Returns the marks around a line behind other turns; `None` if there is nothing but white space.
    pub(crate) fn asking(self) -> Option<(String, String)> {
        let (before, behind) = &self.turn;
        let is_marked = !before.trim().is_empty() || !behind.trim().is_empty();
        is_marked.then_some(self.turn)
    }

    /// Returns the marks around what is said alongside the turns.
    pub(crate) fn around(&self) -> (&str, &str) {
        (&self.around.0, &self.around.1)
    }
}

/// Returns the white space that a text begins with.
fn lead(text: &str) -> &str {
    &text[..text.len() - text.trim_start().len()]
}

/// Cuts `mark` off the end of a text, or the mark without the white space that it begins with; returns the rest and the length of that space.
fn split<'a>(text: &'a str, mark: &str) -> Option<(&'a str, usize)> {
    let lead = lead(mark);
    let whole = text.strip_suffix(mark).map(|rest| (rest, 0));
    whole.or_else(|| Some((text.strip_suffix(&mark[lead.len()..])?, lead.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(template: &str, begin: &str, end: &str) -> ChatSource {
        let tokens = vec![("bos_token".into(), begin.into()), ("eos_token".into(), end.into())];
        ChatSource { tokens, ..ChatSource::of_text(template) }
    }

    const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    const LLAMA: &str = "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}";
    const MISTRAL: &str = "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}\
        {% else %}{% set s = '' %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ s if loop.first }}{{ m.content }}[/INST]\
        {% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";

    /// Compares a session with the template's rendering.
    fn compare(template: &str, begin: &str, end: &str, system: &str) {
        let marks = Marks::of(source(template, begin, end)).unwrap();
        let of_session = [
            marks.begin(system).unwrap(),
            marks.turn("Hi", true, !system.is_empty()),
            format!("Hello.{end}"),
            marks.turn("Bye", false, !system.is_empty()),
        ]
        .concat();
        let mut messages = vec![("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")];
        if !system.is_empty() {
            messages.insert(0, ("system", system));
        }
        let renderer = Renderer(ChatTemplate::new(source(template, begin, end)).unwrap());
        assert_eq!(of_session, renderer.render(&messages, true).unwrap());
    }

    #[test]
    fn a_session_has_the_text_that_the_template_renders() {
        for system in ["", "Be kind."] {
            compare(CHATML, "", "<|im_end|>", system);
            compare(LLAMA, "<s>", "<|eot|>", system);
        }
        let facts = |template: &str, begin: &str, end: &str| {
            let marks = Marks::of(source(template, begin, end)).unwrap();
            let (before, behind) = marks.around();
            format!("{before}fact{behind}")
        };
        assert_eq!(facts(CHATML, "", "<|im_end|>"), "\n<|im_start|>system\nfact<|im_end|>");
        assert_eq!(facts(LLAMA, "<s>", "<|eot|>"), "<|start|>system<|end|>\n\nfact<|eot|>");
        assert!(!Marks::of(source(CHATML, "", "<|im_end|>")).unwrap().forgets_reasoning);
        let asking = Marks::of(source(CHATML, "", "<|im_end|>")).unwrap().asking();
        let around = ("\n<|im_start|>user\n".to_owned(), "<|im_end|>\n<|im_start|>assistant\n".to_owned());
        assert_eq!(asking, Some(around));
        let bare = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
        assert_eq!(Marks::of(source(bare, "", "")).unwrap().asking(), None, "a line break is no mark");
    }

    #[test]
    fn a_template_that_changes_earlier_turns_is_refused_and_one_that_drops_reasoning_is_noted() {
        let numbered = "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}";
        let error = Marks::of(source(numbered, "", "")).unwrap_err().to_string();
        assert!(error.starts_with("the chat template changes earlier turns"), "{error}");
        let drops = CHATML.replace("m.content", "m.content.split('</think>')[-1].lstrip()");
        assert!(Marks::of(source(&drops, "", "<|im_end|>")).unwrap().forgets_reasoning);
        // The system text is a part of the first message.
        let marks = Marks::of(source(MISTRAL, "<s>", "</s>")).unwrap();
        assert_eq!(
            (marks.begin("").unwrap().as_str(), marks.turn("Hi", true, false).as_str()),
            ("<s>", "[INST] Hi[/INST]")
        );
        let error = marks.begin("Be kind.").unwrap_err().to_string();
        assert!(error.contains("no place of its own for --system"), "{error}");
    }
}
