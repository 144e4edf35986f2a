//! Streamed weights: a window of slots that threads fill with groups in the order of use, while a step computes with others.
//!
//! [`trunkline_port::streaming`] has the states of the groups. A reader takes a slot whose group was computed with, and reads the next group of the circle into the slot,
//! as long as fewer than `ahead` groups are read or being read ahead, and fewer than `reads` are being read: the *credits*. Steps of decodes alone use each weight for few
//! tokens and wait for the disk, so they have more credits than steps with prompts may need, which use each weight for many. A step waits for a group that is not there
//! yet. Memory changes hands by value: a reader owns a slot's memory while reading, and a group in use lies in shared memory that nobody can change.

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
use crate::stream::packed::form::Packing;
use crate::stream::retries::try_again;

/// Places of the groups of a model with streamed weights; shared by the model's workers.
pub(crate) struct Streamed {
    pub(crate) file: CurrentFile,
    /// Streamed groups in the order of a step, by their number among all groups.
    pub(crate) groups: Vec<usize>,
    /// Bytes of these groups on the disk.
    pub(crate) stored_bytes: Vec<u64>,
    /// Slots of each worker's window.
    pub(crate) slots: usize,
    /// Bytes of a slot.
    pub(crate) slot_bytes: usize,
    /// Groups read ahead of the one in use, at most, in steps of decodes alone.
    pub(crate) ahead: usize,
    /// The same for steps that run prompts.
    pub(crate) prefill_ahead: usize,
    /// Reads in flight, at most, in steps of decodes alone.
    pub(crate) reads: usize,
    /// The same for steps that run prompts.
    pub(crate) prefill_reads: usize,
    /// Pause before a failed read is tried again for the first time.
    pub(crate) retry_pause: Duration,
}

/// A slot of the window.
struct Slot {
    /// `None` while the reader fills the slot or a step computes with the group.
    memory: Option<Arc<Aligned>>,
    /// Streamed group in the slot, by place in the circle.
    group: Option<usize>,
    /// Time of the read, without what counts for reads that ended while it was in flight, nanoseconds.
    read_ns: u64,
}

/// A slot taken for a group, and the slot's memory.
type Taken = (usize, usize, Arc<Aligned>);

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
    /// Maximum number of reads in flight.
    credits: usize,
    /// The time of the reads is counted up to here, if there are any in flight.
    counted: Instant,
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
    fn begin_read(&mut self, now: Instant) -> Option<Taken> {
        let in_flight = self.count(GroupState::InFlight);
        let ahead = in_flight + self.count(GroupState::Resident);
        if self.fault.is_some() || ahead >= self.ahead || in_flight >= self.credits {
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
        if in_flight == 0 {
            self.counted = now;
        }
        self.next_read = (group + 1) % self.groups.len();
        Some((slot, group, memory))
    }

    /// Takes a group that was read, or was not.
    fn end_read(&mut self, (slot, group, memory): Taken, read: Result<(), WeightsFault>, now: Instant) {
        let read_ns = u64::try_from(now.duration_since(self.counted).as_nanos()).unwrap_or(u64::MAX);
        self.counted = now;
        self.slots[slot] = Slot { memory: Some(memory), group: Some(group), read_ns };
        match read {
            Ok(()) => self.groups.apply(group, GroupEvent::ReadEnded),
            Err(fault) => {
                self.groups.apply(group, GroupEvent::ReadFailed);
                self.fault.get_or_insert(fault);
            }
        }
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
        let (mut packing, mut window) = (Packing::default(), self.lock());
        while !window.is_stopped {
            let Some((slot, group, mut memory)) = window.begin_read(Instant::now()) else {
                window = self.wait(window);
                continue;
            };
            drop(window);
            let read = match Arc::get_mut(&mut memory) {
                Some(memory) => self.read(group, memory, &mut packing),
                None => Err(self.fault(group, "its memory is in use")),
            };
            window = self.lock();
            window.end_read((slot, group, memory), read, Instant::now());
            self.changed.notify_all();
        }
    }
}

