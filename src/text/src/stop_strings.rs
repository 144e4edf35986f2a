//! Finds stop strings in text that comes in pieces.
//!
//! A stop string ends the text where it ends first; of several stop strings that end at one place, the longest counts. The
//! result depends on the text alone, not on how the text was cut into pieces. A tail that could still become a stop string is
//! held back.
//!
//! Special tokens may be left out of the text. A stop string is found in the text that is shown, and in the text with the names of the tokens left
//! out: clients stop at `<|im_end|>`, or at `\n<|im_start|>user`, whether they see such names or not.
//!
//! A Knuth-Morris-Pratt automaton over bytes matches each stop string. The state of an automaton is the length of the longest
//! prefix of the stop string at the end of the text, so the longest state of all is just the length to hold back. Bytes will do: a
//! stop string begins at the beginning of a character and ends at the end of one, and so does every match.

use std::collections::VecDeque;

/// Incremental search for several stop strings.
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// The end of the text that is shown: as much as a stop string may take away.
    held: String,
    /// For each of the last bytes of the text with names, as many as the longest stop string has: `true` for one that is shown.
    recent: VecDeque<bool>,
    /// Bytes of the longest stop string.
    longest: usize,
}

struct Pattern {
    text: String,
    /// Length of the longest proper prefix equal to a suffix, for each length of a matched prefix, less one.
    fallback: Vec<usize>,
    /// Bytes matched at the end of the text with names.
    matched: usize,
    /// Bytes matched at the end of the text that is shown.
    shown: usize,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at] = length;
        }
        Self { text, fallback, matched: 0, shown: 0 }
    }

    /// Returns the state after `matched` and a further byte, and `true` if the text now ends with the pattern. The state is shorter than the pattern.
    fn after(&self, mut matched: usize, byte: u8) -> (usize, bool) {
        let bytes = self.text.as_bytes();
        while matched > 0 && bytes[matched] != byte {
            matched = self.fallback[matched - 1];
        }
        matched += usize::from(bytes[matched] == byte);
        let ends_here = matched == bytes.len();
        if ends_here {
            matched = self.fallback[matched - 1];
        }
        (matched, ends_here)
    }

    /// Takes the next byte of the text, shown or of a name. Returns the text that ends with the pattern, if one does.
    fn step(&mut self, byte: u8, is_shown: bool) -> Option<Ending> {
        let (matched, ends_here) = self.after(self.matched, byte);
        self.matched = matched;
        let mut shown_ends_here = false;
        if is_shown {
            (self.shown, shown_ends_here) = self.after(self.shown, byte);
        }
        if ends_here { Some(Ending::Named) } else { shown_ends_here.then_some(Ending::Shown) }
    }
}

/// Text that ends with a stop string.
#[derive(Clone, Copy)]
enum Ending {
    /// The text with the names of special tokens left out.
    Named,
    /// The text that is shown.
    Shown,
}

impl StopMatcher {
    /// Starts a search for `stops`.
    ///
    /// # Panics
    /// If a stop string is empty.
    pub fn new(stops: Vec<String>) -> Self {
        assert!(stops.iter().all(|stop| !stop.is_empty()), "an empty stop string is everywhere");
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        let (held, recent) = (String::new(), VecDeque::with_capacity(longest));
        Self { patterns: stops.into_iter().map(Pattern::new).collect(), held, recent, longest }
    }

    /// Takes the next piece of text and appends to `released` the text certain to precede any stop string. Returns the stop string
    /// if the text has one now; the search MUST NOT be used after a match. With `may_stop` set to `false`, stop strings ending in
    /// this piece are ordinary text; a stop string begun in this piece may still end in a later one.
    pub fn push(&mut self, piece: &str, may_stop: bool, released: &mut String) -> Option<String> {
        self.take(piece, true, may_stop, released)
    }

    /// Takes the name of a special token that stands here in the text and is not shown; otherwise as [`Self::push`].
    pub fn push_left_out(&mut self, name: &str, may_stop: bool, released: &mut String) -> Option<String> {
        self.take(name, false, may_stop, released)
    }

