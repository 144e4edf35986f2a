//! Identity of the sender of a call.

use std::sync::Arc;

use tonic::{Extensions, Status};
use trunkline_quote::quoted;

use crate::network::clock::Clock;
use crate::network::limits::NetworkLimits;
use crate::network::shares::Client;
use crate::network::{Call, count};
use crate::requests::trace_parent::TraceParent;

/// Owner of requests: client-chosen request ids are unique per owner, and an owner aborts only own requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Anyone who knows the id, of requests without authentication whose id the server made.
    Anyone,
    /// Connection, by number, of a server without authentication.
    Connection(u64),
    /// Holder of a token, by the token's name.
    Token(Arc<str>),
}

/// Sender of a call, with its rights.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) call: Arc<Call>,
    pub(crate) owner: Owner,
    /// `true` if the sender may flush the cache and read all counters.
    pub(crate) admin: bool,
    /// `true` if the sender may attach as a model worker.
    pub(crate) worker: bool,
    /// Place of the call in the sender's trace, if it has one.
    pub(crate) parent: Option<TraceParent>,
}

impl Caller {
    /// Returns the sender of a request, noting that the request's message has reached its handler.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        let caller = Self::of_stream(extensions);
        caller.call.work(caller.client());
        caller
    }

    /// Returns the sender of a stream of messages of which none is there yet, noting that the stream has reached its handler.
    pub(crate) fn of_stream(extensions: &Extensions) -> Self {
        let caller = extensions.get::<Self>().cloned().unwrap_or_else(Self::local);
        caller.call.handle();
        caller
    }

    /// Returns a sender who may do what is open to all.
    pub(crate) fn without_rights(call: &Arc<Call>) -> Self {
        let owner = Owner::Connection(call.connection().number());
        Self { call: call.clone(), owner, admin: false, worker: false, parent: None }
    }

    /// Returns a sender in this process, without a connection.
    pub(crate) fn local() -> Self {
        let call = Call::detached(NetworkLimits::default(), Clock::start());
        Self { call, owner: Owner::Connection(0), admin: true, worker: true, parent: None }
    }

    /// Returns the client to whom the sender's requests count.
    pub(crate) fn client(&self) -> Client {
        match &self.owner {
            Owner::Token(name) => Client::Token(name.clone()),
            Owner::Connection(_) | Owner::Anyone => Client::Peer(self.call.connection().peer()),
        }
    }

    /// Returns a sender without a connection for requests that the server makes on behalf of this one: the requests count for the same
    /// client.
    pub(crate) fn on_behalf(&self) -> Self {
        let (call, owner) = (self.call.on_behalf(), self.owner_of_made_id());
        Self { call, owner, admin: false, worker: false, parent: self.parent }
    }

    /// Returns the owner of requests whose id the server makes: without authentication, the id itself is the proof.
    pub(crate) fn owner_of_made_id(&self) -> Owner {
        match &self.owner {
            Owner::Connection(_) | Owner::Anyone => Owner::Anyone,
            Owner::Token(name) => Owner::Token(name.clone()),
        }
    }

    /// Returns the tenant of a request that asks for `asked`: with tokens the name of the sender's token, else the tenant asked for. So
    /// no holder of a token reaches the cached blocks of another, or counts requests for another.
    ///
    /// # Errors
    /// PERMISSION_DENIED if the sender has a token, and the request names a tenant other than the token's name.
    pub(crate) fn tenant(&self, asked: String) -> Result<String, Status> {
        let Owner::Token(name) = &self.owner else { return Ok(asked) };
        if asked.is_empty() || asked == **name {
            return Ok(name.to_string());
        }
        count(&self.call.connection().network().counters.unauthorised);
        Err(Status::permission_denied(format!(
            "tenant must be empty or {name}, the name of the call's token",
            name = quoted(name)
        )))
    }

    /// # Errors
    /// PERMISSION_DENIED if the sender is not an administrator; `what` names the call.
    pub(crate) fn check_admin(&self, what: &str) -> Result<(), Status> {
        if self.admin {
            return Ok(());
        }
        count(&self.call.connection().network().counters.unauthorised);
        let needed = match self.owner {
            Owner::Token(_) => "a token with the role admin",
            Owner::Anyone | Owner::Connection(_) => "a server started with --admin true",
        };
        Err(Status::permission_denied(format!("{what} needs {needed}")))
    }

    /// # Errors
    /// PERMISSION_DENIED if the sender may not attach as a model worker.
    pub(crate) fn check_worker(&self) -> Result<(), Status> {
        if self.worker {
            return Ok(());
        }
        count(&self.call.connection().network().counters.unauthorised);
        let needed = match self.owner {
            Owner::Token(_) => "a token with the role worker",
            Owner::Anyone | Owner::Connection(_) => "a server with tokens, or one started with --admin true",
        };
        Err(Status::permission_denied(format!("Attach needs {needed}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_decides_the_tenant_and_without_a_token_the_request_does() {
        let nobody = Caller::local();
        assert_eq!(nobody.tenant("bob".into()).unwrap(), "bob");
        assert_eq!(nobody.tenant(String::new()).unwrap(), "");
        for admin in [false, true] {
            let alice = Caller { owner: Owner::Token("alice".into()), admin, ..Caller::local() };
            assert_eq!(alice.tenant(String::new()).unwrap(), "alice", "no tenant is not the tenant of all");
            assert_eq!(alice.tenant("alice".into()).unwrap(), "alice");
            let status = alice.tenant("bob".into()).unwrap_err();
            assert_eq!(status.code(), tonic::Code::PermissionDenied);
            assert_eq!(status.message(), "tenant must be empty or 'alice', the name of the call's token");
        }
    }
}
