//! Settings of the network edge of `serve`: tokens, TLS, limits of connections, the address of metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use tokio::net::TcpListener;
use tracing::warn;
use trunkline_quote::quoted;
use trunkline_server::{MetricNames, NetworkLimits, Options, TlsFiles};

/// Longest time that a setting may have, seconds: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// Time for which a server that is to stop waits for requests: below the 30 s after which Kubernetes kills a process
/// (`terminationGracePeriodSeconds`), with some seconds for clients to read the ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// Settings of the network edge; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Network")]
pub struct NetworkSettings {
    /// Address of metrics for Prometheus: answers `GET /metrics` over plain HTTP without a token, so let only the monitoring system reach the address;
    /// port 0 takes a free port [default: none].
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,

    /// Names of metrics, here and at /metrics of the port of the calls: trunkline, vllm (`vllm:num_requests_waiting` and its like, summed over
    /// engines), or both [default: both].
    #[arg(long, value_name = "NAMES")]
    pub metrics_names: Option<String>,

    /// File of bearer tokens, one a line: `TOKEN ROLE [NAME]`, with the role generate, admin or worker; read again when it changes. Calls
    /// without one of the tokens are refused, except for health [default: everyone may call].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Without --token-file: let everyone flush the cache, read all counters and attach workers. With tokens the role decides [default: true if
    /// the address to listen on is a loopback address].
    #[arg(long, value_name = "BOOL")]
    pub admin: Option<bool>,

    /// Serve by TLS: file of the certificate and those of intermediate authorities, PEM; read again when it changes. Needs
    /// --tls-key [default: no TLS].
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// File of the private key of --tls-cert, PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Ask every client for a certificate of the authorities in this file, PEM [default: none].
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,

    /// Maximum number of connections at once, and no more than open files allow; beyond, a connection is replaced on which no caller with
    /// rights has a whole request [default: 8192].
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u32>,

    /// Maximum number of connections of one address (IPv6: of one /64 network) at once [default: half of --max-connections].
    #[arg(long, value_name = "N")]
    pub max_connections_per_peer: Option<u32>,

    /// Maximum number of calls at once on one connection; more wait at the client [default: 1024].
    #[arg(long, value_name = "N")]
    pub max_calls_per_connection: Option<u32>,

    /// Maximum number of requests of one client before their first token; more are refused. A client is the holder of a token, or without
    /// tokens everyone at one address [default: half of --max-queue].
    #[arg(long, value_name = "N")]
    pub max_queue_per_client: Option<u32>,

    /// Maximum number of open requests of one client, waiting or running; more are refused. Without, a client may fill the batch, and gives
    /// places up to others who ask [default: no bound].
    #[arg(long, value_name = "N")]
    pub max_requests_per_client: Option<u32>,

    /// Close a connection without a request after this time [default: 10].
    #[arg(long, value_name = "SECONDS")]
    pub first_request_timeout: Option<f64>,

    /// Close a connection without a call after this time [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub idle_timeout: Option<f64>,

    /// End a request whose output the client does not read for this time, and reset its call after twice the time [default: 30].
    #[arg(long, value_name = "SECONDS")]
    pub unread_timeout: Option<f64>,

    /// Wait at most this time for running requests when the server is to stop; then they end with UNAVAILABLE, so that clients send them to another
    /// server. 0 waits for ever [default: 25, below the 30 s after which Kubernetes kills].
    #[arg(long, value_name = "SECONDS")]
    pub drain_timeout: Option<f64>,

    /// Largest amount of output that clients have not read, bytes of memory; an eighth of it for one connection, a 128th for one request.
    /// Beyond, the request unread for longest ends [default: 134217728].
    #[arg(long, value_name = "BYTES")]
    pub max_unread_bytes: Option<u64>,
}

impl NetworkSettings {
    /// Fills in the options of a server.
    ///
    /// # Errors
    /// If a setting is out of range, or a certificate comes without its key.
    pub fn apply(&self, options: &mut Options) -> anyhow::Result<()> {
        options.network = self.limits()?;
        options.queue_per_client = at_least("max-queue-per-client", self.max_queue_per_client, 1)?;
        options.requests_per_client = at_least("max-requests-per-client", self.max_requests_per_client, 1)?;
        options.tls = self.tls()?;
        options.drain_timeout = self.drain_timeout()?;
        options.token_file = self.token_file.clone();
        options.admin = self.admin;
        options.metric_names = self.metric_names()?;
        Ok(())
    }

