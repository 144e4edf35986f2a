//! What a sequence has been through.

/// Facts about the past of a sequence, for scheduling and for its usage.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Leading prompt tokens charged to the tenant.
    pub charged_tokens: u32,
    /// Prompt tokens found in the cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Prompt tokens copied at the first admission.
    pub copied_tokens: u32,
    /// Prompt tokens loaded from tiers then.
    pub loaded_tokens: u32,
    /// Tokens that its pins hold, once its hints took effect at the end.
    pub pinned_tokens: Option<u32>,
    /// Times the sequence was admitted. Only the first admission counts hits.
    pub admissions: u32,
    /// Time of the last admission, or of a copy of the sequence's blocks to a tier since, nanoseconds.
    pub written_ns: u64,
    /// Leading blocks offered to the first tier then.
    pub written: u32,
    /// Time of the first token, nanoseconds.
    pub first_token_ns: u64,
    /// Times the sequence was preempted.
    pub preemptions: u32,
    /// Position in the order of arrival that a preemption sent the sequence back to.
    pub queued_as: Option<u64>,
    /// Tokens generated when the sequence last joined the batch, to notice progress.
    pub generated_at_entry: u32,
    /// Leading blocks with other readers at the last preemption for recomputation.
    pub shared_at_preemption: u32,
    /// Published blocks after the shared ones, left idle by that preemption.
    pub cached_at_preemption: u32,
    /// Number, from 1, of the last row of failed steps with the sequence: a row has no successful step in between.
    pub failed_row: u64,
    /// Failed steps of the sequence on this core before that row, since its last token.
    pub failures_before_row: u32,
    /// Failures since its last token that the request brought along from another core.
    pub imported_failures: u32,
    /// Generated tokens that the request brought along.
    pub imported_tokens: u32,
    /// `true` once a second reading of the prompt failed, or a step with it: the prompt is not read again.
    pub reread_failed: bool,
    /// `true` once blocks of far tiers were brought nearer for the sequence.
    pub prefetched: bool,
    /// `true` once blocks of the sequence were looked up in a shared tier, or found not to be worth a look-up.
    pub looked_up: bool,
}
