//! Several engines: acceptance scenarios, and shares of tenants.

mod fairness;
mod rig;
mod scenarios;
