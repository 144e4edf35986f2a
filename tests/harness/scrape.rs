//! A scraper: fetches metrics as a monitoring system does, and reads the text.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The metrics of a server at one moment.
#[derive(Clone, Debug, Default)]
pub struct Scraped {
    /// Values by name and labels, as in `name{engine="0"}`.
    pub samples: BTreeMap<String, f64>,
    /// Types of the metrics by name, as the text has them.
    pub types: BTreeMap<String, String>,
}

/// Sends one request and reads the answer to the end of the connection; returns the head and the body.
pub async fn fetch(addr: SocketAddr, line: &str, accept: &str) -> (String, String) {
    let mut socket = TcpStream::connect(addr).await.expect("the metrics are served");
    let request = format!("{line} HTTP/1.1\r\nHost: {addr}\r\nAccept: {accept}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("the request is taken");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("the answer is text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// Fetches the metrics of a server in Prometheus text.
pub async fn scrape(addr: SocketAddr) -> Scraped {
    let (head, body) = fetch(addr, "GET /metrics", "text/plain").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Scraped::read(&body)
}

impl Scraped {
    /// Reads text of either format.
    pub fn read(text: &str) -> Self {
        let mut scraped = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a type");
                let before = scraped.types.insert(name.into(), kind.into());
                assert_eq!(before, None, "{name} has one type");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                let value = value.parse().expect("a number");
                let before = scraped.samples.insert(name.into(), value);
                assert_eq!(before, None, "{name} has one value");
            }
        }
        scraped
    }

    /// Returns the name of each sample, without labels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.samples.keys().filter_map(|sample| sample.split('{').next())
    }

    /// Returns a value; the sample MUST be there.
    pub fn value(&self, name: &str) -> f64 {
        *self.samples.get(name).unwrap_or_else(|| panic!("{name} is missing among {:?}", self.samples.keys()))
    }

    /// Returns the sum of the values of a metric over all its labels.
    pub fn sum(&self, name: &str) -> f64 {
        let of = |sample: &str| sample.split('{').next() == Some(name);
        self.samples.iter().filter(|(sample, _)| of(sample)).map(|(_, value)| value).sum()
    }

    /// Returns the samples of counters and histograms, which never fall.
    pub fn rising(&self) -> impl Iterator<Item = (&str, f64)> {
        let rises = |sample: &str| {
            let name = sample.split('{').next().unwrap_or_default();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let kind = |name: &str| self.types.get(name).map(String::as_str);
            kind(name) == Some("counter") || kind(base) == Some("histogram")
        };
        self.samples.iter().filter(move |(sample, _)| rises(sample)).map(|(sample, value)| (&sample[..], *value))
    }
}
