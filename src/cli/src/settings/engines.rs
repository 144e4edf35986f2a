//! The engines of a server: their number, roles and router, and the embedded worker of each.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use trunkline_cluster::{ClusterConfig, EngineConfig, ROUTER_DEFAULT, Role};
use trunkline_core::{Config, names::registry};
use trunkline_grammar::Grammars;
use trunkline_quote::quoted;
use trunkline_server::{Backend, MakeWorker, SamplingOffer};
use trunkline_text::Tokenizer;
use trunkline_worker::{KvDtype, Model, Worker, WorkerConfig};

use crate::model::repair::WeightsRepair;
use crate::settings::serve_settings::Settings;

/// Maximum number of workers of one server.
const WORKERS_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

/// Maximum number of replicas of one role in a list of roles.
const ROLES_MAX: usize = 4096;

/// Roles by name.
const ROLES: [(&str, Role); 3] = [("both", Role::Both), ("prefill", Role::Prefill), ("decode", Role::Decode)];

/// The engines of a server, and the threads of their workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines {
    roles: Vec<Role>,
    router: String,
    /// Engines for attached workers: the last so many.
    attached: usize,
    /// Threads of all embedded workers together.
    threads: usize,
    /// Workers take the memory of their KV at the start.
    kv_resident: bool,
    /// Types of KV, in the order of their first worker: the classes of engines.
    kv_types: Vec<KvDtype>,
    /// Class of each engine.
    kv_classes: Vec<u8>,
}

impl Engines {
    /// Reads number, roles, router and threads from settings. `cores` is the number of threads by default.
    ///
    /// # Errors
    /// If a number is outside its range, a role is unknown, or roles and workers differ in number.
    pub fn of(settings: &Settings, cores: usize) -> anyhow::Result<Self> {
        let threads = settings.threads.unwrap_or(cores);
        if !(1..=THREADS_MAX).contains(&threads) {
            bail!("threads is {threads}; it must be between 1 and {THREADS_MAX}");
        }
        let roles = settings.roles.as_deref().map(roles).transpose()?;
        let attached = settings.attach.attached_workers;
        let workers = settings.workers.unwrap_or_else(|| match (attached, &roles) {
            (None, Some(roles)) => roles.len(),
            (None | Some(0), None) => 1,
            (Some(attached), Some(roles)) => roles.len().saturating_sub(attached),
            (Some(_), None) => 0,
        });
        let attached = attached.unwrap_or(usize::from(workers == 0));
        if attached == 0 && !(1..=WORKERS_MAX).contains(&workers) {
            bail!("workers is {workers}; it must be between 1 and {WORKERS_MAX}");
        }
        let all = workers.saturating_add(attached);
        if all > WORKERS_MAX {
            bail!(
                "workers is {workers} and attached-workers is {attached}; together they must be at most {WORKERS_MAX}"
            );
        }
        let roles = roles.unwrap_or_else(|| vec![Role::Both; all]);
        if roles.len() != all {
            let and = if attached > 0 { format!(" and attached-workers is {attached}") } else { String::new() };
            bail!("roles names {} and workers is {workers}{and}; give one role for each worker", roles.len());
        }
        let router = settings.router.clone().unwrap_or_else(|| ROUTER_DEFAULT.into());
        let types = kv_types(settings.kv.kv_dtype.as_deref(), workers, all)?;
        ensure!(
            attached == 0 || types.iter().all(|dtype| *dtype == types[0]),
            "kv-dtype names several types and attached-workers is {attached}; attached workers have their own"
        );
        let mut kv_types: Vec<KvDtype> = Vec::new();
        for dtype in &types {
            if !kv_types.contains(dtype) {
                kv_types.push(*dtype);
            }
        }
        let class = |dtype: &KvDtype| kv_types.iter().position(|other| other == dtype).unwrap_or_default() as u8;
        let kv_classes = types.iter().map(class).collect();
        let kv_resident = settings.kv.kv_resident.unwrap_or(false);
        Ok(Self { roles, router, attached, threads, kv_resident, kv_types, kv_classes })
    }

    /// Returns the types of KV of the embedded workers, by class.
    pub fn kv_types(&self) -> &[KvDtype] {
        &self.kv_types
    }

    /// Returns the numbers of the workers of a class.
    pub fn workers_of_class(&self, class: usize) -> Vec<usize> {
        (0..self.workers()).filter(|worker| usize::from(self.kv_classes[*worker]) == class).collect()
    }

    /// Returns the number of workers, embedded and attached.
    pub fn workers(&self) -> usize {
        self.roles.len()
    }

    /// Returns the number of engines for attached workers.
    pub fn attached(&self) -> usize {
        self.attached
    }

    /// Returns the number of embedded workers.
    pub fn embedded(&self) -> usize {
        self.roles.len() - self.attached
    }

    /// Returns the threads of every embedded worker, at least: all threads divided by the workers.
    pub fn threads_each(&self) -> usize {
        (self.threads / self.embedded().max(1)).max(1)
    }

