//! Errors of publishers.

/// Reason for a publisher not to start.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// An address is none for a socket.
    #[error("{endpoint} is no address of a ZeroMQ socket; give tcp://HOST:PORT, as in tcp://*:5557")]
    Endpoint {
        /// Address as the user gave it.
        endpoint: String,
    },
    /// A socket cannot be opened.
    #[error("cannot open {endpoint}: {message}")]
    Socket {
        /// Address of the socket.
        endpoint: String,
        /// Reason of the library.
        message: String,
    },
    /// This build has no ZeroMQ.
    #[error("this build has no ZeroMQ; build with the feature zmq")]
    NoZmq,
    /// The operating system gave no thread or no random numbers.
    #[error("cannot start the publisher of cache events: {0}")]
    System(String),
}
