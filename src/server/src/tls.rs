//! TLS of the listener: certificates from files, read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tracing::{error, info};

use crate::changes::Watched;

/// Application protocol of gRPC, which a client offers in the handshake.
const ALPN: &[u8] = b"h2";

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
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let watched = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        let watched = Watched::new(watched.into_iter().flatten().cloned().collect());
        let config = RwLock::new(Arc::new(config(&files)?));
        Ok(Self { files, watched, config })
    }

    /// Reads the files again if one has changed, or in any case if that `is_demanded`. Files with a mistake, or with a certificate and a key that do not fit because only
    /// one is replaced so far, leave the settings as they are.
    pub(crate) fn reload(&self, is_demanded: bool) {
        if !self.watched.have_changed() && !is_demanded {
            return;
        }
        match config(&self.files) {
            Ok(config) => {
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                info!("read the TLS certificate {} again", self.files.cert.display());
            }
            Err(err) => error!("{err}; the TLS certificate stays as it is"),
        }
    }

    /// Shakes hands with a client.
    pub(crate) async fn accept<S>(&self, socket: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsAcceptor::from(config).accept(socket).await
    }
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots, provider).build()?)
        }
    };
    let mut config = builder.with_single_cert(certificates(&files.cert)?, key(&files.key)?)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
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
