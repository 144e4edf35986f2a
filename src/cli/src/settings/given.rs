//! Settings from a file and from the environment: arguments that are put before those of the command line.
//!
//! A key of the TOML file that `--config` names is the name of a flag, and `TRUNKLINE_MAX_QUEUE=64` in the environment is `--max-queue 64`. A flag on the
//! command line counts before the environment, and the environment before the file. There is no list of settings here: whatever is a flag can be given in
//! all three ways.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trunkline_quote::{cut, of_parser, quoted};

/// Commands that take settings from the environment, and from a file if they have the flag for it.
const COMMANDS: [&str; 2] = ["serve", "worker"];
/// Flag that names the file.
const FILE: &str = "config";
/// Begin of the names of variables.
const PREFIX: &str = "TRUNKLINE_";

/// A setting that is not on the command line.
struct Given {
    flag: String,
    value: OsString,
    /// Where it was found, for errors.
    place: String,
}

/// Returns the arguments of a process with those that its environment and its file give before its own. `variable` looks up an
/// environment variable.
///
/// # Errors
/// If the file cannot be read, names no flag, or a value is not one of its flag. The error says where.
pub fn with_file_and_environment(
    cli: &Command,
    args: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Vec<OsString>> {
    let name = args.get(1).and_then(|name| name.to_str()).filter(|name| COMMANDS.contains(name));
    let Some(command) = name.and_then(|name| cli.find_subcommand(name)) else { return Ok(args) };
    let typed = command.clone().ignore_errors(true).try_get_matches_from(&args[1..]).ok();
    if typed.as_ref().is_some_and(|typed| typed.subcommand().is_some()) {
        return Ok(args);
    }
    let is_typed = |arg: &Arg| {
        let source = typed.as_ref().and_then(|typed| typed.value_source(arg.get_id().as_str()));
        source == Some(ValueSource::CommandLine)
    };
    let mut given: Vec<Given> = flags(command).filter_map(|(flag, _)| of_variable(flag, &variable)).collect();
    if let Some(arg) = argument(command, FILE) {
        let file = match (is_typed(arg), &typed) {
            (true, Some(typed)) => typed.get_one::<PathBuf>(FILE).cloned(),
            _ => given.iter().find(|given| given.flag == FILE).map(|given| PathBuf::from(&given.value)),
        };
        for setting in file.map(|file| of_file(&file, command)).transpose()?.unwrap_or_default() {
            if given.iter().all(|of_variable| of_variable.flag != setting.flag) {
                given.push(setting);
            }
        }
    }
    let mut all = args[..2].to_vec();
    for Given { flag, value, place } in given {
        let arg = argument(command, &flag).expect("only flags are looked for");
        if is_typed(arg) {
            continue;
        }
        let mut argument = OsString::from(format!("--{flag}="));
        argument.push(value);
        check(command, &argument).with_context(|| place)?;
        all.push(argument);
    }
    all.extend_from_slice(&args[2..]);
    Ok(all)
}

/// Flags with a value, by name.
fn flags(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let flags = command.get_arguments().filter(|arg| arg.get_action().takes_values());
    flags.filter_map(|arg| Some((arg.get_long()?, arg)))
}

fn argument<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    flags(command).find(|(known, _)| *known == flag).map(|(_, arg)| arg)
}

