//! Proofs that a field of the API has an effect, or is refused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{GenerateRequest, Output, Sampling, Stopping};
use trunkline_tests::server::TestServer;

/// Results of calls: of one without the field, of the same again, and of one with the field.
pub type Results = Pin<Box<dyn Future<Output = [String; 3]> + Send>>;

/// Change to a request.
pub type Edit = fn(&mut GenerateRequest);

/// Proof for one field.
pub enum Proof {
    /// The change alone makes another answer to the request that the first function makes.
    Changes(Edit, Edit),
    /// The change alone makes a request find something else in the cache, which the same request filled before.
    Finds(Edit, Edit),
    /// The change is refused with this line.
    Refused(Edit, &'static str),
    /// Calls with the field have other results than calls without it.
    Differs(fn(Rig) -> Results),
    /// A test elsewhere has the field, in this file under this name.
    Test(&'static str, &'static str),
}

/// Server for the proof of one field.
#[derive(Clone)]
pub struct Rig {
    pub server: Arc<TestServer>,
    /// Name of the field, which salts the cache.
    pub field: &'static str,
}

impl Rig {
    /// Returns a request with a cache of its own.
    pub fn request(&self, part: &str) -> GenerateRequest {
        GenerateRequest {
            prompt: Some(Prompt::Text("the quick brown fox".into())),
            sampling: Some(Sampling { seed: Some(5), ..Sampling::default() }),
            stopping: Some(Stopping { max_tokens: Some(12), ignore_eos: true, ..Stopping::default() }),
            output: Some(Output::default()),
            cache_salt: format!("{} {part}", self.field),
            ..GenerateRequest::default()
        }
    }

    /// Returns the answer to a request but for its id, or the status.
    pub async fn ask(&self, request: GenerateRequest) -> String {
        let answer = self.server.client().await.ask(request).await;
        match answer {
            Ok(answer) => format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                answer.token_ids,
                answer.text,
                answer.logprobs,
                answer.prompt_logprobs,
                answer.reason,
                answer.usage,
                answer.stopped_by
            ),
            Err(status) => format!("{:?} {}", status.code(), status.message()),
        }
    }

    /// Returns the number of cached tokens of a request.
    async fn cached(&self, request: GenerateRequest) -> String {
        let answer = self.server.client().await.ask(request).await.expect("an answer");
        answer.usage.cached_tokens.to_string()
    }

    async fn changes(&self, base: Edit, change: Edit) -> [String; 3] {
        let made = |part: &str| {
            let mut request = self.request(part);
            base(&mut request);
            request
        };
        let mut changed = made("changed");
        change(&mut changed);
        [self.ask(made("first")).await, self.ask(made("again")).await, self.ask(changed).await]
    }

    async fn finds(&self, base: Edit, change: Edit) -> [String; 3] {
        let mut found = Vec::new();
        for part in ["first", "again", "changed"] {
            let mut request = self.request(part);
            base(&mut request);
            self.cached(request.clone()).await;
            if part == "changed" {
                change(&mut request);
            }
            found.push(self.cached(request).await);
        }
        found.try_into().expect("three")
    }
}

impl Proof {
    /// Panics unless the proof holds.
    pub async fn check(&self, rig: Rig) {
        let field = rig.field;
        let [first, again, changed] = match self {
            Self::Changes(base, change) => rig.changes(*base, *change).await,
            Self::Finds(base, change) => rig.finds(*base, *change).await,
            Self::Differs(calls) => calls(rig).await,
            Self::Refused(change, line) => {
                let mut request = rig.request("refused");
                change(&mut request);
                assert_eq!(rig.ask(request).await, format!("InvalidArgument {line}"), "{field}");
                return;
            }
            Self::Test(file, name) => return check_test(field, file, name),
        };
        assert_eq!(first, again, "{field}: the same calls have the same result");
        assert_ne!(first, changed, "{field} has no effect");
    }
}

/// Panics unless a file has a test of this name, and names the field.
fn check_test(field: &str, file: &str, name: &str) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace");
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{field}: {file}: {error}"));
    assert!(text.contains(&format!("fn {name}(")), "{field}: {file} has no test {name}");
    let last = field.rsplit('.').next().unwrap_or_default();
    assert!(text.contains(last), "{field}: {file} does not name it");
}