    /// Returns the threads of one worker: the first workers have the threads that are left over.
    fn threads_of(&self, worker: usize) -> usize {
        let left_over = self.threads.saturating_sub(self.threads_each() * self.embedded());
        self.threads_each() + usize::from(worker < left_over)
    }

    /// Returns the settings of the cluster: the limits of each engine are those of the class, or `cores[0]` for all. Alongside embedded workers, any
    /// attached worker must do, even a worker that writes KV for every token of a step, or reads nothing that the same step computes.
    pub fn cluster(&self, cores: &[Config]) -> ClusterConfig {
        let engine = |(at, role): (usize, &Role)| {
            let kv_class = self.kv_classes[at];
            let mut core = cores.get(usize::from(kv_class)).unwrap_or(&cores[0]).clone();
            let is_embedded = at < self.embedded();
            core.worker.whole_block_hits |= !is_embedded && self.embedded() > 0;
            core.worker.in_step_hits = is_embedded || (core.worker.in_step_hits && self.embedded() == 0);
            EngineConfig { core, role: *role, kv_class }
        };
        ClusterConfig { engines: self.roles.iter().enumerate().map(engine).collect(), router: self.router.clone() }
    }

    /// Refuses reuse of text that is not a prefix where a worker cannot copy tokens between blocks.
    ///
    /// # Errors
    /// If a worker is attached, or has quantised KV.
    pub fn check_reuse(&self, config: &Config) -> anyhow::Result<()> {
        if config.worker.reuse.anywhere == 0 {
            return Ok(());
        }
        ensure!(
            self.attached() == 0,
            "--reuse-anywhere: attached workers cannot copy tokens between blocks; leave it out, or serve with embedded workers alone"
        );
        let quantised = self.kv_types.iter().find(|dtype| !dtype.is_float());
        ensure!(
            quantised.is_none(),
            "--reuse-anywhere: keys of type {} cannot be moved; give --kv-dtype f32, f16 or bf16",
            quantised.map_or("", |dtype| dtype.name())
        );
        Ok(())
    }

    /// Returns a backend of embedded workers with the weights of one model, and separate KV blocks and threads. `cores` are the limits by class;
    /// `repair` runs on the weights before a worker is made again.
    pub fn backend(&self, model: Model, tokenizer: Tokenizer, cores: &[Config], repair: WeightsRepair) -> Backend {
        let mut infos = self.kv_types.iter().map(|dtype| model.info_with(*dtype));
        let (info, further_kv) = (infos.next().unwrap_or_default(), infos.collect());
        let (model, engines, cores) = (Arc::new(model), self.clone(), cores.to_vec());
        let grammars = Arc::new(Grammars::new(tokenizer.clone(), info.vocab_size, info.eos_token_ids.clone()));
        let workers: MakeWorker = Arc::new(move |engine| {
            repair.run(&model)?;
            let class = usize::from(engines.kv_classes[engine.index()]);
            let config = WorkerConfig {
                block_size: cores[class].block_size,
                device_blocks: cores[class].pool_blocks(),
                max_drafts: cores[class].max_drafts,
                threads: engines.threads_of(engine.index()),
            };
            let mut worker = Worker::with_kv_dtype(model.clone(), engines.kv_types[class], config)?;
            if engines.kv_resident {
                worker = worker.with_resident_kv();
            }
            Ok(Box::new(worker.with_grammars(grammars.clone())))
        });
        Backend { model: info, further_kv, tokenizer, workers, stores: Vec::new(), offer: SamplingOffer::default() }
    }
}

/// Returns the type of KV of each of `all` workers, from one for all or one for each of `embedded` workers.
///
/// # Errors
/// If a type is unknown, or types and workers differ in number.
fn kv_types(names: Option<&str>, embedded: usize, all: usize) -> anyhow::Result<Vec<KvDtype>> {
    let types = KvDtype::ALL.map(|dtype| (dtype.name(), dtype));
    let Some(names) = names else { return Ok(vec![KvDtype::default(); all]) };
    let choose = |name: &str| Ok(registry::choose("kv-dtype", &types, name.trim())?);
    let mut chosen = names.split(',').map(choose).collect::<anyhow::Result<Vec<_>>>()?;
    if let [one] = chosen[..] {
        return Ok(vec![one; all]);
    }
    ensure!(
        chosen.len() == embedded,
        "kv-dtype names {} types and workers is {embedded}; give one type for all, or one for each worker",
        chosen.len()
    );
    chosen.resize(all, chosen[0]);
    Ok(chosen)
}

/// Returns the roles of a list as in `prefill*2,decode`.
///
/// # Errors
/// If a role is unknown, or the number after a role is not from 1 to 4096.
pub fn roles(names: &str) -> anyhow::Result<Vec<Role>> {
    let mut roles = Vec::new();
    for text in names.split(',') {
        let (name, n) = match text.split_once('*') {
            None => (text, 1),
            Some((name, n)) => {
                let n = n.trim().parse().ok().filter(|n| (1..=ROLES_MAX).contains(n));
                (
                    name,
                    n.with_context(|| {
                        format!("role is {text}; give a number from 1 to {ROLES_MAX} after the *", text = quoted(text))
                    })?,
                )
            }
        };
        let role = registry::choose("role", &ROLES, name.trim())?;
        roles.extend(std::iter::repeat_n(role, n));
    }
    Ok(roles)
}