fn of_variable(flag: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<Given> {
    let name = format!("{PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase());
    // Containers set variables to nothing where they mean none.
    let value = variable(&name).filter(|value| !value.is_empty())?;
    Some(Given { flag: flag.to_owned(), value, place: format!("environment variable {name}") })
}

fn of_file(path: &Path, command: &Command) -> anyhow::Result<Vec<Given>> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the config file {name}"))?;
    let place = |at: usize| format!("config file {name}, line {}", text[..at].matches('\n').count() + 1);
    let table = DeTable::parse(&text).map_err(|err| {
        let span = err.span().unwrap_or_default();
        let what = match err.message() {
            "duplicate key" => format!("{} is given twice", cut(text.get(span.clone()).unwrap_or_default())),
            message => of_parser(&message.replace('\n', " ")),
        };
        anyhow::anyhow!("{}: {what}", place(span.start.min(text.len())))
    })?;
    let mut given = Vec::new();
    for (key, value) in table.get_ref() {
        let place = place(key.span().start);
        let flag = key.get_ref().as_ref();
        if flag == FILE || argument(command, flag).is_none() {
            bail!(
                "{place}: unknown setting {}; the settings are the flags of `trunkline {} --help`",
                quoted(flag),
                command.get_name()
            );
        }
        let Some(value) = text_of(value) else {
            bail!("{place}: the value of {flag} is neither a text nor a number nor true or false")
        };
        given.push((key.span().start, Given { flag: flag.to_owned(), value: value.into(), place }));
    }
    given.sort_by_key(|(at, _)| *at);
    Ok(given.into_iter().map(|(_, given)| given).collect())
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Checks that an argument is one of the command by itself. Flags that it needs or excludes are checked with all others.
fn check(command: &Command, argument: &OsStr) -> anyhow::Result<()> {
    let Err(err) = command.clone().try_get_matches_from([OsStr::new(command.get_name()), argument]) else {
        return Ok(());
    };
    if !matches!(err.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return Ok(());
    }
    let of = |kind| err.get(kind).map(ToString::to_string).unwrap_or_default();
    let why = std::error::Error::source(&err).map(|source| format!(": {source}")).unwrap_or_default();
    bail!("invalid value {} for {}{why}", quoted(&of(ContextKind::InvalidValue)), of(ContextKind::InvalidArg))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;
    use crate::serve::ServeArgs;
    use crate::settings::serve_settings::Settings;

    #[derive(Parser)]
    struct Serve {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// Arguments of `serve` with a file of this text, these variables, and these flags.
    fn all(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trunkline.toml");
        fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let args = ["trunkline", "serve", &config].into_iter().chain(flags.iter().copied());
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(OsString::from);
        let given = with_file_and_environment(&Cli::command(), args.map(OsString::from).collect(), variable);
        let given = given.map_err(|err| {
            let message = format!("{err:#}");
            assert!(!message.contains('\n'), "one line: {message}");
            message.replace(&path.display().to_string(), "FILE")
        })?;
        let given = given.into_iter().map(|arg| arg.into_string().unwrap());
        Ok(given.skip(1).filter(|arg| *arg != config).collect())
    }

    fn settings(args: &[String]) -> Settings {
        Serve::try_parse_from(args).unwrap().args.settings().clone()
    }

    /// Returns a value that a flag takes, another one for each flag as far as its type has so many.
    fn value(serve: &Command, flag: &str, arg: &Arg, number: usize) -> String {
        let listed = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).next_back();
        let any = [(number + 2).to_string(), "true".into(), format!("{number}GiB"), format!("text{number}")];
        // Words that types of their own take.
        let any = any.into_iter().chain(["hermes", "qwen3", "*"].map(str::to_owned));
        let takes = |value: &String| check(serve, OsStr::new(&format!("--{flag}={value}"))).is_ok();
        listed.into_iter().chain(any).find(takes).unwrap_or_else(|| panic!("no value for --{flag}"))
    }

    #[test]
    fn a_key_a_variable_and_a_flag_mean_the_same() {
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        let all_flags = flags(serve).filter(|(flag, _)| *flag != FILE).enumerate();
        let pairs: Vec<(&str, String)> =
            all_flags.map(|(number, (flag, arg))| (flag, value(serve, flag, arg, number))).collect();
        assert!(pairs.len() > 80, "the flags are there: {}", pairs.len());
        let flags: Vec<String> = pairs.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let line = |(key, value): &(&str, String)| {
            let is_bare = value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
            if is_bare { format!("{key} = {value}\n") } else { format!("{key} = '{value}'\n") }
        };
        let file: String = pairs.iter().map(line).collect();
        let name = |key: &str| format!("TRUNKLINE_{}", key.replace('-', "_").to_uppercase());
        let variables: Vec<(String, &str)> = pairs.iter().map(|(key, value)| (name(key), value.as_str())).collect();
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&**name, *value)).collect();
        let wanted = settings(&all("", &[], &flags).unwrap());
        assert_ne!(wanted, Settings::default());
        assert_eq!(settings(&all(&file, &[], &[]).unwrap()), wanted);
        assert_eq!(settings(&all("", &variables, &[]).unwrap()), wanted);
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_the_file() {
        let file = "block-size = 32\npolicy = 'priority'\nmax-queue = 1\n";
        let variables = [("TRUNKLINE_MAX_QUEUE", "2"), ("TRUNKLINE_BLOCK_SIZE", "64"), ("TRUNKLINE_ROUTER", "")];
        let args = all(file, &variables, &["--block-size", "8"]).unwrap();
        let mut first = args[1..3].to_vec();
        first.sort();
        assert_eq!(first, ["--max-queue=2", "--policy=priority"]);
        assert_eq!(args[3..], ["--block-size", "8"]);
    }

    #[test]
    fn an_error_says_where_the_value_stands() {
        for (file, message) in [
            (
                "listen = 'a:1'\nblocksize = 32\n",
                "config file FILE, line 2: unknown setting 'blocksize'; the settings are the flags of",
            ),
            (
                "block-size = 'big'\n",
                "config file FILE, line 1: invalid value 'big' for --block-size <TOKENS>: invalid digit",
            ),
            (
                "block-size = 8\nlisten = 'a:1'\nblock-size = 16\n",
                "config file FILE, line 3: block-size is given twice",
            ),
            ("\n\nblock-size = -1\n", "config file FILE, line 3: invalid value '-1' for --block-size <TOKENS>"),
            ("block-size", "config file FILE, line 1: "),
            ("[block-size]\n", "config file FILE, line 1: the value of block-size is neither a text"),
            ("config = 'other.toml'\n", "config file FILE, line 1: unknown setting 'config'"),
        ] {
            let error = all(file, &[], &[]).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
        let error = all("", &[("TRUNKLINE_MAX_QUEUE", "many")], &[]).unwrap_err();
        assert!(
            error.starts_with("environment variable TRUNKLINE_MAX_QUEUE: invalid value 'many' for --max-queue <N>"),
            "{error}"
        );
        let given = all("max-queue = 7\n", &[("TRUNKLINE_CONFIG", "none.toml")], &[]).unwrap();
        assert!(given.contains(&"--max-queue=7".to_owned()), "the file of the flag is read: {given:?}");
    }

    #[test]
    fn the_environment_names_the_file_and_settings_of_workers_but_of_no_other_command() {
        let given = |args: &[&str], name: &'static str, value: &'static str| {
            let args = args.iter().map(OsString::from).collect();
            with_file_and_environment(&Cli::command(), args, |asked| (asked == name).then(|| value.into()))
        };
        let error = given(&["trunkline", "serve"], "TRUNKLINE_CONFIG", "none.toml").unwrap_err();
        assert!(error.to_string().starts_with("cannot read the config file none.toml"), "{error}");
        let worker = given(&["trunkline", "worker"], "TRUNKLINE_CONNECT", "h:1").unwrap();
        assert_eq!(worker, ["trunkline", "worker", "--connect=h:1"]);
        for args in [&["trunkline", "worker", "check", "h:1"][..], &["trunkline", "replay", "t"], &["trunkline"]] {
            assert_eq!(given(args, "TRUNKLINE_THREADS", "7").unwrap(), args);
        }
    }
}
