//! Errors of reading a chat template and of rendering a conversation.

use std::path::PathBuf;

use trunkline_foreign::Panicked;
use trunkline_quote::limited;
use trunkline_text::FactsError;

/// A template cannot be used, or a conversation cannot be rendered. The message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A file of the model cannot be used.
    #[error(transparent)]
    Files(#[from] FactsError),
    /// The model has no template.
    #[error("{}: the model has no chat template; send a prompt, or add chat_template.jinja to its folder", path.display())]
    Absent {
        /// Path of the model.
        path: PathBuf,
    },
    /// The template cannot be used with any conversation.
    #[error("the chat template ({name}) cannot be used: {problem}; repair it, or download the model again")]
    Template {
        /// Name of the template, such as `default`.
        name: String,
        /// Fault of the template, with the line.
        problem: String,
    },
    /// The template itself refused the conversation, by `raise_exception`.
    #[error("the chat template refuses the conversation: {}", limited(message))]
    Refused {
        /// Words of the template.
        message: String,
    },
    /// The conversation is not as it must be.
    #[error("{problem}")]
    Conversation {
        /// Fault, with the place, and the repair.
        problem: String,
    },
    /// The template failed on this conversation, as on a message without a key that it needs.
    #[error(
        "the chat template fails on this conversation: {}; check the roles and fields of its messages",
        limited(problem)
    )]
    Failed {
        /// Fault, with the line of the template.
        problem: String,
    },
    /// Rendering took more steps or more memory than a conversation of this size may take.
    #[error(
        "the chat template takes more than {fuel} steps on this conversation, which is the limit; shorten the conversation"
    )]
    TooMuchWork {
        /// Limit of steps; 64 bytes of text count as one, too.
        fuel: u64,
    },
    /// The system did not give the memory for rendering.
    #[error("there is no memory to render the chat template: {0}; try again later")]
    NoMemory(std::io::Error),
    /// The library of templates panicked: a fault of the library.
    #[error("the chat template failed, where it should have been refused: {0}")]
    Panicked(#[from] Panicked),
}

impl TemplateError {
    /// Returns `true` if another conversation may be rendered: the client is to blame, not the server.
    pub fn is_of_the_conversation(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Conversation { .. } | Self::Failed { .. } | Self::TooMuchWork { .. }
        )
    }

    pub(crate) fn conversation(problem: impl Into<String>) -> Self {
        Self::Conversation { problem: problem.into() }
    }
}
