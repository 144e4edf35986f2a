//! Shell that runs the commands of a page, in a folder of its own that looks like a fresh clone.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Ports that the pages name, the default of `serve` first; each page gets free ones in their place.
const PORTS: [u16; 3] = [50051, 50052, 9400];
/// Time for a group of commands, after which they are killed.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Programs that stand for others in the blocks.
const STAND_INS: [(&str, &str); 3] = [
    ("trunkline", include_str!("trunkline.sh")),
    ("trunkline-bench", include_str!("trunkline-bench.sh")),
    ("cargo", include_str!("cargo.sh")),
];

/// Server or worker that runs while the commands behind it do.
struct Background {
    line: String,
    child: Child,
    output: Arc<Mutex<String>>,
    lines: Receiver<String>,
    reader: JoinHandle<()>,
}

/// Shell of a page.
pub struct Shell {
    folder: tempfile::TempDir,
    ports: [u16; PORTS.len()],
    background: Vec<Background>,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free").port()
}

fn kill(pid: u32, signal: &str) {
    // The process may have ended by itself.
    let _ = Command::new("kill").arg(signal).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Returns the command behind assignments of variables, as in `RUST_LOG=info trunkline serve`.
fn command(line: &str) -> &str {
    let is_assignment = |word: &str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')) && !word.contains('"')
    };
    let mut rest = line.trim_start();
    while let Some((_, after)) = rest.split_once(' ').filter(|(word, _)| is_assignment(word)) {
        rest = after.trim_start();
    }
    rest
}

/// Kind of a line of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Server or worker, which runs until it is stopped.
    RunsOn,
    /// Command that talks to a server.
    Client,
    /// Any other command: servers are stopped before, so that what they write at their end is there.
    Other,
}

fn kind(line: &str) -> Kind {
    const RUN_ON: [&str; 4] =
        ["trunkline serve", "trunkline worker --connect", "trunkline-worker ", "python examples/worker.py"];
    const CLIENTS: [&str; 6] =
        ["trunkline generate", "trunkline chat", "trunkline load", "trunkline worker check", "curl ", "STORY="];
    let line = command(line).replace("cargo run --release -- ", "trunkline ");
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    if begins(&RUN_ON) {
        Kind::RunsOn
    } else if begins(&CLIENTS) {
        Kind::Client
    } else {
        Kind::Other
    }
}

/// Splits commands into groups that run in one go. Lines that end in `\` go on.
fn groups(commands: &str) -> Vec<(Kind, String)> {
    let mut groups: Vec<(Kind, String)> = Vec::new();
    for line in commands.replace("\\\n", "").lines().filter(|line| !line.trim().is_empty()) {
        match (kind(line), groups.last_mut()) {
            (kind, Some((last, group))) if kind == *last && kind != Kind::RunsOn => *group += &format!("\n{line}"),
            (kind, _) => groups.push((kind, line.to_owned())),
        }
    }
    groups
}

