//! Settings of a session, checked, and the requests made with the settings.

use trunkline_chat::{Fixed, Frame, LimitFault, Limits, Wanted};
use trunkline_core::Token;

use crate::network::shares::Client;
use crate::proto;
use crate::service::submission::{Rejection, Submitter};
use crate::service::validate::{self, Checked, Invalid};

/// Request for a summary behind a text, by default.
pub const SUMMARY_INSTRUCTION: &str = "\n\nSummarise the conversation above in a few sentences. Keep names, facts, decisions and open \
                           questions.\nSummary:";
/// Text before a summary, by default.
pub const SUMMARY_BEFORE: &str = "\nEarlier in this conversation: ";
/// Text behind a summary, by default.
const BEHIND: &str = "\n";
/// Tokens of sampled text, at most, by default.
const SAMPLE_DEFAULT: u32 = 1024;
/// Priority of requests for summaries behind that of the session, by default.
const PRIORITY_BEHIND: i32 = 100;
/// Maximum number of bytes of each text in the settings.
const TEXT_BYTES_MAX: usize = 4096;

impl From<LimitFault> for Invalid {
    fn from(fault: LimitFault) -> Self {
        Self(fault.to_string())
    }
}

/// Checked settings of a session.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Settings from the client, with the tenant of the caller.
    pub(crate) settings: proto::SessionSettings,
    /// Text around summaries.
    pub(crate) frame: Frame,
    /// Request for a summary.
    pub(crate) instruction: Vec<Token>,
    /// Tokens that begin every text.
    pub(crate) lead: Vec<Token>,
    /// `true` if summaries are made from sampled text.
    pub(crate) sampled: bool,
    /// Tokens of a prompt with its answer, at most, with the session's type of KV.
    pub(crate) context: u32,
    /// The same with the type of KV of the requests for summaries.
    pub(crate) summary_context: u32,
}

impl Setup {
    /// Checks settings and tokenises their texts. Summaries are asked for by the settings' own instruction or else by `instruction`.
    pub(crate) async fn of(
        submitter: &Submitter,
        client: &Client,
        settings: proto::SessionSettings,
        instruction: &str,
    ) -> Result<Self, Rejection> {
        let compaction = settings.compaction.clone().unwrap_or_default();
        let kv = submitter.kv_class(&settings.kv_dtype)?;
        let summary_kv =
            submitter.kv_class(&compaction.kv_dtype).map_err(|Invalid(text)| Invalid(format!("compaction.{text}")))?;
        let summary_kv = if compaction.kv_dtype.is_empty() { kv } else { summary_kv };
        let context = submitter.sequence_tokens_max(kv);
        let summary_context = submitter.sequence_tokens_max(summary_kv);
        let texts = [
            ("compaction.instruction", &compaction.instruction, instruction),
            ("compaction.summary_before", &compaction.summary_before, SUMMARY_BEFORE),
            ("compaction.summary_behind", &compaction.summary_behind, BEHIND),
        ];
        let mut tokens = Vec::new();
        for (name, text, default) in texts {
            tokens.push(tokens_of(submitter, client, name, text.as_deref().unwrap_or(default)).await?);
        }
        let [instruction, before, behind] = tokens.try_into().unwrap_or_default();
        let own_kv = !compaction.kv_dtype.is_empty() && compaction.kv_dtype != settings.kv_dtype;
        let sampled = match proto::SummaryInput::try_from(compaction.input) {
            Ok(proto::SummaryInput::Unspecified) => own_kv,
            Ok(input) => input == proto::SummaryInput::Sampled,
            Err(_) => {
                return Err(Invalid(format!("compaction.input is {}, which means nothing", compaction.input)).into());
            }
        };
        let lead = submitter.tokens_in_time(client, String::new(), true, None).await?;
        let frame = Frame { before: before.into(), behind: behind.into() };
        let setup = Self { settings, frame, instruction, lead, sampled, context, summary_context };
        // Checks names and modes as those of any request.
        setup.check(submitter, setup.request(vec![0]))?;
        Ok(setup)
    }

    /// Returns the limits of a chat with the settings.
    pub(crate) fn limits(&self, prefix: usize, bytes: u64) -> Result<Limits, Invalid> {
        let len = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let fixed = Fixed {
            prefix: len(prefix),
            frame: len(self.frame.before.len() + self.frame.behind.len()),
            instruction: len(self.instruction.len()),
        };
        let compaction = self.compaction();
        let wanted = Wanted {
            summary: compaction.summary_max,
            pins: compaction.pins_max,
            high: compaction.recent_high,
            low: compaction.recent_low,
        };
        let needed = self.lead.len() + self.instruction.len() + compaction.summary_max.unwrap_or(1) as usize;
        if needed >= self.summary_context as usize {
            let most = self.summary_context;
            let message = format!(
                "compaction: a summary needs {needed} tokens, with its instruction; workers of its kv_dtype hold {most}"
            );
            return Err(Invalid(message));
        }
        // A session holds several contexts, however large.
        let bytes = bytes.max(4 * u64::from(self.context) * size_of::<Token>() as u64);
        Ok(Limits::new(self.context, fixed, wanted, bytes)?)
    }

    /// Returns the tokens of sampled text for a summary, at most, before an instruction of `instruction` tokens.
    pub(crate) fn sample_max(&self, limits: &Limits, instruction: usize) -> usize {
        let taken = self.lead.len() + instruction + limits.summary as usize;
        let wanted = self.compaction().sample_max.unwrap_or(SAMPLE_DEFAULT.min(self.summary_context / 4));
        (wanted as usize).min((self.summary_context as usize).saturating_sub(taken))
    }

