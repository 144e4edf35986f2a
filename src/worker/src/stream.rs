//! Streamed weights: a window of slots that a thread fills with groups in the order of use, while a step computes with others.
//!
//! [`trunkline_port::streaming`] has the states of the groups. The reader takes a slot whose group was computed with, and reads the next group of the circle into the slot,
//! as long as fewer than `ahead` groups are read or being read ahead. A step waits for a group that is not there yet. Memory changes hands by value: the reader
//! owns a slot's memory while reading, and a group in use lies in shared memory that nobody can change.

pub(crate) mod packed;
pub(crate) mod retries;
pub mod stream_settings;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trunkline_files::Aligned;
use trunkline_port::WeightReads;
use trunkline_port::streaming::{GroupEvent, GroupState, Groups};

use crate::error::{GroupFault, WeightsFault, WorkerError};
use crate::layers::pair::Pair;
use crate::stream::packed::CurrentFile;
use crate::stream::retries::try_again;

/// Places of the groups of a model with streamed weights; shared by the model's workers.
pub(crate) struct Streamed {
    pub(crate) file: CurrentFile,
    /// Streamed groups in the order of a step, by their number among all groups.
    pub(crate) groups: Vec<usize>,
    /// Slots of each worker's window.
    pub(crate) slots: usize,
    /// Bytes of a slot.
    pub(crate) slot_bytes: usize,
    /// Groups read ahead of the one in use, at most, in steps of decodes alone.
    pub(crate) ahead: usize,
    /// The same for steps that run prompts.
    pub(crate) prefill_ahead: usize,
    /// Pause before a failed read is tried again for the first time.
    pub(crate) retry_pause: Duration,
}

/// A slot of the window.
struct Slot {
    /// `None` while the reader fills the slot or a step computes with the group.
    memory: Option<Arc<Aligned>>,
    /// Streamed group in the slot, by place in the circle.
    group: Option<usize>,
    /// Duration of the read, nanoseconds.
    read_ns: u64,
}

/// The slots and the place in the circle.
struct Window {
    groups: Groups,
    slots: Vec<Slot>,
    /// Streamed group to be read next.
    next_read: usize,
    /// Streamed group to be used next.
    next_use: usize,
    /// Maximum number of groups read ahead.
    ahead: usize,
    fault: Option<WeightsFault>,
    /// Failed reads since the end of the last complete step.
    failed_reads: u64,
    /// Nobody reads any more: groups in flight stay so. If the reader ended by itself, `fault` says so for good.
    is_stopped: bool,
}

impl Window {
    fn slot_of(&self, group: usize) -> Option<usize> {
        self.slots.iter().position(|slot| slot.group == Some(group))
    }

    fn state(&self, slot: usize) -> Option<GroupState> {
        self.slots[slot].group.map(|group| self.groups.state(group))
    }

    fn count(&self, state: GroupState) -> usize {
        (0..self.slots.len()).filter(|slot| self.state(*slot) == Some(state)).count()
    }

    /// Takes a slot for the next group. Returns the slot, the group and the slot's memory; `None` if no group may be read now.
    fn begin_read(&mut self) -> Option<(usize, usize, Arc<Aligned>)> {
        let ahead = self.count(GroupState::InFlight) + self.count(GroupState::Resident);
        if self.fault.is_some() || ahead >= self.ahead {
            return None;
        }
        let free = |slot: &usize| matches!(self.state(*slot), None | Some(GroupState::Evicting | GroupState::OnDisk));
        let group = self.next_read;
        // The group's old slot is as good as any, and no group is in two.
        let slot = self.slot_of(group).or_else(|| (0..self.slots.len()).find(free)).filter(free)?;
        let memory = self.slots[slot].memory.take()?;
        if let Some(old) = self.slots[slot].group.filter(|old| self.groups.state(*old) == GroupState::Evicting) {
            self.groups.apply(old, GroupEvent::SlotTaken);
        }
        self.slots[slot].group = Some(group);
        self.groups.apply(group, GroupEvent::ReadBegan);
        self.next_read = (group + 1) % self.groups.len();
        Some((slot, group, memory))
    }

    /// Goes back to the first group after a step that did not end. The fault is over then, unless nobody reads any more.
    fn rewind(&mut self) {
        for slot in 0..self.slots.len() {
            if let (Some(group), Some(GroupState::Resident)) = (self.slots[slot].group, self.state(slot)) {
                self.groups.apply(group, GroupEvent::Abandoned);
            }
        }
        (self.next_read, self.next_use) = (0, 0);
        if !self.is_stopped {
            self.fault = None;
        }
    }
}

