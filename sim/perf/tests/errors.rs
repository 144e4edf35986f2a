//! The texts of errors of devices, models and costs.

#![cfg(feature = "parquet")]

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use parquet::errors::ParquetError;
use trunkline_core::names::spec::SpecError;
use trunkline_port::streaming::plan::BudgetError;
use trunkline_sim_perf::UnknownName;
use trunkline_sim_perf::columns::{ColumnError, ColumnFault};
use trunkline_sim_perf::cost::choice::Layout;
use trunkline_sim_perf::cost::table::{TableError, TableFault};
use trunkline_sim_perf::cost::{
    CostChoiceError, CostError, EngineOverhead, EngineOverheadError, Parallel, ParallelError, StreamingError,
    WeightsError,
};
use trunkline_sim_perf::hardware::HardwareError;
use trunkline_sim_perf::memory::DoesNotFit;
use trunkline_sim_perf::model::ModelError;
use trunkline_sim_workload::lines::LineFault;

const MODEL: &str = "llama-3-8b";
const HARDWARE: &str = "h100-80g";

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

fn unknown() -> UnknownName {
    UnknownName { kind: "model", name: "lama".into(), known: vec![MODEL, "llama-3-70b"] }
}

fn json() -> serde_json::Error {
    serde_json::from_str::<u32>("\"four\"").expect_err("no number")
}

fn budget() -> BudgetError {
    BudgetError { bytes: 1 << 30, fixed_bytes: 2 << 30, window_bytes: 1 << 28, least_bytes: 9 << 28 }
}

fn table(fault: TableFault) -> TableError {
    TableError { path: "tables/attention.csv".into(), line: 7, fault }
}

fn models(out: &mut String) {
    let (name, field) = (|| "config.json".to_owned(), "num_hidden_layers");
    texts!(
        out,
        ModelError {
            UnknownName: ModelError::UnknownName(unknown()),
            Gguf: ModelError::Gguf { path: "model.gguf".into() },
            Unreadable: ModelError::Unreadable { path: "config.json".into(), fault: refused() },
            Malformed: ModelError::Malformed { name: name(), fault: json() },
            OutOfRange: ModelError::OutOfRange { name: name(), field, value: 0, expected: "at least 1" },
            Mistyped: ModelError::Mistyped { name: name(), field, value: "\"two\"".into(), expected: "a whole number" },
            NoDecoder: ModelError::NoDecoder { name: name(), field: "is_encoder_decoder".into() },
            Quantisation: ModelError::Quantisation { name: name(), field: "quantization_config", fault: json() },
            Recurrent: ModelError::Recurrent { name: name(), field: "layer_types" },
            Missing: ModelError::Missing { name: name(), field, why: "it is the number of layers" },
            UnknownField: ModelError::UnknownField { name: name(), field: "depth".into(), lacks: field },
            Unmodelled: ModelError::Unmodelled { name: name(), field: "block_configs" },
            Varies: ModelError::Varies { name: name(), field, first: "8".into(), other: "4".into() },
            NoAttention: ModelError::NoAttention { name: name(), field: "layer_types" },
            UnknownDtype: ModelError::UnknownDtype { name: name(), dtype: "float3".into(), known: "bfloat16, float16" },
        }
    );
}

fn devices(out: &mut String) {
    texts!(
        out,
        DoesNotFit {
            Memory: DoesNotFit::Memory {
                model: MODEL,
                hardware: HARDWARE,
                state_bytes: 1_000_000_000,
                workspace_bytes: 2_000_000_000,
                needed_bytes: 90_000_000_000,
                utilization: 0.9,
                usable_bytes: 72_000_000_000,
            },
            Pages: DoesNotFit::Pages { model: MODEL, hardware: HARDWARE, sequences: 1024, pages: 856 },
        }
    );
    let out_of_range = || HardwareError::OutOfRange { field: "memory_gb", value: -1.0, expected: "above 0" };
    texts!(
        out,
        HardwareError {
            UnknownName: HardwareError::UnknownName(unknown()),
            Unreadable: HardwareError::Unreadable { path: "device.toml".into(), fault: refused() },
            File: HardwareError::File { path: "device.toml".into(), fault: Box::new(out_of_range()) },
            Malformed: HardwareError::Malformed("unknown field `memory`".into()),
            OutOfRange: out_of_range(),
        }
    );
}

