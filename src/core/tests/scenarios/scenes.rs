//! Opening situations shared by several scenarios.

use trunkline_core::{Config, Request};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{config, fork, request, submit_filler, text};

/// The victim of [`swapping_out`].
pub const VICTIM: u64 = 2;

/// A prompt of 82 tokens: 5 full blocks and one of 2.
pub fn victim() -> Request {
    request(VICTIM, text(82, 82), 40)
}

/// A filler (1) has taken the last block; the victim's 6 blocks are being copied to the host.
pub fn swapping_out(victim: Request) -> Driver {
    let mut rig = Driver::without_worker(config());
    submit_filler(&mut rig, 1, 94, 2);
    rig.submit_request(victim);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 6)]);
    rig
}

/// [`swapping_out`] after the copy has ended: the victim is swapped, and the filler runs.
pub fn swapped(victim: Request) -> Driver {
    let mut rig = swapping_out(victim);
    rig.finish_copy(0);
    assert_eq!(rig.ids(), [1]);
    rig
}

/// [`swapping_out`] after copy and filler have ended: the victim's 6 blocks are being copied back, because none is left on the device.
pub fn swapping_in(victim: Request) -> Driver {
    let mut rig = swapped(victim);
    rig.evict_idle();
    rig.abort_now(1);
    assert_eq!(rig.moves()[0].0, Direction::In);
    rig
}

/// Requests 3 and 4 have equal prompts of 54 tokens, so they share 3 blocks; each has one of its own. Fillers 1 and 2
/// and a small request 5 with one block have the others. 4 is swapped out, then 3, each as the last to arrive.
pub fn sharers_swapped() -> Driver {
    let mut rig = sharers(config());
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 1)], "3 still runs on the shared blocks");
    rig.finish_copy(0);
    rig.answer_until(|rig| !rig.copies.is_empty());
    assert_eq!(rig.moves(), [(Direction::Out, 4)], "only swapped ones read the shared blocks");
    rig.finish_copy(0);
    rig.answer();
    assert_eq!(rig.ids(), [1, 2, 5]);
    rig
}

/// The requests of [`sharers_swapped`], before they run short.
pub fn sharers(config: Config) -> Driver {
    let mut rig = Driver::without_worker(config);
    submit_filler(&mut rig, 1, 50, 3);
    submit_filler(&mut rig, 2, 44, 5);
    rig.submit(5, text(5, 3), 200);
    rig.submit(3, text(3, 54), 90);
    rig.submit(4, text(3, 54), 90);
    rig.join();
    rig
}

/// Both sharers come back: 3 copies 4 blocks, 4 waits for 3 of them and copies one.
pub fn sharers_coming_back() -> Driver {
    let mut rig = sharers_swapped();
    rig.evict_idle();
    rig.abort_now(2);
    assert_eq!(rig.moves(), [(Direction::In, 4), (Direction::In, 1)]);
    rig
}

/// 10 blocks shared by the runner (2) and the victim (3), which has 40 of its own, and a filler (1). The victim is
/// swapped and reads the 10 blocks on the device, because the runner does.
pub fn prefix_kept(victim_tokens: u32) -> Driver {
    let mut rig = Driver::without_worker(config());
    submit_filler(&mut rig, 1, 49, 3);
    rig.submit(2, fork(7, 160, 8, 2), 300);
    rig.submit(3, fork(7, 160, 9, victim_tokens), 60);
    rig.join();
    rig.answer_until(|rig| !rig.copies.is_empty());
    rig.finish_copy(0);
    rig
}
