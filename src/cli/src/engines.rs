//! The engines of a server: their number, roles and router, and the embedded worker of each.

use std::sync::Arc;

use anyhow::{Context, bail};
use trunkline_cluster::{ClusterConfig, EngineConfig, ROUTER_DEFAULT, Role};
use trunkline_core::{Config, registry};
use trunkline_server::{Backend, MakeWorker, SamplingOffer};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

use crate::config_file::Settings;

/// Workers of one server, at most.
const WORKERS_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

/// Replicas of one role in a list of roles, at most.
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
        Ok(Self { roles, router, attached, threads })
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

    /// Returns the settings of the cluster whose engines all have these limits. Beside embedded workers, any attached one must do,
    /// also one that writes KV for every token that it runs.
    pub fn cluster(&self, core: &Config) -> ClusterConfig {
        let engine = |(at, role): (usize, &Role)| {
            let mut core = core.clone();
            core.worker.whole_block_hits |= at >= self.embedded() && self.embedded() > 0;
            EngineConfig { core, role: *role }
        };
        ClusterConfig { engines: self.roles.iter().enumerate().map(engine).collect(), router: self.router.clone() }
    }

    /// Returns a backend of embedded workers with the weights of one model, and separate KV blocks and threads.
    pub fn backend(&self, model: Model, tokenizer: Tokenizer, core: &Config) -> Backend {
        let info = model.info();
        let (model, engines) = (Arc::new(model), self.clone());
        let config = WorkerConfig {
            block_size: core.block_size,
            device_blocks: core.pool_blocks(),
            max_drafts: core.max_drafts,
            threads: 0,
        };
        let workers: MakeWorker = Arc::new(move |engine| {
            let config = WorkerConfig { threads: engines.threads_of(engine.index()), ..config };
            Ok(Box::new(Worker::new(model.clone(), config)?))
        });
        Backend { model: info, tokenizer, workers, stores: Vec::new(), offer: SamplingOffer::default() }
    }
}

/// Returns the roles of a list as in `prefill*2,decode`.
///
/// # Errors
/// If a role is unknown, or the number behind a role is none from 1 to 4096.
pub fn roles(names: &str) -> anyhow::Result<Vec<Role>> {
    let mut roles = Vec::new();
    for text in names.split(',') {
        let (name, n) = match text.split_once('*') {
            None => (text, 1),
            Some((name, n)) => {
                let n = n.trim().parse().ok().filter(|n| (1..=ROLES_MAX).contains(n));
                (
                    name,
                    n.with_context(|| format!("role is '{text}'; give a number from 1 to {ROLES_MAX} behind the *"))?,
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

    use super::*;
    use crate::attach_settings::AttachSettings;

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
        let config = Config::default();
        assert_eq!(engines(None, None, 1).unwrap().cluster(&config), ClusterConfig::uniform(&config, 1));
    }

    #[test]
    fn roles_give_the_number_of_workers() {
        let cluster = engines(None, Some("prefill, decode,both"), 4).unwrap().cluster(&Config::default());
        let roles: Vec<Role> = cluster.engines.iter().map(|engine| engine.role).collect();
        assert_eq!(roles, [Role::Prefill, Role::Decode, Role::Both]);
        assert_eq!(super::roles("prefill*2, decode").unwrap(), [Role::Prefill, Role::Prefill, Role::Decode]);
        let message = super::roles("prefill*x").unwrap_err().to_string();
        assert_eq!(message, "role is 'prefill*x'; give a number from 1 to 4096 behind the *");
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
        let alone = engines(None, Some("decode"), 1).unwrap().cluster(&Config::default());
        let error = Cluster::new(&alone).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "no engine takes new requests; give at least one engine the role 'prefill' or 'both'");
    }

    #[test]
    fn workers_are_made_for_each_engine_and_again() {
        let engines = engines(Some(2), None, 2).unwrap();
        let core = Config { device_blocks: 8, ..Config::default() };
        let backend = engines.backend(Model::seeded(0), Tokenizer::bytes(), &core);
        for engine in [0, 1, 1] {
            assert!((backend.workers)(EngineId(engine)).is_ok());
        }
    }
}
