//! `trunkline chat`: a chat that the server keeps, line by line.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use trunkline_server::proto;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::session_notice::News;
use trunkline_server::proto::sessions_client::SessionsClient;

use crate::client::connection::{ConnectionArgs, status_error};
use crate::client::generate::SamplingArgs;
use crate::model::marks::Marks;

/// Exit status of a command ended by Ctrl-C.
const INTERRUPTED: u8 = 130;
/// Statuses that say something of one line, and leave the session as it was.
const OF_A_LINE: [Code; 5] =
    [Code::InvalidArgument, Code::FailedPrecondition, Code::AlreadyExists, Code::ResourceExhausted, Code::Aborted];

const EXAMPLES: &str = "\
Examples:
  trunkline chat
  trunkline chat --system 'You are a friendly guide to old maps.' --template chatml
  trunkline chat --session 0123456789abcdef0123456789abcdef < more-lines.txt

Each line of standard input is a turn. Answers go to standard output, figures and news of the session to standard error. Lines that begin
with a slash are commands: /compact compacts the history now, /pin FACT adds a fact that every later prompt has word for word, and /quit
ends the chat; // begins a turn with one slash. The session stays on the server when the input ends, until nobody used it for its time to
live. A line that the server refuses is skipped; the exit status is then 1.";

/// What a line of the input asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    /// Nothing.
    Blank,
    /// A turn with this text.
    Turn(&'a str),
    /// Compact the history now.
    Compact,
    /// Keep a fact word for word.
    Pin(&'a str),
    /// End the chat.
    Quit,
    /// An unknown command, or one with a wrong argument.
    Wrong,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let Some(command) = line.strip_prefix('/') else {
            return if line.trim().is_empty() { Self::Blank } else { Self::Turn(line) };
        };
        if command.starts_with('/') {
            return Self::Turn(command);
        }
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, argument.trim()) {
            ("compact", "") => Self::Compact,
            ("quit", "") => Self::Quit,
            ("pin", fact) if !fact.is_empty() => Self::Pin(fact),
            _ => Self::Wrong,
        }
    }
}

/// Hold a chat that the server keeps.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    #[command(flatten)]
    connection: ConnectionArgs,

    /// Session to continue [default: a new one].
    #[arg(long, value_name = "ID", conflicts_with_all = ["system", "recent_high", "recent_low", "summary_max"])]
    session: Option<String>,

    /// Beginning of all prompts of a new session [default: none].
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Marks around each line: `plain` is a line break behind it, `chatml` the marks of Qwen and SmolLM2; else a model's folder or GGUF file, whose
    /// chat template has the marks.
    #[arg(long, value_name = "NAME or PATH", value_parser = template, default_value = "plain")]
    template: Template,

    /// Tokens of each answer, at most.
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: u32,

    /// Stop an answer before this text. May be given more than once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Tokens of recent turns that begin a compaction [default: from the model's context].
    #[arg(long, value_name = "N")]
    recent_high: Option<u32>,

    /// Tokens of recent turns that a compaction leaves, at most [default: a quarter of --recent-high].
    #[arg(long, value_name = "N")]
    recent_low: Option<u32>,

    /// Tokens of a summary, at most [default: 256, or a sixteenth of the context if that is less].
    #[arg(long, value_name = "N")]
    summary_max: Option<u32>,
}

/// Marks around the lines of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Template {
    /// A line break behind each line.
    Plain,
    /// `<|im_start|>` and `<|im_end|>`.
    Chatml,
    /// Those of a model's chat template.
    Model(Box<Marks>),
}

fn template(name: &str) -> Result<Template, String> {
    match name {
        "plain" => Ok(Template::Plain),
        "chatml" => Ok(Template::Chatml),
        path => match Marks::of_model(Path::new(path)) {
            Ok(marks) => Ok(Template::Model(Box::new(marks))),
            Err(error) => Err(format!("{error:#}; besides a model's folder or file there are plain and chatml")),
        },
    }
}

/// Place of a turn in its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// `true` for the first turn.
    first: bool,
    /// `true` behind a system text.
    has_system: bool,
}

