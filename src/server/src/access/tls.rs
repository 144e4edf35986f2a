//! TLS of the listener: certificates from files, read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tracing::{error, info};

use crate::access::changes::Watched;
use crate::access::validity::Validity;
use crate::network::Connection;

/// Application protocol of gRPC, which a client offers in the handshake.
const ALPN: &[u8] = b"h2";
/// Name of HTTP/1.1 in the handshake; a client that offers both gets HTTP/2.
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Files with the server's certificate and key, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those of intermediate authorities.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities for clients; with this file, every client needs a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// Reason for not using TLS files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not in PEM form.
    #[error("cannot read {}: {source}", path.display())]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system, or of the form of the file.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{} has no certificate; it needs at least one, in PEM form", path.display())]
    NoCertificate {
        /// Path of the file.
        path: PathBuf,
    },
    /// The certificate and the key do not fit, or one of them is unusable.
    #[error("the certificate and the key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The authorities for clients are unusable.
    #[error("the certificates of the authorities for clients cannot be used: {0}")]
    ClientCa(#[from] VerifierBuilderError),
}

/// TLS settings in use.
pub(crate) struct Tls {
    files: TlsFiles,
    watched: Watched,
    settings: RwLock<Arc<Settings>>,
}

/// What the files say.
struct Settings {
    config: Arc<ServerConfig>,
    /// Checks the certificates of clients, if they need one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    validity: Validity,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let watched = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        let watched = Watched::new(watched.into_iter().flatten().cloned().collect());
        let settings = settings(&files)?;
        settings.validity.report(&files.cert, UnixTime::now());
        Ok(Self { files, watched, settings: RwLock::new(Arc::new(settings)) })
    }

    /// Reads the files again if one has changed, or in any case if that `is_demanded`. Files with a mistake, or with a certificate and a key that do not fit because only
    /// one is replaced so far, leave the settings as they are. Else
    /// the rights of `connections` are withdrawn whose client has no certificate of the authorities in the files now. Names a certificate that has
    /// expired since the last call.
    pub(crate) fn reload(&self, is_demanded: bool, connections: impl FnOnce() -> Vec<Arc<Connection>>) {
        if self.watched.have_changed() || is_demanded {
            self.read_again(connections);
        }
        self.settings().validity.report(&self.files.cert, UnixTime::now());
    }

    fn read_again(&self, connections: impl FnOnce() -> Vec<Arc<Connection>>) {
        match settings(&self.files) {
            Ok(settings) => {
                *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
                let settings = self.settings();
                connections().iter().for_each(|connection| settings.check(connection));
                info!("read the TLS certificate {} again", self.files.cert.display());
            }
            Err(err) => error!("{err}; the TLS certificate stays as it is"),
        }
    }

    /// Shakes hands with the client of a connection.
    pub(crate) async fn accept<S>(&self, socket: S, connection: &Connection) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let settings = self.settings();
        let stream = TlsAcceptor::from(settings.config.clone()).accept(socket).await?;
        if let Some(certificates) = stream.get_ref().1.peer_certificates() {
            connection.certify(certificates.iter().map(|certificate| certificate.clone().into_owned()).collect());
        }
        let now = self.settings();
        if !Arc::ptr_eq(&now, &settings) {
            now.check(connection);
        }
        Ok(stream)
    }

    fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Settings {
    /// Withdraws the right of a connection whose client has no certificate of the authorities.
    fn check(&self, connection: &Connection) {
        let (Some(verifier), Some((own, further))) = (&self.verifier, connection.certificates().split_first()) else {
            return;
        };
        if verifier.verify_client_cert(own, further, UnixTime::now()).is_err() {
            connection.right().withdraw();
        }
    }
}

fn settings(files: &TlsFiles) -> Result<Settings, TlsError> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let verifier = match &files.client_ca {
        None => None,
        Some(path) => Some(WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider).build()?),
    };
    let builder = match verifier.clone() {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let chain = certificates(&files.cert)?;
    let mut config = builder.with_single_cert(chain.clone(), key(&files.key)?)?;
    config.alpn_protocols = vec![ALPN.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(Settings { config: Arc::new(config), verifier, validity: Validity::new(chain) })
}

/// Reads the certificates of authorities.
pub(crate) fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// Reads certificates, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(TlsError::NoCertificate { path: path.into() }),
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(TlsError::Pem { path: path.into(), source }),
    }
}

/// Reads a private key.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::Pem { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::network::Network;
    use crate::network::clock::Clock;
    use crate::network::limits::NetworkLimits;

    #[test]
    fn a_connection_keeps_its_right_while_an_authority_vouches_for_its_client() {
        let pem = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tls").join(name);
        let dir = tempfile::tempdir().unwrap();
        let client_ca = dir.path().join("ca.pem");
        let read = |names: &[&str]| {
            let text: String = names.iter().map(|name| std::fs::read_to_string(pem(name)).unwrap()).collect();
            std::fs::write(&client_ca, text).unwrap();
            let client_ca = Some(client_ca.clone());
            settings(&TlsFiles { cert: pem("server.pem"), key: pem("server.key"), client_ca }).unwrap()
        };
        let network = Network::new(NetworkLimits::default(), Clock::start());
        let admitted = network.admit(SocketAddr::from(([10, 0, 0, 1], 1))).unwrap();
        let connection = &admitted.0;
        read(&["other-ca.pem"]).check(connection);
        assert!(!connection.right().is_withdrawn(), "there is no certificate to check");
        connection.certify(certificates(&pem("client.pem")).unwrap());
        read(&["ca.pem"]).check(connection);
        read(&["other-ca.pem", "ca.pem"]).check(connection);
        assert!(!connection.right().is_withdrawn());
        read(&["other-ca.pem"]).check(connection);
        assert!(connection.right().is_withdrawn());
    }
}
