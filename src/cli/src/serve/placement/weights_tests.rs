//! `--weights stream`: a packed file damaged while the server runs is written again, and requests get the text of sound weights.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tonic::transport::Channel;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Sampling, Stopping};
use trunkline_server::{Options, Server, listen};

use crate::serve::embedded;
use crate::serve::tests::given;
use crate::settings::engines::Engines;

/// Returns the generated tokens of one request.
async fn answer(client: &mut InferenceClient<Channel>, prompt: &str) -> Vec<u32> {
    let request = GenerateRequest {
        prompt: Some(Prompt::Text(prompt.into())),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        stopping: Some(Stopping { max_tokens: Some(8), ignore_eos: true, ..Stopping::default() }),
        ..GenerateRequest::default()
    };
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut tokens = Vec::new();
    loop {
        match stream.message().await.unwrap().expect("a finish before the end").event.expect("an event") {
            Event::Chunk(chunk) => tokens.extend(chunk.token_ids),
            Event::Finish(_) => return tokens,
        }
    }
}

/// Changes a byte in every page of the groups, before the manifest.
fn flip(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut place, mut byte) = ([0; 8], [0]);
    file.read_exact_at(&mut place, 8).unwrap();
    for page in 1..u64::from_le_bytes(place) / 4096 {
        file.read_exact_at(&mut byte, page * 4096 + 17).unwrap();
        file.write_all_at(&[byte[0] ^ 1], page * 4096 + 17).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packed_file_damaged_under_a_server_is_written_again_and_requests_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let weights = format!("--weights=stream:memory_mib=2,dir={}", folder.path().display());
    let settings = given(&[&weights, "--device-blocks=64", "--threads=1"]);
    let engines = Engines::of(&settings, 1).unwrap();
    let (cores, backend) = embedded(&settings, &engines).unwrap();
    let options = Options { cluster: engines.cluster(&cores), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await.unwrap(), backend, options).await.unwrap();
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let mut client = InferenceClient::connect(address).await.unwrap();
    let prompts = ["Once upon a time", "The fox said"];
    let mut expected = Vec::new();
    for prompt in prompts {
        expected.push(answer(&mut client, prompt).await);
    }
    let packed = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&packed).unwrap();
    flip(&packed);
    for (prompt, expected) in prompts.iter().zip(expected) {
        assert_eq!(answer(&mut client, prompt).await, expected);
    }
    assert!(std::fs::read(&packed).unwrap() == sound, "the file is whole");
    drop(client);
    handle.drain().await;
    assert_eq!(serving.await.unwrap().unwrap().failure, None);
}
