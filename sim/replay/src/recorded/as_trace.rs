//! Recordings as traces: requests with their prompts, outputs and terms, and the latencies that the server measured.

use std::collections::HashMap;
use std::path::Path;

use trunkline_cluster::{Cluster, ClusterConfig, Input, Output};
use trunkline_core::core::event::Action;
use trunkline_core::{BlockHash, FinishReason, Request, RequestId, RetentionHint, Token};

use super::{
    InputsDigest, RecordingError, RecordingFault, Replayed, Shown, Watcher, header, header_version, replay_watched,
    request_of,
};
use trunkline_sim_report::report::{DeadlineReport, Latencies};
use trunkline_sim_workload::lines::Lines;
use trunkline_sim_workload::summary::{Histogram, Kept};
use trunkline_sim_workload::trace::{Content, Terms, Trace, TraceRequest, formats};

/// Recording of a server as a trace.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Requests in the order of arrival. Tenants and namespaces are numbered in the order of their first request.
    pub trace: Trace,
    /// Settings of the recorded server.
    pub cluster: ClusterConfig,
    /// Comparison of the decisions.
    pub replayed: Replayed,
    /// Latencies between the arrival of a request at the server's core and the arrival of its tokens there.
    pub measured: Latencies,
    /// Requests left out: refused, or ended without a token and without a deadline.
    pub left_out: u64,
    /// Requests cut short by clients, deadlines or the end of the recording; they ask for the tokens that they had, at least one.
    pub cut_short: u64,
}

/// Returns `true` if the file at `path` begins like a recording.
pub fn is_recording(path: &Path) -> bool {
    let first = |mut lines: Lines| Some(header_version(lines.next_line().ok()??).is_some());
    Lines::open(path).ok().and_then(first).unwrap_or(false)
}

/// Reads the settings of the recorded server.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read or has no valid header.
pub fn settings(path: &Path) -> Result<ClusterConfig, RecordingError> {
    let fail = |line, fault| RecordingError { path: path.into(), line, fault };
    let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
    header(&mut lines, &mut InputsDigest::default()).map_err(|fault| fail(lines.number(), fault))
}

/// Reads the recording at `path`. Outputs follow from replaying the recorded inputs. Calls `progress` with the number of events now and
/// then.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read, is damaged before the end, or has no request with a token.
pub fn load(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Recorded, RecordingError> {
    let cluster = settings(path)?;
    let mut served = Served::default();
    let replayed = replay_watched(path, progress, &mut served)?;
    served.into_recorded(cluster, replayed).ok_or_else(|| RecordingError {
        path: path.into(),
        line: 0,
        fault: RecordingFault::NoRequests,
    })
}

/// Request of the server.
struct ServedRequest {
    at_ns: u64,
    first_token_ns: u64,
    last_token_ns: u64,
    prompt: Vec<Token>,
    output: Vec<Token>,
    terms: Terms,
    retention: Box<[RetentionHint]>,
    prefetch: bool,
    end: End,
}

/// End of a recorded request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Completed,
    Refused,
    TimedOut,
    /// Aborted, failed, or unfinished at the end of the recording.
    CutShort,
}

/// Requests and latencies collected so far.
#[derive(Default)]
struct Served {
    requests: Vec<ServedRequest>,
    /// Positions of the requests that have not ended.
    open: HashMap<RequestId, usize>,
    tenants: HashMap<u64, u32>,
    namespaces: HashMap<BlockHash, u32>,
    ttft: Kept,
    tpot: Kept,
    e2e: Kept,
    itl: Histogram,
    deadlines: DeadlineReport,
}

impl Watcher for Served {
    fn hear(&mut self, at_ns: u64, input: &Input) {
        if let Some(request) = request_of(input) {
            self.submit(at_ns, request);
        }
    }

    fn see(&mut self, shown: &Shown, _cluster: &mut Cluster) {
        for output in shown.outputs {
            let (Output::Engine(_, action) | Output::Cluster(action)) = output else { continue };
            match action {
                Action::Token { request, token } => self.token(shown.at_ns, *request, *token),
                Action::Finish { request, reason, .. } => self.finish(shown.at_ns, *request, *reason),
                Action::Refuse { request, .. } => self.end(*request, End::Refused),
                _ => {}
            }
        }
    }
}