/// State shared by the reader and the steps.
struct Shared {
    streamed: Arc<Streamed>,
    window: Mutex<Window>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, window: MutexGuard<'a, Window>) -> MutexGuard<'a, Window> {
        self.changed.wait(window).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads groups until the stream is dropped.
    fn read_all(&self) {
        let mut window = self.lock();
        while !window.is_stopped {
            let Some((slot, group, mut memory)) = window.begin_read() else {
                window = self.wait(window);
                continue;
            };
            drop(window);
            let begun = Instant::now();
            let read = match Arc::get_mut(&mut memory) {
                Some(memory) => self.read(group, memory),
                None => Err(self.fault(group, "its memory is in use")),
            };
            let read_ns = nanoseconds(begun);
            window = self.lock();
            window.slots[slot] = Slot { memory: Some(memory), group: Some(group), read_ns };
            match read {
                Ok(()) => window.groups.apply(group, GroupEvent::ReadEnded),
                Err(fault) => {
                    window.groups.apply(group, GroupEvent::ReadFailed);
                    window.fault = Some(fault);
                }
            }
            self.changed.notify_all();
        }
    }
}

impl Shared {
    /// Reads a group. A failed read is tried again after pauses, perhaps from another file by then.
    fn read(&self, group: usize, memory: &mut Aligned) -> Result<(), WeightsFault> {
        let Streamed { file: current, groups, retry_pause, .. } = &*self.streamed;
        let number = groups[group];
        let read = || {
            let file = current.file();
            file.read(number, memory.as_mut_slice()).map_err(|fault| (file, fault))
        };
        let read = try_again(*retry_pause, read, |(file, fault), pause| {
            file.note(number, fault);
            self.pause(pause)
        });
        read.map_err(|(file, fault)| {
            // The fault may have been about to pass when the worker ended.
            if self.lock().is_stopped { file.fault(number, fault) } else { current.fail(&file, number, fault) }
        })
    }

    /// Describes a failed read of a group with a sound file.
    fn fault(&self, group: usize, problem: &str) -> WeightsFault {
        self.streamed.file.file().fault(self.streamed.groups[group], GroupFault::Read(problem.to_owned()))
    }

    /// Counts a failed read, and waits. Returns `false` if nobody reads any more.
    fn pause(&self, pause: Duration) -> bool {
        let mut window = self.lock();
        window.failed_reads += 1;
        let waited = self.changed.wait_timeout_while(window, pause, |window| !window.is_stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }
}

fn nanoseconds(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Ends all waiting if the reader ends, also by a panic.
struct Reader(Arc<Shared>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut window = self.0.lock();
        let fault = self.0.fault(0, "the thread that reads ended");
        window.is_stopped = true;
        window.fault.get_or_insert(fault);
        self.0.changed.notify_all();
    }
}

/// A group that a step computes with.
struct Used {
    slot: usize,
    group: usize,
    memory: Arc<Aligned>,
}

/// The streamed weights of one worker.
pub(crate) struct Stream {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// Streamed groups in the order of a step, with weights while in use.
    views: Vec<Pair>,
    /// Place in the circle of each group of the model; `None` for pinned groups.
    places: Vec<Option<usize>>,
    used: Option<Used>,
    /// Figures of the step under way.
    reads: WeightReads,
    begun: Instant,
}

impl Stream {
    /// Takes memory for the window, and begins to read. `views` are the streamed groups without weights, `n_groups` the number of all groups.
    ///
    /// # Errors
    ///
    /// The thread that reads cannot be started.
    pub(crate) fn new(streamed: Arc<Streamed>, views: Vec<Pair>, n_groups: usize) -> Result<Self, WorkerError> {
        let n_streamed = streamed.groups.len();
        let slots = (0..streamed.slots).map(|_| {
            let mut memory = Aligned::with_capacity(streamed.slot_bytes);
            memory.resize(streamed.slot_bytes);
            Slot { memory: Some(Arc::new(memory)), group: None, read_ns: 0 }
        });
        let window = Window {
            groups: Groups::new(n_streamed),
            slots: slots.collect(),
            next_read: 0,
            next_use: 0,
            ahead: streamed.ahead.max(streamed.prefill_ahead),
            fault: None,
            failed_reads: 0,
            is_stopped: false,
        };
        let mut places = vec![None; n_groups];
        for (place, number) in streamed.groups.iter().enumerate() {
            places[*number] = Some(place);
        }
        let shared = Arc::new(Shared { streamed, window: Mutex::new(window), changed: Condvar::new() });
        let reads_for = Reader(Arc::clone(&shared));
        let reader = std::thread::Builder::new().name("weights".to_owned()).spawn(move || reads_for.0.read_all());
        let reader = reader.map_err(|error| WorkerError::Threads { threads: 1, problem: error.to_string() })?;
        let (used, reads) = (None, WeightReads::default());
        Ok(Self { shared, reader: Some(reader), views, places, used, reads, begun: Instant::now() })
    }

