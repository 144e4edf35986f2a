//! Sharing a loop out over threads. The assignment of parts to threads never shows in a result: every part writes a range of its
//! own.

use rayon::prelude::*;

use crate::error::WorkerError;

/// Loops of fewer multiply-adds than this are not worth waking another thread for.
const SERIAL_COST: usize = 1 << 17;

/// The threads of one worker.
pub(crate) struct Threads {
    /// `None` for a single thread: the caller's.
    pool: Option<rayon::ThreadPool>,
}

impl Threads {
    /// Starts `n` threads; 0 is one for each core.
    pub(crate) fn new(n: usize) -> Result<Self, WorkerError> {
        let count = if n == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { n };
        if count == 1 {
            return Ok(Self { pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("worker-{i}"))
            .build()
            .map_err(|error| WorkerError::Threads { threads: n, problem: error.to_string() })?;
        Ok(Self { pool: Some(pool) })
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` on one of the threads: loops in `work` need not be handed over one by one.
    pub(crate) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Calls `work` with each chunk of `data`, and the chunk's number. `cost` is about how many multiply-adds all calls
    /// together make.
    pub(crate) fn chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        cost: usize,
        work: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        match &self.pool {
            Some(pool) if cost >= SERIAL_COST && data.len() > chunk => {
                pool.install(|| data.par_chunks_mut(chunk).enumerate().for_each(|(i, chunk)| work(i, chunk)));
            }
            _ => data.chunks_mut(chunk).enumerate().for_each(|(i, chunk)| work(i, chunk)),
        }
    }

    /// The results of `work` for `0..n`, in order.
    pub(crate) fn map<R: Send>(&self, n: usize, cost: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
        match &self.pool {
            Some(pool) if cost >= SERIAL_COST && n > 1 => pool.install(|| (0..n).into_par_iter().map(work).collect()),
            _ => (0..n).map(work).collect(),
        }
    }
}
