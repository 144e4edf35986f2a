//! Phrases that no native speaker would write, and the words to use: in code, comments, messages, pages and protocols alike.

/// A phrase, in lower case, and what to write.
pub const PHRASES: &[(&str, &str)] = &[
    ("in place of", "instead of"),
    ("anew", "again"),
    ("of late", "recently"),
    ("as ever", "as before, or nothing"),
    ("whoever", "the component that does it"),
    ("knob", "parameter, or setting"),
    ("knobs", "parameters, or settings"),
    ("in vain", "without success"),
    ("is none of", "is not one of"),
    ("are none of", "are not among"),
    ("the begin", "the start"),
    ("begin token", "BOS token"),
    ("between two looks", "poll interval"),
    ("looks for changes", "polls for changes"),
    ("of no interest", "ignored"),
    ("thereby", "so"),
    ("judgement of", "the name of the mechanism, such as circuit breaker"),
    ("for which nobody asked", "unexpected"),
    ("by single tries", "one call at a time"),
    ("told to stop", "draining"),
    ("fell silent", "stopped without an event"),
    ("says not", "does not say"),
    ("falls silent", "is silent, or stops without an event"),
    ("tells of", "says about, or has"),
    ("of none of", "in no, or from none of"),
    ("in truth", "nothing, or really"),
    ("as soon as can be", "as soon as possible"),
    ("answered alike", "gets the same answer"),
    ("beside", "alongside, next to, in addition to, or compared with"),
    ("made trace", "synthetic trace, or small trace written for the test"),
    ("made traces", "synthetic traces, or small traces written for the test"),
    ("count alike", "count equally"),
    ("counts alike", "counts the same way"),
    ("decide alike", "make equal decisions"),
    ("unasked", "unexpected"),
    ("as may be", "as the limit allows"),
    ("as many as may", "which is the limit"),
    ("so long as", "as long as, or while"),
    ("in the mean", "on average"),
    ("mend", "fix, or repair"),
    ("mends", "fixes, or repairs"),
    ("mended", "fixed, or repaired"),
    ("mending", "fixing, or repairing"),
    ("thereof", "of it"),
    ("at hand", "in flight, or there"),
    ("else than", "other than"),
    ("another than", "not the one that"),
    ("is no number", "is not a number"),
    ("is no prefix", "is not a prefix"),
    ("is no text", "is not text"),
    ("is no value", "is not a value"),
    ("is no part", "is not part"),
    ("are no part", "are not part"),
];

/// Returns the phrases of [`PHRASES`] in a text, each with its line, from 1.
pub fn phrases(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let padded: Vec<String> = PHRASES.iter().map(|(phrase, _)| format!(" {phrase} ")).collect();
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<String> =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_lowercase).collect();
        let joined = format!(" {} ", words.join(" "));
        for ((phrase, better), padded) in PHRASES.iter().zip(&padded) {
            if joined.contains(padded) {
                found.push((number, *phrase, *better));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_by_whole_words_on_any_surface() {
        let found = phrases("// Made anew.\nbail!(\"unknown knob\");\nlet knobble = renewal;\n");
        assert_eq!(found, [(1, "anew", "again"), (2, "knob", "parameter, or setting")]);
    }
}