impl Served {
    fn submit(&mut self, at_ns: u64, request: &Request) {
        // A request with an id in use is refused, and the other continues.
        if self.open.contains_key(&request.id) {
            return;
        }
        let (tenants, namespaces) = (self.tenants.len() as u32, self.namespaces.len() as u32);
        let terms = Terms {
            tenant: *self.tenants.entry(request.tenant).or_insert(tenants),
            namespace: *self.namespaces.entry(request.root).or_insert(namespaces),
            priority: request.priority,
            background: request.background,
            deadline_ns: request.deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(at_ns).max(1)),
            max_tokens: Some(request.client_limit.unwrap_or(request.max_tokens)).filter(|_| !request.prefetch),
        };
        self.open.insert(request.id, self.requests.len());
        self.requests.push(ServedRequest {
            at_ns,
            first_token_ns: 0,
            last_token_ns: 0,
            prompt: request.prompt.clone(),
            output: request.generated.clone(),
            terms,
            retention: request.retention.clone().into(),
            prefetch: request.prefetch,
            end: End::CutShort,
        });
    }

    fn token(&mut self, at_ns: u64, id: RequestId, token: Token) {
        let Some(at) = self.open.get(&id) else { return };
        let request = &mut self.requests[*at];
        if request.output.is_empty() {
            request.first_token_ns = at_ns;
            self.ttft.record(at_ns - request.at_ns);
        } else {
            self.itl.record(at_ns - request.last_token_ns.max(request.at_ns), 1);
        }
        request.last_token_ns = at_ns;
        request.output.push(token);
    }

    fn finish(&mut self, at_ns: u64, id: RequestId, reason: FinishReason) {
        let Some(request) = self.open.get(&id).map(|at| &self.requests[*at]) else { return };
        let end = match reason {
            FinishReason::Stop | FinishReason::Length => End::Completed,
            FinishReason::Timeout => End::TimedOut,
            FinishReason::Abort | FinishReason::Error | FinishReason::NotFinite | FinishReason::Unsupported => {
                End::CutShort
            }
        };
        if end == End::Completed && !request.prefetch {
            self.e2e.record(at_ns - request.at_ns);
            if let Some(gaps @ 1..) = request.output.len().checked_sub(1) {
                self.tpot.record((at_ns - request.first_token_ns) / gaps as u64);
            }
        }
        self.end(id, end);
    }

    fn end(&mut self, id: RequestId, end: End) {
        let Some(at) = self.open.remove(&id) else { return };
        let request = &mut self.requests[at];
        request.end = end;
        if request.terms.deadline_ns.is_some() {
            match end {
                End::Completed => self.deadlines.met += 1,
                End::Refused | End::TimedOut => self.deadlines.missed += 1,
                End::CutShort => {}
            }
        }
    }

    /// Returns the recording as a trace; `None` without a request to replay.
    fn into_recorded(self, cluster: ClusterConfig, replayed: Replayed) -> Option<Recorded> {
        let measured = Latencies {
            ttft_s: self.ttft.summary(),
            tpot_s: self.tpot.summary(),
            itl_s: self.itl.summary(),
            e2e_s: self.e2e.summary(),
            deadlines: self.deadlines.if_any(),
        };
        let all = self.requests.len();
        let kept = |request: &ServedRequest| match request.end {
            End::Completed | End::TimedOut => !request.prompt.is_empty(),
            End::Refused => false,
            End::CutShort => !request.output.is_empty(),
        };
        let requests: Vec<_> = self.requests.into_iter().filter(kept).collect();
        let cut_short = requests.iter().filter(|request| request.end != End::Completed).count() as u64;
        let first_ns = requests.first()?.at_ns;
        let requests: Vec<_> = requests.into_iter().map(|request| request.traced(first_ns)).collect();
        let left_out = (all - requests.len()) as u64;
        let trace = Trace { format: formats::RECORDING, requests };
        Some(Recorded { trace, cluster, replayed, measured, left_out, cut_short })
    }
}

impl ServedRequest {
    fn traced(self, first_ns: u64) -> TraceRequest {
        TraceRequest {
            arrival_ns: self.at_ns - first_ns,
            input_tokens: self.prompt.len() as u32,
            output_tokens: if self.prefetch { 0 } else { self.output.len().max(1) as u32 },
            content: Content::Tokens(self.prompt.into()),
            output: Some(self.output.into()),
            terms: self.terms,
            retention: self.retention,
            turn: None,
        }
    }
}