#[cfg(test)]
mod tests {
    use trunkline_cluster::{Cluster, EngineId};
    use trunkline_core::WorkerFacts;

    use super::*;
    use crate::settings::attach_settings::AttachSettings;

    fn engines(workers: Option<usize>, roles: Option<&str>, threads: usize) -> Result<Engines, String> {
        let settings = Settings { workers, roles: roles.map(String::from), ..Settings::default() };
        Engines::of(&settings, threads).map_err(|err| format!("{err:#}"))
    }

    #[test]
    fn one_worker_has_all_threads_and_several_share_them() {
        let threads = |engines: Engines| (0..engines.workers()).map(|at| engines.threads_of(at)).collect::<Vec<_>>();
        assert_eq!(threads(engines(None, None, 6).unwrap()), [6]);
        assert_eq!(threads(engines(Some(4), None, 6).unwrap()), [2, 2, 1, 1]);
        assert_eq!(threads(engines(Some(3), None, 2).unwrap()), [1, 1, 1], "at least one each");
    }

    #[test]
    fn one_worker_is_a_cluster_of_one_engine() {
        let config =
            Config { worker: WorkerFacts { in_step_hits: true, ..WorkerFacts::default() }, ..Config::default() };
        assert_eq!(
            engines(None, None, 1).unwrap().cluster(std::slice::from_ref(&config)),
            ClusterConfig::uniform(&config, 1)
        );
    }

    #[test]
    fn roles_give_the_number_of_workers() {
        let cluster = engines(None, Some("prefill, decode,both"), 4).unwrap().cluster(&[Config::default()]);
        let roles: Vec<Role> = cluster.engines.iter().map(|engine| engine.role).collect();
        assert_eq!(roles, [Role::Prefill, Role::Decode, Role::Both]);
        assert_eq!(super::roles("prefill*2, decode").unwrap(), [Role::Prefill, Role::Prefill, Role::Decode]);
        let message = super::roles("prefill*x").unwrap_err().to_string();
        assert_eq!(message, "role is 'prefill*x'; give a number from 1 to 4096 after the *");
    }

    #[test]
    fn attached_workers_stand_alone_or_behind_embedded_ones() {
        let engines = |workers, attached_workers| {
            let attach = AttachSettings { attached_workers, ..AttachSettings::default() };
            let settings = Settings { workers, attach, ..Settings::default() };
            let engines = Engines::of(&settings, 1).map_err(|err| format!("{err:#}"))?;
            Ok((engines.embedded(), engines.attached()))
        };
        let err = |message: &str| Err(message.to_owned());
        assert_eq!(engines(None, None), Ok((1, 0)));
        assert_eq!(engines(Some(0), None), Ok((0, 1)));
        assert_eq!(engines(None, Some(3)), Ok((0, 3)));
        assert_eq!(engines(Some(2), Some(3)), Ok((2, 3)));
        assert_eq!(engines(None, Some(0)), Ok((1, 0)));
        assert_eq!(engines(Some(0), Some(0)), err("workers is 0; it must be between 1 and 64"));
        let both = err("workers is 60 and attached-workers is 5; together they must be at most 64");
        assert_eq!(engines(Some(60), Some(5)), both);
    }

    #[test]
    fn wrong_settings_are_reported_by_name() {
        assert_eq!(engines(Some(65), None, 1).unwrap_err(), "workers is 65; it must be between 1 and 64");
        assert_eq!(engines(None, None, 0).unwrap_err(), "threads is 0; it must be between 1 and 1024");
        let mismatch = engines(Some(3), Some("both,both"), 1).unwrap_err();
        assert_eq!(mismatch, "roles names 2 and workers is 3; give one role for each worker");
        let unknown = engines(None, Some("both,decoder"), 1).unwrap_err();
        assert_eq!(unknown, "unknown role 'decoder'; there are: both, prefill, decode");
        let alone = engines(None, Some("decode"), 1).unwrap().cluster(&[Config::default()]);
        let error = Cluster::new(&alone).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "no engine takes new requests; give at least one engine the role 'prefill' or 'both'");
    }

    #[test]
    fn workers_are_made_for_each_engine_and_again() {
        let engines = engines(Some(2), None, 2).unwrap();
        let core = Config { device_blocks: 8, ..Config::default() };
        let backend = engines.backend(
            Model::seeded(0),
            Tokenizer::bytes(),
            std::slice::from_ref(&core),
            WeightsRepair::default(),
        );
        for engine in [0, 1, 1] {
            assert!((backend.workers)(EngineId(engine)).is_ok());
        }
    }
}
