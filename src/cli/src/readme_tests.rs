//! README, docs and help texts agree with the flags.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser};
use trunkline_core::config::{SETTINGS, Setting};

use crate::Cli;
use crate::replay::settings::ReplayFlags;
use crate::serve::ServeArgs;
use crate::settings::core_settings::{CoreFlags, CoreSettings};
use crate::settings::serve_settings::ServeFlags;
use crate::worker::WorkerArgs;

/// The page of all flags and settings.
const SETTINGS_PAGE: &str = "docs/reference/settings.md";
/// Maximum number of words of a help text in a cell of that page.
const CELL_WORDS: usize = 24;
/// Folders of pages.
const DOCS: [&str; 5] = ["docs", "docs/guide", "docs/reference", "docs/design", "docs/results"];

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

/// Returns the beginning of a help text that fits a cell of a table: whole sentences and clauses; `--help` has the rest.
fn brief(help: &str) -> String {
    let mut end = 0;
    for (at, mark) in help.match_indices(['.', ';', ':']) {
        let is_end = help[at + 1..].starts_with(' ') || at + 1 == help.len();
        let is_short = help[..at].split_whitespace().count() <= CELL_WORDS;
        if is_end && is_short && (mark != ":" || end == 0) {
            end = at;
        }
    }
    if end == 0 || help.split_whitespace().count() <= CELL_WORDS { help.into() } else { help[..end].into() }
}

/// The row of a setting on the page of settings.
fn row(setting: &Setting, value_name: &str) -> String {
    let range = (setting.range)().map_or(String::new(), |(min, max)| format!("{min} to {max}"));
    let (serve, replay) = (default::<ServeFlags>(setting), default::<ReplayFlags>(setting));
    let help = brief(setting.help().trim_end_matches('.'));
    format!("| `--{} {value_name}` | {serve} | {replay} | {range} | {help} |", setting.flag)
}

/// The tables of a command's other flags, one for each heading, from the help of the flags.
fn tables(command: &clap::Command, is_listed: impl Fn(&str) -> bool) -> String {
    let mut tables: Vec<(String, String)> = Vec::new();
    for arg in command.get_arguments() {
        let Some(flag) = arg.get_long().filter(|flag| is_listed(flag)) else { continue };
        let heading = arg.get_help_heading().unwrap_or("Options").to_owned();
        let values: Vec<String> =
            arg.get_value_names().unwrap_or_default().iter().map(|name| format!(" {name}")).collect();
        let help = arg.get_long_help().or(arg.get_help()).unwrap().to_string().replace('\n', " ").replace('|', "\\|");
        let help = help.trim_end_matches('.');
        let (meaning, default) = match help.rsplit_once(" [default: ") {
            Some((meaning, default)) => (meaning, default.split(']').next().unwrap_or_default()),
            None => (help, ""),
        };
        let row = format!("| `--{flag}{}` | {} | {} |\n", values.concat(), brief(default), brief(meaning));
        match tables.iter_mut().find(|(of, _)| *of == heading) {
            Some((_, rows)) => rows.push_str(&row),
            None => tables.push((heading, row)),
        }
    }
    let table = |(heading, rows): (String, String)| {
        format!("### {heading}\n\n| flag | default | meaning |\n|---|---|---|\n{rows}\n")
    };
    tables.into_iter().map(table).collect()
}

#[test]
fn the_settings_page_is_what_the_flags_say() {
    let rows = SETTINGS.iter().filter_map(|setting| Some(row(setting, setting.value_name?)));
    let core: Vec<&str> = CoreSettings::<ServeFlags>::flags().map(|(setting, _)| setting.flag).collect();
    let serve = ServeArgs::augment_args(clap::Command::new("serve"));
    let worker = WorkerArgs::augment_args(clap::Command::new("worker"));
    let wanted = format!(
        "## Scheduler and prefix cache\n\n| flag | default of `serve` | default of `replay` and `plan` | range | meaning |\n|---|---|---|---|---|\n{}\n\n\
         ## Other flags of `serve`\n\n{}## Flags of `worker`\n\n{}",
        rows.collect::<Vec<_>>().join("\n"),
        tables(&serve, |flag| !core.contains(&flag)),
        tables(&worker, |_| true),
    );
    let page = read(SETTINGS_PAGE);
    let (begin, _) = page.split_once("## Scheduler").unwrap();
    let (_, end) = page.split_once("## Check a worker").unwrap();
    let wanted = format!("{begin}{wanted}## Check a worker{end}");
    if std::env::var_os("TRUNKLINE_WRITE_DOCS").is_some() {
        return fs::write(root().join(SETTINGS_PAGE), wanted).unwrap();
    }
    assert!(
        page == wanted,
        "{SETTINGS_PAGE} is not what the flags say; run TRUNKLINE_WRITE_DOCS=1 cargo test settings_page"
    );
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
    // `trunkline replay` in running text is not a command line: it has no arguments.
    lines.filter(|words| words.len() > 1 || words[0] == "serve").collect()
}

/// The pages of the docs, as (name, text).
fn pages() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".into(), "src/pyworker/README.md".into()];
    for folder in DOCS {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            pages.extend(name.ends_with(".md").then(|| format!("{folder}/{name}")));
        }
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
