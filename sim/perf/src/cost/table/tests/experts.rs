//! Tables for models with experts, by hand.

use super::*;
use crate::model::Experts;

/// A small model with experts: two layers, one of which is dense, four experts of which a token uses two, and a shared one.
fn small() -> Model {
    Model {
        name: "small",
        layers: 2,
        hidden: 256,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate: 512,
        vocab: 1024,
        experts: Some(Experts {
            count: 4,
            active: 2,
            width: 128,
            shared_width: 64,
            dense_layers: 1,
            latent_width: None,
        }),
        ..*model::by_name("llama-3.1-8b").unwrap()
    }
}

const ROWS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Products of every shape take 1 ms and 1 us more for each row; attention takes next to nothing.
fn kernels(folder: &Path) {
    let mut gemm = String::from("gemm_dtype,m,n,k,latency\n");
    for (n, k) in [(768, 256), (256, 256), (1024, 256), (256, 512), (128, 256), (256, 64), (4, 256), (1024, 256)] {
        for m in ROWS {
            gemm += &format!("bfloat16,{m},{n},{k},{}\n", 1.0 + m as f64 / 1e3);
        }
    }
    write(folder, "gemm_perf.csv", &gemm);
    let header = "batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,step,latency\n";
    for heads in [4, 2] {
        let rows = format!("1,1,{heads},{heads},64,bfloat16,0,1e-9\n1,9000,{heads},{heads},64,bfloat16,0,1e-9\n");
        let append = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).unwrap_or_else(|_| header.into());
            write(folder, name, &(text + &rows));
        };
        append("context_attention_perf.csv");
        append("generation_attention_perf.csv");
    }
}

const MOE: &str =
    "moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency\n";

/// Rows of the experts of the small model: `ms` for each count of tokens, on `tp` or `ep` devices.
fn moe(distribution: &str, [tp, ep]: [u64; 2], ms: impl Fn(u64) -> f64) -> String {
    ROWS.map(|m| format!("bfloat16,{m},256,128,2,4,{tp},{ep},{distribution},{}\n", ms(m))).concat()
}

fn read(folder: &Path, model: &Model, parallel: &str) -> Result<Table, TableError> {
    Table::from_aiconfigurator(folder, a100().0, model, parallel.parse().unwrap())
}

fn near(found_s: f64, expected_ms: f64) {
    assert!((found_s * 1e3 / expected_ms - 1.0).abs() < 1e-6, "{} ms, not {expected_ms}", found_s * 1e3);
}

#[test]
fn kernels_of_experts_run_in_layers_that_have_some() {
    let folder = tempfile::tempdir().unwrap();
    kernels(folder.path());
    let rows = [
        moe("balanced", [1, 1], |_| 900.0),
        moe("power_law_1.2", [1, 1], |m| 10.0 + m as f64),
        moe("power_law_1.2", [2, 1], |m| 5.0 + m as f64),
        moe("power_law_1.2", [1, 2], |m| 7.0 + m as f64),
        moe("all_to_the_first", [1, 1], |_| 800.0),
        "fp8,1,256,128,2,4,1,1,balanced,1\n".into(),
    ];
    write(folder.path(), "moe_perf.csv", &(MOE.to_owned() + &rows.concat()));
    let table = read(folder.path(), &small(), "tp1").unwrap();
    near(table.experts_s(64), 74.0);
    near(table.experts_s(48), 58.0);
    near(table.step_s(&StepShape::default()) + table.experts_s(64), 74.0);
    assert_eq!(
        table.name(),
        "table of aiconfigurator (small on a100-80g; tokens of experts by power_law_1.2; rows of moe_perf not used: \
         all_to_the_first, fp8)"
    );
    // Two products of attention in both layers, two of the dense network, and two of the shared expert and the router's in the other.
    let shape = StepShape { tokens: 1, ..StepShape::default() };
    let products_ms = (2.0 * 2.0 + 2.0 + 3.0) * 1.001;
    let common_ms = table.common_s(&shape) * 1e3;
    assert!((products_ms..products_ms + 0.01).contains(&common_ms), "{common_ms}");
    // Tokens beyond the rows cost as many more products and bytes.
    let (last_s, twice_s) = (table.experts_s(65_536), table.experts_s(131_072));
    assert!((twice_s / last_s - 2.0).abs() < 0.01, "{last_s} {twice_s}");
}