    fn metric_names(&self) -> anyhow::Result<MetricNames> {
        match self.metrics_names.as_deref() {
            None | Some("both") => Ok(MetricNames::Both),
            Some("trunkline") => Ok(MetricNames::Trunkline),
            Some("vllm") => Ok(MetricNames::Vllm),
            Some(other) => bail!("metrics-names is {}; it must be trunkline, vllm or both", quoted(other)),
        }
    }

    /// Listens on the address of metrics, if there is one.
    ///
    /// # Errors
    /// If the address is malformed, not of this machine, or in use.
    pub async fn metrics_listener(&self) -> anyhow::Result<Option<TcpListener>> {
        let Some(addr) = &self.metrics else { return Ok(None) };
        let port = addr.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        ensure!(
            matches!(port, Some(Ok(_))),
            "metrics is {addr}; it must be HOST:PORT, as in 127.0.0.1:9400",
            addr = quoted(addr)
        );
        let listener = TcpListener::bind(addr).await;
        Ok(Some(
            listener.with_context(|| format!("cannot serve metrics on {addr}; choose another --metrics HOST:PORT"))?,
        ))
    }

    /// Warns, in one line, of an address of metrics open to other machines.
    pub fn warn_of_metrics(addr: SocketAddr) {
        if !addr.ip().is_loopback() {
            warn!("metrics on {addr} need no token: let only the monitoring system reach this address");
        }
    }

    /// Warns, in one line, of an address open to other machines without tokens.
    pub fn warn_if_open(&self, addr: SocketAddr) {
        if !addr.ip().is_loopback() && self.token_file.is_none() {
            warn!("{addr} is open to other machines, and anyone may call: consider --token-file and --tls-cert");
        }
    }

    fn limits(&self) -> anyhow::Result<NetworkLimits> {
        let default = NetworkLimits::default();
        let unread_bytes =
            at_least("max-unread-bytes", self.max_unread_bytes, 1 << 17)?.unwrap_or(default.unread_bytes);
        let calls = at_least("max-calls-per-connection", self.max_calls_per_connection, 1)?;
        Ok(NetworkLimits {
            connections: at_least("max-connections", self.max_connections, 1)?.unwrap_or(default.connections),
            connections_per_peer: at_least("max-connections-per-peer", self.max_connections_per_peer, 1)?,
            calls_per_connection: calls.unwrap_or(default.calls_per_connection),
            first_request: seconds("first-request-timeout", self.first_request_timeout, default.first_request)?,
            idle: seconds("idle-timeout", self.idle_timeout, default.idle)?,
            unread: seconds("unread-timeout", self.unread_timeout, default.unread)?,
            unread_bytes,
            unread_bytes_per_connection: unread_bytes / 8,
            unread_bytes_per_call: unread_bytes / 128,
            ..default
        })
    }

    fn drain_timeout(&self) -> anyhow::Result<Option<Duration>> {
        match self.drain_timeout {
            Some(0.0) => Ok(None),
            given => seconds("drain-timeout", given, DRAIN_TIMEOUT).map(Some),
        }
    }

    fn tls(&self) -> anyhow::Result<Option<TlsFiles>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: self.tls_client_ca.clone() }))
            }
            (None, None) if self.tls_client_ca.is_none() => Ok(None),
            (Some(_), None) => bail!("tls-cert needs tls-key, the file of the certificate's private key"),
            (None, _) => bail!("tls-key and tls-client-ca need tls-cert, the file of the server's certificate"),
        }
    }
}

fn at_least<T: PartialOrd + std::fmt::Display>(name: &str, value: Option<T>, min: T) -> anyhow::Result<Option<T>> {
    if let Some(value) = &value {
        ensure!(*value >= min, "{name} is {value}; it must be at least {min}");
    }
    Ok(value)
}

