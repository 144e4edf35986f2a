//! Scenarios 97 to 100: reuse of cached text that is not a prefix.

use trunkline_core::{CellCopy, Config, Request, Reuse, ReuseConfig, Token, WorkerFacts};
use trunkline_driver::Driver;

use crate::prompts::{config, request, text};

fn with(block_size: u32, reuse: ReuseConfig) -> Config {
    let worker = WorkerFacts { reuse, ..WorkerFacts::default() };
    Config { block_size, worker, device_blocks: 200, ..config() }
}

fn reusing(block_size: u32, least: u32) -> Config {
    with(block_size, ReuseConfig { anywhere: least, ..ReuseConfig::default() })
}

/// A rig whose cells decide the tokens, and that has run a prompt of the first tokens of family 1.
fn seen(config: Config, tokens: u32) -> Driver {
    let mut rig = Driver::with_content(config, 1);
    rig.join();
    rig.submit(1, text(1, tokens), 1);
    rig.run_to_end();
    rig
}

/// Prefix, copied and prompt tokens of a request that runs to its end.
fn usage(rig: &mut Driver, prompt: Vec<Token>) -> (u32, u32, u32) {
    rig.submit(2, prompt, 3);
    rig.run_to_end();
    let usage = rig.usages[&2];
    (usage.cached_tokens, usage.copied_tokens, usage.prompt_tokens)
}

/// Tokens of family 1 without those from `first` on, `n` of them.
fn without(tokens: u32, first: u32, n: u32) -> Vec<Token> {
    let mut prompt = text(1, tokens);
    prompt.drain(first as usize..(first + n) as usize);
    prompt
}

/// KsanaLLM: copies 257 tokens and leaves 6, because it stops a block before the end; here: copies up to the last token, which alone is
/// computed.
#[test]
fn scenario_097_a_prompt_without_one_token_is_copied_on_both_sides_of_the_gap() {
    let mut rig = seen(reusing(6, 24), 300);
    rig.submit(2, without(300, 40, 1), 3);
    assert_eq!(rig.running(), [(2, 298, 1, true)], "36 of the prefix, 4 of the block behind it, 258 of the rest");
    let copies = &rig.step().unwrap().copies;
    assert_eq!(copies.iter().map(|copy| copy.n_tokens).sum::<u32>(), 262);
    assert_eq!((copies[0].n_tokens, copies[0].shift), (4, 0));
    assert!(copies[1..].iter().all(|copy| copy.shift == -1));
    rig.run_to_end();
    let usage = rig.usages[&2];
    assert_eq!((usage.cached_tokens, usage.copied_tokens), (36, 262));
    assert_eq!(rig.stats().tokens.copied_tokens, 262);
}

/// KsanaLLM: copies nothing if the prompt ends within two blocks and the minimum after the prefix; here: copies any run that is long
/// enough, because the tokens left do not matter.
#[test]
fn scenario_098_what_is_copied_is_the_rest_of_what_is_cached() {
    for deleted in 1..=16 {
        for kept in 1..=15 {
            let mut rig = seen(reusing(16, 32), 89);
            let mut prompt = without(89, 16 + kept, deleted);
            prompt.push(7);
            assert_eq!(usage(&mut rig, prompt), (16, 64 - deleted, 90 - deleted), "{deleted} behind {kept}");
        }
    }
    // One token fewer is below the minimum.
    let mut rig = seen(reusing(16, 32), 89);
    assert_eq!(usage(&mut rig, without(89, 31, 17)), (16, 47, 72));
    let mut rig = seen(reusing(16, 33), 89);
    assert_eq!(usage(&mut rig, without(89, 31, 17)), (16, 15, 72));
}

/// KsanaLLM: nothing after the request was swapped out; here: nothing once the blocks are evicted, because those of a swapped-out request stay
/// findable on the device until then.
#[test]
fn scenario_099_nothing_is_copied_from_blocks_that_left_the_device() {
    let mut rig = seen(reusing(16, 32), 89);
    rig.evict_idle();
    assert_eq!(usage(&mut rig, without(89, 20, 3)), (0, 0, 86));
}

