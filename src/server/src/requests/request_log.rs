//! The log of requests: for each request that ended, a line in the log under the target [`TARGET`], a row in a file if there is one, and a span for a
//! tracer if there is one.
//!
//! The core's thread hands over an event and goes on; a thread of its own makes lines and rows. An event for which that thread has no room is lost, and
//! counted. The file is opened again when it is to be ([`RequestLog::reopen`]), so that logs can be rotated.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tracing::{debug, error, info, warn};
use trunkline_files::private;

use crate::requests::request_events::{RequestEvent, code_name, csv_header, csv_row, json_row};
use crate::requests::spans::{self, RequestTracer};

/// Target of the lines in the log, to filter by: `RUST_LOG=info,trunkline::requests=off`.
pub(crate) const TARGET: &str = "trunkline::requests";
/// Maximum number of events waiting for their thread.
const EVENTS_MAX: usize = 8192;
/// Longest time until a wish to open the file again is seen.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time to wait for the last events to be written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

enum Message {
    /// A request that ended at a time.
    Event(Box<RequestEvent>, SystemTime),
    /// Write all that is there, answer, and end.
    End(Sender<()>),
}

/// Sender of events to the thread that writes them.
#[derive(Clone)]
pub(crate) struct RequestLog {
    messages: Sender<Message>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Events lost since the last line about lost ones.
    lost: AtomicU64,
    reopen: AtomicBool,
    has_file: bool,
    tracer: Option<Arc<dyn RequestTracer>>,
}

impl RequestLog {
    /// Opens the file, if there is to be one, and starts the thread. Rows are added to a file that is there.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread cannot be started.
    pub(crate) fn open(path: Option<&Path>, tracer: Option<Arc<dyn RequestTracer>>) -> io::Result<Self> {
        let file = path.map(Rows::open).transpose()?;
        let shared = Arc::new(Shared { has_file: file.is_some(), tracer, ..Shared::default() });
        let (messages, received) = bounded(EVENTS_MAX);
        let of_thread = shared.clone();
        thread::Builder::new().name("requests".into()).spawn(move || write_all(file, &received, &of_thread))?;
        Ok(Self { messages, shared })
    }

    /// Returns `true` if spans are made of events.
    pub(crate) fn traces(&self) -> bool {
        self.shared.tracer.is_some()
    }

    /// Adds the event that `event` makes, if anybody wants events.
    pub(crate) fn note(&self, event: impl FnOnce() -> RequestEvent) {
        let has_reader = self.shared.has_file || self.shared.tracer.is_some();
        if !has_reader && !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        if self.messages.try_send(Message::Event(Box::new(event()), SystemTime::now())).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the file opened again, under its name, before the next row. Returns `false` without a file.
    pub(crate) fn reopen(&self) -> bool {
        self.shared.reopen.store(true, Ordering::Relaxed);
        self.shared.has_file
    }

    /// Waits until the events so far are written, and ends the thread.
    pub(crate) fn finish(&self) {
        let (written, is_written) = bounded(1);
        if self.messages.send_timeout(Message::End(written), FINISH_TIMEOUT).is_ok() {
            // The thread has ended, or takes longer than it should.
            let _ = is_written.recv_timeout(FINISH_TIMEOUT);
        }
    }
}

fn write_all(mut file: Option<Rows>, messages: &Receiver<Message>, shared: &Shared) {
    loop {
        let message = messages.recv_timeout(LOOK_INTERVAL);
        if shared.reopen.swap(false, Ordering::Relaxed) {
            file.iter_mut().for_each(Rows::reopen);
        }
        let lost = shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            warn!(target: TARGET, lost, "more requests ended than can be written: some have no line and no row");
        }
        match message {
            Ok(Message::Event(event, end)) => {
                log(&event);
                if let Some(tracer) = &shared.tracer {
                    tracer.write(spans::span(&event, end));
                }
                if let Some(file) = &mut file {
                    file.write(&event, messages.is_empty());
                }
            }
            Ok(Message::End(written)) => {
                file.iter_mut().for_each(Rows::flush);
                shared.tracer.iter().for_each(|tracer| tracer.finish());
                // Nobody may wait any more.
                let _ = written.send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Writes the line of a request to the log. Refused requests are on the level `debug`: clients can cause them at any rate.
fn log(event: &RequestEvent) {
    let (request_id, tenant) = (event.label.id.as_str(), event.label.tenant.as_str());
    let (reason, status) = (event.reason(), code_name(event.status()));
    if event.is_refused() {
        debug!(target: TARGET, request_id, tenant, reason, status, "refused");
        return;
    }
    // Whole microseconds: as many digits as a reader needs.
    let seconds = |ns: Option<u64>| ns.map(|ns| (ns.saturating_sub(event.times.arrival_ns) / 1000) as f64 / 1e6);
    info!(
        target: TARGET,
        request_id,
        number = event.number.map(|number| number.0),
        tenant,
        reason,
        status,
        prompt_tokens = event.usage.prompt_tokens,
        cached_tokens = event.usage.cached_tokens,
        output_tokens = event.usage.completion_tokens,
        queue_s = seconds(event.times.started_ns),
        ttft_s = seconds(event.times.first_token_ns),
        e2e_s = seconds(Some(event.end_ns)),
        preemptions = event.usage.preemptions,
        engines = event.engines.text(),
        "finished"
    );
}

/// File of rows. After an error nothing is written until the file is opened again.
struct Rows {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    is_json: bool,
    line: String,
}

impl Rows {
    fn open(path: &Path) -> io::Result<Self> {
        let is_json = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json");
        let file = Some(BufWriter::new(private::open(File::options().create(true).append(true), path)?));
        Ok(Self { path: path.to_owned(), file, is_json, line: String::new() })
    }

    fn reopen(&mut self) {
        self.flush();
        match Self::open(&self.path) {
            Ok(opened) => *self = opened,
            Err(error) => self.fail(&error),
        }
    }

    fn write(&mut self, event: &RequestEvent, is_last: bool) {
        let Some(file) = &mut self.file else { return };
        self.line.clear();
        let columns = event.columns();
        let write = |file: &mut BufWriter<File>, line: &mut String| {
            if !self.is_json && file.buffer().is_empty() && file.get_ref().metadata()?.len() == 0 {
                csv_header(&columns, line);
            }
            let row = if self.is_json { json_row } else { csv_row };
            row(&columns, line);
            file.write_all(line.as_bytes())?;
            if is_last { file.flush() } else { Ok(()) }
        };
        if let Err(error) = write(file, &mut self.line) {
            self.fail(&error);
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(BufWriter::flush) {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        error!("requests are no longer written to {}: {error}; SIGHUP has the file opened again", self.path.display());
    }
}