impl Template {
    fn system(&self, text: &str) -> anyhow::Result<String> {
        Ok(match self {
            Self::Plain if text.is_empty() => String::new(),
            Self::Plain => format!("{text}\n"),
            Self::Chatml => format!("<|im_start|>system\n{text}<|im_end|>"),
            Self::Model(marks) => marks.begin(text)?,
        })
    }

    /// Returns the text of a turn. With marks, each turn begins with the line break behind the turn before.
    fn turn(&self, line: &str, place: Place) -> String {
        match self {
            Self::Plain => format!("{line}\n"),
            Self::Chatml => format!("\n<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n"),
            Self::Model(marks) => marks.turn(line, place.first, place.has_system),
        }
    }

    /// Returns the marks around what is said alongside the turns.
    fn around(&self) -> (&str, &str) {
        match self {
            Self::Plain => ("", "\n"),
            Self::Chatml => ("\n<|im_start|>system\n", "<|im_end|>"),
            Self::Model(marks) => marks.around(),
        }
    }

    /// Returns the text of a fact.
    fn fact(&self, text: &str) -> String {
        let (before, behind) = self.around();
        [before, text, behind].concat()
    }

    /// Fills in the texts of summaries.
    fn compaction(&self, compaction: proto::Compaction) -> proto::Compaction {
        if *self == Self::Plain {
            return compaction;
        }
        let (before, behind) = self.around();
        proto::Compaction {
            instruction: Some(self.turn(
                "Summarise our conversation so far in a few sentences. Keep names, facts, decisions and open questions.",
                Place::default(),
            )),
            summary_before: Some(format!("{before}Earlier in this conversation: ")),
            summary_behind: Some(behind.into()),
            ..compaction
        }
    }
}

impl ChatArgs {
    /// Returns the request for a new session.
    ///
    /// # Errors
    /// If the template has no place for a system text.
    pub(crate) fn session(&self) -> anyhow::Result<proto::CreateSessionRequest> {
        let compaction = proto::Compaction {
            recent_high: self.recent_high,
            recent_low: self.recent_low,
            summary_max: self.summary_max,
            ..Default::default()
        };
        let compaction = Some(self.template.compaction(compaction));
        let system = self.template.system(self.system.as_deref().unwrap_or_default())?;
        Ok(proto::CreateSessionRequest {
            system: Some(proto::create_session_request::System::Text(system)),
            // A template has its special tokens.
            add_special_tokens: matches!(self.template, Template::Model(_)).then_some(false),
            settings: Some(proto::SessionSettings { compaction, ..Default::default() }),
        })
    }

