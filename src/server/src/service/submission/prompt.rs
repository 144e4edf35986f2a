//! The prompt of a request: from text to tokens, limits, namespace and hashes.
//!
//! A text is tokenised in about [`PARTS`] parts of [`PART_BYTES`] or more, as far as its tokenizer can cut texts, each a job of its own on a blocking
//! thread. The jobs of clients take turns, within the bounds of `tokenising.rs`. Before each part the request may end: the client is gone, the
//! deadline has passed, or the text has more tokens than the context holds. A text of [`PART_BYTES`] is tokenised at once, and one that the
//! context cannot hold, at the bytes of the longest token, is refused before.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time;
use trunkline_cluster::ListenToCaches;
use trunkline_core::{BlockHash, Namespace, Request, RequestId, Token};
use trunkline_quote::quoted;
use trunkline_text::{Parts, TokenizerError};

use super::tokenising::{LARGE_PART_BYTES, Room};
use super::{Rejection, Submitter};
use crate::network::shares::Client;
use crate::service::retention;
use crate::service::validate::{self, Checked, Invalid, MAX_TOKENS_DEFAULT, Prompt};

/// Minimum number of bytes of text tokenised in one go; a text with as many is tokenised at once.
pub(crate) const PART_BYTES: usize = 8 << 10;
/// Parts of a longer text, as far as these are not large ones: a job costs a thread's wake.
const PARTS: usize = 8;

/// A text being tokenised, with the room for the text.
struct Job {
    parts: Parts,
    room: Room,
}

impl Submitter {
    /// Returns the bytes of text that a prompt may have.
    fn text_bytes_max(&self) -> u64 {
        u64::from(self.config.max_context) * u64::from(self.tokenizer.longest_piece())
    }

    /// Compiles the structure of the answer, tokenises the prompt and hashes it, before the deadline.
    pub(super) async fn prepare_in_time(
        &self,
        id: RequestId,
        client: &Client,
        mut checked: Checked,
        deadline_ns: Option<u64>,
    ) -> Result<Request, Rejection> {
        if let Some(grammar) = &checked.request.sampling.grammar {
            let left = self.time_left(deadline_ns);
            time::timeout(left, self.compiler.check(grammar)).await.map_err(|_| Rejection::TimeUp)??;
        }
        let prompt = match std::mem::replace(&mut checked.prompt, Prompt::Tokens(Vec::new())) {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => self.tokens_in_time(client, text, checked.add_special_tokens, deadline_ns).await?,
        };
        self.prepare(id, checked, prompt)
    }

    /// Returns the tokens of a text of a client, all of which the model has, before the deadline.
    pub(crate) async fn tokens_in_time(
        &self,
        client: &Client,
        text: String,
        add_special_tokens: bool,
        deadline_ns: Option<u64>,
    ) -> Result<Vec<Token>, Rejection> {
        let left = self.time_left(deadline_ns);
        let tokenised = self.tokenise(client, text, add_special_tokens);
        let tokens = time::timeout(left, tokenised).await.map_err(|_| Rejection::TimeUp)??;
        validate::ensure_ids("text: token", &tokens, self.model.vocab_size)
            .map_err(|wrong| Invalid(format!("{wrong}; the tokenizer has tokens that the model does not have")))?;
        Ok(tokens)
    }

