//! Threads that run jobs, most urgent first.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Order of jobs in a [`Queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A request waits for the end of the job.
    Urgent = 0,
    /// Nobody waits for the end of the job.
    Background = 1,
    /// Work that makes room, done when there is nothing else.
    Idle = 2,
}

/// Maximum number of idle jobs that wait: some megabytes of them.
const IDLE_MAX: usize = 1 << 16;

/// Work for a thread with state `S` of its own: buffers, used again by every job of the thread.
pub type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Jobs waiting for a thread. One thread, if there are several, is kept free of work that nobody waits for.
pub struct Queue<S> {
    state: Mutex<State<S>>,
    wake: Condvar,
    patient_max: usize,
}

struct State<S> {
    jobs: [VecDeque<Job<S>>; 3],
    /// Threads at work on jobs that nobody waits for.
    patient: usize,
    is_closed: bool,
}

impl<S> Queue<S> {
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. A closed queue drops the job; of too many idle jobs the oldest is dropped.
    pub fn push(&self, urgency: Urgency, job: Job<S>) {
        let mut state = self.state();
        if state.is_closed {
            // The end of a job may push another: not under the lock.
            drop(state);
            drop(job);
            return;
        }
        let jobs = &mut state.jobs[urgency as usize];
        let surplus = if urgency == Urgency::Idle && jobs.len() >= IDLE_MAX { jobs.pop_front() } else { None };
        jobs.push_back(job);
        drop(state);
        drop(surplus);
        self.wake.notify_all();
    }

    /// Returns the number of waiting jobs.
    pub fn len(&self) -> usize {
        self.state().jobs.iter().map(VecDeque::len).sum()
    }

    /// Drops all waiting jobs, and every later one. Jobs under way end.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.wake.notify_all();
        drop(jobs);
    }

    fn next(&self) -> Option<(Urgency, Job<S>)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs[Urgency::Urgent as usize].pop_front() {
                return Some((Urgency::Urgent, job));
            }
            if state.patient < self.patient_max {
                for urgency in [Urgency::Background, Urgency::Idle] {
                    if let Some(job) = state.jobs[urgency as usize].pop_front() {
                        state.patient += 1;
                        return Some((urgency, job));
                    }
                }
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self, urgency: Urgency) {
        if urgency != Urgency::Urgent {
            self.state().patient -= 1;
            self.wake.notify_all();
        }
    }
}

/// Threads that run the jobs of a [`Queue`].
pub struct Pool<S> {
    queue: Arc<Queue<S>>,
    threads: Vec<JoinHandle<()>>,
}

impl<S> std::fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl<S: Default + 'static> Pool<S> {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let state = State { jobs: Default::default(), patient: 0, is_closed: false };
        let patient_max = (threads - 1).max(1);
        let queue = Arc::new(Queue { state: Mutex::new(state), wake: Condvar::new(), patient_max });
        let mut pool = Self { queue, threads: Vec::new() };
        for at in 0..threads {
            let queue = Arc::clone(&pool.queue);
            let run = move || {
                let mut own = S::default();
                while let Some((urgency, job)) = queue.next() {
                    // A job that panics has not answered, and its drop does; buffers may be in any state.
                    if catch_unwind(AssertUnwindSafe(|| job(&mut own))).is_err() {
                        own = S::default();
                    }
                    queue.ended(urgency);
                }
            };
            pool.threads.push(std::thread::Builder::new().name(format!("{name}-{at}")).spawn(run)?);
        }
        Ok(pool)
    }

    /// Returns the queue of the threads.
    pub fn queue(&self) -> &Arc<Queue<S>> {
        &self.queue
    }
}

impl<S> Drop for Pool<S> {
    /// Drops the jobs that wait, and waits for those under way.
    fn drop(&mut self) {
        self.queue.close();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != own) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn urgent_jobs_pass_the_others_and_the_rest_keeps_its_order() {
        let pool = Pool::<()>::start("test", 1).unwrap();
        let (begin, begun) = mpsc::channel::<()>();
        let (send, order) = mpsc::channel();
        pool.queue().push(Urgency::Urgent, Box::new(move |()| begun.recv().unwrap()));
        let jobs = [(Urgency::Idle, 5), (Urgency::Background, 3), (Urgency::Urgent, 1), (Urgency::Background, 4)];
        for (urgency, n) in jobs {
            let send = send.clone();
            pool.queue().push(urgency, Box::new(move |()| send.send(n).unwrap()));
        }
        begin.send(()).unwrap();
        drop(send);
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 3, 4, 5]);
    }

    #[test]
    fn a_thread_stays_free_for_what_is_waited_for() {
        let pool = Pool::<()>::start("test", 2).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..4 {
            let held = Arc::clone(&held);
            pool.queue().push(Urgency::Background, Box::new(move |()| held.lock().unwrap().recv().unwrap()));
        }
        let (send, done) = mpsc::channel();
        pool.queue().push(Urgency::Urgent, Box::new(move |()| send.send(()).unwrap()));
        done.recv().unwrap();
        (0..4).for_each(|_| release.send(()).unwrap());
    }

    #[test]
    fn idle_jobs_that_never_get_a_thread_do_not_pile_up() {
        let pool = Pool::<()>::start("test", 1).unwrap();
        let (release, held) = mpsc::channel::<()>();
        pool.queue().push(Urgency::Urgent, Box::new(move |()| held.recv().unwrap()));
        let (send, done) = mpsc::channel();
        for at in 0..IDLE_MAX + 10 {
            let send = send.clone();
            pool.queue().push(Urgency::Idle, Box::new(move |()| send.send(at).unwrap()));
        }
        drop(send);
        release.send(()).unwrap();
        assert!(done.iter().eq(10..IDLE_MAX + 10), "the oldest are dropped, the rest keeps its order");
    }

    #[test]
    fn a_panic_costs_one_job_and_a_closed_pool_drops_the_rest() {
        let pool = Pool::<Vec<u8>>::start("test", 1).unwrap();
        let (send, done) = mpsc::channel();
        pool.queue().push(
            Urgency::Urgent,
            Box::new(|buffer| {
                buffer.push(1);
                std::panic::resume_unwind(Box::new("on purpose"));
            }),
        );
        let answer = send.clone();
        pool.queue().push(Urgency::Urgent, Box::new(move |buffer| answer.send(buffer.len()).unwrap()));
        assert_eq!(done.recv(), Ok(0));
        pool.queue().close();
        pool.queue().push(Urgency::Urgent, Box::new(move |_| send.send(9).unwrap()));
        assert!(done.recv().is_err(), "the job was dropped, and its sender with it");
    }
}
