//! An S3-compatible store inside the test's process that fails on purpose.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg32;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// No answer ever.
    Silent,
    /// Status 503.
    Refused,
    /// The connection ends in the middle of the object.
    Interrupted,
    /// Half an object, as if it were all.
    Short,
    /// A bit of the object is another one.
    Flipped,
    /// The object is another one.
    Swapped,
    /// The object is not there.
    Missing,
}

const FAULTS: [AnswerFault; 7] = [
    AnswerFault::Silent,
    AnswerFault::Refused,
    AnswerFault::Interrupted,
    AnswerFault::Short,
    AnswerFault::Flipped,
    AnswerFault::Swapped,
    AnswerFault::Missing,
];

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    always: Option<AnswerFault>,
    /// Requests for each fault on average, and the source of all draws.
    mixed: Option<(u32, Pcg32)>,
    /// Answers that failed since the faults were chosen.
    failed: u64,
}

impl State {
    fn fault(&mut self) -> Option<AnswerFault> {
        let draw = |(one_in, random): &mut (u32, Pcg32)| {
            (random.random_range(0..*one_in) == 0).then(|| FAULTS[random.random_range(0..FAULTS.len())])
        };
        let fault = self.always.or_else(|| self.mixed.as_mut().and_then(draw));
        self.failed += u64::from(fault.is_some());
        fault
    }
}

/// Server of objects by path, of one bucket. Stops with the runtime.
#[derive(Clone, Debug)]
pub struct ObjectServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// Request of a client.
struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
}

impl ObjectServer {
    /// Starts an empty store on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let state = State { objects: BTreeMap::new(), always: None, mixed: None, failed: 0 };
        let server = Self { address, state: Arc::new(Mutex::new(state)) };
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                // A client that hangs up needs no answer.
                tokio::spawn(async move { drop(server.serve(stream).await) });
            }
        });
        server
    }

    /// Returns the address of a remote tier in this store.
    pub fn url(&self) -> String {
        format!("s3://bucket/prefix?endpoint=http://{}&region=here&skip_signature=true", self.address)
    }

    /// Makes every answer fail, or none.
    pub fn set(&self, fault: Option<AnswerFault>) {
        let mut state = self.state();
        (state.always, state.mixed, state.failed) = (fault, None, 0);
    }

    /// Makes one answer in `one_in` fail.
    pub fn set_mixed(&self, one_in: u32, seed: u64) {
        let mut state = self.state();
        (state.always, state.mixed, state.failed) = (None, Some((one_in, Pcg32::seed_from_u64(seed))), 0);
    }

    /// Returns the number of objects held.
    pub fn objects(&self) -> usize {
        self.state().objects.len()
    }

    /// Returns the number of answers that failed since the faults were chosen.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read(&mut stream).await? {
            let fault = self.state().fault();
            if fault == Some(AnswerFault::Silent) {
                return std::future::pending().await;
            }
            let (status, body) = self.answer(&request, fault);
            let mut answer = format!(
                "HTTP/1.1 {status} -\r\ncontent-length: {}\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: \"1\"\r\n\r\n",
                body.len()
            )
            .into_bytes();
            if request.method != "HEAD" {
                answer.extend(&body);
            }
            if fault == Some(AnswerFault::Interrupted) {
                answer.truncate(answer.len() - body.len() / 2 - 1);
                stream.write_all(&answer).await?;
                return stream.shutdown().await;
            }
            stream.write_all(&answer).await?;
        }
        Ok(())
    }

    /// Returns status and body of the answer.
    fn answer(&self, request: &Request, fault: Option<AnswerFault>) -> (u16, Vec<u8>) {
        let mut state = self.state();
        if fault == Some(AnswerFault::Refused) {
            return (503, Vec::new());
        }
        if request.method == "PUT" {
            state.objects.insert(request.path.clone(), request.body.clone());
            return (200, Vec::new());
        }
        let found = state.objects.get(&request.path).filter(|_| fault != Some(AnswerFault::Missing));
        let Some(mut object) = found.cloned() else { return (404, Vec::new()) };
        match fault {
            Some(AnswerFault::Short) => object.truncate(object.len() / 2),
            Some(AnswerFault::Flipped) => {
                let middle = object.len() / 2;
                object[middle] ^= 1;
            }
            Some(AnswerFault::Swapped) => {
                let of_block = |path: &&String| **path != request.path && !path.contains("/tables/");
                let other = state.objects.keys().find(of_block).and_then(|path| state.objects.get(path));
                object = other.cloned().unwrap_or_default();
            }
            _ => {}
        }
        (200, object)
    }
}

/// Reads a request; nothing at the end of the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await?;
        match header.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { method, path, body }))
}
