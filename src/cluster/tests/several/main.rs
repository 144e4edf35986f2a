//! Several engines: acceptance scenarios, and shares of tenants.

mod failing;
mod fairness;
mod rig;
mod scenarios;
mod slow;
