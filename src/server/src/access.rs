//! Rights of callers: by token if the server has tokens, else the same for all.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tracing::{error, info, warn};

use crate::caller::{Caller, Owner};
use crate::changes::Watched;
use crate::log_limit::LogLimit;
use crate::network::{Call, count};
use crate::tokens::{Holder, Role, TokenFileError, Tokens};

/// Path of the health service, open to all: probes have no tokens, and learn no more than an accepted connection shows.
const HEALTH: &str = "/grpc.health.v1.Health/";

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

    /// Reads the file of tokens again if it has changed. A file with a mistake leaves the tokens as they are.
    pub(crate) fn reload(&self) {
        let Some(file) = self.tokens.as_ref().filter(|file| file.watched.have_changed()) else { return };
        match Tokens::load(&file.path) {
            Ok(tokens) => {
                *file.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
                info!("read the token file {} again", file.path.display());
            }
            Err(err) => error!("{err}; the tokens stay as they are"),
        }
    }

    /// Returns the sender of a call.
    ///
    /// # Errors
    /// UNAUTHENTICATED without a valid token, if the server has tokens.
    pub(crate) fn caller(&self, path: &str, headers: &HeaderMap, call: &Arc<Call>) -> Result<Caller, Status> {
        let connection = call.connection();
        let of_connection = |admin| Caller { call: call.clone(), owner: Owner::Connection(connection.number()), admin };
        let Some(file) = &self.tokens else { return Ok(of_connection(self.admin)) };
        if path.starts_with(HEALTH) {
            return Ok(of_connection(false));
        }
        let tokens = file.tokens.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Holder { name, role }) = bearer(headers).and_then(|token| tokens.holder(token)) {
            return Ok(Caller { call: call.clone(), owner: Owner::Token(name.clone()), admin: *role == Role::Admin });
        }
        let network = connection.network();
        count(&network.counters.unauthorised);
        self.refusals.log(network.clock, |calls| warn!(calls, "refusing calls without a valid token"));
        Err(Status::unauthenticated("send a valid token in the header authorization: Bearer TOKEN"))
    }
}

/// Returns the bearer token in the headers.
fn bearer(headers: &HeaderMap) -> Option<&str> {
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
    fn a_changed_file_takes_effect_unless_it_has_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(&path, format!("{ADMIN} admin ops\n")).unwrap();
        let access = Access::new(false, Some(path.clone())).unwrap();
        let of = |token: &str| owner_and_admin(&access, "/any", Some(&format!("Bearer {token}"))).is_ok();
        assert_eq!((of(ADMIN), of(USER)), (true, false));
        fs::write(&path, "a mistake\n").unwrap();
        access.reload();
        assert_eq!((of(ADMIN), of(USER)), (true, false));
        fs::write(&path, format!("{USER} generate someone\n")).unwrap();
        access.reload();
        assert_eq!((of(ADMIN), of(USER)), (false, true));
    }
}
