//! Limits of the network edge: connections, calls, unread output, times.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits that keep one client from taking a server's memory, descriptors or time from others.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkLimits {
    /// Maximum number of connections open at once; also bounded by the process's limit of open files, less 64 or, if smaller, half of the
    /// limit. A connection beyond the limit replaces one on which no caller with rights has a whole message, or is refused if there is none
    /// such: of those on which no such caller got an answer yet, the oldest one of the address that has most of them; and the others
    /// likewise, if they are more. The last eighth of the connections is for clients with few of them.
    pub connections: u32,
    /// Maximum number of connections of one peer address (of one /64 network for IPv6) at once; `None` for half of `connections`.
    pub connections_per_peer: Option<u32>,
    /// Maximum number of calls open at once on one connection; further calls wait at the client. Half of them may watch health, ask for reflection, or
    /// wait for their message; beyond, the oldest of these end after a second. The last eighth is for holders of tokens with less than an equal
    /// part of the calls.
    pub calls_per_connection: u32,
    /// Calls on one connection that the client resets before they are answered, at most, in a burst; a tenth of the number is
    /// forgiven each second. The connection is closed beyond.
    pub early_resets: u32,
    /// Time for a TLS handshake and the headers of the first request of a connection.
    pub first_request: Duration,
    /// Time for a request's message to arrive after its headers.
    pub request: Duration,
    /// Time after which a connection without a call is closed.
    pub idle: Duration,
    /// Interval of pings to a silent client. Zero sends none.
    pub keepalive: Duration,
    /// Time for which a call that follows another, the next turn of a session or a request with the same id, waits for the end of the other:
    /// a client that cancels a call and sends the next one may be faster than its own cancellation.
    pub cancelled: Duration,
    /// Time for the answer to a ping, and for the operating system to take a byte of output.
    pub keepalive_timeout: Duration,
    /// Time that output of a call may wait without the client reading. The request then ends with RESOURCE_EXHAUSTED, and after
    /// the same time again the call is reset.
    pub unread: Duration,
    /// Unread output of one call, at most, bytes in memory.
    pub unread_bytes_per_call: u64,
    /// Unread output of one connection, at most, bytes in memory. Beyond, the call unread for the longest time ends.
    pub unread_bytes_per_connection: u64,
    /// Unread output of all connections, at most, bytes in memory. Beyond, the call unread for the longest time ends.
    pub unread_bytes: u64,
    /// Messages of requests being received on one connection, at most, bytes. Beyond, the oldest call ends that has a part of them.
    pub incoming_bytes_per_connection: u64,
    /// Messages of requests being received on all connections, at most, bytes.
    pub incoming_bytes: u64,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_per_peer: None,
            calls_per_connection: 1024,
            early_resets: 200,
            first_request: Duration::from_secs(10),
            request: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            keepalive: Duration::from_secs(30),
            cancelled: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(20),
            unread: Duration::from_secs(30),
            unread_bytes_per_call: 1 << 20,
            unread_bytes_per_connection: 16 << 20,
            unread_bytes: 128 << 20,
            incoming_bytes_per_connection: 64 << 20,
            incoming_bytes: 256 << 20,
        }
    }
}

impl NetworkLimits {
    /// Returns the maximum number of connections of one peer address.
    pub(crate) fn per_peer(&self) -> u32 {
        let all = self.connections.max(1);
        self.connections_per_peer.unwrap_or(all / 2).clamp(1, all)
    }

    /// Returns the limits with as many connections as a process with the given limit of open files can have.
    pub(crate) fn within(self, open_files: Option<u64>) -> Self {
        let spare = |files: u64| u32::try_from(files - (files / 2).min(FILES_RESERVED)).unwrap_or(u32::MAX);
        let connections = open_files.map_or(self.connections, |files| self.connections.min(spare(files))).max(1);
        Self { connections, ..self }
    }
}

/// Descriptors kept for files, the listener and connections on their way in or out.
pub const FILES_RESERVED: u64 = 64;

/// Returns the soft limit of open files of this process; `None` if the system does not say.
pub(crate) fn open_files_max() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Raises the soft limit of open files of this process to the hard limit, where the system allows. Returns the soft limit then; `None` for no
/// limit.
pub fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let is_raised = current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    if is_raised { maximum } else { current }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_files() {
        let limits = NetworkLimits::default();
        let within = |open_files| limits.clone().within(open_files);
        for (open_files, connections) in
            [(None, 8192), (Some(1 << 20), 8192), (Some(1024), 960), (Some(64), 32), (Some(1), 1)]
        {
            assert_eq!(within(open_files).connections, connections);
        }
        assert_eq!((limits.per_peer(), within(Some(1)).per_peer()), (4096, 1));
        assert_eq!(NetworkLimits { connections_per_peer: Some(9000), ..limits }.per_peer(), 8192);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_limit_of_open_files_is_known() {
        assert!(open_files_max().is_some_and(|files| files > 8));
        let before = open_files_max();
        let raised = raise_open_files();
        assert_eq!(raised, open_files_max());
        assert!(raised.is_none_or(|files| before.is_some_and(|before| files >= before)));
    }
}