#[test]
fn devices_that_share_experts_have_kernels_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    kernels(folder.path());
    let all_reduce: String = ["num_gpus,message_size,latency,backend\n".into()]
        .into_iter()
        .chain([256, 4_194_304].map(|elements| format!("2,{elements},1.0,vllm_graph\n")))
        .collect();
    write(folder.path(), "custom_allreduce_perf.csv", &all_reduce);
    let nccl: String = ["op_name,nccl_dtype,num_gpus,message_size,latency\n".to_owned()]
        .into_iter()
        .chain(
            [256, 33_554_432]
                .map(|n| format!("all_gather,half,2,{n},3\nreduce_scatter,half,2,{n},4\nall_gather,int8,2,{n},99\n")),
        )
        .collect();
    write(folder.path(), "nccl_perf.csv", &nccl);
    let rows = [
        moe("balanced", [1, 1], |m| 10.0 + m as f64),
        moe("balanced", [2, 1], |m| 5.0 + m as f64),
        moe("balanced", [1, 2], |m| 7.0 + m as f64),
    ];
    write(folder.path(), "moe_perf.csv", &(MOE.to_owned() + &rows.concat()));
    let table = |parallel| read(folder.path(), &small(), parallel).unwrap();
    near(table("tp2").experts_s(64), 69.0);
    near(table("tp2ep2").experts_s(64), 71.0);
    // The ranks exchange the tokens of all, 3 and 4 ms, and do not add up residual streams.
    near(table("dp2").experts_s(64), 69.0 + 7.0);
    near(table("dp2ep2").experts_s(64), 71.0 + 7.0);
    let one = StepShape { tokens: 1, ..StepShape::default() };
    let (alone_s, ranks_s) = (table("tp1").common_s(&one), table("dp2ep2").common_s(&one));
    assert_eq!(alone_s, ranks_s);
    assert_eq!(table("tp2ep2").common_s(&one), table("tp2").common_s(&one));
    // Of ranks in lock step the slowest decides, and the experts have the tokens of all.
    let ranks = table("dp2ep2");
    let shape = |tokens| StepShape { tokens, ..StepShape::default() };
    let expected_s = ranks.common_s(&shape(48)) + ranks.experts_s(64);
    assert_eq!(ranks.lock_step_ns(0, &[shape(16), shape(48)]), nanoseconds(expected_s));
    let missing = read(folder.path(), &small(), "dp4ep4").unwrap_err().to_string();
    assert!(
        missing.ends_with("nccl_perf.csv: holds no row for all_gather and reduce_scatter of half on 4 devices; measure it, or give --cost roofline"),
        "{missing}"
    );
}

#[test]
fn experts_of_another_shape_are_as_efficient_as_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    kernels(folder.path());
    write(folder.path(), "moe_perf.csv", &(MOE.to_owned() + &moe("balanced", [1, 1], |m| 10.0 + m as f64)));
    let wider = Model { experts: small().experts.map(|moe| Experts { width: 256, ..moe }), ..small() };
    let table = read(folder.path(), &wider, "tp1").unwrap();
    // Twice the width: twice the products, and the activations of the width twice, of the hidden states once.
    let device = a100().0;
    let ideal_s = |width: f64, tokens: f64| {
        let products = 6.0 * 256.0 * width * 2.0 * tokens / device.peak_flops_s;
        let weights = 4.0 * 3.0 * 256.0 * width * 2.0 / device.bandwidth_bytes_s;
        products.max(weights) + 2.0 * 2.0 * tokens * (6.0 * width + 3.0 * 256.0) / device.bandwidth_bytes_s
    };
    near(table.experts_s(4096), 4106.0 * ideal_s(256.0, 4096.0) / ideal_s(128.0, 4096.0));
    assert!(table.name().contains("; experts scaled from 2 of 4, 256 x 128, on 1 devices"), "{}", table.name());
    // Rows without a distribution that is known are of no use.
    write(folder.path(), "moe_perf.csv", &(MOE.to_owned() + &moe("zipf", [1, 1], |_| 1.0)));
    let none = read(folder.path(), &wider, "tp1").unwrap_err().to_string();
    assert!(
        none.ends_with("moe_perf.csv: holds no row for experts in bfloat16; measure it, or give --cost roofline"),
        "{none}"
    );
}

