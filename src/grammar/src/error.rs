//! Grammars that cannot be used, and answers that cannot go on.

/// Reason for which a grammar is refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The text has too many bytes.
    #[error("it has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that are allowed.
        max: usize,
    },
    /// The text is malformed, or says what the library cannot honour.
    #[error("{0}")]
    Malformed(String),
    /// The text is well formed, and needs more than the limits allow.
    #[error("it is too complex: {0}")]
    TooComplex(String),
    /// No answer has this structure.
    #[error("no answer that the model can give fits it")]
    Unsatisfiable,
    /// The bytes of the tokens are not known.
    #[error(
        "the text of this model's tokens depends on their neighbours, so answers cannot be given a structure; use a model with byte-level or SentencePiece tokens"
    )]
    Tokenizer,
    /// No token ends an answer, so that an answer that is complete would go on.
    #[error("this model has no token that ends an answer, so an answer with a structure would not end")]
    NoEnd,
    /// The feature `llguidance` is off.
    #[error("this build has no structured output: build it with the feature structured-output")]
    NotBuilt,
}

/// Reason for which an answer cannot go on, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// A token does not go with the grammar.
    #[error("token {0} does not go with the grammar")]
    Token(trunkline_port::Token),
    /// The place in the grammar needs more than the limits allow, or no token may follow there.
    #[error("{0}")]
    Stuck(String),
}
