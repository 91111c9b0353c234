//! What does one mount process say of itself, within a deadline?

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prometheus::proto::MetricFamily;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::text::{ParseText, parse};

/// How long a process has. One that is well answers within milliseconds; a scraper waits 10 s by default.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// Longest answer: a hundred times what a mount process has to say.
const MAX_BYTES: u64 = 1 << 20;

/// Why a process said nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadMetrics {
    /// It gave no answer in time.
    #[error("no answer within {DEADLINE:?}")]
    Silent,
    /// It is not there, or went away.
    #[error("ask the admin port {address}")]
    Connection {
        /// Its admin port.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// It answered something else than metrics.
    #[error("the admin port {address} answers no metrics")]
    Answer {
        /// Its admin port.
        address: SocketAddr,
    },
    /// The metrics are of another form.
    #[error("metrics of admin port {address}")]
    Parse {
        /// Its admin port.
        address: SocketAddr,
        /// What is wrong.
        source: ParseText,
    },
}

/// Asks the admin port of a mount process for its metrics. Cancel safe.
///
/// # Errors
/// [`ReadMetrics`].
pub async fn read(address: SocketAddr) -> Result<Vec<MetricFamily>, ReadMetrics> {
    let answer = tokio::time::timeout(DEADLINE, ask(address)).await.map_err(|_| ReadMetrics::Silent)?;
    let answer = answer.map_err(|source| ReadMetrics::Connection { address, source })?;
    let body = body(&answer).ok_or(ReadMetrics::Answer { address })?;
    parse(body, is_its_own).map_err(|source| ReadMetrics::Parse { address, source })
}

/// What differs from process to process. The cgroup and the build are those of the driver, which shows them itself.
fn is_its_own(name: &str) -> bool {
    name.starts_with("csi_driver_") || name.starts_with("process_")
}

async fn ask(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    // By version 1.0 the answer is whole and ends with the connection.
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The body of an answer that is whole and good.
fn body(answer: &[u8]) -> Option<&str> {
    let (head, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let is_good = lines.next()?.split(' ').nth(1) == Some("200");
    let length = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    };
    let is_whole = lines.find_map(length).is_none_or(|length| length == body.len());
    (is_good && is_whole).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_and_good_answers_count() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\na\n"), Some("a\n"));
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n\r\na\n"), Some("a\n"));
        assert_eq!(body(b"HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\na\n"), None, "cut off");
        assert_eq!(body(b"HTTP/1.0 500 No\r\n\r\na\n"), None);
        assert_eq!(body(b"HTTP/1.0 200 OK"), None);
    }

    #[tokio::test]
    async fn one_that_accepts_and_says_nothing_costs_the_deadline() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let started = std::time::Instant::now();
        let said = read(address).await.unwrap_err();
        assert!(matches!(said, ReadMetrics::Silent), "{said:?}");
        assert!(started.elapsed() < DEADLINE * 3);
        drop(listener);
        assert!(matches!(read(address).await.unwrap_err(), ReadMetrics::Connection { .. }));
    }
}