/// A profile of LLMServingSim of a model whose layers all have experts.
fn profile(folder: &Path, moe: &str) -> Model {
    llmservingsim(folder);
    write(folder, "moe.csv", moe);
    let experts = Experts { count: 4, active: 1, width: 128, shared_width: 0, dense_layers: 0, latent_width: None };
    Model { experts: Some(experts), ..*a100().1 }
}

#[test]
fn moe_of_llmservingsim_counts_activated_experts() {
    let folder = tempfile::tempdir().unwrap();
    let old = "tokens,activated_experts,time_us\n1,1,100\n2,1,120\n2,2,220\n4,1,160\n4,2,260\n4,4,460\n";
    let model = profile(folder.path(), old);
    let read = |parallel: &str| {
        let parallel = parallel.parse().unwrap();
        Table::from_llmservingsim(folder.path(), a100().0, &model, parallel, Skew::Share(0.0))
    };
    let table = read("tp1").unwrap();
    assert!(!table.name().contains("moe.csv not used"), "{}", table.name());
    // One token chooses one expert, two choose 1.75 of four, and four 2.734375; between 2 and 4 activated ones times are linear.
    near(table.experts_s(1), 32.0 * 0.1);
    near(table.experts_s(2), 32.0 * (0.12 + 0.75 * 0.1));
    near(table.experts_s(4), 32.0 * (0.26 + 0.734375 / 2.0 * 0.2));
    let none = read("dp2ep2").unwrap_err().to_string();
    assert!(none.ends_with("moe.csv, line 1: the header has no column 'ep'"), "{none}");
    assert!(
        read("dp2").unwrap_err().to_string().contains("no row for slices of experts on 2 devices; add ep to parallel")
    );
}

#[test]
fn moe_of_llmservingsim_has_rows_for_expert_parallelism() {
    let folder = tempfile::tempdir().unwrap();
    let moe = "ep,tokens,activated_experts,time_us\n1,1,1,9\n2,1,1,100\n2,4,1,160\n2,4,2,260\n";
    let model = profile(folder.path(), moe);
    let (hardware, _) = a100();
    let read = |parallel: &str| {
        let parallel = parallel.parse().unwrap();
        Table::from_llmservingsim(folder.path(), hardware, &model, parallel, Skew::Share(0.0))
    };
    let table = read("dp2ep2").unwrap();
    // Half of the 2.734375 experts that four tokens choose are here. The ranks gather half of 4 tokens of 8 KiB, and scatter as many.
    let exchange_ms = 2.0 * (hardware.peer_link_latency_s + 0.5 * 4.0 * 8192.0 / hardware.peer_link_bytes_s) * 1e3;
    near(table.experts_s(4), 32.0 * (0.16 + 0.3671875 * 0.1 + exchange_ms));
    let none = read("dp4ep4").unwrap_err().to_string();
    assert!(none.ends_with("moe.csv: holds no row for ep 4; measure it, or give --cost roofline"), "{none}");
    let dense = Table::from_llmservingsim(folder.path(), hardware, a100().1, Parallel::ONE, Skew::Share(0.0)).unwrap();
    assert!(dense.name().contains("moe.csv not used"), "{}", dense.name());
}