    fn take(&mut self, piece: &str, is_shown: bool, may_stop: bool, released: &mut String) -> Option<String> {
        if self.patterns.is_empty() {
            released.push_str(if is_shown { piece } else { "" });
            return None;
        }
        for (at, byte) in piece.bytes().enumerate() {
            if self.recent.len() == self.longest {
                self.recent.pop_front();
            }
            self.recent.push_back(is_shown);
            let mut found: Option<(usize, Ending)> = None;
            for i in 0..self.patterns.len() {
                let ending = self.patterns[i].step(byte, is_shown);
                let longer =
                    found.is_none_or(|(other, _)| self.patterns[i].text.len() > self.patterns[other].text.len());
                if let Some(ending) = ending.filter(|_| longer && may_stop) {
                    found = Some((i, ending));
                }
            }
            if let Some((i, ending)) = found {
                let stop = self.patterns.swap_remove(i).text;
                self.held.push_str(if is_shown { &piece[..=at] } else { "" });
                let taken = match ending {
                    Ending::Named => self.shown_of_last(stop.len()),
                    Ending::Shown => stop.len(),
                };
                released.push_str(&self.held[..self.held.len() - taken]);
                self.held.clear();
                return Some(stop);
            }
        }
        self.held.push_str(if is_shown { piece } else { "" });
        let keep = self.patterns.iter().map(|pattern| pattern.shown.max(self.shown_of_last(pattern.matched)));
        let end = self.held.len() - keep.max().unwrap_or(0);
        released.push_str(&self.held[..end]);
        self.held.drain(..end);
        None
    }

    /// Returns the number of bytes that are shown among the last `bytes` bytes of the text with names.
    fn shown_of_last(&self, bytes: usize) -> usize {
        self.recent.iter().rev().take(bytes).filter(|is_shown| **is_shown).count()
    }

