//! Finds stop strings in text that comes in pieces.
//!
//! A stop string ends the text where it ends first; of several stop strings that end at one place, the longest counts. The
//! result depends on the text alone, not on how the text was cut into pieces. A tail that could still become a stop string is
//! held back.
//!
//! A Knuth-Morris-Pratt automaton over bytes matches each stop string. The state of an automaton is the length of the longest
//! prefix of the stop string at the end of the text, so the longest state of all is just the length to hold back. Bytes will do: a
//! stop string begins at the beginning of a character and ends at the end of one, and so does every match.

/// Incremental search for several stop strings.
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// The end of the text so far: as much as the longest state of a pattern.
    held: String,
}

struct Pattern {
    text: String,
    /// Length of the longest proper prefix equal to a suffix, for each length of a matched prefix, less one.
    fallback: Vec<usize>,
    matched: usize,
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
        Self { text, fallback, matched: 0 }
    }

    /// Takes the next byte of the text and returns `true` if the text now ends with the pattern. The tail to hold back for the
    /// pattern is shorter than the pattern after the call.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        let ends_here = self.matched == bytes.len();
        if ends_here {
            self.matched = self.fallback[self.matched - 1];
        }
        ends_here
    }
}

impl StopMatcher {
    /// Starts a search for `stops`.
    ///
    /// # Panics
    /// If a stop string is empty.
    pub fn new(stops: Vec<String>) -> Self {
        assert!(stops.iter().all(|stop| !stop.is_empty()), "an empty stop string is everywhere");
        Self { patterns: stops.into_iter().map(Pattern::new).collect(), held: String::new() }
    }

    /// Takes the next piece of text and appends to `released` the text certain to precede any stop string. Returns the stop string
    /// if the text has one now; the search MUST NOT be used after a match. With `may_stop` set to `false`, stop strings ending in
    /// this piece are ordinary text; a stop string begun in this piece may still end in a later one.
    pub fn push(&mut self, piece: &str, may_stop: bool, released: &mut String) -> Option<String> {
        if self.patterns.is_empty() {
            released.push_str(piece);
            return None;
        }
        for (at, byte) in piece.bytes().enumerate() {
            let mut longest: Option<usize> = None;
            for i in 0..self.patterns.len() {
                let ends_here = self.patterns[i].step(byte);
                let longer = longest.is_none_or(|other| self.patterns[i].text.len() > self.patterns[other].text.len());
                if ends_here && longer && may_stop {
                    longest = Some(i);
                }
            }
            if let Some(i) = longest {
                let stop = self.patterns.swap_remove(i).text;
                self.held.push_str(&piece[..=at]);
                released.push_str(&self.held[..self.held.len() - stop.len()]);
                self.held.clear();
                return Some(stop);
            }
        }
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        self.held.push_str(piece);
        released.push_str(&self.held[..self.held.len() - keep]);
        self.held.drain(..self.held.len() - keep);
        None
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

    proptest! {
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