    fn time_left(&self, deadline_ns: Option<u64>) -> Duration {
        let left_ns = deadline_ns.map(|at_ns| at_ns.saturating_sub(self.driver.clock().now_ns()));
        left_ns.map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Returns the tokens of the longest prompt with its answer, on engines of a class of KV.
    pub(crate) fn sequence_tokens_max(&self, kv_class: usize) -> u32 {
        self.kv[kv_class].sequence_tokens
    }

    /// Returns the tokens of a text. Ends early if the text has more than the context holds. Dropping the future ends the work with
    /// the part under way.
    async fn tokenise(&self, client: &Client, text: String, add_special_tokens: bool) -> Result<Vec<Token>, Rejection> {
        let (bytes, most) = (text.len(), self.text_bytes_max());
        if bytes as u64 > most {
            let context = self.config.max_context;
            let message = format!("text has {bytes} bytes; a context of {context} tokens holds at most {most}");
            return Err(Rejection::PromptTooLong(message));
        }
        let mut parts = self.tokenizer.parts(text, add_special_tokens);
        if bytes <= PART_BYTES {
            advance(&mut parts, PART_BYTES)?;
            return Ok(parts.into_ids());
        }
        let room = self.tokenising.take_room(client, bytes).ok_or(Rejection::TokenizerBusy)?;
        let mut job = Job { parts, room };
        let part = (bytes / PARTS).clamp(PART_BYTES, LARGE_PART_BYTES - 1);
        loop {
            let turn = self.tokenising.turn(&job.room, job.parts.next_part(part)).await;
            // A job that no thread has begun is taken back when the set is dropped.
            let mut jobs = JoinSet::new();
            jobs.spawn_blocking(move || {
                let all = advance(&mut job.parts, part);
                drop(turn);
                (job, all)
            });
            let Some(Ok((continued, all))) = jobs.join_next().await else {
                return Err(Rejection::TokenizerFailed("the tokenizer's thread panicked".to_owned()));
            };
            job = continued;
            if all? {
                drop(job.room);
                return Ok(job.parts.into_ids());
            }
            self.ensure_fits(job.parts.tokens(), " or more")?;
        }
    }

    /// Checks that the context holds a prompt of so many tokens and one more; `more` is said of the number.
    fn ensure_fits(&self, tokens: usize, more: &str) -> Result<(), Rejection> {
        let context = self.config.max_context;
        if tokens < context as usize {
            return Ok(());
        }
        Err(Rejection::PromptTooLong(format!(
            "prompt has {tokens} tokens{more}; the context of {context} tokens must hold it and at least one more"
        )))
    }

    /// Makes the core's request from a checked one and the tokens of its prompt.
    fn prepare(&self, id: RequestId, checked: Checked, prompt: Vec<Token>) -> Result<Request, Rejection> {
        if prompt.is_empty() {
            return Err(Invalid("text has no tokens; the prompt needs at least one token".into()).into());
        }
        self.ensure_fits(prompt.len(), "")?;
        let n_prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let kv_class = self.kv_class(&checked.kv_dtype)?;
        let mut request = Request {
            id,
            root: self.root_of(id, &checked, kv_class),
            prompt,
            max_tokens: checked.max_tokens.unwrap_or_else(|| self.max_tokens_for(n_prompt, kv_class)),
            shares_cache: self.shares_cache(&checked),
            retention: retention::resolve(&checked.retention, n_prompt).map_err(Invalid::from)?,
            kv_class: kv_class as u8,
            ..checked.request
        };
        request.hash_prompt(self.config.block_size);
        Ok(request)
    }

    /// Returns the class of engines whose KV is of a type; the first for an empty name.
    pub(crate) fn kv_class(&self, dtype: &str) -> Result<usize, Invalid> {
        if dtype.is_empty() {
            return Ok(0);
        }
        let known = || self.kv.iter().map(|kv| kv.dtype.as_str()).collect::<Vec<_>>().join(", ");
        let class = self.kv.iter().position(|kv| kv.dtype == dtype);
        class.ok_or_else(|| {
            Invalid(format!("kv_dtype is {dtype}; the workers of this server have: {}", known(), dtype = quoted(dtype)))
        })
    }

    /// Returns the root of a request's namespace, and has the followers of the caches learn what is behind it and the request.
    fn root_of(&self, id: RequestId, checked: &Checked, kv_class: usize) -> BlockHash {
        let namespace = self.namespace(checked, kv_class);
        let root = namespace.root();
        if let Some(ListenToCaches(listener)) = &self.listener {
            let of_class = (kv_class > 0).then_some(namespace.kv_dtype);
            let of_tenant = Some(namespace.tenant).filter(|tenant| !tenant.is_empty());
            let keys = namespace.extra_keys.iter().map(String::as_str);
            let others: Vec<&str> = of_tenant.into_iter().chain(of_class).chain(keys).collect();
            listener.named(root.0, namespace.salt, &others);
            if !checked.session.is_empty() {
                listener.of_session(id, &checked.session);
            }
        }
        root
    }

    /// Returns the scope within which a request shares cached blocks.
    fn namespace<'a>(&'a self, checked: &'a Checked, kv_class: usize) -> Namespace<'a> {
        let shares = checked.share_cache.unwrap_or(self.share_cache);
        Namespace {
            model: &self.model.name,
            revision: &self.model.revision,
            kv_dtype: &self.kv[kv_class].layout,
            adapter: "",
            tenant: if shares { "" } else { &checked.tenant_name },
            salt: &checked.cache_salt,
            extra_keys: &checked.extra_keys,
        }
    }

    /// Returns `true` if other tenants share the namespace of a request: the request shares, or names no tenant, and some tenant has shared before. On
    /// most servers none does, and the namespace is of requests without a tenant alone.
    fn shares_cache(&self, checked: &Checked) -> bool {
        let shares = checked.share_cache.unwrap_or(self.share_cache);
        if shares && !checked.tenant_name.is_empty() {
            self.tenants_share.store(true, Ordering::Relaxed);
        }
        shares || (checked.tenant_name.is_empty() && self.tenants_share.load(Ordering::Relaxed))
    }

    /// Returns the bound on generated tokens for a request without one: the default, or as many as fit.
    fn max_tokens_for(&self, n_prompt: u32, kv_class: usize) -> u32 {
        // If not even one token fits, the core refuses the request.
        MAX_TOKENS_DEFAULT.min(self.sequence_tokens_max(kv_class).saturating_sub(n_prompt)).max(1)
    }
}

/// Tokenises the next part of a text, of so many bytes; returns `true` if it was the last.
fn advance(parts: &mut Parts, bytes: usize) -> Result<bool, Rejection> {
    parts.advance(bytes).map_err(|err| match err {
        TokenizerError::Panicked(_) => Rejection::TokenizerFailed(err.to_string()),
        _ => Invalid(format!("text cannot be tokenised: {err}")).into(),
    })
}
