//! The texts of all errors of a server.

#[path = "../../../tests/harness/error_texts.rs"]
mod harness;

use std::io;

use harness::texts;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem;
use tokio_rustls::rustls::server::VerifierBuilderError;
use tonic::transport::Endpoint;
use trunkline_attach::done::{DoneFault, DoneReason};
use trunkline_cluster::{ClusterError, EngineId};
use trunkline_core::request::retention::RetentionError;
use trunkline_store::StoreError;

use crate::engines::link::Nonsense;
use crate::engines::lock_steps::GroupFault;
use crate::service::retention::HintFault;
use crate::service::submission::Rejection;
use crate::service::validate::Invalid;
use crate::{ClientError, ServerError, TlsError, TokenFileError};

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    servers(out);
    files(out);
    workers(out);
    requests(out);
    harness::compare(env!("CARGO_MANIFEST_DIR"), out);
}

fn servers(out: &mut String) {
    let reflection = tonic_reflection::server::Error::InvalidFileDescriptorSet("no package".into());
    texts!(
        out,
        ServerError {
            Cluster: ServerError::Cluster(ClusterError::EngineCount(0)),
            Worker: ServerError::Worker { engine: EngineId(1), source: "no memory".into() },
            Listen: ServerError::Listen { addr: "127.0.0.1:80".into(), source: refused() },
            Store: ServerError::Store(StoreError::Locked { path: "/kv".into() }),
            Stores: ServerError::Stores { stores: 1, engines: 2 },
            KvClass: ServerError::KvClass { class: 2, classes: 2 },
            Record: ServerError::Record { path: "/record.jsonl".into(), source: refused() },
            Requests: ServerError::Requests { path: "/requests.jsonl".into(), source: refused() },
            Tokens: ServerError::Tokens(TokenFileError::Empty { path: "/tokens".into() }),
            Tls: ServerError::Tls(TlsError::NoCertificate { path: "/cert.pem".into() }),
            CacheListener: ServerError::CacheListener("the port is taken".into()),
            Thread: ServerError::Thread(refused()),
            Reflection: ServerError::Reflection(reflection),
            CoreLost: ServerError::CoreLost,
        }
    );
}

fn files(out: &mut String) {
    let path = || "/cert.pem".into();
    texts!(
        out,
        TlsError {
            Pem: TlsError::Pem { path: path(), source: pem::Error::NoItemsFound },
            NoCertificate: TlsError::NoCertificate { path: path() },
            Unusable: TlsError::Unusable(rustls::Error::HandshakeNotComplete),
            ClientCa: TlsError::ClientCa(VerifierBuilderError::NoRootAnchors),
        }
    );
    texts!(
        out,
        TokenFileError {
            Read: TokenFileError::Read { path: "/tokens".into(), source: refused() },
            Line: TokenFileError::Line {
                path: "/tokens".into(),
                line: 3,
                problem: "the token occurs twice; remove one of the lines".into()
            },
            Empty: TokenFileError::Empty { path: "/tokens".into() },
        }
    );
    texts!(
        out,
        ClientError {
            Tls: ClientError::Tls(TlsError::NoCertificate { path: path() }),
            Name: ClientError::Name("a b".into()),
            Transport: ClientError::Transport(Endpoint::from_shared("a b").unwrap_err()),
            NoTls: ClientError::NoTls,
            Token: ClientError::Token { path: "/token".into(), source: refused() },
            NoToken: ClientError::NoToken("/token".into()),
        }
    );
}

fn workers(out: &mut String) {
    let group = || "tp".to_owned();
    texts!(
        out,
        GroupFault {
            Size: GroupFault::Size { group: group(), size: 2, wanted: 4 },
            RankTaken: GroupFault::RankTaken { group: group(), rank: 1 },
            NoRoom: GroupFault::NoRoom { group: group(), size: 4, room: 3 },
            Reserved: GroupFault::Reserved { vacant: 2 },
        }
    );
    texts!(
        out,
        Nonsense {
            Done: Nonsense::Done(DoneFault { step: 7, reason: DoneReason::OtherStep { id: 8, life: 2 } }),
            NotNext: Nonsense::NotNext { id: 9, next: 8 },
            NotUnderWay: Nonsense::NotUnderWay { id: 9, life: 2 },
            Unexpected: Nonsense::Unexpected { life: 2 },
            SecondHello: Nonsense::SecondHello,
            Empty: Nonsense::Empty,
            NotShared: Nonsense::NotShared,
            NoSlot: Nonsense::NoSlot { id: 9 },
        }
    );
}

fn requests(out: &mut String) {
    let too_long = "the prompt has 5000 tokens, the limit is 4096";
    texts!(
        out,
        Rejection {
            Invalid: Rejection::Invalid(Invalid("max_tokens is 0; ask for at least one token".into())),
            PromptTooLong: Rejection::PromptTooLong(too_long.into()),
            StillActive: Rejection::StillActive("a".into()),
            TokenizerBusy: Rejection::TokenizerBusy,
            TokenizerFailed: Rejection::TokenizerFailed("the text cannot be tokenized: no token for a byte".into()),
            GrammarFailed: Rejection::GrammarFailed,
            TimeUp: Rejection::TimeUp,
            QueueFull: Rejection::QueueFull,
            ShareFull: Rejection::ShareFull(8),
            TooManyOpen: Rejection::TooManyOpen(64),
            Refused: Rejection::Refused(trunkline_core::Refusal::NoEngine),
            Stopped: Rejection::Stopped,
            NoRandomness: Rejection::NoRandomness(getrandom::Error::UNSUPPORTED),
        }
    );
    texts!(
        out,
        HintFault {
            Core: HintFault::Core(RetentionError::TooMany { n: 65 }),
            NoPriority: HintFault::NoPriority { at: 0 },
            Part: HintFault::Part { at: 0, part: 9 },
        }
    );
}