    /// Ends the text: appends the held-back tail (no stop string) to `released`.
    pub fn finish(&mut self, released: &mut String) {
        released.push_str(&self.held);
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text before the stop string and the stop string, straight from the definition. The first `free` bytes may not end
    /// the text.
    fn expected(text: &str, stops: &[&str], free: usize) -> (String, Option<String>) {
        let ends = text.char_indices().skip(1).chain([(text.len(), ' ')]);
        for (end, _) in ends.filter(|(end, _)| *end > free) {
            let here = stops.iter().filter(|stop| text[..end].ends_with(**stop)).max_by_key(|stop| stop.len());
            if let Some(stop) = here {
                return (text[..end - stop.len()].into(), Some((*stop).into()));
            }
        }
        (text.into(), None)
    }

    /// What the matcher makes of pieces, the first `free` of which may not end the text.
    fn found<'a>(pieces: impl IntoIterator<Item = &'a str>, stops: &[&str], free: usize) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).into()).collect());
        let mut released = String::new();
        for (i, piece) in pieces.into_iter().enumerate() {
            if let Some(stop) = matcher.push(piece, i >= free, &mut released) {
                return (released, Some(stop));
            }
            let longest = stops.iter().map(|stop| stop.len()).max().unwrap_or(0);
            assert!(matcher.held.len() < longest.max(1), "no more is held back than can be needed");
        }
        matcher.finish(&mut released);
        (released, None)
    }

    /// All ways to cut a text of single-byte characters into pieces.
    fn cuts(text: &str) -> impl Iterator<Item = Vec<&str>> {
        (0..1u32 << (text.len() - 1)).map(move |cut| {
            let mut pieces = Vec::new();
            let mut begin = 0;
            for at in 1..text.len() {
                if cut >> (at - 1) & 1 == 1 {
                    pieces.push(&text[begin..at]);
                    begin = at;
                }
            }
            pieces.push(&text[begin..]);
            pieces
        })
    }

    #[test]
    fn every_short_text_in_every_cut_agrees_with_the_definition() {
        let sets: [&[&str]; 7] = [
            &["a"],
            &["ab"],
            &["aab"],
            &["abab", "ba"],
            &["bb", "abb"],
            &["aba", "bab", "bbbb"],
            &["aaab", "aab", "b"],
        ];
        for stops in sets {
            for length in 1..=7 {
                for bits in 0..1u32 << length {
                    let text: String = (0..length).map(|i| if bits >> i & 1 == 1 { 'b' } else { 'a' }).collect();
                    let expected: Vec<_> = (0..=length).map(|free| expected(&text, stops, free)).collect();
                    for pieces in cuts(&text) {
                        for free in 0..=pieces.len() {
                            let bytes: usize = pieces[..free].iter().map(|piece| piece.len()).sum();
                            let found = found(pieces.iter().copied(), stops, free);
                            assert_eq!(found, expected[bytes], "{pieces:?} {stops:?}, the first {free} free");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_stop_string_may_span_pieces_and_characters_of_many_bytes() {
        let pieces = ["gr", "ün", "e 🌳", "!"];
        assert_eq!(found(pieces, &["n e 🌳"], 0), ("grüne 🌳!".into(), None));
        assert_eq!(found(pieces, &["ne 🌳"], 0), ("grü".into(), Some("ne 🌳".into())));
        assert_eq!(found(["\n", "\n", "User:"], &["\n\nUser:", "zzz"], 0), (String::new(), Some("\n\nUser:".into())));
    }

    #[test]
    fn without_stop_strings_nothing_is_held_back() {
        let mut matcher = StopMatcher::new(Vec::new());
        let mut released = String::new();
        assert_eq!(matcher.push("any text", true, &mut released), None);
        assert_eq!(released, "any text");
    }

    /// Does the same as [`found`] with pieces that are shown or names of tokens that are not.
    fn found_with_names(pieces: &[(String, bool)], stops: &[&str], free: usize) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).into()).collect());
        let mut released = String::new();
        for (i, (piece, is_shown)) in pieces.iter().enumerate() {
            let push = if *is_shown { StopMatcher::push } else { StopMatcher::push_left_out };
            if let Some(stop) = push(&mut matcher, piece, i >= free, &mut released) {
                return (released, Some(stop));
            }
            assert!(matcher.held.len() < matcher.longest.max(1) && matcher.recent.len() <= matcher.longest);
        }
        matcher.finish(&mut released);
        (released, None)
    }

    /// Returns the same as [`expected`] for pieces that are shown or not, straight from the definition.
    fn expected_with_names(pieces: &[(String, bool)], stops: &[&str], free: usize) -> (String, Option<String>) {
        let characters = pieces
            .iter()
            .enumerate()
            .flat_map(|(at, (piece, is_shown))| piece.chars().map(move |character| (character, *is_shown, at >= free)));
        // Characters with their marks: of the text with names.
        let mut text: Vec<(char, bool)> = Vec::new();
        for (character, is_shown, may_stop) in characters {
            text.push((character, is_shown));
            let named: String = text.iter().map(|(character, _)| *character).collect();
            let shown: String =
                text.iter().filter(|(_, is_shown)| *is_shown).map(|(character, _)| *character).collect();
            let ends = |stop: &&&str| named.ends_with(**stop) || (is_shown && shown.ends_with(**stop));
            if let Some(stop) = stops.iter().filter(ends).max_by_key(|stop| stop.len()).filter(|_| may_stop) {
                let before = if named.ends_with(*stop) {
                    let n = text.len() - stop.chars().count();
                    text[..n].iter().filter(|(_, is_shown)| *is_shown).map(|(character, _)| *character).collect()
                } else {
                    shown[..shown.len() - stop.len()].to_owned()
                };
                return (before, Some((*stop).to_owned()));
            }
        }
        (text.into_iter().filter(|(_, is_shown)| *is_shown).map(|(character, _)| character).collect(), None)
    }

    #[test]
    fn a_name_that_is_left_out_stops_where_it_stands() {
        let pieces = |parts: &[&str]| -> Vec<(String, bool)> {
            parts.iter().map(|part| ((*part).to_owned(), !part.starts_with('<'))).collect()
        };
        let of = |parts: &[&str], stops: &[&str]| found_with_names(&pieces(parts), stops, 0);
        let stopped = |text: &str, stop: &str| (text.to_owned(), Some(stop.to_owned()));
        assert_eq!(of(&["done", "<|end|>", " more"], &["<|end|>"]), stopped("done", "<|end|>"));
        assert_eq!(of(&["done", "<|end|>", "<|start|>", "user"], &["<|end|><|st"]), stopped("done", "<|end|><|st"));
        assert_eq!(of(&["a\n", "<|start|>", "user"], &["\n<|start|>user"]), stopped("a", "\n<|start|>user"));
        assert_eq!(of(&["done", "<|end|>", "\n", "x"], &["e<|end|>\n"]), stopped("don", "e<|end|>\n"));
        assert_eq!(of(&["a", "<x>", "b", "c"], &["ab"]), stopped("", "ab"), "the client sees ab");
        assert_eq!(of(&["a", "<x>", "b", "<y>"], &["zz", "<z>"]), ("ab".to_owned(), None), "names are not shown");
        assert_eq!(of(&["a<", "<x>", "x>", "b"], &["<x>"]), stopped("a<", "<x>"));
    }

    proptest! {
        #[test]
        fn names_among_any_pieces_agree_with_the_definition(
            pieces in proptest::collection::vec(("[abü]{0,3}", proptest::bool::ANY), 0..12),
            stops in proptest::collection::vec("[abü]{1,5}", 0..4),
            free in 0usize..6,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(found_with_names(&pieces, &stops, free), expected_with_names(&pieces, &stops, free));
        }

        #[test]
        fn any_text_in_any_pieces_agrees_with_the_definition(
            pieces in proptest::collection::vec("[abü🌳]{0,4}", 0..12),
            stops in proptest::collection::vec("[abü🌳]{1,5}", 0..4),
            free in 0usize..6,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let text = pieces.concat();
            let bytes = pieces.iter().take(free).map(String::len).sum();
            prop_assert_eq!(found(pieces.iter().map(String::as_str), &stops, free), expected(&text, &stops, bytes));
        }
    }
}