fn seconds(name: &str, value: Option<f64>, default: Duration) -> anyhow::Result<Duration> {
    let Some(seconds) = value else { return Ok(default) };
    ensure!(
        (0.001..=SECONDS_MAX).contains(&seconds),
        "{name} is {seconds}; it must be between 0.001 and {SECONDS_MAX}"
    );
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: NetworkSettings,
    }

    fn options(flags: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let settings = Cli::try_parse_from([&["serve"], flags].concat()).unwrap().settings;
        settings.apply(&mut options).map_err(|err| err.to_string())?;
        Ok(options)
    }

    #[test]
    fn settings_not_given_have_the_servers_defaults() {
        assert_eq!(options(&[]).unwrap().network, NetworkLimits::default());
        let drains = ["--drain-timeout=1.5", "--drain-timeout=0"].map(|flag| options(&[flag]).unwrap().drain_timeout);
        assert_eq!(drains, [Some(Duration::from_millis(1500)), None]);
        assert_eq!(options(&[]).unwrap().drain_timeout, Some(Duration::from_secs(25)));
    }

    #[test]
    fn settings_reach_the_server() {
        let mut flags =
            vec!["--max-connections=7", "--max-unread-bytes=1280000", "--idle-timeout=1.5", "--admin=false"];
        flags.extend(["--max-queue-per-client=9", "--max-requests-per-client=10"]);
        let options = options(&flags).unwrap();
        assert_eq!((options.queue_per_client, options.requests_per_client), (Some(9), Some(10)));
        let limits = &options.network;
        assert_eq!((limits.connections, limits.idle), (7, Duration::from_millis(1500)));
        assert_eq!((limits.unread_bytes_per_connection, limits.unread_bytes_per_call), (160_000, 10_000));
        assert_eq!(options.admin, Some(false));
    }

    #[test]
    fn metrics_have_our_names_or_those_of_vllm() {
        let named = |names: &str| {
            let settings = NetworkSettings { metrics_names: Some(names.into()), ..NetworkSettings::default() };
            settings.metric_names()
        };
        assert_eq!(named("vllm").unwrap(), MetricNames::Vllm);
        assert_eq!(named("trunkline").unwrap(), MetricNames::Trunkline);
        assert_eq!(NetworkSettings::default().metric_names().unwrap(), MetricNames::Both);
        let error = named("sglang").unwrap_err().to_string();
        assert_eq!(error, "metrics-names is 'sglang'; it must be trunkline, vllm or both");
    }

    #[tokio::test]
    async fn an_address_of_metrics_is_a_host_and_a_port_that_is_free() {
        let listen = async |addr: &str| {
            let settings = NetworkSettings { metrics: Some(addr.into()), ..NetworkSettings::default() };
            settings.metrics_listener().await.map_err(|err| format!("{err:#}"))
        };
        assert!(NetworkSettings::default().metrics_listener().await.unwrap().is_none());
        let taken = listen("127.0.0.1:0").await.unwrap().unwrap().local_addr().unwrap();
        assert!(taken.port() != 0);
        for wrong in ["nonsense", "9400", ":9400", "127.0.0.1:", "127.0.0.1:65536", "http://127.0.0.1"] {
            let message = listen(wrong).await.unwrap_err();
            assert_eq!(message, format!("metrics is '{wrong}'; it must be HOST:PORT, as in 127.0.0.1:9400"));
        }
        let first = listen("127.0.0.1:0").await.unwrap().unwrap();
        let addr = first.local_addr().unwrap().to_string();
        let message = listen(&addr).await.unwrap_err();
        let begins = format!("cannot serve metrics on {addr}; choose another --metrics HOST:PORT: ");
        assert!(message.starts_with(&begins) && message.contains("in use"), "{message}");
    }

    #[test]
    fn wrong_settings_are_reported_by_name() {
        let wrong = |flags: &[&str]| options(flags).unwrap_err();
        assert_eq!(wrong(&["--max-connections=0"]), "max-connections is 0; it must be at least 1");
        assert_eq!(wrong(&["--max-queue-per-client=0"]), "max-queue-per-client is 0; it must be at least 1");
        assert!(wrong(&["--idle-timeout=nan"]).starts_with("idle-timeout is NaN; it must be between"));
        assert!(wrong(&["--unread-timeout=0"]).starts_with("unread-timeout is 0; it must be between"));
        assert!(wrong(&["--tls-cert=c"]).starts_with("tls-cert needs tls-key"));
        assert!(wrong(&["--tls-key=k"]).contains("need tls-cert"));
        assert!(wrong(&["--tls-client-ca=k"]).contains("need tls-cert"));
    }
}
