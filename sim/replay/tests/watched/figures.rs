//! Figures of a whole replay as a row of columns.

use std::collections::BTreeSet;

use trunkline_core::TierConfig;

use trunkline_sim_perf::columns::{Cell, Kind};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::{Arrivals, Settings, replay};
use trunkline_sim_report::Report;
use trunkline_sim_report::figures::{columns, row};
use trunkline_sim_workload::trace::{Content, formats};
use trunkline_sim_workload::{Trace, TraceRequest};

fn report() -> Report {
    let mut settings = Settings {
        arrivals: Arrivals::Serial,
        draft_acceptance: 0.5,
        ..Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    };
    settings.core.device_blocks = 64;
    let (write, eviction) = ("through".parse().unwrap(), "lru".into());
    settings.core.tiers = vec![TierConfig { name: "host".into(), blocks: 64, write, eviction, shared: false }];
    let request = |number: u32| TraceRequest {
        arrival_ns: u64::from(number),
        input_tokens: 100,
        output_tokens: 3,
        content: Content::Unique(number),
        ..TraceRequest::default()
    };
    let trace = Trace { format: formats::AZURE, requests: (0..20).map(request).collect() };
    let cost = settings.cost_model().unwrap();
    replay(&trace, &settings, &*cost, &mut |_| {}).unwrap()
}

#[test]
fn every_column_has_its_figure() {
    let (columns, report) = (columns(), report());
    let row = row(&report);
    assert_eq!(columns.len(), row.len());
    let names: BTreeSet<&str> = columns.iter().map(|(column, _)| column.name.as_str()).collect();
    assert_eq!(names.len(), columns.len(), "no name twice");
    let cell = |name: &str| &row[columns.iter().position(|(column, _)| column.name == name).unwrap()];
    assert_eq!(cell("completed"), &Cell::Int(20));
    assert_eq!(cell("ttft_p99"), &Cell::Real(report.latencies.ttft_s.p99));
    assert_eq!(cell("e2e_mean"), &Cell::Real(report.latencies.e2e_s.mean));
    assert_eq!(cell("tier_host_stored_blocks"), &Cell::count(report.tiers[0].stored_blocks));
    assert!(report.tiers[0].stored_blocks > 0);
    assert_eq!(cell("tier_disk_blocks"), &Cell::None);
    assert_eq!(cell("digest"), &Cell::Text(report.digest.clone()));
    for ((column, _), cell) in columns.iter().zip(&row) {
        let fits = match cell {
            Cell::None => column.optional,
            Cell::Int(_) => column.kind == Kind::Int,
            Cell::Real(_) => column.kind == Kind::Real,
            Cell::Text(_) => column.kind == Kind::Text,
            Cell::Flag(_) => column.kind == Kind::Flag,
        };
        assert!(fits, "{}", column.name);
    }
}
