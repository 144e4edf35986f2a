//! The memory of ended requests.

use trunkline_core::{Config, Event};
use trunkline_driver::Driver;

#[test]
fn the_memory_of_all_requests_that_end_in_an_event_is_handed_out_once() {
    let mut rig = Driver::new(Config { block_size: 4, device_blocks: 20, ..Config::default() });
    (0..30).for_each(|id| rig.submit(id, vec![id as u32; 40], 10));
    assert!(rig.core.take_remains().is_empty(), "no request has ended");
    rig.abort(29);
    let mut remains = rig.core.take_remains();
    assert_eq!((remains.len(), rig.core.take_remains().len()), (1, 0));
    rig.event(Event::Shutdown);
    remains.append(rig.core.take_remains());
    rig.run_to_end();
    remains.append(rig.core.take_remains());
    assert_eq!(remains.len(), 30, "each request leaves its memory, the running ones at the end of the step");
}
