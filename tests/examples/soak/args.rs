//! The command line.

use std::net::SocketAddr;

/// Summary of the arguments.
pub const USAGE: &str = "usage: soak [--seconds N] [--pid PID] [--step-ms N] [--only ATTACK] HOST:PORT|self";

/// Role of a process: the program starts itself again for the server and for the hostile clients.
pub enum Role {
    /// Runs the clients that behave, and judges.
    Judge,
    /// Runs a server until the standard input ends.
    Server,
    /// Runs the hostile clients, and prints their counts.
    Hostile,
}

/// Command line.
pub struct Args {
    pub role: Role,
    /// `None`: a server of our own.
    pub addr: Option<SocketAddr>,
    /// Duration of the attack, seconds.
    pub seconds: u64,
    /// Process of the server, if it is not found by its port.
    pub pid: Option<u32>,
    /// Duration of a step of a server of our own, milliseconds.
    pub step_ms: u64,
    /// The only attack, by the name; all of them if empty.
    pub only: String,
}

/// Reads the command line.
///
/// # Errors
/// If an argument is unknown or has a wrong value.
pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args { role: Role::Judge, addr: None, seconds: 60, pid: None, step_ms: 25, only: String::new() };
    let mut has_target = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |value: String| value.parse().map_err(|_| format!("{word} is '{value}'; give a number"));
        match word.as_str() {
            "--seconds" => args.seconds = number(value()?)?,
            "--pid" => args.pid = Some(number(value()?)? as u32),
            "--step-ms" => args.step_ms = number(value()?)?,
            "--only" => args.only = value()?,
            "--server" => (args.role, has_target) = (Role::Server, true),
            "--hostile" => args.role = Role::Hostile,
            "self" => has_target = true,
            other => {
                args.addr = Some(other.parse().map_err(|_| format!("'{other}' is not an address"))?);
                has_target = true;
            }
        }
    }
    if has_target { Ok(args) } else { Err("the address is missing".into()) }
}