    /// Returns the request of a turn. Copied runs would keep what stands behind them out of the prefix cache, and the next turn would find nothing.
    pub(crate) fn request(&self, prompt: Vec<Token>) -> proto::GenerateRequest {
        let settings = self.settings.clone();
        proto::GenerateRequest {
            prompt: Some(proto::generate_request::Prompt::TokenIds(proto::TokenIds { ids: prompt })),
            tenant: settings.tenant,
            cache_salt: settings.cache_salt,
            share_cache: settings.share_cache,
            kv_dtype: settings.kv_dtype,
            h2o: settings.h2o,
            priority: settings.priority,
            reuse: "prefix".into(),
            ..Default::default()
        }
    }

    /// Returns a greedy request on behalf of the session: in the background, or like the session's turns if somebody waits for the request
    /// (`urgent`).
    pub(crate) fn background(&self, prompt: Vec<Token>, max_tokens: u32, urgent: bool) -> proto::GenerateRequest {
        let own = self.settings.priority;
        let later = self.compaction().priority.unwrap_or(own.saturating_add(PRIORITY_BEHIND));
        proto::GenerateRequest {
            sampling: Some(proto::Sampling { temperature: Some(0.0), seed: Some(0), ..Default::default() }),
            stopping: Some(proto::Stopping { max_tokens: Some(max_tokens), ..Default::default() }),
            priority: if urgent { later.min(own) } else { later },
            background: !urgent,
            ..self.request(prompt)
        }
    }

    /// Returns the request for a summary, which somebody may wait for (`urgent`).
    pub(crate) fn summary(&self, prompt: Vec<Token>, max_tokens: u32, urgent: bool) -> proto::GenerateRequest {
        let mut request = self.background(prompt, max_tokens, urgent);
        let dtype = self.compaction().kv_dtype;
        if !dtype.is_empty() {
            request.kv_dtype = dtype;
        }
        request
    }

    /// Checks a request of the session.
    pub(crate) fn check(&self, submitter: &Submitter, request: proto::GenerateRequest) -> Result<Checked, Invalid> {
        let checked = validate::check(request, submitter.model.vocab_size, &submitter.model.eos_token_ids)?;
        submitter.check_offer(&checked)?;
        Ok(checked)
    }

    fn compaction(&self) -> proto::Compaction {
        self.settings.compaction.clone().unwrap_or_default()
    }
}

/// Returns the request for a summary as the model's chat template renders it: as a message of the user, between `marks`.
pub(crate) fn instruction(marks: Option<&(String, String)>) -> String {
    match marks {
        Some((before, behind)) => [before.as_str(), SUMMARY_INSTRUCTION.trim(), behind].concat(),
        None => SUMMARY_INSTRUCTION.into(),
    }
}

/// Returns the tokens of a text of the settings.
pub(crate) async fn tokens_of(
    submitter: &Submitter,
    client: &Client,
    name: &str,
    text: &str,
) -> Result<Vec<Token>, Rejection> {
    let bytes = text.len();
    if bytes > TEXT_BYTES_MAX {
        return Err(Invalid(format!("{name} has {bytes} bytes; at most {TEXT_BYTES_MAX} are allowed")).into());
    }
    submitter.tokens_in_time(client, text.into(), false, None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(settings: proto::SessionSettings) -> Setup {
        let (frame, instruction, lead) = (Frame::default(), vec![1; 5], vec![0]);
        Setup { settings, frame, instruction, lead, sampled: true, context: 512, summary_context: 512 }
    }

    #[test]
    fn a_summary_is_as_urgent_as_the_turn_that_waits_for_it() {
        let priority = |own, urgent| {
            let compaction = proto::Compaction { priority: own, ..Default::default() };
            let settings = proto::SessionSettings { priority: 3, compaction: Some(compaction), ..Default::default() };
            setup(settings).summary(vec![1], 8, urgent).priority
        };
        assert_eq!([priority(None, false), priority(None, true)], [103, 3]);
        assert_eq!([priority(Some(9), false), priority(Some(9), true), priority(Some(1), true)], [9, 3, 1]);
    }

    #[test]
    fn requests_that_nobody_waits_for_are_in_the_background() {
        let setup = setup(proto::SessionSettings::default());
        let background = |urgent| (setup.summary(vec![1], 8, urgent), setup.background(vec![1], 1, urgent));
        for urgent in [false, true] {
            let (summary, context) = background(urgent);
            assert_eq!((summary.background, context.background), (!urgent, !urgent));
        }
        assert!(!setup.request(vec![1]).background, "a turn");
    }

    #[test]
    fn the_request_for_a_summary_is_between_the_marks_of_the_model() {
        let marks = ("\n<|user|>".to_owned(), "<|end|><|assistant|>".to_owned());
        let rendered = instruction(Some(&marks));
        assert!(rendered.starts_with("\n<|user|>Summarise the conversation above"), "{rendered}");
        assert!(rendered.ends_with("Summary:<|end|><|assistant|>"), "{rendered}");
        assert_eq!(instruction(None), SUMMARY_INSTRUCTION);
    }

    #[test]
    fn a_sample_leaves_room_for_the_instruction_of_its_own_compaction() {
        let compaction = proto::Compaction { sample_max: Some(1000), ..Default::default() };
        let settings = proto::SessionSettings { compaction: Some(compaction), ..Default::default() };
        let setup = setup(settings);
        let wanted = Wanted { summary: Some(20), ..Wanted::default() };
        let limits = Limits::new(512, Fixed::default(), wanted, 1 << 20).unwrap();
        assert_eq!(setup.sample_max(&limits, 5), 512 - 1 - 5 - 20);
        assert_eq!(setup.sample_max(&limits, 200), 512 - 1 - 200 - 20);
        assert_eq!(setup.sample_max(&limits, 600), 0);
    }
}
