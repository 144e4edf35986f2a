//! The `trunkline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    trunkline::main()
}
