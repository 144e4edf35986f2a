//! Facts on which the files of the server and a worker's model must agree: tokens, and tokens that end an answer.

use std::collections::BTreeSet;

use anyhow::ensure;
use tracing::warn;
use trunkline_port::ModelInfo;
use trunkline_text::{ModelFacts, Tokenizer};

use crate::model::model_source::log_facts;

const TOKENIZER_FILE: &str = "tokenizer.json";

/// Compares a tokenizer with a model.
///
/// # Errors
/// If the model does not have most of the tokens: the tokenizer is of another model.
pub(super) fn check_tokenizer(tokenizer: &Tokenizer, vocab_size: u32) -> anyhow::Result<()> {
    let (beyond, all) = (tokenizer.tokens_beyond(vocab_size), tokenizer.vocab_size());
    ensure!(
        beyond as u64 * 2 < u64::from(all),
        "{TOKENIZER_FILE} has {beyond} tokens with ids that the model does not have (its ids are below {vocab_size}): the \
         files belong to different models"
    );
    if beyond > 0 {
        warn!(
            "{beyond} tokens of {TOKENIZER_FILE} have ids that the model does not have; texts with such a token are refused"
        );
    }
    Ok(())
}

/// Adds the tokens that end an answer by the files of the server to those of a worker's model.
pub(super) fn join_ends(model: &mut ModelInfo, facts: &ModelFacts) {
    log_facts(&model.name, facts);
    let ends = facts.end_ids().into_iter().filter(|id| *id < model.vocab_size);
    let ends: BTreeSet<_> = ends.chain(model.eos_token_ids.iter().copied()).collect();
    model.eos_token_ids = ends.into_iter().collect();
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trunkline_sim_perf::model;

    use super::*;

    #[test]
    fn a_tokenizer_of_another_model_is_refused_and_a_few_tokens_too_many_are_not() {
        let tokenizer = Tokenizer::bytes();
        assert!(check_tokenizer(&tokenizer, 258).is_ok() && check_tokenizer(&tokenizer, 1 << 20).is_ok());
        assert!(check_tokenizer(&tokenizer, 257).is_ok());
        let message = check_tokenizer(&tokenizer, 100).unwrap_err().to_string();
        assert!(
            message.starts_with("tokenizer.json has 158 tokens with ids that the model does not have"),
            "{message}"
        );
    }

    #[test]
    fn an_attached_model_ends_also_where_the_files_of_the_server_say_so() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{\"eos_token_id\": [3, 5, 90]}").unwrap();
        let facts = ModelFacts::read(folder.path()).unwrap();
        let mut model = ModelInfo { vocab_size: 10, eos_token_ids: vec![2, 5], ..ModelInfo::default() };
        join_ends(&mut model, &facts);
        assert_eq!(model.eos_token_ids, [2, 3, 5]);
    }

    #[test]
    fn served_and_simulated_contexts_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for scaling in [
            json!(null),
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}),
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
            json!({"type": "yarn", "factor": 2.0}),
            json!({"type": "linear", "factor": 2.5}),
            json!({"type": "dynamic", "factor": 2.0}),
            json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}),
            json!({"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 512}),
        ] {
            let config = json!({
                "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128,
                "vocab_size": 256, "max_position_embeddings": 4096, "rope_scaling": scaling,
            });
            std::fs::write(&path, config.to_string()).unwrap();
            let served = ModelFacts::read(folder.path()).unwrap().context.unwrap().tokens;
            assert_eq!(model::from_config(&path).unwrap().max_context, Some(served), "{scaling}");
        }
    }
}
