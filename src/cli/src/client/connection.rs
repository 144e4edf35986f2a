//! Connection of the clients among the commands to a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Args;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use trunkline_quote::quoted;
use trunkline_server::{ClientError, ClientTls, authorization, connect_tls, wants_tls};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connection to the server.
#[derive(Args, Clone, Debug)]
pub struct ConnectionArgs {
    /// Address of the server.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50051")]
    addr: String,

    /// Connect by TLS: file of the authorities for the server's certificate, PEM [default: no TLS].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// Certificate of this client, PEM, for servers that ask for one. Needs --tls-ca and --tls-key.
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// File with a bearer token for the server, the first word [default: no token].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Adds the token of the caller to a request, if there is one.
    ///
    /// # Errors
    /// If the file of the token cannot be used.
    pub fn authorise<T>(&self, request: &mut Request<T>) -> anyhow::Result<()> {
        if let Some(path) = &self.token_file {
            request.metadata_mut().insert("authorization", authorization(path)?);
        }
        Ok(())
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// If the address is malformed, or no server answers there.
    pub async fn connect(&self) -> anyhow::Result<Channel> {
        let plain = self.addr.strip_prefix("http://").unwrap_or(&self.addr);
        let addr = plain.strip_prefix("https://").unwrap_or(plain);
        ensure!(
            self.tls_ca.is_some() || !self.addr.starts_with("https://"),
            "{} needs --tls-ca, the authorities for its certificate",
            self.addr
        );
        let scheme = if self.tls_ca.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{addr}"))
            .map_err(|_| anyhow!("{} is not an address; give HOST:PORT", quoted(&self.addr)))?
            .connect_timeout(CONNECT_TIMEOUT);
        let connected = match &self.tls_ca {
            None => endpoint.connect().await.map_err(ClientError::from),
            Some(ca) => {
                let identity = self.tls_cert.clone().zip(self.tls_key.clone());
                connect_tls(endpoint, &ClientTls { ca: ca.clone(), identity }).await
            }
        };
        connected.map_err(|err| match err {
            ClientError::Transport(err) => {
                anyhow!("cannot connect to {addr}: {}; is `trunkline serve` running there?", innermost(&err))
            }
            err @ ClientError::NoTls => anyhow!("cannot connect to {addr}: {err}"),
            err => err.into(),
        })
    }
}

/// Turns a server's status into an error for the user of the command.
pub fn status_error(status: Status) -> anyhow::Error {
    if wants_tls(&status) {
        return anyhow!("the server speaks TLS; give --tls-ca, the file of the authorities for its certificate");
    }
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    match status.code() {
        Code::InvalidArgument => anyhow!("{message}"),
        Code::DeadlineExceeded => anyhow!("timeout: {message}"),
        Code::Unknown | Code::Cancelled => anyhow!("the connection to the server was lost: {message}"),
        _ => anyhow!("the server says: {message}"),
    }
}

/// Returns the innermost cause, which is the most specific.
fn innermost(err: &dyn std::error::Error) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
