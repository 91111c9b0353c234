//! What does a process count?

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The metrics of a process at one moment.
#[derive(Debug, Clone)]
pub struct Metrics(String);

/// Asks an admin port for the metrics.
pub fn metrics(address: &str) -> Metrics {
    Metrics(get(address, "/metrics"))
}

/// Asks an admin port for a page; the answer with its head.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

impl Metrics {
    /// Sum of the samples of one name whose labels contain `label`; fails where the metric is not there at all.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        assert!(self.0.contains(name), "no metric {name} in {}", self.0);
        let samples = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let samples = samples.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
        samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}
