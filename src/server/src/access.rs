//! Rights of callers: by token if the server has tokens, else the same for all.

pub(crate) mod caller;
pub(crate) mod changes;
pub(crate) mod client;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod validity;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tracing::{error, info, warn};

use crate::access::caller::{Caller, Owner};
use crate::access::changes::Watched;
use crate::access::tokens::{Holder, Role, TokenFileError, Tokens};
use crate::network::log_limit::LogLimit;
use crate::network::{Call, count};
use crate::requests::trace_parent::TraceParent;

/// Path of the health service, open to all: probes have no tokens, and learn no more than an accepted connection shows.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Its path over plain HTTP.
const HTTP_HEALTH: &str = "/health";
/// Path of the service of model workers: the only one for tokens with the role `worker`.
pub(crate) const WORKERS: &str = "/trunkline.v1.Workers/";

/// Rights of the senders of calls.
pub(crate) struct Access {
    /// Without tokens: every caller may administer the server.
    admin: bool,
    tokens: Option<TokenFile>,
    refusals: LogLimit,
}

struct TokenFile {
    path: PathBuf,
    watched: Watched,
    tokens: RwLock<Tokens>,
}

impl Access {
    /// Without a file of tokens everyone may call, and administer the server if `admin` is set. With a file, `admin` has no effect.
    pub(crate) fn new(admin: bool, token_file: Option<PathBuf>) -> Result<Self, TokenFileError> {
        let load = |path: PathBuf| {
            let watched = Watched::new(vec![path.clone()]);
            let tokens = RwLock::new(Tokens::load(&path)?);
            Ok(TokenFile { path, watched, tokens })
        };
        Ok(Self { admin, tokens: token_file.map(load).transpose()?, refusals: LogLimit::default() })
    }

    /// Reads the file of tokens again if it has changed, or in any case if that `is_demanded`. A file with a mistake leaves the tokens as they are. Else
    /// the rights of tokens that are gone are withdrawn. Returns
    /// `false` without a file.
    pub(crate) fn reload(&self, is_demanded: bool) -> bool {
        let Some(file) = &self.tokens else { return false };
        if !file.watched.have_changed() && !is_demanded {
            return true;
        }
        match Tokens::load(&file.path) {
            Ok(mut tokens) => {
                // Calls look under the lock: none has a right of the tokens before that is not withdrawn here.
                let mut before = file.tokens.write().unwrap_or_else(PoisonError::into_inner);
                tokens.replace(std::mem::take(&mut before));
                *before = tokens;
                info!("read the token file {} again", file.path.display());
            }
            Err(err) => error!("{err}; the tokens stay as they are"),
        }
        true
    }

    /// Returns the sender of a call.
    ///
    /// # Errors
    /// UNAUTHENTICATED without a valid token, if the server has tokens; PERMISSION_DENIED for calls of clients with the token of a worker.
    pub(crate) fn caller(&self, path: &str, headers: &HeaderMap, call: &Arc<Call>) -> Result<Caller, Status> {
        let connection = call.connection();
        let owner = Owner::Connection(connection.number());
        // Without tokens, a worker has as much power as an administrator: the worker sees all prompts and makes all answers.
        let parent = headers.get("traceparent").and_then(|parent| TraceParent::parse(parent.to_str().ok()?));
        let of_connection = |admin| Caller { call: call.clone(), owner, admin, worker: admin, parent };
        let Some(file) = &self.tokens else { return Ok(of_connection(self.admin)) };
        if path.starts_with(HEALTH) || path == HTTP_HEALTH {
            return Ok(Caller::without_rights(call));
        }
        let tokens = file.tokens.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((Holder { name, role }, right)) = bearer(headers).and_then(|token| tokens.holder(token)) {
            let (admin, worker) = (*role == Role::Admin, *role == Role::Worker);
            if !worker || path.starts_with(WORKERS) {
                call.bind(right.clone());
                return Ok(Caller { call: call.clone(), owner: Owner::Token(name.clone()), admin, worker, parent });
            }
            count(&connection.network().counters.unauthorised);
            return Err(Status::permission_denied("a token with the role worker serves for Attach alone"));
        }
        let network = connection.network();
        count(&network.counters.unauthorised);
        self.refusals.log(network.clock, |calls| warn!(calls, "refusing calls without a valid token"));
        Err(Status::unauthenticated("send a valid token in the header authorization: Bearer TOKEN"))
    }
}

