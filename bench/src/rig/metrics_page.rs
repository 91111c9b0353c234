//! What does a process count, by its admin port?

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

/// For the whole answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// The page of metrics of the process whose admin port is at `address`.
///
/// # Errors
/// Where it cannot be had.
pub fn fetch(address: &str) -> Result<String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    get().with_context(|| format!("fetch the metrics at {address}"))
}

/// Sum of all samples of one name whose labels contain `label`; 0 where there is none.
pub fn sum(page: &str, name: &str, label: &str) -> f64 {
    let samples = page.lines().filter_map(|line| line.strip_prefix(name));
    let samples = samples.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let page = "# HELP a b\na{from=\"hit\"} 3\na{from=\"miss\"} 4\nab 5\na_total 6\n";
        assert_eq!(sum(page, "a", ""), 7.0);
        assert_eq!(sum(page, "a", "from=\"miss\""), 4.0);
        assert_eq!(sum(page, "ab", ""), 5.0);
        assert_eq!(sum(page, "none", ""), 0.0);
    }
}