impl Shell {
    /// Makes the folder: links to all that is in the repository, a copy of the examples, and links to the public data if they are there.
    pub fn new(root: &Path, data: Option<&Path>) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (work, bin) = (folder.path().join("work"), folder.path().join("bin"));
        fs::create_dir_all(work.join("target"))?;
        fs::create_dir_all(&bin)?;
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_str(), Some("target" | "examples" | ".git")) {
                symlink(entry.path(), work.join(entry.file_name()))?;
            }
        }
        let copied = Command::new("cp").arg("-R").arg(root.join("examples")).arg(work.join("examples")).status()?;
        assert!(copied.success(), "the examples cannot be copied");
        for (link, target) in [("TRACES", "traces"), ("PROFILES", "profiles")] {
            if let Some(data) = data {
                symlink(data.join(target), work.join(link))?;
            }
        }
        for (name, text) in STAND_INS {
            fs::write(bin.join(name), text)?;
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { folder, ports: PORTS.map(|_| free_port()), background: Vec::new() })
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        fs::write(self.work().join(name), text)
    }

    fn bash(&self, script: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let ports = PORTS.iter().zip(self.ports);
        let script =
            ports.fold(script.to_owned(), |text, (page, mine)| text.replace(&format!(":{page}"), &format!(":{mine}")));
        let mut bash = Command::new("bash");
        bash.args(["-eo", "pipefail", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.work())
            .env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()))
            .env("DOCS_PROGRAM", env!("CARGO_BIN_EXE_trunkline"))
            .env("DOCS_PORT", self.ports[0].to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        bash
    }

    /// Writes the ports of the pages into an output.
    fn as_printed(&self, output: &str) -> String {
        let ports = PORTS.iter().zip(self.ports);
        ports.fold(output.to_owned(), |text, (page, mine)| text.replace(&format!(":{mine}"), &format!(":{page}")))
    }

    /// Runs commands and returns what they print; `None` if there are only servers and workers, which print on.
    ///
    /// # Errors
    /// If a command fails, or a server does not start.
    pub fn run(&mut self, commands: &str) -> Result<Option<String>, String> {
        let mut output: Option<String> = None;
        for (kind, group) in groups(commands) {
            match kind {
                Kind::RunsOn => self.start(&group)?,
                Kind::Client => output.get_or_insert_default().push_str(&self.wait(&group)?),
                Kind::Other => {
                    self.stop()?;
                    output.get_or_insert_default().push_str(&self.wait(&group)?);
                }
            }
        }
        Ok(output.map(|output| self.as_printed(&output)))
    }

    /// Returns what servers and workers have printed, once `is_enough`, or after ten seconds without a line.
    pub fn printed_in_background(&self, is_enough: impl Fn(&str) -> bool) -> String {
        loop {
            let all = self
                .background
                .iter()
                .map(|it| it.output.lock().expect("no reader panics").clone())
                .collect::<String>();
            let all = self.as_printed(&all);
            let last = self.background.last().map(|it| it.lines.recv_timeout(Duration::from_secs(10)));
            if is_enough(&all) || last.is_none_or(|line| line.is_err()) {
                return all;
            }
        }
    }

    fn wait(&self, script: &str) -> Result<String, String> {
        let mut child = self.bash(script).spawn().map_err(|error| format!("bash: {error}"))?;
        let pid = child.id();
        let (ended, end) = mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                kill(pid, "-KILL");
            }
        });
        let mut output = Vec::new();
        child.stdout.take().expect("it is piped").read_to_end(&mut output).map_err(|error| error.to_string())?;
        let status = child.wait().map_err(|error| error.to_string())?;
        drop(ended);
        watch.join().expect("the watch ends");
        let output = String::from_utf8_lossy(&output).into_owned();
        if status.success() {
            Ok(output)
        } else {
            Err(format!("    {status}:\n      {script}\n{}", self.as_printed(&output)))
        }
    }

    /// Starts a server or worker, and waits until it listens or is attached. A server takes the place of the one before.
    fn start(&mut self, line: &str) -> Result<(), String> {
        let (assignments, command) = line.split_at(line.len() - command(line).len());
        // A worker of the example says nothing, and dials until it is attached.
        let ready = match command {
            command if command.contains("trunkline worker") => Some("attached session"),
            command if command.contains(" serve") => Some("listening on"),
            _ => None,
        };
        if command.contains(" serve") {
            self.stop()?;
        }
        let mut child =
            self.bash(&format!("{assignments}exec {command}")).spawn().map_err(|error| error.to_string())?;
        let printed = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let output = Arc::new(Mutex::new(String::new()));
        let (said, lines) = mpsc::channel();
        let reader = {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                for line in printed.map_while(Result::ok) {
                    *output.lock().expect("no reader panics") += &format!("{line}\n");
                    // Nobody listens any more when the server is stopped.
                    let _ = said.send(line);
                }
            })
        };
        self.background.push(Background { line: line.to_owned(), child, output, lines, reader });
        let lines = &self.background.last().expect("it was pushed").lines;
        let is_ready = |word| {
            let wait = || lines.recv_timeout(Duration::from_secs(120));
            std::iter::from_fn(|| wait().ok()).any(|line| line.contains(word))
        };
        if ready.is_some_and(|word| !is_ready(word)) {
            let stopped = self.stop();
            return Err(format!("    it did not start:\n      {line}\n{}", stopped.err().unwrap_or_default()));
        }
        Ok(())
    }

    /// Stops servers and workers, the last one first.
    ///
    /// # Errors
    /// If a server ends with an error.
    pub fn stop(&mut self) -> Result<(), String> {
        let mut failed = String::new();
        while let Some(mut it) = self.background.pop() {
            kill(it.child.id(), "-TERM");
            let status = it.child.wait().map_err(|error| error.to_string())?;
            it.reader.join().expect("no reader panics");
            let output = it.output.lock().expect("no reader panics");
            if command(&it.line).contains(" serve") && !status.success() {
                failed += &format!("    {status}:\n      {}\n{}", it.line, self.as_printed(&output));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // A failure was reported already, or the page was run to its end.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_grouped_by_what_they_need() {
        let commands = "cargo run --release -- serve --record r\nRUST_LOG=info trunkline serve\n\ncargo run --release -- generate \\\n  a\n\
                        trunkline generate b\necho c\nfor x in 1; do\n  trunkline replay $x\ndone\n";
        let groups = groups(commands);
        let wanted = [
            (Kind::RunsOn, "cargo run --release -- serve --record r"),
            (Kind::RunsOn, "RUST_LOG=info trunkline serve"),
            (Kind::Client, "cargo run --release -- generate   a\ntrunkline generate b"),
            (Kind::Other, "echo c\nfor x in 1; do\n  trunkline replay $x\ndone"),
        ];
        assert_eq!(groups, wanted.map(|(kind, group)| (kind, group.to_owned())));
    }
}
