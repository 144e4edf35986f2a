//! Rights of callers.

use std::sync::Arc;

use tonic::Status;
use tonic::codegen::http::HeaderMap;

use crate::caller::{Caller, Owner};
use crate::network::Call;

/// Rights of the senders of calls.
pub(crate) struct Access {
    /// Without tokens: every caller may administer the server.
    pub(crate) admin: bool,
}

impl Access {
    /// Returns the sender of a call.
    ///
    /// # Errors
    /// UNAUTHENTICATED without a valid token, if the server has tokens.
    pub(crate) fn caller(&self, _path: &str, _headers: &HeaderMap, call: &Arc<Call>) -> Result<Caller, Status> {
        let owner = Owner::Connection(call.connection().number());
        Ok(Caller { call: call.clone(), owner, admin: self.admin })
    }
}
