//! No flag that a command accepts is without effect: each flag of each command has a proof of its effect, of its refusal or of the warning about it. A new
//! flag without an entry fails the test.

mod clients;
mod replays;
mod serving;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;

/// Proof for a flag.
enum Proof {
    /// `serve` with the flag, and others, has other limits or options than without.
    Reaches(&'static str, &'static [&'static str]),
    /// A replay with the flag, and others, has another report than without: the figures, not the settings.
    Replays(&'static [&'static str], &'static [&'static str]),
    /// The same of a plan, with other answers.
    Plans(&'static [&'static str], &'static [&'static str]),
    /// A trace that is converted, described or generated with the flag is another one than without.
    Traces(&'static [&'static str], &'static [&'static str]),
    /// The command sends another request than without the flag.
    Sends(&'static [&'static str]),
    /// A worker announces something other than without the flag.
    Announces(&'static str),
    /// A test elsewhere has the flag, in this file of the workspace under this name.
    Test(&'static str, &'static str),
    /// A measurement or a tool, which shows what the flag changes: no answer of a server depends on it.
    Tool,
}

/// Command, flag and proof.
type Entry = (&'static str, &'static str, Proof);

/// Returns the commands without subcommands, by the words of their command lines.
fn leaves(command: &Command, name: &str, out: &mut Vec<(String, Command)>) {
    let own: Vec<&Command> = command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    let has_flags =
        command.get_arguments().any(|arg| arg.get_long().is_some_and(|long| long != "help" && long != "version"));
    if own.is_empty() || has_flags {
        out.push((name.to_owned(), command.clone()));
    }
    for sub in own {
        let name = format!("{name} {}", sub.get_name());
        leaves(sub, name.trim(), out);
    }
}

fn flags(command: &Command) -> Vec<&Arg> {
    let is_own = |arg: &&Arg| arg.get_long().is_some_and(|long| !["help", "version"].contains(&long));
    command.get_arguments().filter(is_own).collect()
}

fn entries() -> Vec<&'static Entry> {
    serving::ENTRIES.iter().chain(replays::ENTRIES).chain(clients::ENTRIES).collect()
}

/// Commands whose flags are measurements alone.
const TOOLS: [&str; 5] = ["load", "calibrate", "h2o calibrate", "cache", "sweep report"];

#[test]
fn each_flag_of_each_command_has_a_proof() {
    let mut cli = Cli::command();
    cli.build();
    let mut commands = Vec::new();
    leaves(&cli, "", &mut commands);
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
    let (mut missing, mut seen) = (Vec::new(), BTreeSet::new());
    let replay = commands.iter().find(|(name, _)| name == "replay").map(|(_, command)| command.clone()).unwrap();
    for (name, command) in &commands {
        for arg in flags(command) {
            let flag = arg.get_long().unwrap_or_default();
            let is_of_replay = name != "replay"
                && flags(&replay)
                    .iter()
                    .any(|of| of.get_id() == arg.get_id() && help(of) == help(arg) && of.get_long() == arg.get_long());
            let is_proven = entries().iter().any(|(of, known, _)| of == name && *known == flag);
            if is_proven {
                seen.insert((name.clone(), flag.to_owned()));
            } else if !is_of_replay
                && !TOOLS.iter().any(|tool| name.starts_with(tool))
                && !serving::is_of_the_core(name, flag)
            {
                missing.push(format!("{name} --{flag}"));
            }
        }
    }
    assert!(missing.is_empty(), "flags without a proof of their effect; add one in flags_tests: {missing:?}");
    let gone: Vec<_> = entries()
        .iter()
        .filter(|(name, flag, _)| !seen.contains(&((*name).to_owned(), (*flag).to_owned())))
        .map(|(name, flag, _)| format!("{name} --{flag}"))
        .collect();
    assert!(gone.is_empty(), "proofs of flags that are not there: {gone:?}");
}

#[test]
fn tests_that_prove_flags_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (command, flag, proof) in entries() {
        if let Proof::Test(file, name) = proof {
            let text = fs::read_to_string(root.join(file))
                .unwrap_or_else(|error| panic!("{command} --{flag}: {file}: {error}"));
            assert!(text.contains(&format!("fn {name}(")), "{command} --{flag}: {file} has no test {name}");
        }
    }
}
