//! README, docs and help texts agree with the flags.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser};
use trunkline_core::config::{SETTINGS, Setting};

use crate::Cli;
use crate::config_file::ServeFlags;
use crate::core_settings::{CoreFlags, CoreSettings};
use crate::replay::settings::ReplayFlags;
use crate::serve::ServeArgs;
use crate::worker::WorkerArgs;

/// The page of all flags and settings.
const SETTINGS_PAGE: &str = "docs/settings.md";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The default in a command; a dash if the command has no such flag.
fn default<F: CoreFlags>(setting: &Setting) -> String {
    let has = CoreSettings::<F>::flags().any(|(flag, _)| flag.name == setting.name);
    if has { F::default_text(setting) } else { "-".into() }
}

/// The row of a setting on the page of settings.
fn row(setting: &Setting, value_name: &str) -> String {
    let range = (setting.range)().map_or(String::new(), |(min, max)| format!("{min} to {max}"));
    let (serve, replay) = (default::<ServeFlags>(setting), default::<ReplayFlags>(setting));
    format!("| `--{} {value_name}` | {serve} | {replay} | {range} | {} |", setting.flag, setting.help())
}

#[test]
fn the_settings_page_lists_every_setting_of_the_core() {
    let rows = SETTINGS.iter().filter_map(|setting| Some(row(setting, setting.value_name?)));
    let rows = rows.collect::<Vec<_>>().join("\n");
    assert!(read(SETTINGS_PAGE).contains(&rows), "put these rows into {SETTINGS_PAGE}:\n{rows}\n");
}

#[test]
fn the_settings_page_lists_every_flag_of_serve() {
    let page = read(SETTINGS_PAGE);
    let command = ServeArgs::augment_args(clap::Command::new("serve"));
    for flag in command.get_arguments().filter_map(|flag| flag.get_long()) {
        assert!(page.contains(&format!("| `--{flag} ")), "{SETTINGS_PAGE} has no row for --{flag} of serve");
    }
}

#[test]
fn the_settings_page_lists_every_flag_of_worker() {
    let page = read(SETTINGS_PAGE);
    let (_, table) = page.split_once("| flag of `worker` |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let command = WorkerArgs::augment_args(clap::Command::new("worker"));
    for flag in command.get_arguments().filter_map(|flag| flag.get_long()) {
        assert!(table.contains(&format!("| `--{flag} ")), "{SETTINGS_PAGE} has no row for --{flag} of worker");
    }
}

#[test]
fn docs_show_the_example_worker_as_it_is() {
    let example = format!("```python\n{}```", read("examples/worker.py"));
    assert!(read("docs/workers.md").contains(&example), "put examples/worker.py into docs/workers.md");
}

/// The words of a command line, quotes removed; `None` if a shell would have to fill in variables.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (None, '#') if word.is_empty() => break,
            (_, '$') => return None,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, ' ') => words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty())),
            (None, '|' | '<' | '>' | '&') => break,
            (_, c) => word.push(c),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    Some(words)
}

/// The command lines of this program in a text.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("cargo run --release -- ").or_else(|| line.strip_prefix("trunkline "))?;
        words(rest)
    });
    // `trunkline replay` in running text is no command line: it has no arguments.
    lines.filter(|words| words.len() > 1 || words[0] == "serve").collect()
}

/// The pages of the docs, as (name, text).
fn pages() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".into(), "src/pyworker/README.md".into()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        pages.extend(name.ends_with(".md").then(|| format!("docs/{name}")));
    }
    pages.into_iter().map(|page| (page.clone(), read(&page))).collect()
}

/// `tests/docs.rs` runs the commands of the pages; here those count too that do not run in the gate.
#[test]
fn every_command_line_in_docs_and_help_texts_is_understood() {
    let mut texts = Vec::new();
    for (page, text) in pages() {
        let blocks = text.split("```").skip(1).step_by(2);
        texts.push((page.clone(), blocks.filter_map(|block| block.strip_prefix("sh\n")).collect::<String>()));
    }
    let mut cli = Cli::command();
    cli.build();
    let mut helps = vec![cli.clone()];
    while let Some(command) = helps.pop() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        texts.push((format!("help of {}", command.get_name()), help));
        helps.extend(command.get_subcommands().filter(|command| command.get_name() != "help").cloned());
    }
    let mut n_commands = 0;
    for (name, text) in &texts {
        for words in commands(text) {
            let line = words.join(" ");
            if let Err(error) = Cli::try_parse_from([&["trunkline".to_string()], &words[..]].concat()) {
                assert!(!error.use_stderr(), "{name}: trunkline {line}: {error}");
            }
            for file in words.iter().filter(|word| word.starts_with("examples/")) {
                assert!(root().join(file).exists(), "{name}: trunkline {line}: there is no {file}");
            }
            n_commands += 1;
        }
    }
    assert!(n_commands > 100, "only {n_commands} command lines were found");
}

#[test]
fn commands_within_sentences_have_flags_that_exist() {
    let mut cli = Cli::command();
    cli.build();
    let mut n_flags = 0;
    for (page, text) in pages() {
        let prose: String = text.split("```").step_by(2).collect();
        for span in prose.split('`').skip(1).step_by(2) {
            let mut words = span.split_whitespace().skip_while(|word| *word == "trunkline").peekable();
            let mut command = &cli;
            while let Some(deeper) = words.peek().and_then(|word| command.find_subcommand(word)) {
                (command, _) = (deeper, words.next());
            }
            if command.get_name() == "trunkline" {
                continue;
            }
            for flag in words.filter_map(|word| word.split(['=', '`', ')', ',']).next()?.strip_prefix("--")) {
                let known = command.get_arguments().any(|argument| argument.get_long() == Some(flag));
                assert!(known, "{page}: `{span}`: {} has no flag --{flag}", command.get_name());
                n_flags += 1;
            }
        }
    }
    assert!(n_flags > 50, "only {n_flags} flags were found");
}
