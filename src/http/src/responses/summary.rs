//! Summaries of conversations, made by the model itself behind the conversation as it was rendered, whose tokens are in the prefix cache.

use axum::http::request::Parts;
use tokio_stream::StreamExt;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::proto::{GenerateRequest, RetentionHint, TokenIds};
use trunkline_server::{SUMMARY_INSTRUCTION, beginning_of_summary, rest_of_summary};
use trunkline_template::Conversation;

use crate::Shared;
use crate::asked::{Asked, Own};
use crate::choices::Choices;
use crate::failure::Failure;
use crate::marks::marked;
use crate::reader::Reading;
use crate::responses::content::Content;
use crate::responses::conversation::{Items, Plan};
use crate::responses::generated::{Generated, Usage};
use crate::responses::prompt::Prompt;

/// Tokens of a summary, at most, with the reasoning before it; also this part of the context.
const TOKENS_MAX: u32 = 2048;
const CONTEXT_SHARE: u32 = 8;
/// Least room for a summary, tokens: more than the beginning of one that is asked for again.
const ROOM_MIN: u32 = 32;

/// Maker of summaries for a request.
pub(crate) struct Summariser<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) parts: &'a Parts,
    /// The request, whose salt and priority those for summaries have.
    pub(crate) asked: &'a Asked,
    /// Conversation without its messages.
    pub(crate) base: &'a Conversation,
    pub(crate) instructions: Option<&'a str>,
}

/// Summary of a conversation.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Id of the request that made it.
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) usage: Usage,
}

impl Summary {
    fn if_any(self) -> Result<Self, NoSummary> {
        if self.text.is_empty() { Err(NoSummary::Empty) } else { Ok(self) }
    }
}

/// Reason for having no summary.
#[derive(Debug)]
pub(crate) enum NoSummary {
    Failure(Failure),
    /// The conversation fills the context.
    Room,
    /// The model wrote none.
    Empty,
}

impl From<Failure> for NoSummary {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<tonic::Status> for NoSummary {
    fn from(status: tonic::Status) -> Self {
        Self::Failure(Failure::of(&status))
    }
}

/// A conversation that was compacted before its answer.
#[derive(Debug)]
pub(crate) struct Compacted {
    pub(crate) content: Content,
    pub(crate) items: Items,
    pub(crate) usage: Usage,
}

impl Summariser<'_> {
    /// Returns the prompt for a summary of these items.
    ///
    /// # Errors
    /// If one of the items is none.
    pub(crate) async fn prompt(&self, items: &Items) -> Result<Prompt, Failure> {
        let messages = items.messages_asking(self.instructions, SUMMARY_INSTRUCTION.trim())?;
        Prompt::new(self.shared, self.parts, self.base, messages).await
    }

    /// Makes the summary that a prompt asks for. A model that writes none is asked again: then the first tokens end nothing, and it goes on by itself.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) async fn summary(&self, prompt: Prompt, retention: Vec<RetentionHint>) -> Result<Summary, NoSummary> {
        let (request, reading) = self.request(prompt, retention)?;
        let first = self.written(vec![request.clone()], reading).await?;
        let ends = &self.shared.front.model()?.eos_token_ids;
        if !first.text.is_empty() || ends.is_empty() {
            return first.if_any();
        }
        let again = self.written(vec![beginning_of_summary(request.clone(), ends), request], reading).await?;
        again.if_any()
    }

    /// Returns the request for the summary that a prompt asks for, and what is read in its answer.
    ///
    /// # Errors
    /// If the context has no room for a summary.
    fn request(&self, prompt: Prompt, retention: Vec<RetentionHint>) -> Result<(GenerateRequest, Reading), NoSummary> {
        let front = &self.shared.front;
        let room = front.room_for(prompt.ids.len())?;
        if room < ROOM_MIN {
            return Err(NoSummary::Room);
        }
        let most = TOKENS_MAX.min(front.max_context()? / CONTEXT_SHARE).max(ROOM_MIN);
        let asked = Asked {
            temperature: Some(0.0),
            seed: Some(0),
            priority: self.asked.priority,
            cache_salt: self.asked.cache_salt.clone(),
            ..Asked::default()
        };
        let own = Own { max_tokens: most.min(room), retention, ..Own::default() };
        let ids = WirePrompt::TokenIds(TokenIds { ids: prompt.ids });
        // Calls in it are text.
        let reading = Reading { calls: None, hides_stop: false, ..prompt.reading };
        Ok((asked.message(ids, &own, 0, String::new()), reading))
    }

    /// Runs requests one after the other, each of which goes on where the one before it ended, and returns their text as one.
    async fn written(&self, requests: Vec<GenerateRequest>, reading: Reading) -> Result<Summary, NoSummary> {
        let (mut id, mut text, mut tokens) = (String::new(), String::new(), Vec::new());
        let mut generated: Option<Generated> = None;
        let n = requests.len();
        for (at, request) in requests.into_iter().enumerate() {
            let marked = marked(&request.retention);
            let Some(request) = rest_of_summary(request, &tokens) else { break };
            let generation = match self.shared.front.generate(&self.parts.extensions, request, None).await {
                Ok(generation) => generation,
                Err(status) => return Err(self.shared.refused(&status).await.into()),
            };
            generation.client_id().clone_into(&mut id);
            let generated = match &mut generated {
                Some(generated) => generated,
                None => generated.insert(Generated::new(self.shared, &generation, reading, marked)?),
            };
            let mut choices = Choices::new(vec![generation]);
            while let Some(piece) = choices.next().await {
                let mut piece = piece?;
                tokens.extend(piece.chunk.iter().flat_map(|chunk| &chunk.token_ids));
                if at + 1 < n {
                    // More follows.
                    piece.finish = None;
                }
                text.push_str(&generated.take(piece).0.text);
            }
        }
        let usage = generated.map(|generated| generated.usage()).ok_or(NoSummary::Empty)?;
        Ok(Summary { id, text: text.trim().to_owned(), usage })
    }

    /// Compacts a conversation that is to be answered; `None` if nothing can leave it, or no summary of what can be had.
    ///
    /// # Errors
    /// If the request for the summary is refused or fails.
    pub(crate) async fn compacted(&self, items: &Items) -> Result<Option<Compacted>, Failure> {
        let Some(Plan { summarised, before, after }) = items.plan() else { return Ok(None) };
        match self.summary(self.prompt(&summarised).await?, Vec::new()).await {
            Ok(summary) => {
                let content = Content { summary: summary.text, cuts: true, before, after };
                let items = Items::new(vec![content.item()], &[])?;
                Ok(Some(Compacted { content, items, usage: summary.usage }))
            }
            Err(NoSummary::Failure(failure)) => Err(failure),
            Err(NoSummary::Room | NoSummary::Empty) => Ok(None),
        }
    }
}