/// The device has room for the sources and the new request, and not one block more: what the request takes is not what it copies.
#[test]
fn scenario_100_sources_stay_until_the_copy_has_run() {
    for blocks in 10..=13 {
        let mut rig = seen(Config { device_blocks: blocks, ..reusing(16, 32) }, 89);
        let (cached, copied, _) = usage(&mut rig, without(89, 20, 3));
        // Sources of 5 blocks, one of them the prefix, and 5 more blocks of the request.
        assert_eq!((cached, copied), (16, 61), "{blocks} blocks");
        assert_eq!(rig.stats().held_blocks, 0, "the sources are released");
    }
    let mut rig = seen(Config { device_blocks: 9, ..reusing(16, 32) }, 89);
    assert_eq!(usage(&mut rig, without(89, 20, 3)), (16, 0, 86), "computed, because the sources would have to go");
}

/// With two steps in flight the sources stay until the step that copies has ended, and not the one before.
#[test]
fn sources_stay_while_the_step_that_copies_is_in_flight() {
    let mut rig = seen(Config { max_steps_in_flight: 2, ..reusing(16, 32) }, 89);
    rig.submit(9, text(9, 20), 20);
    rig.submit(2, without(89, 20, 3), 3);
    rig.answer_until(|rig| rig.steps.iter().any(|step| !step.copies.is_empty()));
    let copying = |rig: &Driver| rig.steps.iter().position(|step| !step.copies.is_empty());
    assert_eq!(copying(&rig), Some(1), "a step of the other request is before it");
    let before = rig.stats().held_blocks;
    rig.answer();
    assert_eq!((copying(&rig), rig.stats().held_blocks), (Some(0), before), "nothing is released");
    rig.answer();
    assert_eq!((copying(&rig), rig.stats().held_blocks), (None, before - 4), "all sources but the prefix");
}

/// The other way round: a second request of the same pass takes the blocks that are left.
#[test]
fn sources_stay_while_others_of_the_same_pass_take_blocks() {
    let mut rig = Driver::with_content(Config { device_blocks: 16, max_batch_size: 2, ..reusing(16, 32) }, 1);
    rig.join();
    rig.submit(1, text(1, 89), 1);
    rig.run_to_end();
    rig.submit(9, text(9, 20), 4);
    rig.submit(2, without(89, 20, 3), 3);
    rig.submit(3, text(3, 60), 3);
    rig.run_to_end();
    assert_eq!(rig.usages[&2].copied_tokens, 61);
}

#[test]
fn a_text_says_which_cells_were_copied_and_nobody_finds_them() {
    let mut rig = seen(reusing(16, 32), 89);
    let prompt = without(89, 20, 3);
    let ask = |id, reuse| Request { reuse, ..request(id, prompt.clone(), 40) };
    rig.submit_request(ask(2, None));
    rig.run_to_end();
    rig.submit_request(ask(3, Some(Reuse::Prefix)));
    rig.run_to_end();
    assert_eq!((rig.usages[&3].cached_tokens, rig.usages[&3].copied_tokens), (16, 0), "2 published nothing");
    assert_ne!(rig.said(2), rig.said(3), "copied cells change the text");
    // What 3 computed is found, by requests that want copies too.
    rig.submit_request(ask(4, Some(Reuse::Anywhere)));
    rig.run_to_end();
    assert_eq!((rig.usages[&4].cached_tokens, rig.usages[&4].copied_tokens), (80, 5));
    assert_eq!(rig.said(4), rig.said(3), "the beginning of a block that continues the prefix is exact");
}

#[test]
fn a_document_behind_another_question_is_copied_and_what_is_between_is_computed() {
    let mut rig = Driver::with_content(reusing(16, 16), 1);
    rig.join();
    rig.submit(1, [text(1, 100), text(2, 100)].concat(), 1);
    rig.run_to_end();
    // Both documents in another order, after another question.
    let prompt = [text(8, 13), text(2, 100), text(9, 7), text(1, 100), text(7, 3)].concat();
    rig.submit(2, prompt, 3);
    assert_eq!(rig.running(), [(2, 0, 13, false)], "the question is computed first");
    assert_eq!(rig.stats().tokens.copied_tokens, 192, "all but the 8 tokens of the last block, which is not full");
    rig.answer();
    assert_eq!(rig.running(), [(2, 105, 15, false)], "the first document ends within the last block");
    rig.answer();
    assert_eq!(rig.running(), [(2, 220, 3, true)]);
    rig.run_to_end();
}

