//! Connections to a server, with or without TLS, and calls with a token.

use std::error::Error;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};
use tonic::Status;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use trunkline_quote::quoted;

use crate::access::tls::{TlsError, certificates, key, roots};

/// Files for a TLS connection to a server, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates of the authorities for servers.
    pub ca: PathBuf,
    /// Certificate and private key of the client, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Reason for not connecting, or for not using a file of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A TLS file is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The host in the address is not a name for a certificate.
    #[error("{} is not a name of a server", quoted(.0))]
    Name(String),
    /// The connection could not be made.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    /// The server answered something other than TLS.
    #[error("the server speaks no TLS: connect without, or start the server with --tls-cert and --tls-key")]
    NoTls,
    /// The file of a token cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file of a token has something else.
    #[error("the token file {} has no token: its first word must be one, of printable ASCII characters", .0.display())]
    NoToken(PathBuf),
}

/// Connects to the host and port of an endpoint by TLS.
///
/// # Errors
/// If a file is unusable, the server cannot be reached, or its certificate is not of the authorities.
pub async fn connect_tls(endpoint: Endpoint, tls: &ClientTls) -> Result<Channel, ClientError> {
    let host = endpoint.uri().host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|_| ClientError::Name(host))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::from)?;
    let builder = builder.with_root_certificates(roots(&tls.ca)?);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((cert, private)) => {
            builder.with_client_auth_cert(certificates(cert)?, key(private)?).map_err(TlsError::from)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = Connector { tls: TlsConnector::from(Arc::new(config)), name };
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|err| if causes(&err).any(is_no_tls) { ClientError::NoTls } else { err.into() })
}

/// Returns `true` if a call failed because the server speaks TLS, and the client does not.
pub fn wants_tls(status: &Status) -> bool {
    let is_reason = |cause: &(dyn Error + 'static)| {
        let reason = cause.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
        reason == Some(h2::Reason::INADEQUATE_SECURITY)
    };
    causes(status).any(is_reason)
}

/// Returns an error and the errors behind it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns `true` for the error of a handshake with a server whose bytes are not TLS.
fn is_no_tls(cause: &(dyn Error + 'static)) -> bool {
    let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidMessage(_)))
}

/// Reads the first word of a file, a token, and returns the value of the header `authorization`.
///
/// # Errors
/// If the file cannot be read or has no token.
pub fn authorization(path: &Path) -> Result<MetadataValue<Ascii>, ClientError> {
    let text = std::fs::read_to_string(path).map_err(|source| ClientError::Token { path: path.into(), source })?;
    let token = text.lines().find(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty());
    let token = token.and_then(|line| line.split_whitespace().next());
    token.and_then(|token| format!("Bearer {token}").parse().ok()).ok_or_else(|| ClientError::NoToken(path.into()))
}

/// Connects by TCP and TLS.
#[derive(Clone)]
struct Connector {
    tls: TlsConnector,
    name: ServerName<'static>,
}

/// A connection by TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, name } = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
            socket.set_nodelay(true)?;
            let io: Box<dyn Io> = Box::new(tls.connect(name, socket).await?);
            Ok(TokioIo::new(io))
        })
    }
}