fn columns(out: &mut String) {
    texts!(out, ColumnError = ColumnError { path: "steps.parquet".into(), fault: ColumnFault::NotFound });
    texts!(
        out,
        ColumnFault {
            NotFound: ColumnFault::NotFound,
            Io: ColumnFault::Io(refused()),
            Parquet: ColumnFault::Parquet(ParquetError::General("bad footer".into())),
            MissingColumn: ColumnFault::MissingColumn("time_ms".into()),
            Unread: ColumnFault::Unread("times".into()),
            WrongCell: ColumnFault::WrongCell("time_ms".into()),
        }
    );
    texts!(out, TableError = table(TableFault::MissingColumn("time_ms")));
    texts!(
        out,
        TableFault {
            Line: TableFault::Line(LineFault::NotFound),
            Columns: TableFault::Columns(ColumnFault::NotFound),
            InRow: TableFault::InRow(3, Box::new(TableFault::ShortRow("time_ms"))),
            MissingColumn: TableFault::MissingColumn("time_ms"),
            ShortRow: TableFault::ShortRow("time_ms"),
            BadNumber: TableFault::BadNumber { column: "time_ms", value: "fast".into() },
            Lacks: TableFault::Lacks { what: "attention of a window", model: MODEL },
            Empty: TableFault::Empty("attention of 8 heads".into()),
            Hole: TableFault::Hole("attention of 8 heads".into()),
        }
    );
}

fn choices(out: &mut String) {
    texts!(
        out,
        StreamingError {
            TooManyResident: StreamingError::TooManyResident { resident: 90, layers: 80 },
            Budget: StreamingError::Budget(budget()),
            TooSmall: StreamingError::TooSmall { name: "read_gb_s", value: 0.0, least: 0.0 },
        }
    );
    let bad = SpecError::UnknownKey { name: "stream".into(), key: "layer".into(), known: "layers".into() };
    texts!(out, WeightsError { Unknown: WeightsError::Unknown(unknown()), Spec: WeightsError::Spec(bad) });
    texts!(out, EngineOverheadError = "850us".parse::<EngineOverhead>().expect_err("no number"));
    texts!(
        out,
        CostChoiceError {
            Unknown: CostChoiceError::Unknown(unknown()),
            NoPath: CostChoiceError::NoPath("table".into()),
        }
    );
    let path = || "tables".into();
    texts!(
        out,
        CostError {
            Table: CostError::Table(table(TableFault::ShortRow("time_ms"))),
            NoFolder: CostError::NoFolder(path()),
            NoTable: CostError::NoTable(path()),
            Spread: CostError::Spread {
                path: path(),
                layout: Layout::Vidur,
                measured: "tp2".into(),
                parallel: Parallel::ONE,
            },
            OtherModel: CostError::OtherModel { path: path(), measured: "32 layers".into(), model: MODEL },
            Unlike: CostError::Unlike {
                path: path(),
                table_ms: 900.0,
                roofline_ms: 30.0,
                model: MODEL,
                hardware: HARDWARE,
                parallel: Parallel::ONE,
            },
            NotFitted: CostError::NotFitted { hardware: HARDWARE, model: MODEL, parallel: Parallel::ONE },
            Streaming: CostError::Streaming(StreamingError::Budget(budget())),
            StreamingSpread: CostError::StreamingSpread("tp2".parse().expect("valid")),
        }
    );
}

fn spreads(out: &mut String) {
    let model = MODEL;
    texts!(
        out,
        ParallelError {
            Malformed: ParallelError::Malformed("tp".into()),
            NoExperts: ParallelError::NoExperts { what: "ep2".into(), model, remedy: "leave ep out" },
            ExpertDevices: ParallelError::ExpertDevices { expert: 3, tensor: 2, data: 2 },
            Experts: ParallelError::Experts { expert: 16, count: 8, model },
            DataPipeline: ParallelError::DataPipeline { data: 2, pipeline: 2 },
            Heads: ParallelError::Heads { tensor: 3, heads: 32, model },
            KvHeads: ParallelError::KvHeads { tensor: 3, kv_heads: 8, model },
            Layers: ParallelError::Layers { pipeline: 64, layers: 32, model },
        }
    );
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    models(&mut out);
    devices(&mut out);
    columns(&mut out);
    choices(&mut out);
    spreads(&mut out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
