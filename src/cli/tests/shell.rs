//! Completions as a shell gives them, and pages for man.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

fn trunkline(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trunkline")).args(words).output().unwrap()
}

/// Returns standard output of a command that succeeds.
fn text(words: &[&str]) -> String {
    let output = trunkline(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the words that bash offers for the last word of a command line.
fn offered(line: &[&str]) -> BTreeSet<String> {
    let script = r#"
        source "$1"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _trunkline trunkline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text(&["completions", "bash"])).unwrap();
    let output = Command::new("bash").args(["-c", script, "bash"]).arg(file.path()).args(line).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_offers_commands_and_flags() {
    assert_eq!(offered(&["trunkline", "ser"]), BTreeSet::from(["serve".to_owned()]));
    assert_eq!(offered(&["trunkline", "serve", "--drain"]), BTreeSet::from(["--drain-timeout".to_owned()]));
    assert!(offered(&["trunkline", "worker", "--drain"]).is_empty(), "a worker has no such flag");
}

#[test]
fn each_shell_has_completions_and_an_unknown_one_is_named() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(text(&["completions", shell]).contains("drain-timeout"), "{shell}");
    }
    let output = trunkline(&["completions", "tcsh"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("'tcsh'") && message.contains("zsh"), "{message}");
}

#[test]
fn man_writes_a_page_for_each_command() {
    let page = text(&["man"]);
    assert!(page.contains(".TH trunkline 1") && page.contains("trunkline\\-serve(1)"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    assert!(text(&["man", folder.path().to_str().unwrap()]).is_empty());
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let pages: BTreeSet<_> = fs::read_dir(&folder).unwrap().map(|entry| name(entry.unwrap())).collect();
    for page in ["trunkline.1", "trunkline-serve.1", "trunkline-worker-check.1", "trunkline-cache-verify.1"] {
        assert!(pages.contains(page), "{page}: {pages:?}");
    }
    let serve = fs::read_to_string(folder.path().join("trunkline-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-drain\\-timeout"), "the page of serve has its flags");
}

#[test]
fn pages_for_a_folder_that_is_not_there_are_refused_in_one_line() {
    let output = trunkline(&["man", "/no/such/folder"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.lines().count() == 1, "{message}");
    assert!(message.contains("/no/such/folder"), "{message}");
}