    /// Returns the request for a turn, the first of its session if `first`.
    pub(crate) fn turn(&self, session_id: String, line: &str, first: bool) -> proto::GenerateTurnRequest {
        let place = Place { first, has_system: self.system.as_ref().is_some_and(|text| !text.is_empty()) };
        proto::GenerateTurnRequest {
            session_id,
            input: Some(proto::generate_turn_request::Input::Text(self.template.turn(line, place))),
            sampling: Some(self.sampling.message()),
            stopping: Some(proto::Stopping {
                max_tokens: Some(self.max_tokens),
                stop: self.stop.clone(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// Sends each line of standard input as a turn of a session.
///
/// # Errors
///
/// If the server cannot be reached, has no such session, or refuses or fails on a turn.
pub fn run(args: ChatArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = hold(&args) => result.map(|refused| ExitCode::from(u8::from(refused))),
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
        }
    });
    // The thread that reads lines may wait for one more.
    runtime.shutdown_background();
    result
}

/// Reads lines on a thread of its own, so that the connection answers the server's pings meanwhile.
fn lines() -> mpsc::Receiver<io::Result<String>> {
    let (send, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if send.blocking_send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// A session, and the connection to its server.
struct Session<'a> {
    args: &'a ChatArgs,
    client: SessionsClient<Channel>,
    id: String,
    /// Last notice shown.
    seen: u64,
    /// `true` once there is a turn.
    begun: bool,
}

/// Runs the chat to the end of the input; returns `true` if a line was refused.
async fn hold(args: &ChatArgs) -> anyhow::Result<bool> {
    let mut session = Session::open(args).await?;
    note(&format!("session {}", session.id));
    if matches!(&args.template, Template::Model(marks) if marks.forgets_reasoning) {
        note("the chat template leaves reasoning out of earlier turns; the session keeps it");
    }
    let (mut lines, prompts, mut refused) = (lines(), io::stdin().is_terminal(), false);
    loop {
        if prompts {
            let _ = write!(io::stderr(), "> ");
        }
        let Some(line) = lines.recv().await else { return Ok(refused) };
        let line = line.context("cannot read standard input")?;
        let done = match Line::of(&line) {
            Line::Blank => Ok(()),
            Line::Turn(text) => session.turn(text).await,
            Line::Compact => session.compact().await,
            Line::Pin(fact) => session.pin(fact).await,
            Line::Quit => return Ok(refused),
            Line::Wrong => Err(Failure::Line(anyhow!(
                "the commands are /compact, /pin FACT and /quit; // begins a turn with a slash"
            ))),
        };
        match done {
            Ok(()) => {}
            Err(Failure::Line(error)) => {
                refused = true;
                note(&format!("error: {error:#}"));
            }
            Err(Failure::Chat(error)) => return Err(error),
        }
    }
}

/// Reason why a line was not done.
enum Failure {
    /// The line was refused; the chat goes on.
    Line(anyhow::Error),
    /// The chat cannot go on.
    Chat(anyhow::Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let of_a_line = OF_A_LINE.contains(&status.code());
        let error = status_error(status);
        if of_a_line { Self::Line(error) } else { Self::Chat(error) }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Chat(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Chat(error.into())
    }
}

impl<'a> Session<'a> {
    async fn open(args: &'a ChatArgs) -> anyhow::Result<Self> {
        let client = SessionsClient::new(args.connection.connect().await?);
        let mut session =
            Self { args, client, id: args.session.clone().unwrap_or_default(), seen: 0, begun: args.session.is_some() };
        if args.session.is_none() {
            let request = session.request(args.session()?)?;
            session.id = session.client.create(request).await.map_err(status_error)?.into_inner().session_id;
        }
        // What happened before is no news.
        session.seen = session.get().await?.notices.last().map_or(0, |notice| notice.number);
        Ok(session)
    }

    fn request<T>(&self, message: T) -> anyhow::Result<Request<T>> {
        let mut request = Request::new(message);
        self.args.connection.authorise(&mut request)?;
        Ok(request)
    }

    async fn get(&mut self) -> anyhow::Result<proto::Session> {
        let request = self.request(proto::GetSessionRequest { session_id: self.id.clone(), without_turns: true })?;
        Ok(self.client.get(request).await.map_err(status_error)?.into_inner())
    }

    async fn turn(&mut self, line: &str) -> Result<(), Failure> {
        let args = self.args;
        let request = self.request(args.turn(self.id.clone(), line, !self.begun))?;
        let mut stream = self.client.generate(request).await?.into_inner();
        let (mut stdout, mut usage, mut ends_line) = (io::stdout(), None, true);
        while let Some(response) = stream.message().await? {
            match response.event {
                Some(Event::Chunk(chunk)) => {
                    stdout.write_all(chunk.text.as_bytes())?;
                    stdout.flush()?;
                    ends_line = chunk.text.chars().last().map_or(ends_line, |last| last == '\n');
                }
                Some(Event::Finish(finish)) if finish.reason() == proto::FinishReason::Abort => {
                    return Err(anyhow!("the turn was aborted, or the server shut down, before its end").into());
                }
                Some(Event::Finish(finish)) => usage = finish.usage,
                None => {}
            }
        }
        self.begun = true;
        if !ends_line {
            writeln!(stdout)?;
        }
        let usage: proto::Usage = usage.context("the server closed the stream before its end")?;
        note(&format!(
            "{} prompt tokens ({} cached), {} generated",
            usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        ));
        self.news().await
    }

    async fn compact(&mut self) -> Result<(), Failure> {
        let request =
            self.request(proto::CompactSessionRequest { session_id: self.id.clone(), ..Default::default() })?;
        let done = self.client.compact(request).await?.into_inner();
        match done.compacted {
            true => note(&format!("summary: {}", done.summary.trim())),
            false => note("nothing to compact"),
        }
        self.news().await
    }

    async fn pin(&mut self, fact: &str) -> Result<(), Failure> {
        let input = Some(proto::append_turn_request::Input::Text(self.args.template.fact(fact)));
        let (session_id, turn_id) = (self.id.clone(), String::new());
        let request = self.request(proto::AppendTurnRequest { session_id, turn_id, input, pin: true })?;
        let added = self.client.append(request).await?.into_inner();
        self.begun = true;
        note(&format!("{} tokens pinned", added.tokens));
        Ok(())
    }

    /// Shows the notices since the last look.
    async fn news(&mut self) -> Result<(), Failure> {
        let session = self.get().await?;
        for notice in session.notices {
            if notice.number > self.seen {
                self.seen = notice.number;
                notice.news.iter().map(news).for_each(|line| note(&line));
            }
        }
        Ok(())
    }
}

/// Returns the line for a notice.
fn news(news: &News) -> String {
    let turns = |n: u64| if n == 1 { "1 turn".into() } else { format!("{n} turns") };
    match news {
        News::Compacted(done) => format!(
            "history compacted: {} to {} tokens, {} in summary {}",
            done.before_tokens,
            done.after_tokens,
            turns(done.turns),
            done.version
        ),
        News::Failed(reason) => format!("history not compacted: {reason}"),
        News::Dropped(gone) => {
            format!("context full: {} with {} tokens dropped without a summary", turns(gone.turns), gone.tokens)
        }
        News::ForgottenTurns(n) => format!("transcript full: {} forgotten", turns(*n)),
    }
}

/// Writes a line to standard error; if that is closed, the line is lost.
fn note(line: &str) {
    let dim = io::stderr().is_terminal();
    let _ = if dim { writeln!(io::stderr(), "\x1b[2m{line}\x1b[0m") } else { writeln!(io::stderr(), "{line}") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_turn_unless_it_begins_with_one_slash() {
        assert_eq!(Line::of("  "), Line::Blank);
        assert_eq!(Line::of(" /quit"), Line::Turn(" /quit"));
        assert_eq!(Line::of("//etc is a folder"), Line::Turn("/etc is a folder"));
        assert_eq!(Line::of("/compact "), Line::Compact);
        assert_eq!(Line::of("/pin  my name is Ada "), Line::Pin("my name is Ada"));
        for wrong in ["/pin", "/pin ", "/compact now", "/foo", "/"] {
            assert_eq!(Line::of(wrong), Line::Wrong, "{wrong}");
        }
    }

    #[test]
    fn a_refused_line_does_not_end_the_chat() {
        assert!(matches!(Failure::from(Status::failed_precondition("busy")), Failure::Line(_)));
        assert!(matches!(Failure::from(Status::unavailable("draining")), Failure::Chat(_)));
        assert!(matches!(Failure::from(Status::not_found("expired")), Failure::Chat(_)));
    }

    #[test]
    fn news_are_one_line_each() {
        let done = proto::Compacted { version: 2, before_tokens: 500, after_tokens: 200, turns: 7 };
        assert_eq!(news(&News::Compacted(done)), "history compacted: 500 to 200 tokens, 7 turns in summary 2");
        assert_eq!(news(&News::Failed("time was up".into())), "history not compacted: time was up");
        let gone = proto::Dropped { turns: 1, tokens: 30 };
        assert_eq!(news(&News::Dropped(gone)), "context full: 1 turn with 30 tokens dropped without a summary");
        assert_eq!(news(&News::ForgottenTurns(3)), "transcript full: 3 turns forgotten");
    }

    #[test]
    fn turns_with_marks_follow_each_other() {
        let marks = Template::Chatml;
        let answer = "Hello.<|im_end|>";
        let turn = |line: &str| marks.turn(line, Place::default());
        let text = [marks.system("Be kind.").unwrap(), turn("Hi"), answer.into(), turn("Bye")].concat();
        let rendered = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.\
                        <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(text, rendered);
        let plain = Template::Plain.system("").unwrap() + &Template::Plain.turn("Hi", Place::default());
        assert_eq!(plain, "Hi\n");
    }
}
