//! Metrics of KV blocks: on the device, in tiers, and on the way.

use trunkline_store::LinkStats;

use super::{ENGINE, Metric, TIER, counter, gauge};
use crate::metrics::samples::Samples;
use crate::metrics::scrape::{Engine, Scrape};

/// The labels of metrics by link.
const LINK: &[&str] = &["engine", "from", "to"];

pub(super) const METRICS: &[Metric] = &[
    gauge("trunkline_kv_cache_usage_perc", ENGINE, "Share of device blocks in use by requests, 0 to 1.", |s, out| {
        for engine in s.engines() {
            out.add(&[("engine", &engine.number)], engine.at.status.stats.kv_usage());
        }
    }),
    gauge("trunkline_device_blocks", &["engine", "state"], "Device blocks by state.", |s, out| {
        for Engine { number, at } in s.engines() {
            let stats = &at.status.stats;
            for (state, blocks) in [
                ("free", stats.free_blocks),
                ("idle", stats.idle_blocks),
                ("held", stats.held_blocks),
                ("private", stats.private_blocks),
                ("moving", stats.moving_blocks),
            ] {
                out.add(&[("engine", number), ("state", state)], blocks);
            }
        }
    }),
    gauge("trunkline_tier_blocks", TIER, "Blocks in a tier.", |s, out| s.each_tier(out, |tier, _| tier.blocks)),
    gauge("trunkline_tier_bytes", TIER, "Bytes that the blocks of a tier take, compressed.", |s, out| {
        s.each_tier(out, |tier, _| tier.stored_bytes);
    }),
    gauge("trunkline_tier_limit_bytes", TIER, "Most bytes of a tier; 0 without a limit.", |s, out| {
        s.each_tier(out, |tier, _| tier.limit_bytes);
    }),
    gauge("trunkline_tier_down", TIER, "1 while remote storage does not answer.", |s, out| {
        s.each_tier(out, |tier, _| tier.remote.as_ref().is_some_and(|remote| remote.is_down));
    }),
    counter("trunkline_tier_hit_blocks_total", TIER, "Blocks found in a tier and in no nearer place.", |s, out| {
        s.each_tier(out, |_, counters| counters.hit_blocks);
    }),
    counter("trunkline_tier_stored_blocks_total", TIER, "Blocks copied to a tier.", |s, out| {
        s.each_tier(out, |_, counters| counters.stored_blocks);
    }),
    counter("trunkline_tier_evicted_blocks_total", TIER, "Blocks dropped from a tier to make room.", |s, out| {
        s.each_tier(out, |_, counters| counters.evicted_blocks);
    }),
    counter(
        "trunkline_tier_skipped_blocks_total",
        TIER,
        "Blocks that a tier refused, or was too busy for.",
        |s, out| {
            s.each_tier(out, |_, counters| counters.skipped_blocks);
        },
    ),
    counter("trunkline_tier_looked_up_blocks_total", TIER, "Blocks that shared storage was asked for.", |s, out| {
        s.each_tier(out, |_, counters| counters.looked_up_blocks);
    }),
    counter("trunkline_tier_found_blocks_total", TIER, "Blocks of those that were there.", |s, out| {
        s.each_tier(out, |_, counters| counters.found_blocks);
    }),
    counter(
        "trunkline_tier_faults_total",
        &["engine", "tier", "reason"],
        "Stored blocks that failed verification.",
        |s, out| {
            for engine in s.engines() {
                for (tier, place, _) in engine.tiers() {
                    for (fault, n) in place.faults.each() {
                        out.add(&[("engine", &engine.number), ("tier", tier), ("reason", fault.name())], n);
                    }
                }
            }
        },
    ),
    counter("trunkline_copied_blocks_total", LINK, "Blocks arrived, by the places of a copy.", |s, out| {
        each_link(s, out, |link| link.blocks);
    }),
    counter("trunkline_copied_bytes_total", LINK, "Bytes of the arrived blocks, uncompressed.", |s, out| {
        each_link(s, out, |link| link.block_bytes);
    }),
    counter("trunkline_copied_stored_bytes_total", LINK, "Bytes of the arrived blocks as stored there.", |s, out| {
        each_link(s, out, |link| link.stored_bytes);
    }),
    counter("trunkline_copy_refused_blocks_total", LINK, "Blocks refused: too many queued, or no room.", |s, out| {
        each_link(s, out, |link| link.refused);
    }),
    counter("trunkline_copy_failed_blocks_total", LINK, "Blocks that failed to arrive for other reasons.", |s, out| {
        each_link(s, out, |link| link.failed);
    }),
    counter(
        "trunkline_copy_cancelled_blocks_total",
        LINK,
        "Blocks of copies that were cancelled because no request waited for them.",
        |s, out| {
            each_link(s, out, |link| link.cancelled);
        },
    ),
    gauge("trunkline_copy_queued_blocks", LINK, "Blocks asked for and not yet answered.", |s, out| {
        each_link(s, out, |link| link.queued_blocks);
    }),
    counter(
        "trunkline_copy_wait_seconds_total",
        LINK,
        "Time from asking for a block to the answer, summed.",
        |s, out| {
            each_link(s, out, |link| link.waits.sum_ns as f64 * 1e-9);
        },
    ),
    counter("trunkline_copy_waits_total", LINK, "Blocks in trunkline_copy_wait_seconds_total.", |s, out| {
        each_link(s, out, |link| link.waits.count);
    }),
    gauge(
        "trunkline_host_memory_bytes",
        &["engine", "state"],
        "Host memory for blocks: used, and idle for the next.",
        |s, out| {
            for Engine { number, at } in s.engines() {
                out.add(&[("engine", number), ("state", "used")], at.store.arena.used_bytes);
                out.add(&[("engine", number), ("state", "idle")], at.store.arena.idle_bytes);
            }
        },
    ),
    gauge("trunkline_host_memory_limit_bytes", ENGINE, "Host memory for blocks, at most.", |s, out| {
        s.each(out, |engine| engine.store.arena.limit_bytes);
    }),
    counter("trunkline_encoded_bytes_total", ENGINE, "Bytes of compressed blocks before compression.", |s, out| {
        s.each(out, |engine| engine.store.codec.encoded_bytes);
    }),
    counter("trunkline_frame_bytes_total", ENGINE, "Bytes of compressed blocks after compression.", |s, out| {
        s.each(out, |engine| engine.store.codec.frame_bytes);
    }),
    counter("trunkline_encode_seconds_total", ENGINE, "Time of compression, of one thread.", |s, out| {
        s.each(out, |engine| engine.store.codec.encode_ns as f64 * 1e-9);
    }),
    counter("trunkline_decode_seconds_total", ENGINE, "Time of decompression, of one thread.", |s, out| {
        s.each(out, |engine| engine.store.codec.decode_ns as f64 * 1e-9);
    }),
    counter("trunkline_codec_mismatches_total", ENGINE, "Blocks changed by compression: a defect.", |s, out| {
        s.each(out, |engine| engine.store.codec.mismatches);
    }),
];

fn each_link<V: Into<crate::metrics::samples::Value>>(
    scrape: &Scrape,
    out: &mut Samples<'_>,
    value: impl Fn(&LinkStats) -> V,
) {
    for engine in scrape.engines() {
        for link in &engine.at.store.links {
            let (from, to) = (engine.place(link.from), engine.place(link.to));
            out.add(&[("engine", &engine.number), ("from", &from), ("to", &to)], value(link));
        }
    }
}