    /// Begins a step. If the reader has ended, the step fails at the first group that is not there.
    pub(crate) fn begin(&mut self, has_prompts: bool) {
        self.leave();
        let mut window = self.shared.lock();
        if window.next_use != 0 || window.fault.is_some() {
            while !window.is_stopped && window.count(GroupState::InFlight) > 0 {
                window = self.shared.wait(window);
            }
            window.rewind();
        }
        let Streamed { ahead, prefill_ahead, .. } = *self.shared.streamed;
        window.ahead = if has_prompts { prefill_ahead } else { ahead };
        self.shared.changed.notify_all();
        (self.reads, self.begun) = (WeightReads::default(), Instant::now());
    }

    /// Ends the use of the group before, and returns group `number` with its weights as soon as they are there; `None` for a pinned group.
    ///
    /// # Errors
    ///
    /// The group, or one before it, could not be read. The step must end then.
    pub(crate) fn group(&mut self, number: usize) -> Result<Option<&Pair>, WeightsFault> {
        self.leave();
        let Some(group) = self.places[number] else { return Ok(None) };
        let mut window = self.shared.lock();
        if window.groups.state(group) != GroupState::Resident {
            let begun = Instant::now();
            while window.groups.state(group) != GroupState::Resident {
                if let Some(fault) = &window.fault {
                    return Err(fault.clone());
                }
                window = self.shared.wait(window);
            }
            self.reads.exposed_ns += nanoseconds(begun);
        }
        let slot = window.slot_of(group).expect("a resident group has a slot");
        let memory = window.slots[slot].memory.take().expect("the memory of a resident group is in the slot");
        window.groups.apply(group, GroupEvent::UseBegan);
        window.next_use = (group + 1) % self.views.len();
        self.reads.reading_ns += window.slots[slot].read_ns;
        drop(window);
        // One group less is read ahead.
        self.shared.changed.notify_all();
        let view = &mut self.views[group];
        self.reads.bytes += view.bytes() as u64;
        view.bind(&memory);
        self.used = Some(Used { slot, group, memory });
        Ok(Some(view))
    }

    /// Ends the use of a group: its slot may be filled with another.
    fn leave(&mut self) {
        if let Some(Used { slot, group, memory }) = self.used.take() {
            self.views[group].release();
            let mut window = self.shared.lock();
            window.slots[slot].memory = Some(memory);
            window.groups.apply(group, GroupEvent::UseEnded);
            drop(window);
            self.shared.changed.notify_all();
        }
    }

    /// Ends the use of the last group of a step.
    pub(crate) fn end(&mut self) {
        self.leave();
    }

    /// Returns the figures of the step, which ends now.
    pub(crate) fn reads(&self) -> WeightReads {
        let failed_reads = std::mem::take(&mut self.shared.lock().failed_reads);
        WeightReads { steps: 1, step_ns: nanoseconds(self.begun), failed_reads, ..self.reads }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_all();
        if let Some(reader) = self.reader.take() {
            // A panic of the reader has been reported as a fault.
            drop(reader.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::model::streamed::tests::{Disk, model_on};

    /// Returns a stream of weights on `disk`.
    fn stream_on(disk: Disk, retry_pause: Duration) -> Stream {
        model_on(disk, retry_pause).stream().unwrap().unwrap()
    }

    #[test]
    fn steps_after_the_end_of_an_idle_reader_fail() {
        let mut stream = stream_on(Disk::Sound, Duration::ZERO);
        drop(Reader(Arc::clone(&stream.shared)));
        stream.reader.take().unwrap().join().unwrap();
        let (faults, failed) = mpsc::channel();
        let steps = std::thread::spawn(move || {
            for _ in 0..3 {
                stream.begin(false);
                let number = stream.places.iter().position(|place| *place == Some(0)).unwrap();
                faults.send(stream.group(number).err()).unwrap();
            }
        });
        for _ in 0..3 {
            let fault = failed.recv_timeout(Duration::from_mins(1)).expect("the step does not hang").unwrap().fault;
            assert_eq!(fault, GroupFault::Read("the thread that reads ended".to_owned()));
        }
        steps.join().unwrap();
    }

    #[test]
    fn the_end_of_a_worker_waits_for_no_pause() {
        let stream = stream_on(Disk::Failing(u32::MAX), Duration::from_hours(1));
        while stream.shared.lock().failed_reads == 0 {
            std::thread::yield_now();
        }
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            drop(stream);
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_mins(1)).expect("the reader ends in its pause");
    }
}
