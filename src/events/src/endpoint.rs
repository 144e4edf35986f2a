//! Addresses of ZeroMQ sockets.

use std::net::IpAddr;

use trunkline_quote::quoted;

use crate::error::PublisherError;

/// The address of a socket.
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// Reads `tcp://HOST:PORT`; `*` stands for all addresses of the machine. Each engine has the next port, unless the port is 0.
    pub fn parse(endpoint: &str, rank: u32) -> Result<Self, PublisherError> {
        let error = || PublisherError::Endpoint { endpoint: quoted(endpoint).to_string() };
        let (host, port) = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(error)?;
        let port: u16 = port.parse().map_err(|_| error())?;
        let port = if port == 0 { 0 } else { u16::try_from(u32::from(port) + rank).map_err(|_| error())? };
        let is_host = !host.is_empty() && !host.contains(char::is_whitespace);
        is_host
            .then(|| Self { host: if host == "*" { "0.0.0.0".into() } else { host.to_owned() }, port })
            .ok_or_else(error)
    }

    /// Returns `true` for an address of this machine, which a publisher binds; it connects to others, as vLLM's does.
    pub fn is_ours(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified() || ip.is_loopback())
    }

    /// Returns `true` for an address that no other machine can reach.
    pub fn is_loopback(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_loopback())
    }

    fn ip(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }

    pub fn text(&self) -> String {
        format!("tcp://{}:{}", self.host, self.port)
    }
}