/// Returns the bearer token in the headers, or the key that clients of Anthropic's API send.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key").and_then(|key| key.to_str().ok()) {
        return Some(key.trim());
    }
    let (scheme, token) = headers.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tonic::Code;

    use super::*;

    const ADMIN: &str = "an-admin-token-0";
    const USER: &str = "some-users-token";

    fn owner_and_admin(access: &Access, path: &str, authorization: Option<&str>) -> Result<(Owner, bool), Code> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert("authorization", value.parse().unwrap());
        }
        let caller = access.caller(path, &headers, &Caller::local().call);
        caller.map(|caller| (caller.owner, caller.admin)).map_err(|status| status.code())
    }

    #[test]
    fn without_tokens_the_connection_owns_and_a_switch_decides_who_administers() {
        for admin in [false, true] {
            let access = Access::new(admin, None).unwrap();
            assert_eq!(owner_and_admin(&access, "/any", None), Ok((Owner::Connection(0), admin)));
        }
    }

    #[test]
    fn a_token_is_needed_for_all_but_health() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(&path, format!("{ADMIN} admin ops\n{USER} generate me\n")).unwrap();
        let access = Access::new(true, Some(path)).unwrap();
        let of =
            |authorization: &str| owner_and_admin(&access, "/trunkline.v1.Inference/Generate", Some(authorization));
        assert_eq!(of(&format!("Bearer {ADMIN}")), Ok((Owner::Token("ops".into()), true)));
        assert_eq!(of(&format!("bearer  {USER}")), Ok((Owner::Token("me".into()), false)));
        for wrong in ["Bearer nobodys-token-000", "Bearer", "Basic x", USER, "Bearer "] {
            assert_eq!(of(wrong), Err(Code::Unauthenticated), "{wrong}");
        }
        assert_eq!(owner_and_admin(&access, "/trunkline.v1.Inference/Abort", None), Err(Code::Unauthenticated));
        assert_eq!(owner_and_admin(&access, "/grpc.health.v1.Health/Check", None), Ok((Owner::Connection(0), false)));
    }

    #[test]
    fn a_workers_token_attaches_and_does_nothing_else_and_no_other_token_attaches() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(&path, format!("{ADMIN} admin ops\n{USER} worker gpu-0\n")).unwrap();
        let access = Access::new(true, Some(path)).unwrap();
        let call = Caller::local().call;
        let caller = |token: &str, path: &str| {
            let headers = [("authorization", format!("Bearer {token}"))];
            let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            access.caller(path, &HeaderMap::from_iter(headers), &call)
        };
        let attach = "/trunkline.v1.Workers/Attach";
        assert!(caller(USER, attach).unwrap().check_worker().is_ok());
        let status = caller(ADMIN, attach).unwrap().check_worker().unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::PermissionDenied, "Attach needs a token with the role worker")
        );
        let status = caller(USER, "/trunkline.v1.Inference/Generate").map(drop).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        for admin in [false, true] {
            let access = Access::new(admin, None).unwrap();
            let caller = access.caller(attach, &HeaderMap::new(), &call).unwrap();
            assert_eq!(caller.check_worker().is_ok(), admin, "without tokens as for administrators");
        }
    }

    #[test]
    fn a_changed_file_takes_effect_unless_it_has_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(&path, format!("{ADMIN} admin ops\n")).unwrap();
        let access = Access::new(false, Some(path.clone())).unwrap();
        let of = |token: &str| owner_and_admin(&access, "/any", Some(&format!("Bearer {token}"))).is_ok();
        assert_eq!((of(ADMIN), of(USER)), (true, false));
        fs::write(&path, "a mistake\n").unwrap();
        assert!(access.reload(false));
        assert_eq!((of(ADMIN), of(USER)), (true, false));
        fs::write(&path, format!("{USER} generate someone\n")).unwrap();
        access.reload(false);
        assert_eq!((of(ADMIN), of(USER)), (false, true));
        // A file with the length and the time of the one before shows no change, and is read again on demand alone.
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, format!("{ADMIN} generate someone\n")).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_modified(before).unwrap();
        access.reload(false);
        assert_eq!((of(ADMIN), of(USER)), (false, true));
        access.reload(true);
        assert_eq!((of(ADMIN), of(USER)), (true, false));
        assert!(!Access::new(false, None).unwrap().reload(true), "there is no file");
    }
}
