//! What did the workers ask of S3 meanwhile?

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

/// For each step of asking a worker.
const DEADLINE: Duration = Duration::from_secs(5);

/// A page of metrics is some 20 kB; more than this is none.
const MAX_PAGE_BYTES: u64 = 4 << 20;

/// What workers asked of S3, or the difference of two times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Origin {
    /// Requests sent.
    pub requests: f64,
    /// Bytes of objects received.
    pub bytes: f64,
    /// Tries that failed.
    pub errors: f64,
    /// Bytes that the workers sent to readers, from S3 or from their caches.
    pub read_bytes: f64,
}

impl Origin {
    /// What came since `before`. A worker that was started again counts from 0: never less than nothing.
    pub fn since(self, before: Self) -> Self {
        let less = |now: f64, before: f64| (now - before).max(0.0);
        Self {
            requests: less(self.requests, before.requests),
            bytes: less(self.bytes, before.bytes),
            errors: less(self.errors, before.errors),
            read_bytes: less(self.read_bytes, before.read_bytes),
        }
    }
}

/// The sum over all workers, by their pages of metrics; `None` without workers.
///
/// # Errors
/// The first page that cannot be had, or is none of a worker.
pub fn read(workers: &[String]) -> anyhow::Result<Option<Origin>> {
    let mut sum = None;
    for url in workers {
        let page = page(url).with_context(|| format!("read the worker's metrics at {url:?}"))?;
        let of_worker = origin(&page);
        let of_worker = of_worker.with_context(|| {
            format!("{url:?} shows no metrics of a cache worker; give the admin port of one, such as http://HOST:7422/metrics")
        })?;
        let sum = sum.get_or_insert_with(Origin::default);
        sum.requests += of_worker.requests;
        sum.bytes += of_worker.bytes;
        sum.errors += of_worker.errors;
        sum.read_bytes += of_worker.read_bytes;
    }
    Ok(sum)
}

/// What a page says; `None` where it is none of a worker.
fn origin(page: &str) -> Option<Origin> {
    // Metrics with labels appear with their first sample, this one at once.
    sum(page, "cache_worker_origin_bytes_total").map(|bytes| Origin {
        requests: sum(page, "cache_worker_origin_requests_total").unwrap_or(0.0),
        bytes,
        errors: sum(page, "cache_worker_origin_errors_total").unwrap_or(0.0),
        read_bytes: sum(page, "cache_worker_read_bytes_total").unwrap_or(0.0),
    })
}

/// Sum of all samples of a name; `None` without any.
fn sum(page: &str, name: &str) -> Option<f64> {
    let rests = page.lines().filter_map(|line| line.strip_prefix(name));
    let values = rests
        .filter(|rest| rest.starts_with(['{', ' ']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// Asks by HTTP, without TLS, as the admin port speaks it.
fn page(url: &str) -> anyhow::Result<String> {
    let (address, path) = address_and_path(url)?;
    let mut stream = TcpStream::connect(&address).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.take(MAX_PAGE_BYTES).read_to_string(&mut text)?;
    let status = text.lines().next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "answered {status:?}");
    Ok(text)
}

/// Host and port, and the path.
fn address_and_path(url: &str) -> anyhow::Result<(String, String)> {
    ensure!(!url.starts_with("https://"), "workers have no TLS there: write http://");
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let (address, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
    let path = if path.is_empty() { "metrics" } else { path };
    ensure!(
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()),
        "no port: write http://HOST:7422/metrics"
    );
    Ok((address.to_owned(), format!("/{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    const PAGE: &str = "# HELP cache_worker_origin_bytes_total x\ncache_worker_origin_bytes_total 1000\n\
        cache_worker_origin_requests_total{operation=\"get\"} 3\ncache_worker_origin_requests_total{operation=\"list\"} 1\n\
        cache_worker_read_bytes_total{from=\"store\"} 5000\ncache_worker_read_bytes_total_other 7\n";

    #[test]
    fn samples_of_a_page_are_summed_over_labels() {
        let origin = origin(PAGE).unwrap();
        assert_eq!(origin, Origin { requests: 4.0, bytes: 1000.0, errors: 0.0, read_bytes: 5000.0 });
        let before = Origin { requests: 3.0, bytes: 2000.0, ..Origin::default() };
        assert_eq!(origin.since(before).requests, 1.0);
        assert_eq!(origin.since(before).bytes, 0.0);
        assert_eq!(super::origin("up 1\n"), None);
    }

    #[test]
    fn addresses_may_leave_away_scheme_and_path() {
        for url in ["http://h:7422/metrics", "http://h:7422", "h:7422/", "h:7422"] {
            assert_eq!(address_and_path(url).unwrap(), ("h:7422".to_owned(), "/metrics".to_owned()), "{url}");
        }
        for (url, cure) in
            [("https://h:7422", "http://"), ("http://h/metrics", "7422"), ("h", "7422"), ("", "7422")]
        {
            assert!(address_and_path(url).unwrap_err().to_string().contains(cure), "{url}");
        }
    }

    /// Answers one request with a page, and says where.
    fn serve(answer: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request =
                BufReader::new(&stream).lines().take_while(|line| line.as_ref().is_ok_and(|l| !l.is_empty()));
            assert!(request.count() >= 2);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn several_workers_are_added_up() {
        let workers = [0, 1].map(|_| serve(format!("HTTP/1.0 200 OK\r\n\r\n{PAGE}")));
        assert_eq!(read(&workers).unwrap().unwrap().bytes, 2000.0);
        assert_eq!(read(&[]).unwrap(), None);
    }

    #[test]
    fn what_is_no_worker_is_named() {
        let other = serve("HTTP/1.0 200 OK\r\n\r\nup 1\n".to_owned());
        let error = format!("{:#}", read(std::slice::from_ref(&other)).unwrap_err());
        assert!(error.contains(&other) && error.contains("7422"), "{error}");
        let missing = serve("HTTP/1.0 404 Not Found\r\n\r\n".to_owned());
        let error = format!("{:#}", read(&[missing]).unwrap_err());
        assert!(error.contains("404"), "{error}");
    }
}