impl Shared {
    /// Reads a group. A failed read is tried again after pauses, perhaps from another file by then.
    fn read(&self, group: usize, memory: &mut Aligned, packing: &mut Packing) -> Result<(), WeightsFault> {
        let Streamed { file: current, groups, retry_pause, .. } = &*self.streamed;
        let number = groups[group];
        let read = || {
            let file = current.file();
            file.read(number, memory.as_mut_slice(), packing).map_err(|fault| (file, fault))
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

/// Ends all waiting and all reading if a reader ends, also by a panic.
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
    readers: Vec<JoinHandle<()>>,
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
    /// The threads that read cannot be started.
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
            credits: streamed.reads.max(streamed.prefill_reads),
            counted: Instant::now(),
            fault: None,
            failed_reads: 0,
            is_stopped: false,
        };
        let mut places = vec![None; n_groups];
        for (place, number) in streamed.groups.iter().enumerate() {
            places[*number] = Some(place);
        }
        let shared = Arc::new(Shared { streamed, window: Mutex::new(window), changed: Condvar::new() });
        let (used, reads, begun) = (None, WeightReads::default(), Instant::now());
        let mut stream = Self { shared, readers: Vec::new(), views, places, used, reads, begun };
        let threads = stream.shared.lock().credits;
        for _ in 0..threads {
            let reads_for = Reader(Arc::clone(&stream.shared));
            let reader = std::thread::Builder::new().name("weights".to_owned()).spawn(move || reads_for.0.read_all());
            let reader = reader.map_err(|error| WorkerError::Threads { threads, problem: error.to_string() })?;
            stream.readers.push(reader);
        }
        Ok(stream)
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
        let Streamed { ahead, prefill_ahead, reads, prefill_reads, .. } = *self.shared.streamed;
        (window.ahead, window.credits) = if has_prompts { (prefill_ahead, prefill_reads) } else { (ahead, reads) };
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
        self.reads.bytes += self.shared.streamed.stored_bytes[group];
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
        for reader in self.readers.drain(..) {
            // A panic of a reader has been reported as a fault.
            drop(reader.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::model::streamed::tests::{Disk, model_on, model_with};

    /// Returns a stream of weights on `disk`.
    fn stream_on(disk: Disk, retry_pause: Duration) -> Stream {
        model_on(disk, retry_pause).stream().unwrap().unwrap()
    }

    #[test]
    fn steps_after_the_end_of_an_idle_reader_fail() {
        let mut stream = stream_on(Disk::Sound, Duration::ZERO);
        drop(Reader(Arc::clone(&stream.shared)));
        stream.readers.drain(..).for_each(|reader| reader.join().unwrap());
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

    fn window(slots: usize, ahead: usize, credits: usize) -> Window {
        let slot = |_| Slot { memory: Some(Arc::default()), group: None, read_ns: 0 };
        Window {
            groups: Groups::new(6),
            slots: (0..slots).map(slot).collect(),
            next_read: 0,
            next_use: 0,
            ahead,
            credits,
            counted: Instant::now(),
            fault: None,
            failed_reads: 0,
            is_stopped: false,
        }
    }

    #[test]
    fn reads_in_flight_are_as_many_as_credits_and_groups_ahead_allow() {
        for (slots, ahead, credits, expected) in [(5, 4, 1, 1), (5, 4, 3, 3), (5, 2, 4, 2), (2, 4, 4, 2)] {
            let mut window = window(slots, ahead, credits);
            let taken: Vec<Taken> = std::iter::from_fn(|| window.begin_read(Instant::now())).collect();
            let groups: Vec<usize> = taken.iter().map(|(_, group, _)| *group).collect();
            assert_eq!(groups, (0..expected).collect::<Vec<_>>(), "{slots} slots, {ahead} ahead, {credits} credits");
        }
        let mut window = window(5, 4, 2);
        let (first, second) = (window.begin_read(Instant::now()).unwrap(), window.begin_read(Instant::now()).unwrap());
        window.end_read(second, Ok(()), Instant::now());
        assert_eq!(window.begin_read(Instant::now()).unwrap().1, 2, "a read that ends early gives its credit back");
        window.end_read(first, Err(stream_on(Disk::Sound, Duration::ZERO).shared.fault(0, "a test")), Instant::now());
        assert!(window.begin_read(Instant::now()).is_none(), "nothing is read after a fault");
    }

    #[test]
    fn time_with_several_reads_in_flight_counts_once() {
        let (mut window, begun) = (window(4, 3, 3), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        // Seconds 0 to 1; then 2 to 10, and 5 to 6 within.
        let alone = window.begin_read(at(0)).unwrap();
        window.end_read(alone, Ok(()), at(1));
        let (long, short) = (window.begin_read(at(2)).unwrap(), window.begin_read(at(5)).unwrap());
        window.end_read(short, Ok(()), at(6));
        window.end_read(long, Ok(()), at(10));
        let seconds: Vec<u64> = window.slots.iter().map(|slot| slot.read_ns / 1_000_000_000).collect();
        assert_eq!(seconds, [1, 4, 4, 0]);
    }

    #[test]
    fn a_second_group_is_read_while_the_first_is() {
        // The first two reads of this disk wait for each other.
        let mut stream = model_with(Disk::Meeting, Duration::ZERO, 1).stream().unwrap().unwrap();
        stream.begin(false);
        let numbers: Vec<usize> = (0..stream.places.len()).filter(|number| stream.places[*number].is_some()).collect();
        for number in numbers {
            assert!(stream.group(number).unwrap().is_some());
        }
        stream.end();
        assert_eq!(stream.reads().failed_reads, 0);
    }
}