#[test]
fn copies_are_asked_for_or_refused_and_never_cross_namespaces() {
    let mut rig = seen(with(16, ReuseConfig { anywhere: 32, on_request: true, ..ReuseConfig::default() }), 89);
    assert_eq!(usage(&mut rig, without(89, 20, 3)), (16, 0, 86));
    rig.submit_request(Request { reuse: Some(Reuse::Anywhere), ..request(3, without(89, 24, 3), 3) });
    rig.run_to_end();
    assert_eq!(rig.usages[&3].copied_tokens, 61);
    let root = trunkline_core::Namespace { salt: "other", ..Default::default() }.root();
    rig.submit_request(Request { reuse: Some(Reuse::Anywhere), root, ..request(4, without(89, 24, 3), 3) });
    rig.run_to_end();
    assert_eq!((rig.usages[&4].cached_tokens, rig.usages[&4].copied_tokens), (0, 0));
}

#[test]
fn the_first_tokens_of_a_run_may_be_computed_again() {
    let mut rig = seen(with(16, ReuseConfig { anywhere: 32, recompute: 5, ..ReuseConfig::default() }), 89);
    rig.submit(2, without(89, 20, 3), 3);
    assert_eq!(rig.running(), [(2, 20, 5, false)], "4 exact tokens are copied, 5 computed");
    let first = CellCopy { n_tokens: 4, shift: 0, ..rig.step().unwrap().copies[0] };
    assert_eq!(rig.step().unwrap().copies[0], first);
    rig.answer();
    assert_eq!(rig.running(), [(2, 77, 9, true)]);
    rig.run_to_end();
}

#[test]
fn without_the_setting_nothing_is_copied_whatever_a_request_asks() {
    let mut rig = seen(reusing(16, 0), 89);
    rig.submit_request(Request { reuse: Some(Reuse::Anywhere), ..request(2, without(89, 20, 3), 3) });
    rig.run_to_end();
    assert_eq!(rig.usages[&2].copied_tokens, 0);
}

/// Tokens found by a prompt of a tenant with `token` after the tokens of family 1 from `first` to `known`, after another tenant's prompt of
/// family 1.
fn tried(first: u32, known: u32, token: Token, shares_cache: bool) -> u32 {
    let mut rig = Driver::with_content(reusing(16, 32), 1);
    rig.join();
    rig.submit_request(Request { shares_cache, ..request(1, text(1, 89), 1) });
    rig.run_to_end();
    let before = if first == 0 { Vec::new() } else { text(8, 3) };
    let prompt = [&before[..], &text(1, known)[first as usize..], &[token], &text(9, 2)].concat();
    rig.submit_request(Request { shares_cache, ..request(2, prompt, 1) });
    rig.run_to_end();
    rig.usages[&2].cached_tokens + rig.usages[&2].copied_tokens
}

/// Who tries one token behind known ones sees from the counts whether it is right. Where tenants share, this is so for the last token of a block
/// alone, as it is for prefix hits.
#[test]
fn sharing_tenants_find_out_nothing_finer_than_a_block() {
    for first in [0, 5, 16] {
        let says = |known: u32, shares| tried(first, known, 10_000 + known, shares) != tried(first, known, 7, shares);
        let seen: Vec<u32> = (first + 1..88).filter(|known| says(*known, true)).collect();
        let ends: &[u32] = if first == 0 { &[15, 31, 47, 63, 79] } else { &[47, 63, 79] };
        assert_eq!(seen, ends, "from {first}");
        let seen = (first + 1..79).filter(|known| says(*known, false)).count();
        assert!(seen > 30, "in a cache of its own, a tenant copies to the token: {seen} from {first}");
    }
}

/// The same at the other side: a token tried before known ones.
#[test]
fn sharing_tenants_find_out_nothing_before_a_block() {
    let found = |first: u32, token, shares_cache| {
        let mut rig = Driver::with_content(reusing(16, 32), 1);
        rig.join();
        rig.submit_request(Request { shares_cache, ..request(1, text(1, 89), 1) });
        rig.run_to_end();
        let prompt = [&[7, token][..], &text(1, 89)[first as usize..], &[7]].concat();
        rig.submit_request(Request { shares_cache, ..request(2, prompt, 1) });
        rig.run_to_end();
        rig.usages[&2].copied_tokens
    };
    let says = |first: u32, shares| found(first, 9_999 + first, shares) != found(first, 8, shares);
    assert_eq!((1..48).filter(|first| says(*first, true)).collect::<Vec<_>>(), [1, 17, 33]);
    assert!((1..48).filter(|first| says(*first, false)).count() > 40);
}
