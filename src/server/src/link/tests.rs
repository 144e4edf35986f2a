//! Tests of a connection that no network carries.
